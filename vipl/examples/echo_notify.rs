//! An echo server without a loop that waits for messages: the library calls a closure for each message, and another one
//! for each reply that is gone, on threads of its own. The main thread only accepts clients.
//!
//! A message is copied into a reply that is free, its receive is posted again, and only then the reply is sent: a client
//! that waits for its echo always finds a receive. The closures own the client, and with it the VI: when the connection
//! ends, every descriptor comes back flushed, the closures are gone, and so is the client. Works with the C and the Rust
//! `EchoClient` alike:
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
use common::{complain, end, print};
use vipl::{
    Completed, ConnectionRequest, Descriptor, ErrorCode, Nic, Ptag, ReliabilityLevel, Timeout, Vi,
    VipError,
};

const USAGE: &str = "usage: echo_notify [-d DEVICE] [-n DISCRIMINATOR] [-c CLIENTS] [-r FILE]
  -d DEVICE         the NIC to open (default VINIC0)
  -n DISCRIMINATOR  the name clients ask for (default viaduct-echo)
  -c CLIENTS        exit after serving this many clients (default: run on)
  -r FILE           create FILE when listening";

/// Receives that each client may have outstanding: it may send so many messages before it has an echo.
const RECEIVES_PER_CLIENT: usize = 4;
/// How often the main thread looks who has left.
const LOOK_UP: Timeout = Timeout::After(Duration::from_millis(100));

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
        let mut words = arguments()?;
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} wants a value"));
            match word.as_str() {
                "-d" => options.device = value()?,
                "-n" => options.discriminator = value()?,
                "-c" => {
                    let count = value()?;
                    let count = count
                        .parse()
                        .map_err(|_| format!("{count:?} is no number"))?;
                    options.clients_to_serve = Some(count);
                }
                "-r" => options.ready_file = Some(value()?),
                _ => return Err(format!("{word:?} is not known")),
            }
        }
        Ok(options)
    }
}

/// Shared by the closures that wait for something of this client; gone with the last of them.
struct Client {
    vi: Vi,
    number: u64,
    messages: AtomicU64,
    bytes: AtomicU64,
    replies: Mutex<Vec<Descriptor>>,
    /// There is one more reply.
    returned: Condvar,
    left: Mutex<Sender<io::Result<()>>>,
}

impl Client {
    /// Posts a receive, and has the message that comes answered.
    fn expect(self: &Arc<Self>, descriptor: Descriptor) -> Result<(), VipError> {
        self.vi.post_recv(descriptor)?;
        let client = Arc::clone(self);
        self.vi.recv_notify(move |arrived| {
            // Nothing, or one that was flushed, is how a good-bye looks.
            if let Some(arrived) = arrived.filter(|arrived| !arrived.status.is_flushed()) {
                client.tell(client.answer(arrived));
            }
        })
    }

    fn answer(self: &Arc<Self>, arrived: Completed) -> Result<(), Box<dyn Error>> {
        let arrived = arrived.ok().map_err(|failed| failed.status.to_string())?;
        let length_bytes = arrived.length_bytes();
        let mut reply = self.take_reply();
        reply.buffer_mut(0)[..length_bytes].copy_from_slice(arrived.first_bytes());
        reply.set_used_bytes(0, length_bytes);
        reply.set_immediate(arrived.immediate());
        self.expect(arrived.descriptor)?;
        // Relaxed: counts for the last word, which is said when all closures are gone.
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(length_bytes as u64, Ordering::Relaxed);
        self.vi.post_send(reply)?;
        let client = Arc::clone(self);
        Ok(self.vi.send_notify(move |sent| {
            if let Some(sent) = sent {
                client.give_reply_back(sent.descriptor);
            }
        })?)
    }

    /// Waits for a reply that is free.
    fn take_reply(&self) -> Descriptor {
        let mut replies = self.replies.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match replies.pop() {
                Some(reply) => return reply,
                None => {
                    replies = self
                        .returned
                        .wait(replies)
                        .unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    fn give_reply_back(&self, reply: Descriptor) {
        let mut replies = self.replies.lock().unwrap_or_else(PoisonError::into_inner);
        replies.push(reply);
        self.returned.notify_one();
    }

    fn tell(&self, outcome: Result<(), Box<dyn Error>>) {
        if let Err(error) = outcome {
            complain(format_args!("echo_notify: client {}: {error}", self.number));
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
        let left = self.left.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Fails when the server ends first.
        let _ = left.send(printed);
    }
}

struct Server {
    nic: Nic,
    ptag: Ptag,
    left: Sender<io::Result<()>>,
}

impl Server {
    /// Makes a VI that fits the client, with its receives posted, and connects it. A request that is dropped is rejected.
    fn admit(&self, request: ConnectionRequest, number: u64) -> Result<(), Box<dyn Error>> {
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
            .build()?;
        let client = Arc::new(Client {
            vi,
            number,
            messages: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            replies: Mutex::new(self.descriptors(buffer_bytes)?),
            returned: Condvar::new(),
            left: Mutex::new(self.left.clone()),
        });
        self.begin(&client, request, buffer_bytes).inspect_err(|_| {
            // The closures own the client until they are called, and nobody else will end it.
            client.tell(client.vi.disconnect().map_err(Box::from));
        })
    }

    fn begin(
        &self,
        client: &Arc<Client>,
        mut request: ConnectionRequest,
        buffer_bytes: usize,
    ) -> Result<(), Box<dyn Error>> {
        for descriptor in self.descriptors(buffer_bytes)? {
            client.expect(descriptor)?;
        }
        Ok(request.accept(&client.vi)?)
    }

    /// Descriptors with a buffer each, for one direction of one client.
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
        left: &Receiver<io::Result<()>>,
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
            match self.nic.connect_wait(&address, LOOK_UP) {
                Err(VipError::Timeout) => {}
                Err(error) => return Err(error.into()),
                Ok(request) => {
                    accepted += 1;
                    if let Err(error) = self.admit(request, accepted) {
                        complain(format_args!("echo_notify: a client was rejected: {error}"));
                    }
                }
            }
            for printed in left.try_iter() {
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
        // A lost connection also flushes the client's receives, and that is where it is dealt with.
        if error.code != ErrorCode::ConnLost {
            complain(format_args!(
                "echo_notify: asynchronous error {}",
                error.code
            ));
        }
    })?;
    let ptag = nic.create_ptag()?;
    let (sender, left) = channel();
    let server = Server {
        nic,
        ptag,
        left: sender,
    };
    server.serve(options, &left)
}

fn main() -> ExitCode {
    let options = match Options::parse() {
        Ok(options) => options,
        Err(complaint) => {
            complain(format_args!("echo_notify: {complaint}\n{USAGE}"));
            return ExitCode::from(2);
        }
    };
    end("echo_notify", run(&options))
}
