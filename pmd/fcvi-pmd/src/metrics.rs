//! The Prometheus endpoint: a minimal HTTP/1.1 server in a dedicated thread.
//!
//! One request per connection, with limits on everything: the connection of a client that is slow or sends too much is
//! closed; it delays neither other clients nor the data path.

use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::{Error, prometheus};

/// Maximum length of a request head.
const MAX_HEAD_BYTES: usize = 8192;
/// Maximum number of header lines of a request.
const MAX_HEADERS: usize = 64;
/// Maximum number of connections; the oldest is closed for a new one.
const MAX_CONNECTIONS: usize = 16;
/// Delay after a failed accept.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Maximum duration of a connection.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A running endpoint; stopped on drop.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    /// Closed to end the thread.
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// The address at which it listens.
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
            log::error!("metrics: endpoint panicked");
        }
    }
}

/// Serves the text of `source` ([`prometheus::text`]) at `/metrics`, until the returned [`Server`] is dropped. An error
/// of `source` is sent to the client with status 503.
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
    // Oldest first.
    let mut connections: Vec<Connection> = Vec::with_capacity(MAX_CONNECTIONS);
    // Set after a failed accept.
    let mut retry_at: Option<Instant> = None;
    loop {
        let (stop, incoming) = match wait(listener, stopped, &mut connections, retry_at) {
            Ok(ready) => ready,
            Err(error) => {
                log::error!("metrics: endpoint stopped: {error}");
                return;
            }
        };
        if stop {
            return;
        }
        let now = Instant::now();
        connections.retain_mut(|connection| {
            let is_open = !connection.ready || connection.advance(source).unwrap_or(false);
            is_open && now < connection.deadline
        });
        let is_due = retry_at.is_none_or(|at| at <= now);
        if !incoming || !is_due {
            continue;
        }
        match listener
            .accept()
            .and_then(|(stream, _)| Connection::new(stream))
        {
            Ok(connection) => {
                retry_at = None;
                if connections.len() == MAX_CONNECTIONS {
                    connections.remove(0);
                }
                connections.push(connection);
            }
            // The client has closed the connection already.
            Err(error) if is_retryable(&error) || error.kind() == ErrorKind::ConnectionAborted => {}
            // Out of descriptors: the client still waits, and an immediate retry would loop.
            Err(error) => {
                if retry_at.is_none() {
                    log::warn!("metrics: accept failed: {error}");
                }
                retry_at = Some(now + ACCEPT_RETRY);
            }
        }
    }
}

/// Waits for an event, and marks the connections that are ready. Returns whether the server is to stop, and whether a
/// client may be waiting.
fn wait(
    listener: &TcpListener,
    stopped: &PipeReader,
    connections: &mut [Connection],
    retry_at: Option<Instant>,
) -> io::Result<(bool, bool)> {
    let deadlines = connections.iter().map(|connection| connection.deadline);
    let limit = match deadlines.chain(retry_at).min() {
        None => PollTimeout::NONE,
        // Rounded up, so that it does not expire early.
        Some(at) => {
            let left = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
        }
    };
    let accepts = match retry_at {
        None => PollFlags::POLLIN,
        Some(_) => PollFlags::empty(),
    };
    let mut fds = vec![
        PollFd::new(stopped.as_fd(), PollFlags::POLLIN),
        PollFd::new(listener.as_fd(), accepts),
    ];
    let wanted = connections.iter();
    fds.extend(wanted.map(|connection| PollFd::new(connection.stream.as_fd(), connection.flags())));
    match poll(&mut fds, limit) {
        Ok(_) => {}
        Err(nix::Error::EINTR) => return Ok((false, false)),
        Err(error) => return Err(error.into()),
    }
    let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(true)).collect();
    drop(fds);
    for (connection, ready) in connections.iter_mut().zip(ready.iter().skip(2)) {
        connection.ready = *ready;
    }
    let is_ready = |at: usize| ready.get(at).copied().unwrap_or(true);
    // The write end of the pipe was closed.
    Ok((is_ready(0), retry_at.is_some() || is_ready(1)))
}

/// The response to a request.
struct Response {
    status: &'static str,
    /// An additional header line.
    header: &'static str,
    content_type: &'static str,
    body: String,
    /// The client may still be sending: its data is read, so that the close does not discard the response.
    lingers: bool,
}

