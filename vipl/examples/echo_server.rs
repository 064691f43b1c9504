//! Sends every message back to the client it came from, from the memory that it arrived in.
//!
//! A thread listens for clients. The receive queues of all clients report to one completion queue, on which the main
//! thread waits; sends are collected from the client's own send queue. A client that goes away or breaks the rules loses
//! its connection, and the others notice nothing. Works with the C and the Rust `EchoClient` alike:
//!
//! ```text
//! cargo run --release -p vipl --example echo_server
//! cargo run --release -p vipl --example echo_client -- localhost
//! ```

#[path = "common/arguments.rs"]
mod arguments;
mod common;

use std::collections::HashMap;
use std::error::Error;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arguments::arguments;
use common::{complain, end, print};
use vipl::{
    Completed, CompletionQueue, ConnectionRequest, ErrorCode, NetAddress, Nic, Ptag,
    ReliabilityLevel, Timeout, Vi, ViHandle, VipError,
};

const USAGE: &str =
    "usage: echo_server [-d DEVICE] [-n DISCRIMINATOR] [-c CLIENTS] [-m MAX] [-r FILE]
  -d DEVICE         the NIC to open (default VINIC0)
  -n DISCRIMINATOR  the name clients ask for (default viaduct-echo)
  -c CLIENTS        exit after serving this many clients (default: run on)
  -m MAX            clients connected at a time (default 32)
  -r FILE           create FILE when listening";

/// Receives that each client may have outstanding: it may send so many messages before it has an echo.
const RECEIVES_PER_CLIENT: usize = 4;
/// How often the threads look whether they are to end.
const LOOK_UP: Timeout = Timeout::After(Duration::from_millis(250));
/// A send that takes longer is given up with its client.
const SEND_PATIENCE: Duration = Duration::from_secs(5);

struct Options {
    device: String,
    discriminator: String,
    clients_to_serve: Option<u64>,
    max_clients: usize,
    ready_file: Option<String>,
}

impl Options {
    fn parse() -> Result<Self, String> {
        let mut options = Self {
            device: "VINIC0".to_owned(),
            discriminator: "viaduct-echo".to_owned(),
            clients_to_serve: None,
            max_clients: 32,
            ready_file: None,
        };
        let mut words = arguments()?;
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} wants a value"));
            match word.as_str() {
                "-d" => options.device = value()?,
                "-n" => options.discriminator = value()?,
                "-c" => options.clients_to_serve = Some(number(&value()?)?),
                "-m" => options.max_clients = number(&value()?)?,
                "-r" => options.ready_file = Some(value()?),
                _ => return Err(format!("{word:?} is not known")),
            }
        }
        Ok(options)
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is not a number"))
}

struct Client {
    vi: Arc<Vi>,
    number: u64,
    messages: u64,
    bytes: u64,
}

