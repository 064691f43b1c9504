//! Unreliable Delivery: a message arrives once or never, and whole.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use vipl::{Descriptor, ReliabilityLevel, Timeout, Vi, VipError};

use crate::queue::{Queue, Side};
use crate::station::{Station, TIMEOUT, tell};
use crate::{Failure, Server, message};

/// Receives that wait at the sink.
const SINK_RECEIVES: usize = 256;
/// The sink answers each message of such a serial number, so that the source does not run ahead.
const ANSWER_EACH: u64 = 8;
/// Messages of which the source has no answer, at most: fewer than the sink's receives, and so many that
/// some of their answers arrive.
const AHEAD: u64 = 192;
/// The serial numbers of answers are multiples of this: one frame each.
const ANSWER_STEP: u64 = 6;
/// Answers that have not come after so long do not come any more.
const LAST_ANSWER: Timeout = Timeout::After(Duration::from_millis(50));
/// Descriptors for what the source sends, and for answers at both ends.
const DESCRIPTORS: usize = 32;

/// What arrived.
#[derive(Default)]
struct Arrivals {
    serials: HashSet<u64>,
    doubled: u64,
    damaged: u64,
    incomplete: u64,
}

impl Arrivals {
    fn count(&mut self, bytes: &[u8]) -> Option<u64> {
        let serial = message::read(bytes);
        match serial {
            Some(serial) => self.doubled += u64::from(!self.serials.insert(serial)),
            None => self.damaged += 1,
        }
        serial
    }

    fn tell(&self) {
        tell("delivered", self.serials.len() as u64);
        tell("doubled", self.doubled);
        tell("damaged", self.damaged);
        tell("incomplete", self.incomplete);
    }
}

/// Makes every send descriptor that came back usable again.
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

/// Counts what one source sends until it disconnects.
pub(crate) fn sink(nic: &str, name: &str) -> Result<(), Failure> {
    let station = Station::open(nic)?;
    let vi = station.vi(ReliabilityLevel::Unreliable, "source")?;
    let mut receives = Queue::new(&vi, Side::Receive);
    for descriptor in station.descriptors(SINK_RECEIVES)? {
        receives.post(descriptor)?;
    }
    accept(&station, &vi, name)?;
    let mut sends = Queue::new(&vi, Side::Send);
    let mut idle = station.descriptors(DESCRIPTORS)?;
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
            if let Some(serial) = serial.filter(|serial| serial % ANSWER_EACH == ANSWER_EACH - 1) {
                let descriptor = idle.pop().ok_or("sends do not complete")?;
                send(&mut sends, descriptor, serial * ANSWER_STEP)?;
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
    tell("flushed", receives.flushed());
    tell("losses", station.losses(vi.handle(), TIMEOUT) as u64);
    arrivals.tell();
    vi.disconnect()?;
    drop((receives, sends, idle));
    drop(vi);
    station.finish()
}

/// Accepts the first client whose connection comes about.
fn accept(station: &Station, vi: &Vi, name: &str) -> Result<(), Failure> {
    let local = station.nic().local_address(name.as_bytes())?;
    println!("listening");
    loop {
        let mut request = station
            .nic()
            .connect_wait(&local, Timeout::After(TIMEOUT))?;
        match request.accept(vi) {
            Ok(()) => return Ok(()),
            // The client gave up and asks again.
            Err(VipError::Timeout) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends so many messages, no faster than the sink takes them, and disconnects.
pub(crate) fn source(nic: &str, server: &Server, messages: u64) -> Result<(), Failure> {
    let station = Station::open(nic)?;
    let vi = station.vi(ReliabilityLevel::Unreliable, "sink")?;
    let mut answers = Queue::new(&vi, Side::Receive);
    for descriptor in station.descriptors(DESCRIPTORS)? {
        answers.post(descriptor)?;
    }
    station.connect(&vi, server, "source")?;
    let mut sends = Queue::new(&vi, Side::Send);
    let mut idle = station.descriptors(DESCRIPTORS)?;
    let start = Instant::now();
    let mut answered = 0;
    for serial in 0..messages {
        while serial - answered > AHEAD {
            let answer = take_answer(&mut answers, Timeout::After(TIMEOUT))?;
            answered = answered.max(answer.ok_or("the sink is silent")?);
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
    tell("send_ms", start.elapsed().as_millis() as u64);
    while sends.len() > 0 {
        sends
            .take(Timeout::After(TIMEOUT))?
            .ok_or("a send does not complete")?;
    }
    while take_answer(&mut answers, LAST_ANSWER)?.is_some() {}
    tell("sent", messages);
    vi.disconnect()?;
    answers.drain()?;
    tell("flushed", answers.flushed());
    drop((answers, sends, idle));
    drop(vi);
    station.finish()
}

/// Takes one answer of the sink, of which some are lost too; the serial number that it answers.
fn take_answer(answers: &mut Queue<'_>, limit: Timeout) -> Result<Option<u64>, Failure> {
    let Some(answer) = answers.take(limit)? else {
        return Ok(None);
    };
    let mut serial = 0;
    if answer.status.is_ok() {
        serial = message::read(answer.first_bytes()).ok_or("an answer is damaged")? / ANSWER_STEP;
    }
    answers.post(answer.descriptor)?;
    Ok(Some(serial))
}
