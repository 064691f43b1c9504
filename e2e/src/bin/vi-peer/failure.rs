//! A NIC that fails under its program, which takes it down in order and opens it again.

use std::io;

use vipl::{Descriptor, ReliabilityLevel, Timeout, Vi, ViState, VipError};

use crate::echo::round_trip;
use crate::queue::{Queue, Side};
use crate::station::{Station, TIMEOUT};
use crate::{Failure, Server};

/// Messages there and back before a connection counts as good.
const MESSAGES: u64 = 10;

/// Connects so many times and once more; the NIC fails each time but the last.
pub(crate) fn outlive(
    nic: &str,
    server: &Server,
    own: &str,
    failures: u32,
    busy: bool,
) -> Result<(), Failure> {
    for round in 0..failures {
        until_it_fails(nic, server, own, round, busy)?;
        println!("closed {round}");
        let mut line = String::new();
        if io::stdin().read_line(&mut line)? == 0 {
            return Err("nobody said to go on".into());
        }
    }
    let station = Station::open(nic)?;
    let vi = station.vi(ReliabilityLevel::ReliableDelivery, "server")?;
    let mut descriptors = station.descriptors(2)?;
    station.connect(&vi, server, own)?;
    for serial in 0..MESSAGES {
        if !round_trip(&vi, serial, &mut descriptors)? {
            return Err("the last connection is lost".into());
        }
    }
    println!("alive {failures}");
    vi.disconnect()?;
    drop((descriptors, vi));
    station.finish()
}

/// One opening, from a good connection to the failure, and what the guide lets the program do
/// then (VIPL 7.5).
fn until_it_fails(
    nic: &str,
    server: &Server,
    own: &str,
    round: u32,
    busy: bool,
) -> Result<(), Failure> {
    let station = Station::open(nic)?;
    let vi = station.vi(ReliabilityLevel::ReliableDelivery, "server")?;
    let mut descriptors = station.descriptors(3)?;
    station.connect(&vi, server, own)?;
    for serial in 0..MESSAGES {
        if !round_trip(&vi, serial, &mut descriptors)? {
            return Err("the connection is lost before anything failed".into());
        }
    }
    let idle = descriptors.pop().ok_or("a descriptor is missing")?;
    println!("alive {round}");
    if busy {
        keep_busy(&station, &vi, &mut descriptors)?;
    }
    let mut receives = Queue::new(&vi, Side::Receive);
    receives.post(idle)?;
    let received = receives
        .take(Timeout::After(TIMEOUT))?
        .ok_or("a receive is kept on a NIC that failed")?;
    if !received.status.is_flushed() {
        return Err(format!("a receive ended with {}", received.status).into());
    }
    let (told, lost) = (
        station.failures(TIMEOUT),
        station.losses(vi.handle(), TIMEOUT),
    );
    if (told, lost, vi.state()?) != (1, 1, ViState::Error) {
        let state = vi.state()?;
        return Err(format!("told {told} times, lost {lost} times, {state:?}").into());
    }
    vi.disconnect()?;
    let local = station.nic().local_address(own.as_bytes())?;
    match vi.connect(&local, &local, Timeout::After(TIMEOUT)) {
        Err(VipError::NotReachable) => {}
        other => return Err(format!("a request on a NIC that failed: {other:?}").into()),
    }
    vi.disconnect()?;
    Ok(())
}

/// Messages there and back, and memory registered for some, until the connection is lost.
fn keep_busy(station: &Station, vi: &Vi, descriptors: &mut Vec<Descriptor>) -> Result<(), Failure> {
    let mut serial = MESSAGES;
    while round_trip(vi, serial, descriptors)? {
        serial += 1;
        if !serial.is_multiple_of(MESSAGES) {
            continue;
        }
        // A NIC that fails in the middle of this is found out by the next message.
        if let Ok(fresh) = station.descriptors(descriptors.len()) {
            *descriptors = fresh;
        }
    }
    Ok(())
}
