//! The Prometheus endpoint: a little of HTTP/1.1, in a thread of its own.
//!
//! One connection at a time, one request on each, and bounds on everything: a client that is slow or talks too much
//! loses its connection, and the data path hears nothing of it.

use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::{Error, prometheus};

/// The longest head of a request.
const MAX_HEAD_BYTES: usize = 8192;
/// Header lines of a request.
const MAX_HEADERS: usize = 64;
/// What stands in the way of a connection is given so long to pass.
const PAUSE: Duration = Duration::from_millis(100);
/// A connection has so long, from its beginning to its end.
const PATIENCE: Duration = Duration::from_secs(5);

/// The endpoint while it runs; dropping it ends it.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    /// Closed to end the thread.
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            eprintln!("fcvi-pmd: the metrics endpoint panicked");
        }
    }
}

/// Serves what `source` gives, the text of [`prometheus::text`], at `/metrics`, until the returned [`Server`] is
/// dropped. An error of `source` is told to the client as 503.
///
/// # Errors
/// Those of the listener, of a pipe or of a thread.
pub fn serve(
    listener: TcpListener,
    source: impl Fn() -> Result<String, Error> + Send + 'static,
) -> io::Result<Server> {
    let address = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    let (stopped, stop) = io::pipe()?;
    let thread = thread::Builder::new()
        .name("metrics".into())
        .spawn(move || run(&listener, &stopped, &source))?;
    Ok(Server {
        address,
        stop: Some(stop),
        thread: Some(thread),
    })
}

fn run(listener: &TcpListener, stopped: &PipeReader, source: &impl Fn() -> Result<String, Error>) {
    let mut is_failing = false;
    loop {
        match wait(stopped, listener, PollFlags::POLLIN, None) {
            Ok(Wake::Ready) => {}
            Ok(Wake::Stop | Wake::Late) => return,
            Err(error) => {
                log::error!("the metrics endpoint ends: {error}");
                return;
            }
        }
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            // A client that is gone already, and one that goes meanwhile, are no errors of ours.
            Err(error) if is_early(&error) || error.kind() == ErrorKind::ConnectionAborted => {
                continue;
            }
            // Out of descriptors: the client still waits, and looking at once would find it for ever.
            Err(error) => {
                if !is_failing {
                    log::warn!("the metrics endpoint lets nobody in: {error}");
                }
                is_failing = true;
                match pause(stopped, PAUSE) {
                    Ok(Wake::Late) => continue,
                    Ok(Wake::Ready | Wake::Stop) | Err(_) => return,
                }
            }
        };
        is_failing = false;
        let mut connection = Connection {
            stream,
            stopped,
            deadline: Instant::now() + PATIENCE,
        };
        let _ = connection.serve(source);
    }
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wake {
    Ready,
    Stop,
    Late,
}

/// Waits until `fd` is ready, the server is to end, or `deadline` is over.
fn wait(
    stopped: &PipeReader,
    fd: &impl AsFd,
    flags: PollFlags,
    deadline: Option<Instant>,
) -> io::Result<Wake> {
    loop {
        let limit = match deadline {
            None => PollTimeout::NONE,
            Some(at) => {
                let left = at.saturating_duration_since(Instant::now());
                PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
            }
        };
        let mut fds = [
            PollFd::new(stopped.as_fd(), PollFlags::POLLIN),
            PollFd::new(fd.as_fd(), flags),
        ];
        match poll(&mut fds, limit) {
            Ok(0) => return Ok(Wake::Late),
            Ok(_) => {}
            Err(nix::Error::EINTR) => continue,
            Err(error) => return Err(error.into()),
        }
        // The other end of the pipe was closed.
        let [stop, _] = fds;
        let is_over = stop.any().unwrap_or(true);
        return Ok(if is_over { Wake::Stop } else { Wake::Ready });
    }
}

/// Waits for so long, or until the server is to end.
fn pause(stopped: &PipeReader, time: Duration) -> io::Result<Wake> {
    let deadline = Some(Instant::now() + time);
    wait(stopped, stopped, PollFlags::empty(), deadline)
}

/// What a request is answered with.
struct Response {
    status: &'static str,
    /// Beside those that every response has.
    header: &'static str,
    content_type: &'static str,
    body: String,
    /// The client may still be speaking: what it says is read, so that closing does not take the response from it.
    lingers: bool,
}

const PLAIN: &str = "text/plain; charset=utf-8";

fn refusal(status: &'static str, body: &str) -> Response {
    Response {
        status,
        header: "",
        content_type: PLAIN,
        body: body.to_owned(),
        lingers: false,
    }
}

/// A client.
struct Connection<'a> {
    stream: TcpStream,
    stopped: &'a PipeReader,
    deadline: Instant,
}

