//! Reliable Delivery on a network that loses frames: every message in order until the connection breaks,
//! which each end learns once.

use std::time::{Duration, Instant};

use vipl::{Descriptor, ReliabilityLevel, Timeout, Vi, ViState, VipError};

use crate::queue::{Queue, Side};
use crate::station::{Station, TIMEOUT, tell};
use crate::{Failure, Server, message};

/// Descriptors on their way from the source.
const WINDOW: usize = 32;
/// Receives at the source, only there to be flushed.
const IDLE_RECEIVES: usize = 8;
/// Receives at the sink: more than a source sends on one connection.
const SINK_RECEIVES: usize = 512;
/// A source that has sent everything waits so long for the break, then it disconnects.
const LATE_BREAK: Duration = Duration::from_millis(1500);

/// How one connection ended at one end.
struct Ending {
    round: String,
    /// Messages sent, or delivered.
    messages: u64,
    /// Reports of the loss.
    losses: usize,
    /// Descriptors flushed.
    flushed: u64,
    /// From the last message that went well to the first sign of the break.
    silence: Duration,
}

impl Ending {
    fn tell(&self) {
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

/// Accepts the next client whose connection comes about; returns its name.
fn accept(station: &Station, vi: &Vi, name: &str) -> Result<String, Failure> {
    let local = station.nic().local_address(name.as_bytes())?;
    loop {
        let mut request = station
            .nic()
            .connect_wait(&local, Timeout::After(TIMEOUT))?;
        let client = request.remote().discriminator;
        match request.accept(vi) {
            Ok(()) => return Ok(String::from_utf8_lossy(client.as_bytes()).into_owned()),
            // The client gave up and asks again.
            Err(VipError::Timeout) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Receives on so many connections.
pub(crate) fn sink(nic: &str, name: &str, rounds: u32) -> Result<(), Failure> {
    let station = Station::open(nic)?;
    let mut idle = station.descriptors(SINK_RECEIVES)?;
    println!("listening");
    for _ in 0..rounds {
        let ending = sink_round(&station, name, &mut idle)?;
        ending.tell();
    }
    drop(idle);
    station.finish()
}

fn sink_round(
    station: &Station,
    name: &str,
    idle: &mut Vec<Descriptor>,
) -> Result<Ending, Failure> {
    let vi = station.vi(ReliabilityLevel::ReliableDelivery, "source")?;
    let mut receives = Queue::new(&vi, Side::Receive);
    for descriptor in idle.drain(..) {
        receives.post(descriptor)?;
    }
    let round = accept(station, &vi, name)?;
    let mut delivered = 0;
    let mut last = Instant::now();
    loop {
        let Some(received) = receives.take(Timeout::After(TIMEOUT))? else {
            return Err(format!("{round}: neither messages nor a break").into());
        };
        if received.status.is_ok() {
            if message::read(received.first_bytes()) != Some(delivered) {
                return Err(format!("{round}: message {delivered} is not what arrived").into());
            }
            delivered += 1;
            last = Instant::now();
        } else if !received.status.is_flushed() && !received.status.is_transport_error() {
            return Err(format!("{round}: a receive failed: {}", received.status).into());
        }
        let is_over = !received.status.is_ok();
        idle.push(received.descriptor);
        if is_over {
            break;
        }
    }
    let silence = last.elapsed();
    idle.extend(receives.drain()?);
    finish_round(station, &vi, round, delivered, receives.flushed(), silence)
}

fn finish_round(
    station: &Station,
    vi: &Vi,
    round: String,
    messages: u64,
    flushed: u64,
    silence: Duration,
) -> Result<Ending, Failure> {
    let losses = station.losses(vi.handle(), TIMEOUT);
    let state = vi.state()?;
    if state != ViState::Error {
        return Err(format!("{round}: the VI is {state:?} after the break").into());
    }
    vi.disconnect()?;
    Ok(Ending {
        round,
        messages,
        losses,
        flushed,
        silence,
    })
}

/// Sends on so many connections, each until it breaks or so many messages are sent.
pub(crate) fn source(
    nic: &str,
    server: &Server,
    rounds: u32,
    messages: u64,
) -> Result<(), Failure> {
    let station = Station::open(nic)?;
    let mut idle = station.descriptors(WINDOW + IDLE_RECEIVES)?;
    let mut unbroken = 0;
    for number in 0..rounds {
        let round = format!("{number}");
        match source_round(&station, server, &round, messages, &mut idle)? {
            Some(ending) => ending.tell(),
            None => unbroken += 1,
        }
    }
    tell("unbroken", unbroken);
    drop(idle);
    station.finish()
}

/// `None` if no break came and the source ended the connection.
fn source_round(
    station: &Station,
    server: &Server,
    round: &str,
    messages: u64,
    idle: &mut Vec<Descriptor>,
) -> Result<Option<Ending>, Failure> {
    let vi = station.vi(ReliabilityLevel::ReliableDelivery, "sink")?;
    let mut receives = Queue::new(&vi, Side::Receive);
    for descriptor in idle.drain(..IDLE_RECEIVES) {
        receives.post(descriptor)?;
    }
    station.connect(&vi, server, round)?;
    let mut sends = Queue::new(&vi, Side::Send);
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
    let late = if is_broken { TIMEOUT } else { LATE_BREAK };
    if station.losses(vi.handle(), late) == 0 {
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
    finish_round(station, &vi, round.to_owned(), sent, flushed, silence).map(Some)
}
