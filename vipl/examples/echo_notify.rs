//! An echo server that receives and sends in completion handlers: the library calls one closure for each received
//! message and one for each completed reply, on its own threads. The main thread only accepts clients.
//!
//! A message is copied into a free reply descriptor, its receive is posted again, and then the reply is sent: a client
//! that waits for each reply always has a receive to send to. The closures own the client and its VI: when the
//! connection ends, all descriptors are flushed, and the last closure to be dropped drops the client. Works with the C
//! and the Rust client:
//!
//! ```text
//! cargo run --release -p vipl --example echo_notify
//! cargo run --release -p vipl --example echo_client -- localhost
//! ```

#[path = "common/arguments.rs"]
mod arguments;
mod common;

use std::error::Error;
use std::io;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use arguments::arguments;
use common::{exit_code, print, print_error};
use vipl::{
    Completed, ConnectionRequest, Descriptor, ErrorCode, Nic, Ptag, ReliabilityLevel, Timeout, Vi,
    VipError,
};

const USAGE: &str = "usage: echo_notify [-d DEVICE] [-n DISCRIMINATOR] [-c CLIENTS] [-r FILE]
  -d DEVICE         the NIC to open (default VINIC0)
  -n DISCRIMINATOR  the name to listen on (default viaduct-echo)
  -c CLIENTS        exit after this many clients (default: unlimited)
  -r FILE           create FILE when listening";

/// Posted receives of each client: the number of messages it may send before the first reply.
const RECEIVES_PER_CLIENT: usize = 4;
/// Timeout of waiting for a client, after which the main thread counts ended connections.
const WAIT_TIMEOUT: Timeout = Timeout::After(Duration::from_millis(100));

struct Options {
    device: String,
    discriminator: String,
    clients_to_serve: Option<u64>,
    ready_file: Option<String>,
}

impl Options {
    fn parse() -> Result<Self, String> {
        let mut options = Self {
            device: "VINIC0".to_owned(),
            discriminator: "viaduct-echo".to_owned(),
            clients_to_serve: None,
            ready_file: None,
        };
        let mut arguments = arguments()?;
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "-d" => options.device = value()?,
                "-n" => options.discriminator = value()?,
                "-c" => {
                    let count = value()?;
                    let count = count
                        .parse()
                        .map_err(|_| format!("{count:?} is not a number"))?;
                    options.clients_to_serve = Some(count);
                }
                "-r" => options.ready_file = Some(value()?),
                _ => return Err(format!("unknown option {argument:?}")),
            }
        }
        Ok(options)
    }
}

/// A client, shared by the closures of its pending completions and dropped with the last one.
struct Client {
    vi: Vi,
    number: u64,
    messages: AtomicU64,
    bytes: AtomicU64,
    replies: Mutex<Vec<Descriptor>>,
    /// Notified when a reply descriptor is released.
    reply_released: Condvar,
    ended: Mutex<Sender<io::Result<()>>>,
}

impl Client {
    /// Posts a receive whose message is echoed on completion.
    fn post_receive(self: &Arc<Self>, descriptor: Descriptor) -> Result<(), VipError> {
        self.vi.post_recv(descriptor)?;
        let client = Arc::clone(self);
        self.vi.recv_notify(move |received| {
            // None or a flushed receive: the connection has ended.
            if let Some(received) = received.filter(|received| !received.status.is_flushed()) {
                client.report(client.echo(received));
            }
        })
    }

    fn echo(self: &Arc<Self>, received: Completed) -> Result<(), Box<dyn Error>> {
        let received = received.ok().map_err(|failed| failed.status.to_string())?;
        let length_bytes = received.length_bytes();
        let mut reply = self.allocate_reply();
        reply.buffer_mut(0)[..length_bytes].copy_from_slice(received.first_bytes());
        reply.set_used_bytes(0, length_bytes);
        reply.set_immediate(received.immediate());
        self.post_receive(received.descriptor)?;
        // Relaxed: the totals are printed by `drop`, after all closures.
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(length_bytes as u64, Ordering::Relaxed);
        self.vi.post_send(reply)?;
        let client = Arc::clone(self);
        Ok(self.vi.send_notify(move |sent| {
            if let Some(sent) = sent {
                client.release_reply(sent.descriptor);
            }
        })?)
    }

