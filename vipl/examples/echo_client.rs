//! Sends messages to an echo server, in C or Rust, and verifies the replies.
//!
//! One thread, one VI, one message in flight; waits on both work queues directly.
//!
//! ```text
//! cargo run --release -p vipl --example echo_client -- -i 1000 -s 64,4096 localhost
//! ```

#[path = "common/arguments.rs"]
mod arguments;
mod common;

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use arguments::arguments;
use common::{exit_code, print, print_error};
use vipl::{Completed, Descriptor, NetAddress, Nic, Timeout, Vi, VipError};

const USAGE: &str =
    "usage: echo_client [-d DEVICE] [-n DISCRIMINATOR] [-i ITERATIONS] [-s SIZES] SERVERNAME
  -d DEVICE         the NIC to open (default VINIC0)
  -n DISCRIMINATOR  the name the server listens on (default viaduct-echo)
  -i ITERATIONS     messages of each size (default 100)
  -s SIZES          message sizes in bytes (default 0,1,64,4096,65536)";

/// Minimum `max_transfer_bytes` of the VI; both VIs of a connection must have the same value.
const MAX_TRANSFER_BYTES: usize = 65_536;
const TIMEOUT: Duration = Duration::from_secs(10);

struct Options {
    device: String,
    discriminator: String,
    iterations: u64,
    sizes: Vec<usize>,
    server: String,
}

impl Options {
    fn parse() -> Result<Self, String> {
        let mut options = Self {
            device: "VINIC0".to_owned(),
            discriminator: "viaduct-echo".to_owned(),
            iterations: 100,
            sizes: vec![0, 1, 64, 4096, 65_536],
            server: String::new(),
        };
        let mut arguments = arguments()?;
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "-d" => options.device = value()?,
                "-n" => options.discriminator = value()?,
                "-i" => options.iterations = number(&value()?)?,
                "-s" => {
                    options.sizes = value()?.split(',').map(number).collect::<Result<_, _>>()?
                }
                _ if !argument.starts_with('-') && options.server.is_empty() => {
                    options.server = argument
                }
                _ => return Err(format!("unknown option {argument:?}")),
            }
        }
        if options.server.is_empty() {
            Err("missing SERVERNAME".to_owned())
        } else {
            Ok(options)
        }
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is not a number"))
}

/// Returns the byte at `offset` of message number `message`.
fn pattern(message: u64, offset: usize) -> u8 {
    (message.wrapping_mul(31) as usize)
        .wrapping_add(offset * 7)
        .wrapping_add(offset >> 8) as u8
}

#[derive(Default)]
struct Totals {
    messages: u64,
    bytes: u64,
    errors: u64,
    round_trips: Duration,
}

struct Client {
    vi: Vi,
    /// Descriptors of the next message; `None` while it is in flight.
    send: Option<Descriptor>,
    recv: Option<Descriptor>,
}

impl Client {
    fn create(nic: &Nic, max_transfer_bytes: usize) -> Result<Self, Box<dyn Error>> {
        let ptag = nic.create_ptag()?;
        let vi = nic
            .vi(&ptag)
            .max_transfer_bytes(max_transfer_bytes as u64)
            .build()?;
        let mut descriptors = nic.create_descriptors(2, 1, &ptag)?;
        for (descriptor, buffer) in
            descriptors
                .iter_mut()
                .zip(nic.create_buffers(2, max_transfer_bytes, &ptag)?)
        {
            descriptor
                .push(buffer)
                .map_err(|_| "a descriptor without a segment")?;
        }
        Ok(Self {
            vi,
            send: descriptors.pop(),
            recv: descriptors.pop(),
        })
    }

    /// Connects; retries while the server does not listen yet.
    fn connect(&self, local: &NetAddress, remote: &NetAddress) -> Result<(), VipError> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match self.vi.connect(local, remote, Timeout::After(TIMEOUT)) {
                Err(VipError::NoMatch) if Instant::now() < deadline => std::thread::yield_now(),
                result => return result.map(|_| ()),
            }
        }
    }

    fn exchange(&mut self, size: usize, totals: &mut Totals) -> Result<(), Box<dyn Error>> {
        let message = totals.messages;
        let (Some(mut send), Some(recv)) = (self.send.take(), self.recv.take()) else {
            return Err("the connection has failed".into());
        };
        for (offset, byte) in send.buffer_mut(0)[..size].iter_mut().enumerate() {
            *byte = pattern(message, offset);
        }
        send.set_used_bytes(0, size);
        // The receive is posted first: the reply must not arrive at an empty queue.
        let start = Instant::now();
        self.vi.post_recv(recv)?;
        self.vi.post_send(send)?;
        let reply = check_completed(self.vi.recv_wait(Timeout::After(TIMEOUT))?)?;
        let sent = check_completed(self.vi.send_wait(Timeout::After(TIMEOUT))?)?;
        totals.round_trips += start.elapsed();
        totals.messages += 1;
        totals.bytes += size as u64;
        totals.errors += u64::from(!verify(&reply, message, size));
        self.recv = Some(reply.descriptor);
        self.send = Some(sent.descriptor);
        Ok(())
    }
}

/// Returns the completed descriptor of a queue; fails if there is none or its status is an error.
fn check_completed(head: Option<Completed>) -> Result<Completed, Box<dyn Error>> {
    let completed = head.ok_or("the queue is empty")?;
    completed
        .ok()
        .map_err(|failed| failed.status.to_string().into())
}

/// Compares a reply with its message; prints the first difference.
fn verify(reply: &Completed, message: u64, size: usize) -> bool {
    let bytes = reply.first_bytes();
    if bytes.len() != size {
        print_error(format_args!(
            "echo_client: message {message}: sent {size} bytes, received {}",
            bytes.len()
        ));
        return false;
    }
    match bytes
        .iter()
        .enumerate()
        .find(|&(offset, &byte)| byte != pattern(message, offset))
    {
        None => true,
        Some((offset, byte)) => {
            let expected = pattern(message, offset);
            print_error(format_args!(
                "echo_client: message {message}: byte {offset} is {byte:#04x}, expected {expected:#04x}"
            ));
            false
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let nic = Nic::open(&options.device)?;
    nic.name_service(None)?;
    let max_transfer_bytes = options
        .sizes
        .iter()
        .copied()
        .fold(MAX_TRANSFER_BYTES, usize::max);
    // The local discriminator only identifies this client; the process ID makes it unique.
    let local = nic.local_address(format!("client-{}", std::process::id()).as_bytes())?;
    let remote = nic.remote_address(&options.server, options.discriminator.as_bytes())?;
    let mut client = Client::create(&nic, max_transfer_bytes)?;
    client.connect(&local, &remote)?;
    let mut totals = Totals::default();
    for &size in &options.sizes {
        for _ in 0..options.iterations {
            client.exchange(size, &mut totals)?;
        }
    }
    client.vi.disconnect()?;
    let Totals {
        messages,
        bytes,
        errors,
        round_trips,
    } = totals;
    let mean_us = round_trips.as_secs_f64() * 1e6 / messages.max(1) as f64;
    print(format_args!(
        "echo_client: {messages} messages, {bytes} bytes, {errors} errors, mean round trip {mean_us:.1} us"
    ))?;
    if errors > 0 {
        return Err("replies differ from their messages".into());
    }
    Ok(())
}

fn main() -> ExitCode {
    let options = match Options::parse() {
        Ok(options) => options,
        Err(error) => {
            print_error(format_args!("echo_client: {error}\n{USAGE}"));
            return ExitCode::from(2);
        }
    };
    exit_code("echo_client", run(&options))
}