impl Response {
    fn bytes(&self, has_body: bool) -> Vec<u8> {
        let mut text = format!(
            "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n{}\r\n",
            self.status,
            self.content_type,
            self.body.len(),
            self.header,
        );
        if has_body {
            text.push_str(&self.body);
        }
        text.into_bytes()
    }
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

/// The state of a connection.
enum Step {
    /// The part of the head received so far.
    Request(Vec<u8>),
    /// The response, the number of bytes sent, and whether the client may still be sending.
    Response {
        bytes: Vec<u8>,
        sent: usize,
        lingers: bool,
    },
    /// The response is sent; further data is discarded.
    Lingering,
}

/// A connection of a client.
struct Connection {
    stream: TcpStream,
    deadline: Instant,
    /// The socket can be read or written.
    ready: bool,
    step: Step,
}

impl Connection {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            deadline: Instant::now() + TIMEOUT,
            ready: false,
            step: Step::Request(Vec::with_capacity(1024)),
        })
    }

    fn flags(&self) -> PollFlags {
        match self.step {
            Step::Request(_) | Step::Lingering => PollFlags::POLLIN,
            Step::Response { .. } => PollFlags::POLLOUT,
        }
    }

    /// Reads or writes once. False if the connection is to be closed.
    fn advance(&mut self, source: &impl Fn() -> Result<String, Error>) -> io::Result<bool> {
        match self.once(source) {
            Err(error) if is_retryable(&error) => Ok(true),
            outcome => outcome,
        }
    }

    fn once(&mut self, source: &impl Fn() -> Result<String, Error>) -> io::Result<bool> {
        let mut chunk = [0; 1024];
        match &mut self.step {
            Step::Request(head) => {
                let count = self.stream.read(&mut chunk)?;
                head.extend_from_slice(chunk.get(..count).unwrap_or_default());
                let (response, has_body) = match respond(head, source) {
                    Some(response) => response,
                    None if count == 0 => return Ok(false),
                    None if head.len() > MAX_HEAD_BYTES => {
                        let text = "request too long\n";
                        let mut response = refusal("431 Request Header Fields Too Large", text);
                        response.lingers = true;
                        (response, true)
                    }
                    None => return Ok(true),
                };
                self.step = Step::Response {
                    lingers: response.lingers,
                    bytes: response.bytes(has_body),
                    sent: 0,
                };
                Ok(true)
            }
            Step::Response {
                bytes,
                sent,
                lingers,
            } => {
                *sent += self.stream.write(bytes.get(*sent..).unwrap_or_default())?;
                if *sent < bytes.len() {
                    return Ok(true);
                }
                self.stream.shutdown(std::net::Shutdown::Write)?;
                let lingers = *lingers;
                self.step = Step::Lingering;
                Ok(lingers)
            }
            Step::Lingering => Ok(self.stream.read(&mut chunk)? > 0),
        }
    }
}

fn is_retryable(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Returns the response to a request, and whether its body is sent; `None` while the request is incomplete.
fn respond(head: &[u8], source: &impl Fn() -> Result<String, Error>) -> Option<(Response, bool)> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Partial) => return None,
        Err(error) => {
            let text = format!("invalid request: {error}\n");
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
        refusal("404 Not Found", "only /metrics exists\n")
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

    fn send_request(server: &Server, request: &str) -> String {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    }

    #[test]
    fn only_metrics_are_served() {
        let server = server(|| Ok("viaduct_applications 0\n".into()));
        for request in [
            "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET /metrics?a=b HTTP/1.0\r\n\r\n",
        ] {
            let response = send_request(&server, request);
            let expected = "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
                            Content-Length: 23\r\nConnection: close\r\n\r\nviaduct_applications 0\n";
            assert_eq!(response, expected);
        }
        let head = send_request(&server, "HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(
            head.contains("Content-Length: 23\r\n") && head.ends_with("\r\n\r\n"),
            "{head}"
        );
        for (request, status) in [
            ("GET / HTTP/1.1\r\n\r\n", "404 "),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405 "),
            ("\u{1}\u{2}\r\n\r\n", "400 "),
        ] {
            let response = send_request(&server, request);
            assert!(
                response.starts_with(&format!("HTTP/1.1 {status}")),
                "{response}"
            );
        }
    }

    #[test]
    fn request_may_arrive_in_pieces_but_is_limited_in_length() {
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
        let response = send_request(&server, &long);
        assert!(response.starts_with("HTTP/1.1 431 "), "{response}");
    }

    #[test]
    fn error_of_the_source_is_status_503() {
        let server = server(|| Err(Error::Failed("VINIC0".into())));
        let response = send_request(&server, "GET /metrics HTTP/1.1\r\n\r\n");
        assert!(
            response.starts_with("HTTP/1.1 503 ") && response.contains("VINIC0"),
            "{response}"
        );
    }

    #[test]
    fn server_stops_while_a_client_sends_nothing() {
        let server = server(|| Ok(String::new()));
        let mut silent = TcpStream::connect(server.address()).unwrap();
        drop(server);
        // Whether the client was accepted before or not, its connection is closed now.
        let outcome = silent.read(&mut [0; 16]);
        assert!(matches!(outcome, Ok(0) | Err(_)), "{outcome:?}");
    }

    /// Sends a request and reads the beginning of the response.
    fn begin_large(server: &Server) -> TcpStream {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        stream.read_exact(&mut [0; 9]).unwrap();
        stream
    }

    /// More than the buffers of a connection hold.
    const LARGE_BYTES: usize = 8 << 20;

    #[test]
    fn slow_reader_delays_no_other_client() {
        let server = server(|| Ok("x".repeat(LARGE_BYTES)));
        let mut slow = begin_large(&server);
        for _ in 0..3 {
            let response = send_request(&server, "HEAD /metrics HTTP/1.1\r\n\r\n");
            assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
        }
        // It is still being served: the others did not wait for it.
        let mut rest = Vec::new();
        slow.read_to_end(&mut rest).unwrap();
        assert!(rest.len() > LARGE_BYTES, "{}", rest.len());
    }

    #[test]
    fn connections_are_bounded_and_the_oldest_is_closed() {
        let server = server(|| Ok("x".repeat(LARGE_BYTES)));
        let mut slow: Vec<_> = (0..MAX_CONNECTIONS).map(|_| begin_large(&server)).collect();
        let response = send_request(&server, "HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
        let mut rest = Vec::new();
        let ended = slow[0].read_to_end(&mut rest);
        assert!(ended.is_err() || rest.len() < LARGE_BYTES, "{}", rest.len());
        rest.clear();
        slow[1].read_to_end(&mut rest).unwrap();
        assert!(rest.len() > LARGE_BYTES, "{}", rest.len());
    }
}