    /// Waits for a free reply descriptor.
    fn allocate_reply(&self) -> Descriptor {
        let mut replies = self.replies.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match replies.pop() {
                Some(reply) => return reply,
                None => {
                    replies = self
                        .reply_released
                        .wait(replies)
                        .unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    fn release_reply(&self, reply: Descriptor) {
        let mut replies = self.replies.lock().unwrap_or_else(PoisonError::into_inner);
        replies.push(reply);
        self.reply_released.notify_one();
    }

    /// Prints the error of a failed operation.
    fn report(&self, result: Result<(), Box<dyn Error>>) {
        if let Err(error) = result {
            print_error(format_args!("echo_notify: client {}: {error}", self.number));
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let printed = print(format_args!(
            "echo_notify: client {}: {} messages, {} bytes",
            self.number,
            self.messages.load(Ordering::Relaxed),
            self.bytes.load(Ordering::Relaxed)
        ));
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Fails if the server has exited.
        let _ = ended.send(printed);
    }
}

struct Server {
    nic: Nic,
    ptag: Ptag,
    ended: Sender<io::Result<()>>,
}

impl Server {
    /// Creates a VI with the client's attributes, posts its receives and accepts the request; dropping the request
    /// rejects it.
    fn accept_client(&self, request: ConnectionRequest, number: u64) -> Result<(), Box<dyn Error>> {
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
            .build()?;
        let client = Arc::new(Client {
            vi,
            number,
            messages: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            replies: Mutex::new(self.descriptors(buffer_bytes)?),
            reply_released: Condvar::new(),
            ended: Mutex::new(self.ended.clone()),
        });
        self.start(&client, request, buffer_bytes).inspect_err(|_| {
            // The closures own the client until they are called: disconnecting flushes its receives.
            client.report(client.vi.disconnect().map_err(Box::from));
        })
    }

    fn start(
        &self,
        client: &Arc<Client>,
        mut request: ConnectionRequest,
        buffer_bytes: usize,
    ) -> Result<(), Box<dyn Error>> {
        for descriptor in self.descriptors(buffer_bytes)? {
            client.post_receive(descriptor)?;
        }
        Ok(request.accept(&client.vi)?)
    }

    /// Creates descriptors with a buffer each, for one direction of one client.
    fn descriptors(&self, buffer_bytes: usize) -> Result<Vec<Descriptor>, Box<dyn Error>> {
        let descriptors = self
            .nic
            .create_descriptors(RECEIVES_PER_CLIENT, 1, &self.ptag)?;
        let buffers = self
            .nic
            .create_buffers(RECEIVES_PER_CLIENT, buffer_bytes, &self.ptag)?;
        let with_buffer = |(mut descriptor, buffer): (Descriptor, _)| match descriptor.push(buffer)
        {
            Ok(()) => Ok(descriptor),
            Err(_) => Err("a descriptor without a segment".into()),
        };
        descriptors
            .into_iter()
            .zip(buffers)
            .map(with_buffer)
            .collect()
    }

    fn serve(
        &self,
        options: &Options,
        ended: &Receiver<io::Result<()>>,
    ) -> Result<(), Box<dyn Error>> {
        let address = self.nic.local_address(options.discriminator.as_bytes())?;
        print(format_args!(
            "echo_notify: listening as {:?} on {}",
            options.discriminator,
            self.nic.attributes().name
        ))?;
        if let Some(path) = &options.ready_file {
            std::fs::write(path, "ready\n")?;
        }
        let (mut accepted, mut served) = (0, 0);
        while options.clients_to_serve.is_none_or(|count| served < count) {
            match self.nic.connect_wait(&address, WAIT_TIMEOUT) {
                Err(VipError::Timeout) => {}
                Err(error) => return Err(error.into()),
                Ok(request) => {
                    accepted += 1;
                    if let Err(error) = self.accept_client(request, accepted) {
                        print_error(format_args!("echo_notify: rejected a client: {error}"));
                    }
                }
            }
            for printed in ended.try_iter() {
                printed?;
                served += 1;
            }
        }
        Ok(())
    }
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let nic = Nic::open(&options.device)?;
    nic.set_error_handler(|error| {
        // Lost connections are handled where the client's receives complete as flushed.
        if error.code != ErrorCode::ConnLost {
            print_error(format_args!(
                "echo_notify: asynchronous error {}",
                error.code
            ));
        }
    })?;
    let ptag = nic.create_ptag()?;
    let (sender, ended) = channel();
    let server = Server {
        nic,
        ptag,
        ended: sender,
    };
    server.serve(options, &ended)
}

fn main() -> ExitCode {
    let options = match Options::parse() {
        Ok(options) => options,
        Err(error) => {
            print_error(format_args!("echo_notify: {error}\n{USAGE}"));
            return ExitCode::from(2);
        }
    };
    exit_code("echo_notify", run(&options))
}