impl Client {
    /// Collects what the completion queue has announced. `false` when the client is of no more use.
    fn serve(&mut self) -> Result<bool, VipError> {
        match self.vi.recv_done() {
            // The entry of a descriptor that was collected together with an earlier one.
            Ok(None) | Err(VipError::NotDone) => Ok(true),
            Ok(Some(arrived)) if arrived.status.is_ok() => self.echo(arrived),
            Ok(Some(arrived)) if arrived.status.is_flushed() => Ok(false),
            Ok(Some(arrived)) => {
                complain(format_args!(
                    "echo_server: client {}: receive: {}",
                    self.number, arrived.status
                ));
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn echo(&mut self, arrived: Completed) -> Result<bool, VipError> {
        let length_bytes = arrived.length_bytes();
        let immediate = arrived.immediate();
        let mut descriptor = arrived.descriptor;
        descriptor.set_used_bytes(0, length_bytes);
        descriptor.set_immediate(immediate);
        self.vi.post_send(descriptor)?;
        let deadline = Instant::now() + SEND_PATIENCE;
        let sent = loop {
            match self.vi.send_done() {
                Err(VipError::NotDone) if Instant::now() < deadline => std::hint::spin_loop(),
                Err(error) => return Err(error),
                Ok(None) => return Ok(false),
                Ok(Some(sent)) => break sent,
            }
        };
        if !sent.status.is_ok() {
            return Ok(false);
        }
        self.messages += 1;
        self.bytes += length_bytes as u64;
        let mut descriptor = sent.descriptor;
        let buffer_bytes = descriptor.buffer(0).len();
        descriptor.set_used_bytes(0, buffer_bytes);
        self.vi.post_recv(descriptor)?;
        Ok(true)
    }
}

struct Server {
    nic: Nic,
    ptag: Ptag,
    cq: CompletionQueue,
    address: NetAddress,
    options: Options,
    clients: Mutex<HashMap<ViHandle, Client>>,
    stopping: Mutex<bool>,
}

impl Server {
    fn start(options: Options) -> Result<Self, VipError> {
        let nic = Nic::open(&options.device)?;
        nic.set_error_handler(|error| {
            // A lost connection also flushes the client's receives, and that is where it is dealt with.
            if error.code != ErrorCode::ConnLost {
                complain(format_args!(
                    "echo_server: asynchronous error {}",
                    error.code
                ));
            }
        })?;
        let ptag = nic.create_ptag()?;
        // Twice the receives: entries of clients that went away may still be queued when new ones come.
        let cq = nic.create_cq((2 * RECEIVES_PER_CLIENT * options.max_clients) as u64)?;
        let address = nic.local_address(options.discriminator.as_bytes())?;
        let clients = Mutex::new(HashMap::new());
        Ok(Self {
            nic,
            ptag,
            cq,
            address,
            options,
            clients,
            stopping: Mutex::new(false),
        })
    }

    fn clients(&self) -> MutexGuard<'_, HashMap<ViHandle, Client>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stopping(&self) -> bool {
        *self.stopping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stop(&self) {
        *self.stopping.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }

    fn listen(&self) -> Result<(), VipError> {
        let mut accepted = 0;
        while !self.stopping() {
            match self.nic.connect_wait(&self.address, LOOK_UP) {
                Err(VipError::Timeout) => {}
                Err(error) => return Err(error),
                Ok(request) => {
                    accepted += 1;
                    if let Err(error) = self.admit(request, accepted) {
                        complain(format_args!("echo_server: a client was rejected: {error}"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes a VI that fits the client, with its receives posted, and connects it. A request that is dropped is rejected.
    fn admit(&self, mut request: ConnectionRequest, number: u64) -> Result<(), Box<dyn Error>> {
        let wanted = request.attributes();
        if wanted.reliability != ReliabilityLevel::ReliableDelivery as u16 {
            return Err("only reliable delivery is served".into());
        }
        if wanted.max_transfer_bytes > self.nic.attributes().max_transfer_size {
            return Err("its transfer size is too large".into());
        }
        let buffer_bytes = usize::try_from(wanted.max_transfer_bytes)?;
        let vi = self
            .nic
            .vi(&self.ptag)
            .max_transfer_bytes(wanted.max_transfer_bytes)
            .recv_cq(&self.cq)
            .build()?;
        let descriptors = self
            .nic
            .create_descriptors(RECEIVES_PER_CLIENT, 1, &self.ptag)?;
        let buffers = self
            .nic
            .create_buffers(RECEIVES_PER_CLIENT, buffer_bytes, &self.ptag)?;
        for (mut descriptor, buffer) in descriptors.into_iter().zip(buffers) {
            descriptor
                .push(buffer)
                .map_err(|_| "a descriptor without a segment")?;
            vi.post_recv(descriptor)?;
        }
        let handle = vi.handle();
        let vi = Arc::new(vi);
        let mut clients = self.clients();
        if clients.len() >= self.options.max_clients {
            return Err("too many clients".into());
        }
        // Before the connection is made, so that the first message finds the client in its place.
        clients.insert(
            handle,
            Client {
                vi: Arc::clone(&vi),
                number,
                messages: 0,
                bytes: 0,
            },
        );
        drop(clients);
        if let Err(error) = request.accept(&vi) {
            self.clients().remove(&handle);
            return Err(error.into());
        }
        Ok(())
    }

    fn announce(&self) -> Result<(), Box<dyn Error>> {
        print(format_args!(
            "echo_server: listening as {:?} on {}",
            self.options.discriminator,
            self.nic.attributes().name
        ))?;
        if let Some(path) = &self.options.ready_file {
            std::fs::write(path, "ready\n")?;
        }
        Ok(())
    }

    fn work(&self) -> Result<(), Box<dyn Error>> {
        let mut served = 0;
        while self.options.clients_to_serve != Some(served) && !self.stopping() {
            let entry = match self.cq.wait(LOOK_UP) {
                Err(VipError::Timeout) => continue,
                outcome => outcome?,
            };
            let mut clients = self.clients();
            // An entry may be left over from a client that is gone.
            let Some(client) = clients.get_mut(&entry.vi) else {
                continue;
            };
            let goes_on = client.serve().unwrap_or_else(|error| {
                complain(format_args!(
                    "echo_server: client {}: {error}",
                    client.number
                ));
                false
            });
            if !goes_on {
                let gone = clients.remove(&entry.vi);
                drop(clients);
                if let Some(Client {
                    number,
                    messages,
                    bytes,
                    ..
                }) = gone
                {
                    print(format_args!(
                        "echo_server: client {number}: {messages} messages, {bytes} bytes"
                    ))?;
                }
                served += 1;
            }
        }
        Ok(())
    }
}

fn run(options: Options) -> Result<(), Box<dyn Error>> {
    let server = Server::start(options)?;
    std::thread::scope(|scope| {
        let listener = scope.spawn(|| {
            let outcome = server.listen();
            server.stop();
            outcome
        });
        let worked = server.announce().and_then(|()| server.work());
        server.stop();
        let listened = listener
            .join()
            .map_err(|_| "the listening thread panicked")?;
        worked?;
        Ok(listened?)
    })
}

fn main() -> ExitCode {
    let options = match Options::parse() {
        Ok(options) => options,
        Err(complaint) => {
            complain(format_args!("echo_server: {complaint}\n{USAGE}"));
            return ExitCode::from(2);
        }
    };
    end("echo_server", run(options))
}