impl Connection<'_> {
    fn serve(&mut self, source: &impl Fn() -> Result<String, Error>) -> io::Result<()> {
        self.stream.set_nonblocking(true)?;
        let mut head = Vec::with_capacity(1024);
        let (response, has_body) = loop {
            let mut chunk = [0; 1024];
            let count = self.read(&mut chunk)?;
            head.extend_from_slice(chunk.get(..count).unwrap_or_default());
            match answer(&head, source) {
                Some(answer) => break answer,
                None if count == 0 => return Err(ErrorKind::UnexpectedEof.into()),
                None if head.len() > MAX_HEAD_BYTES => {
                    let text = "the request is too long\n";
                    let mut response = refusal("431 Request Header Fields Too Large", text);
                    response.lingers = true;
                    break (response, true);
                }
                None => {}
            }
        };
        let mut bytes = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n{}\r\n",
            response.status,
            response.content_type,
            response.body.len(),
            response.header,
        );
        if has_body {
            bytes.push_str(&response.body);
        }
        self.write(bytes.as_bytes())?;
        self.stream.shutdown(std::net::Shutdown::Write)?;
        while response.lingers && self.read(&mut [0; 1024])? > 0 {}
        Ok(())
    }

    fn ready(&self, flags: PollFlags) -> io::Result<()> {
        match wait(self.stopped, &self.stream, flags, Some(self.deadline))? {
            Wake::Ready => Ok(()),
            Wake::Stop | Wake::Late => Err(ErrorKind::TimedOut.into()),
        }
    }

    fn read(&mut self, chunk: &mut [u8]) -> io::Result<usize> {
        loop {
            self.ready(PollFlags::POLLIN)?;
            match self.stream.read(chunk) {
                Err(error) if is_early(&error) => {}
                outcome => return outcome,
            }
        }
    }

    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.ready(PollFlags::POLLOUT)?;
            match self.stream.write(bytes) {
                Err(error) if is_early(&error) => {}
                Err(error) => return Err(error),
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            }
        }
        Ok(())
    }
}

fn is_early(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// The answer to a request, and whether its body is sent; `None` as long as the request is not whole.
fn answer(head: &[u8], source: &impl Fn() -> Result<String, Error>) -> Option<(Response, bool)> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Partial) => return None,
        Err(error) => {
            let text = format!("not a request: {error}\n");
            let mut response = refusal("400 Bad Request", &text);
            response.lingers = true;
            return Some((response, true));
        }
        Ok(httparse::Status::Complete(_)) => {}
    }
    let (method, path) = (
        request.method.unwrap_or_default(),
        request.path.unwrap_or_default(),
    );
    let has_body = match method {
        "GET" => true,
        "HEAD" => false,
        _ => {
            let mut response = refusal("405 Method Not Allowed", "only GET and HEAD\n");
            response.header = "Allow: GET, HEAD\r\n";
            response.lingers = true;
            return Some((response, true));
        }
    };
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    let response = if path != "/metrics" {
        refusal("404 Not Found", "there is only /metrics\n")
    } else {
        match source() {
            Ok(body) => Response {
                status: "200 OK",
                header: "",
                content_type: prometheus::CONTENT_TYPE,
                body,
                lingers: false,
            },
            Err(error) => refusal("503 Service Unavailable", &format!("{error}\n")),
        }
    };
    Some((response, has_body))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(source: impl Fn() -> Result<String, Error> + Send + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        serve(listener, source).unwrap()
    }

    fn ask(server: &Server, request: &str) -> String {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    }

    #[test]
    fn metrics_are_served_and_nothing_else() {
        let server = server(|| Ok("viaduct_applications 0\n".into()));
        for request in [
            "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET /metrics?a=b HTTP/1.0\r\n\r\n",
        ] {
            let response = ask(&server, request);
            let expected = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
                            Content-Length: 23\r\nConnection: close\r\n\r\nviaduct_applications 0\n";
            assert_eq!(response, expected);
        }
        let head = ask(&server, "HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(
            head.contains("Content-Length: 23\r\n") && head.ends_with("\r\n\r\n"),
            "{head}"
        );
        for (request, status) in [
            ("GET / HTTP/1.1\r\n\r\n", "404 "),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405 "),
            ("\u{1}\u{2}\r\n\r\n", "400 "),
        ] {
            let response = ask(&server, request);
            assert!(
                response.starts_with(&format!("HTTP/1.1 {status}")),
                "{response}"
            );
        }
    }

    #[test]
    fn a_request_may_come_in_pieces_and_must_not_be_endless() {
        let server = server(|| Ok("x 1\n".into()));
        let mut slow = TcpStream::connect(server.address()).unwrap();
        for piece in ["GET /me", "trics HTTP/1.1\r\n", "Host: x\r\n", "\r\n"] {
            slow.write_all(piece.as_bytes()).unwrap();
            slow.flush().unwrap();
        }
        let mut response = String::new();
        slow.read_to_string(&mut response).unwrap();
        assert!(response.ends_with("\r\n\r\nx 1\n"), "{response}");
        let long = format!(
            "GET /metrics HTTP/1.1\r\nX: {}",
            "y".repeat(2 * MAX_HEAD_BYTES)
        );
        let response = ask(&server, &long);
        assert!(response.starts_with("HTTP/1.1 431 "), "{response}");
    }

    #[test]
    fn a_source_that_fails_is_told() {
        let server = server(|| Err(Error::Failed("VINIC0".into())));
        let response = ask(&server, "GET /metrics HTTP/1.1\r\n\r\n");
        assert!(
            response.starts_with("HTTP/1.1 503 ") && response.contains("VINIC0"),
            "{response}"
        );
    }

    #[test]
    fn it_ends_beside_a_client_that_says_nothing() {
        let server = server(|| Ok(String::new()));
        let mut silent = TcpStream::connect(server.address()).unwrap();
        let begun = Instant::now();
        drop(server);
        assert!(begun.elapsed() < PATIENCE, "it did not wait for the client");
        // Whether the client was let in before, its connection is over now.
        let outcome = silent.read(&mut [0; 16]);
        assert!(matches!(outcome, Ok(0) | Err(_)), "{outcome:?}");
    }

    #[test]
    fn a_pause_ends_by_itself_and_with_the_server() {
        let (stopped, stop) = io::pipe().unwrap();
        let short = pause(&stopped, Duration::from_millis(1)).unwrap();
        assert_eq!(short, Wake::Late);
        drop(stop);
        assert_eq!(pause(&stopped, PATIENCE).unwrap(), Wake::Stop);
    }
}
