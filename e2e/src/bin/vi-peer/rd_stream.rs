//! Streams over Reliable Delivery on a lossy network: all messages in order until the connection breaks, which is
//! reported once to each side.

use std::time::{Duration, Instant};

use vi_types::QueueKind;
use vipl::{Descriptor, ReliabilityLevel, Timeout, Vi, ViState};

use crate::message;
use crate::nic_context::{NicContext, TIMEOUT, print_count};
use crate::queue::Queue;
use crate::server_address::ServerAddress;
use e2e::failure::Failure;

/// Maximum number of posted sends at the source.
const WINDOW: usize = 32;
/// Receives at the source, which are flushed when the connection breaks.
const IDLE_RECEIVES: usize = 8;
/// Receives at the sink; more than the messages on one connection.
const SINK_RECEIVES: usize = 512;
/// Time that a source waits for a break after its last message before it disconnects.
const LATE_BREAK_TIMEOUT: Duration = Duration::from_millis(1500);

/// A connection that broke, as one side saw it.
struct BrokenConnection {
    round: String,
    /// Messages sent, or delivered.
    messages: u64,
    /// Reports of the connection loss.
    losses: usize,
    /// Descriptors flushed.
    flushed: u64,
    /// Time from the last successful message to the first failed descriptor.
    silence: Duration,
}

impl BrokenConnection {
    fn print(&self) {
        println!(
            "round {} messages {} losses {} flushed {} silence_ms {}",
            self.round,
            self.messages,
            self.losses,
            self.flushed,
            self.silence.as_millis()
        );
    }
}

/// Receives on `rounds` consecutive connections.
pub(crate) fn sink(nic: &str, name: &str, rounds: u32) -> Result<(), Failure> {
    let context = NicContext::open(nic)?;
    let mut idle = context.descriptors(SINK_RECEIVES)?;
    println!("listening");
    for _ in 0..rounds {
        let broken = sink_round(&context, name, &mut idle)?;
        broken.print();
    }
    drop(idle);
    context.finish()
}

fn sink_round(
    context: &NicContext,
    name: &str,
    idle: &mut Vec<Descriptor>,
) -> Result<BrokenConnection, Failure> {
    let vi = context.vi(ReliabilityLevel::ReliableDelivery, "source")?;
    let mut receives = Queue::new(&vi, QueueKind::Receive);
    for descriptor in idle.drain(..) {
        receives.post(descriptor)?;
    }
    let round = context.accept(&vi, name)?;
    let mut delivered = 0;
    let mut last = Instant::now();
    loop {
        let Some(received) = receives.take(Timeout::After(TIMEOUT))? else {
            return Err(format!("{round}: neither messages nor a break").into());
        };
        if received.status.is_ok() {
            if message::read(received.first_bytes()) != Some(delivered) {
                return Err(
                    format!("{round}: message {delivered} is damaged or out of order").into(),
                );
            }
            delivered += 1;
            last = Instant::now();
        } else if !received.status.is_flushed() && !received.status.is_transport_error() {
            return Err(format!("{round}: a receive failed: {}", received.status).into());
        }
        let has_failed = !received.status.is_ok();
        idle.push(received.descriptor);
        if has_failed {
            break;
        }
    }
    let silence = last.elapsed();
    idle.extend(receives.drain()?);
    finish_round(context, &vi, round, delivered, receives.flushed(), silence)
}

fn finish_round(
    context: &NicContext,
    vi: &Vi,
    round: String,
    messages: u64,
    flushed: u64,
    silence: Duration,
) -> Result<BrokenConnection, Failure> {
    let losses = context.losses(vi.handle(), TIMEOUT);
    let state = vi.state()?;
    if state != ViState::Error {
        return Err(format!("{round}: the VI is {state:?} after the break").into());
    }
    vi.disconnect()?;
    Ok(BrokenConnection {
        round,
        messages,
        losses,
        flushed,
        silence,
    })
}

/// Sends on `rounds` consecutive connections, on each until it breaks or `messages` messages are sent.
pub(crate) fn source(
    nic: &str,
    server: &ServerAddress,
    rounds: u32,
    messages: u64,
) -> Result<(), Failure> {
    let context = NicContext::open(nic)?;
    let mut idle = context.descriptors(WINDOW + IDLE_RECEIVES)?;
    let mut unbroken = 0;
    for number in 0..rounds {
        let round = format!("{number}");
        match source_round(&context, server, &round, messages, &mut idle)? {
            Some(broken) => broken.print(),
            None => unbroken += 1,
        }
    }
    print_count("unbroken", unbroken);
    drop(idle);
    context.finish()
}

/// Sends on one connection. Returns `None` if it did not break and the source disconnected.
fn source_round(
    context: &NicContext,
    server: &ServerAddress,
    round: &str,
    messages: u64,
    idle: &mut Vec<Descriptor>,
) -> Result<Option<BrokenConnection>, Failure> {
    let vi = context.vi(ReliabilityLevel::ReliableDelivery, "sink")?;
    let mut receives = Queue::new(&vi, QueueKind::Receive);
    for descriptor in idle.drain(..IDLE_RECEIVES) {
        receives.post(descriptor)?;
    }
    context.connect(&vi, server, round)?;
    let mut sends = Queue::new(&vi, QueueKind::Send);
    let mut sent = 0;
    let mut last = Instant::now();
    let mut is_broken = false;
    while !is_broken && (sent < messages || sends.len() > 0) {
        if let Some(mut descriptor) = (sent < messages).then(|| idle.pop()).flatten() {
            let length = message::write(sent, descriptor.buffer_mut(0));
            descriptor.set_used_bytes(0, length);
            sends.post(descriptor)?;
            sent += 1;
            continue;
        }
        let completed = sends
            .take(Timeout::After(TIMEOUT))?
            .ok_or("a send neither completes nor is flushed")?;
        if completed.status.is_ok() {
            last = Instant::now();
        } else if completed.status.is_flushed() {
            is_broken = true;
        } else {
            return Err(format!("{round}: a send failed: {}", completed.status).into());
        }
        idle.push(completed.descriptor);
    }
    let timeout = if is_broken {
        TIMEOUT
    } else {
        LATE_BREAK_TIMEOUT
    };
    if context.losses(vi.handle(), timeout) == 0 {
        if is_broken {
            return Err(
                format!("{round}: descriptors are flushed, but no loss is reported").into(),
            );
        }
        vi.disconnect()?;
    }
    let silence = last.elapsed();
    idle.extend(sends.drain()?);
    idle.extend(receives.drain()?);
    let flushed = sends.flushed() + receives.flushed();
    if vi.state()? == ViState::Idle {
        return Ok(None);
    }
    finish_round(context, &vi, round.to_owned(), sent, flushed, silence).map(Some)
}
