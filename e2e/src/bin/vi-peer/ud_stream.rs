//! Streams over Unreliable Delivery: each message arrives at most once, and undamaged.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use vi_types::QueueKind;
use vipl::{Descriptor, ReliabilityLevel, Timeout};

use crate::message;
use crate::nic_context::{NicContext, TIMEOUT, print_count};
use crate::queue::Queue;
use crate::server_address::ServerAddress;
use e2e::failure::Failure;

/// Posted receives at the sink.
const SINK_RECEIVES: usize = 256;
/// The sink acknowledges each eighth message, which limits the rate of the source.
const ACK_EVERY: u64 = 8;
/// Maximum number of unacknowledged messages: fewer than the sink's receives, and enough that some acknowledgements
/// arrive.
const WINDOW: u64 = 192;
/// Serial numbers of acknowledgements are multiples of this, so that each is one frame.
const ACK_STEP: u64 = 6;
/// Time that the source waits for further acknowledgements at the end.
const LAST_ACK_TIMEOUT: Timeout = Timeout::After(Duration::from_millis(50));
/// Descriptors for sends of the source, and for acknowledgements at both ends.
const DESCRIPTORS: usize = 32;

/// Messages that arrived.
#[derive(Default)]
struct Arrivals {
    serials: HashSet<u64>,
    duplicated: u64,
    damaged: u64,
    incomplete: u64,
}

impl Arrivals {
    fn count(&mut self, bytes: &[u8]) -> Option<u64> {
        let serial = message::read(bytes);
        match serial {
            Some(serial) => self.duplicated += u64::from(!self.serials.insert(serial)),
            None => self.damaged += 1,
        }
        serial
    }

    fn print(&self) {
        print_count("delivered", self.serials.len() as u64);
        print_count("duplicated", self.duplicated);
        print_count("damaged", self.damaged);
        print_count("incomplete", self.incomplete);
    }
}

/// Returns completed send descriptors to `idle`.
fn collect(sends: &mut Queue<'_>, idle: &mut Vec<Descriptor>) -> Result<(), Failure> {
    while sends.len() > 0 {
        let Some(sent) = sends.take(Timeout::Immediate)? else {
            break;
        };
        if !sent.status.is_ok() && !sent.status.is_flushed() {
            return Err(format!("a send failed: {}", sent.status).into());
        }
        idle.push(sent.descriptor);
    }
    Ok(())
}

fn send(sends: &mut Queue<'_>, mut descriptor: Descriptor, serial: u64) -> Result<(), Failure> {
    let length = message::write(serial, descriptor.buffer_mut(0));
    descriptor.set_used_bytes(0, length);
    sends.post(descriptor)
}

/// Counts the messages of one source until it disconnects.
pub(crate) fn sink(nic: &str, name: &str) -> Result<(), Failure> {
    let context = NicContext::open(nic)?;
    let vi = context.vi(ReliabilityLevel::UnreliableDelivery, "source")?;
    let mut receives = Queue::new(&vi, QueueKind::Receive);
    for descriptor in context.descriptors(SINK_RECEIVES)? {
        receives.post(descriptor)?;
    }
    println!("listening");
    context.accept(&vi, name)?;
    let mut sends = Queue::new(&vi, QueueKind::Send);
    let mut idle = context.descriptors(DESCRIPTORS)?;
    let mut arrivals = Arrivals::default();
    loop {
        let Some(received) = receives.take(Timeout::After(TIMEOUT))? else {
            return Err("the source is silent and does not disconnect".into());
        };
        if received.status.is_flushed() {
            break;
        }
        if received.status.is_ok() {
            let serial = arrivals.count(received.first_bytes());
            collect(&mut sends, &mut idle)?;
            if let Some(serial) = serial.filter(|serial| serial % ACK_EVERY == ACK_EVERY - 1) {
                let descriptor = idle.pop().ok_or("sends do not complete")?;
                send(&mut sends, descriptor, serial * ACK_STEP)?;
            }
        } else if received.status.is_transport_error() && received.status.is_partial() {
            arrivals.incomplete += 1;
        } else {
            return Err(format!("a receive failed: {}", received.status).into());
        }
        receives.post(received.descriptor)?;
    }
    receives.drain()?;
    sends.drain()?;
    print_count("flushed", receives.flushed());
    print_count("losses", context.losses(vi.handle(), TIMEOUT) as u64);
    arrivals.print();
    vi.disconnect()?;
    drop((receives, sends, idle));
    drop(vi);
    context.finish()
}

/// Sends `messages` messages, limited by acknowledgements of the sink, and disconnects.
pub(crate) fn source(nic: &str, server: &ServerAddress, messages: u64) -> Result<(), Failure> {
    let context = NicContext::open(nic)?;
    let vi = context.vi(ReliabilityLevel::UnreliableDelivery, "sink")?;
    let mut acks = Queue::new(&vi, QueueKind::Receive);
    for descriptor in context.descriptors(DESCRIPTORS)? {
        acks.post(descriptor)?;
    }
    context.connect(&vi, server, "source")?;
    let mut sends = Queue::new(&vi, QueueKind::Send);
    let mut idle = context.descriptors(DESCRIPTORS)?;
    let start = Instant::now();
    let mut acked = 0;
    for serial in 0..messages {
        while serial - acked > WINDOW {
            let ack = take_ack(&mut acks, Timeout::After(TIMEOUT))?;
            acked = acked.max(ack.ok_or("the sink is silent")?);
        }
        let descriptor = match idle.pop() {
            Some(descriptor) => descriptor,
            None => {
                let sent = sends
                    .take(Timeout::After(TIMEOUT))?
                    .ok_or("a send does not complete")?;
                sent.descriptor
            }
        };
        send(&mut sends, descriptor, serial)?;
        collect(&mut sends, &mut idle)?;
    }
    print_count("send_ms", start.elapsed().as_millis() as u64);
    while sends.len() > 0 {
        sends
            .take(Timeout::After(TIMEOUT))?
            .ok_or("a send does not complete")?;
    }
    while take_ack(&mut acks, LAST_ACK_TIMEOUT)?.is_some() {}
    print_count("sent", messages);
    vi.disconnect()?;
    acks.drain()?;
    print_count("flushed", acks.flushed());
    drop((acks, sends, idle));
    drop(vi);
    context.finish()
}

/// Waits for an acknowledgement of the sink; returns the acknowledged serial number, or 0 if it was damaged in transit.
fn take_ack(acks: &mut Queue<'_>, limit: Timeout) -> Result<Option<u64>, Failure> {
    let Some(ack) = acks.take(limit)? else {
        return Ok(None);
    };
    let mut serial = 0;
    if ack.status.is_ok() {
        serial =
            message::read(ack.first_bytes()).ok_or("an acknowledgement is damaged")? / ACK_STEP;
    }
    acks.post(ack.descriptor)?;
    Ok(Some(serial))
}
