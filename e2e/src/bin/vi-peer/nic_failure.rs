//! The subcommand `survive-failures`: a client whose NIC fails, and which closes and reopens it.

use std::io;

use vi_types::QueueKind;
use vipl::{Descriptor, ReliabilityLevel, Timeout, Vi, ViState, VipError};

use crate::echo::round_trip;
use crate::nic_context::{NicContext, TIMEOUT};
use crate::queue::Queue;
use crate::server_address::ServerAddress;
use e2e::failure::Failure;

/// Successful round trips that prove a connection.
const MESSAGES: u64 = 10;

/// Connects `failures` + 1 times; the NIC must fail each time but the last.
pub(crate) fn survive_failures(
    nic: &str,
    server: &ServerAddress,
    client_name: &str,
    failures: u32,
    busy: bool,
) -> Result<(), Failure> {
    for round in 0..failures {
        use_until_failure(nic, server, client_name, round, busy)?;
        println!("closed {round}");
        let mut line = String::new();
        if io::stdin().read_line(&mut line)? == 0 {
            return Err("the input ended before the NIC was reopened".into());
        }
    }
    let context = NicContext::open(nic)?;
    let vi = context.vi(ReliabilityLevel::ReliableDelivery, "server")?;
    let mut descriptors = context.descriptors(2)?;
    context.connect(&vi, server, client_name)?;
    for serial in 0..MESSAGES {
        if !round_trip(&vi, serial, &mut descriptors)? {
            return Err("the last connection is lost".into());
        }
    }
    println!("alive {failures}");
    vi.disconnect()?;
    drop((descriptors, vi));
    context.finish()
}

/// Opens the NIC, connects, waits for the failure, and checks the calls that remain possible after it (VIPL 7.5).
fn use_until_failure(
    nic: &str,
    server: &ServerAddress,
    client_name: &str,
    round: u32,
    busy: bool,
) -> Result<(), Failure> {
    let context = NicContext::open(nic)?;
    let vi = context.vi(ReliabilityLevel::ReliableDelivery, "server")?;
    let mut descriptors = context.descriptors(3)?;
    context.connect(&vi, server, client_name)?;
    for serial in 0..MESSAGES {
        if !round_trip(&vi, serial, &mut descriptors)? {
            return Err("the connection is lost before anything failed".into());
        }
    }
    let idle = descriptors.pop().ok_or("a descriptor is missing")?;
    println!("alive {round}");
    if busy {
        keep_busy(&context, &vi, &mut descriptors)?;
    }
    let mut receives = Queue::new(&vi, QueueKind::Receive);
    receives.post(idle)?;
    let received = receives
        .take(Timeout::After(TIMEOUT))?
        .ok_or("a receive is not flushed on a NIC that failed")?;
    if !received.status.is_flushed() {
        return Err(format!("a receive ended with {}", received.status).into());
    }
    let (failures, losses) = (
        context.failures(TIMEOUT),
        context.losses(vi.handle(), TIMEOUT),
    );
    if (failures, losses, vi.state()?) != (1, 1, ViState::Error) {
        let state = vi.state()?;
        return Err(format!("{failures} failures, {losses} losses, {state:?}").into());
    }
    vi.disconnect()?;
    let local = context.nic().local_address(client_name.as_bytes())?;
    match vi.connect(&local, &local, Timeout::After(TIMEOUT)) {
        Err(VipError::NotReachable) => {}
        other => return Err(format!("a request on a NIC that failed: {other:?}").into()),
    }
    vi.disconnect()?;
    Ok(())
}

/// Sends messages and registers memory until the connection is lost.
fn keep_busy(
    context: &NicContext,
    vi: &Vi,
    descriptors: &mut Vec<Descriptor>,
) -> Result<(), Failure> {
    let mut serial = MESSAGES;
    while round_trip(vi, serial, descriptors)? {
        serial += 1;
        if !serial.is_multiple_of(MESSAGES) {
            continue;
        }
        // If the NIC fails during registration, the next round trip reports it.
        if let Ok(fresh) = context.descriptors(descriptors.len()) {
            *descriptors = fresh;
        }
    }
    Ok(())
}
