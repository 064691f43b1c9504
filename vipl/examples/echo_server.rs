//! Sends every message back to its client, from its receive buffer.
//!
//! A thread listens for clients. The receive queues of all clients share one completion queue, on which the main thread
//! waits; send completions are polled on the client's send queue. A client that disconnects or causes an error loses
//! its connection; other clients are not affected. Works with the C and the Rust client:
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
use common::{exit_code, print, print_error};
use vipl::{
    Completed, CompletionQueue, ConnectionRequest, ErrorCode, NetAddress, Nic, Ptag,
    ReliabilityLevel, Timeout, Vi, ViHandle, VipError,
};

const USAGE: &str =
    "usage: echo_server [-d DEVICE] [-n DISCRIMINATOR] [-c CLIENTS] [-m MAX] [-r FILE]
  -d DEVICE         the NIC to open (default VINIC0)
  -n DISCRIMINATOR  the name to listen on (default viaduct-echo)
  -c CLIENTS        exit after this many clients (default: unlimited)
  -m MAX            maximum number of connected clients (default 32)
  -r FILE           create FILE when listening";

/// Posted receives of each client: the number of messages it may send before the first reply.
const RECEIVES_PER_CLIENT: usize = 4;
/// Timeout of waits, after which a thread checks for a stop request.
const WAIT_TIMEOUT: Timeout = Timeout::After(Duration::from_millis(250));
/// Timeout of a send, after which the client is dropped.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

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
        let mut arguments = arguments()?;
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "-d" => options.device = value()?,
                "-n" => options.discriminator = value()?,
                "-c" => options.clients_to_serve = Some(number(&value()?)?),
                "-m" => options.max_clients = number(&value()?)?,
                "-r" => options.ready_file = Some(value()?),
                _ => return Err(format!("unknown option {argument:?}")),
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
    /// Collects the receive of a completion queue entry. Returns `false` if the connection has ended.
    fn serve(&mut self) -> Result<bool, VipError> {
        match self.vi.recv_done() {
            // The descriptor of the entry was collected before.
            Ok(None) | Err(VipError::NotDone) => Ok(true),
            Ok(Some(received)) if received.status.is_ok() => self.echo(received),
            Ok(Some(received)) if received.status.is_flushed() => Ok(false),
            Ok(Some(received)) => {
                print_error(format_args!(
                    "echo_server: client {}: receive: {}",
                    self.number, received.status
                ));
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn echo(&mut self, received: Completed) -> Result<bool, VipError> {
        let length_bytes = received.length_bytes();
        let immediate = received.immediate();
        let mut descriptor = received.descriptor;
        descriptor.set_used_bytes(0, length_bytes);
        descriptor.set_immediate(immediate);
        self.vi.post_send(descriptor)?;
        let deadline = Instant::now() + SEND_TIMEOUT;
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
            // Lost connections are handled where the client's receives complete as flushed.
            if error.code != ErrorCode::ConnLost {
                print_error(format_args!(
                    "echo_server: asynchronous error {}",
                    error.code
                ));
            }
        })?;
        let ptag = nic.create_ptag()?;
        // Twice the receives: entries of dropped clients may still be queued when new ones connect.
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
            match self.nic.connect_wait(&self.address, WAIT_TIMEOUT) {
                Err(VipError::Timeout) => {}
                Err(error) => return Err(error),
                Ok(request) => {
                    accepted += 1;
                    if let Err(error) = self.accept_client(request, accepted) {
                        print_error(format_args!("echo_server: rejected a client: {error}"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Creates a VI with the client's attributes, posts its receives and accepts the request; dropping the request
    /// rejects it.
    fn accept_client(
        &self,
        mut request: ConnectionRequest,
        number: u64,
    ) -> Result<(), Box<dyn Error>> {
        let requested = request.attributes();
        if requested.reliability != ReliabilityLevel::ReliableDelivery as u16 {
            return Err("only reliable delivery is supported".into());
        }
        if requested.max_transfer_bytes > self.nic.attributes().max_transfer_size {
            return Err("its transfer size is too large".into());
        }
        let buffer_bytes = usize::try_from(requested.max_transfer_bytes)?;
        let vi = self
            .nic
            .vi(&self.ptag)
            .max_transfer_bytes(requested.max_transfer_bytes)
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
        // Before the request is accepted: the first message requires the entry.
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

    fn announce_ready(&self) -> Result<(), Box<dyn Error>> {
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
            let entry = match self.cq.wait(WAIT_TIMEOUT) {
                Err(VipError::Timeout) => continue,
                result => result?,
            };
            let mut clients = self.clients();
            // The entry may be of a client that was dropped in the meantime.
            let Some(client) = clients.get_mut(&entry.vi) else {
                continue;
            };
            let is_connected = client.serve().unwrap_or_else(|error| {
                print_error(format_args!(
                    "echo_server: client {}: {error}",
                    client.number
                ));
                false
            });
            if !is_connected {
                let dropped = clients.remove(&entry.vi);
                drop(clients);
                if let Some(Client {
                    number,
                    messages,
                    bytes,
                    ..
                }) = dropped
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
            let result = server.listen();
            server.stop();
            result
        });
        let work_result = server.announce_ready().and_then(|()| server.work());
        server.stop();
        let listen_result = listener
            .join()
            .map_err(|_| "the listening thread panicked")?;
        work_result?;
        Ok(listen_result?)
    })
}

fn main() -> ExitCode {
    let options = match Options::parse() {
        Ok(options) => options,
        Err(error) => {
            print_error(format_args!("echo_server: {error}\n{USAGE}"));
            return ExitCode::from(2);
        }
    };
    exit_code("echo_server", run(options))
}
