//! Echo over Reliable Delivery: a server for any number of clients, and a client that runs until its input ends.

use std::io::{self, BufRead};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use vi_types::QueueKind;
use vipl::{ConnectionRequest, Nic, Ptag, ReliabilityLevel, Timeout, Vi, VipError};

use crate::events::Events;
use crate::message;
use crate::nic_context::{
    Names, NicContext, TIMEOUT, make_descriptors, make_vi, print_count, print_counters,
};
use crate::queue::Queue;
use crate::server_address::ServerAddress;
use e2e::failure::Failure;

/// Interval at which waiting threads check whether to stop.
const STOP_CHECK_INTERVAL: Timeout = Timeout::After(Duration::from_millis(100));
/// Interval of a client's progress reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum delay that a paced client catches up; more would hide stalls.
const MAX_CATCH_UP: Duration = Duration::from_millis(10);
/// Round trips longer than this are counted as stalls.
const STALL: Duration = Duration::from_millis(50);
/// The input line that requests the counters.
const COUNTERS: &str = "counters";
/// Receives for each client.
const RECEIVES: usize = 2;

/// Set when the program shall end.
type Stop = Arc<OnceLock<()>>;

fn is_set(stop: &Stop) -> bool {
    stop.get().is_some()
}

/// State that the threads of a server share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) nic: Nic,
    pub(crate) ptag: Ptag,
    pub(crate) names: Names,
    pub(crate) events: Events,
    stop: Stop,
}

impl Shared {
    /// Whether the program shall end.
    pub(crate) fn is_stopping(&self) -> bool {
        is_set(&self.stop)
    }
}

/// Runs an echo server until the input ends.
pub(crate) fn serve(nic: &str, name: &str) -> Result<(), Failure> {
    listen(nic, name, serve_client)
}

/// Handles each connection request on a new thread until the input ends.
pub(crate) fn listen(
    nic: &str,
    name: &str,
    serve: impl Fn(&Shared, ConnectionRequest) -> Result<(), String> + Clone + Send + 'static,
) -> Result<(), Failure> {
    let context = NicContext::open(nic)?;
    let shared = Shared {
        nic: context.nic().clone(),
        ptag: context.ptag().clone(),
        names: Arc::clone(context.names()),
        events: context.events().clone(),
        stop: Stop::default(),
    };
    let local = shared.nic.local_address(name.as_bytes())?;
    let listener = thread::spawn({
        let shared = shared.clone();
        move || -> Result<(), String> {
            let mut clients = Vec::new();
            while !shared.is_stopping() {
                match shared.nic.connect_wait(&local, STOP_CHECK_INTERVAL) {
                    Ok(request) => {
                        let (shared, serve) = (shared.clone(), serve.clone());
                        clients.push(thread::spawn(move || serve(&shared, request)));
                    }
                    Err(VipError::Timeout) => {}
                    Err(error) => return Err(format!("listener: {error}")),
                }
            }
            for client in clients {
                client.join().map_err(|_| "a client's thread panicked")??;
            }
            Ok(())
        }
    });
    println!("listening");
    for line in io::stdin().lock().lines() {
        match line?.as_str() {
            COUNTERS => print_counters(shared.nic.handle())?,
            other => return Err(format!("unknown command: {other:?}").into()),
        }
    }
    // It is set only here.
    let _ = shared.stop.set(());
    listener.join().map_err(|_| "the listener panicked")??;
    drop(shared);
    context.finish()
}

/// Returns the client's discriminator.
pub(crate) fn name_of(request: &ConnectionRequest) -> String {
    String::from_utf8_lossy(request.remote().discriminator.as_bytes()).into_owned()
}

/// Echoes the messages of a client, then prints their number.
pub(crate) fn serve_client(shared: &Shared, request: ConnectionRequest) -> Result<(), String> {
    let name = name_of(&request);
    match echo(shared, request, &name) {
        Ok(messages) => {
            println!("disconnected {name} after {messages}");
            Ok(())
        }
        Err(error) => Err(format!("{name}: {error}")),
    }
}

/// Echoes the messages of one client until it disconnects.
fn echo(shared: &Shared, mut request: ConnectionRequest, name: &str) -> Result<u64, Failure> {
    let level = ReliabilityLevel::ReliableDelivery;
    let vi = make_vi(&shared.nic, &shared.ptag, &shared.names, level, name)?;
    let mut receives = Queue::new(&vi, QueueKind::Receive);
    let mut sends = Queue::new(&vi, QueueKind::Send);
    for descriptor in make_descriptors(&shared.nic, &shared.ptag, RECEIVES)? {
        receives.post(descriptor)?;
    }
    match request.accept(&vi) {
        // The client has timed out or was killed.
        Err(VipError::Timeout) => return Ok(0),
        // The client requests other VI attributes; dropping the request rejects it.
        Err(VipError::InvalidMtu | VipError::InvalidReliabilityLevel) => {
            println!("rejected {name}");
            return Ok(0);
        }
        outcome => outcome?,
    }
    println!("connected {name}");
    let mut messages = 0;
    while !shared.is_stopping() {
        let Some(received) = receives.take(STOP_CHECK_INTERVAL)? else {
            continue;
        };
        if !received.status.is_ok() {
            break;
        }
        let length_bytes = received.length_bytes();
        let mut descriptor = received.descriptor;
        descriptor.set_used_bytes(0, length_bytes);
        sends.post(descriptor)?;
        let sent = sends
            .take(Timeout::After(TIMEOUT))?
            .ok_or("a send does not complete")?;
        if !sent.status.is_ok() {
            break;
        }
        receives.post(sent.descriptor)?;
        messages += 1;
    }
    vi.disconnect()?;
    receives.drain()?;
    sends.drain()?;
    Ok(messages)
}

/// Sends messages and checks their echoes until the input or the connection ends.
pub(crate) fn ping(
    nic: &str,
    server: &ServerAddress,
    client_name: &str,
    per_second: Option<u32>,
) -> Result<(), Failure> {
    let context = NicContext::open(nic)?;
    let vi = context.vi(ReliabilityLevel::ReliableDelivery, "server")?;
    let mut descriptors = context.descriptors(2)?;
    context.connect(&vi, server, client_name)?;
    println!("connected");
    let stop = Stop::default();
    thread::spawn({
        let stop = Arc::clone(&stop);
        // Only the handle: the NIC is closed when the connection ends, while this thread still reads.
        let nic = context.nic().handle();
        move || {
            let is_command = |line: io::Result<String>| {
                line.is_ok_and(|line| line == COUNTERS) && print_counters(nic).is_ok()
            };
            // Any other line, the end of the input and errors stop the client.
            let _ = io::stdin().lock().lines().all(is_command);
            stop.set(())
        }
    });
    let mut serial = 0;
    let mut reported_at = Instant::now();
    let mut due = Instant::now();
    let (mut shortest, mut longest) = (Duration::MAX, Duration::ZERO);
    let mut stalls = 0;
    let mut is_lost = false;
    while !is_lost && !is_set(&stop) {
        if let Some(per_second) = per_second {
            let now = Instant::now();
            let earliest = now.checked_sub(MAX_CATCH_UP).unwrap_or(now);
            due = (due + Duration::from_secs(1) / per_second).max(earliest);
            thread::park_timeout(due.saturating_duration_since(now));
        }
        let begun = Instant::now();
        is_lost = !round_trip(&vi, serial, &mut descriptors)?;
        if !is_lost {
            let took = begun.elapsed();
            (shortest, longest) = (shortest.min(took), longest.max(took));
            stalls += u32::from(took > STALL);
            serial += 1;
        }
        if reported_at.elapsed() >= REPORT_INTERVAL {
            reported_at = Instant::now();
            println!("stalls {stalls}\nalive {serial}");
        }
    }
    // The test may close the input before this thread sees the loss.
    is_lost |= context.losses(vi.handle(), Duration::ZERO) > 0;
    print_count("round_trips", serial);
    if serial > 0 {
        print_count("shortest_us", shortest.as_micros() as u64);
        print_count("longest_us", longest.as_micros() as u64);
    }
    if is_lost {
        print_count("losses", context.losses(vi.handle(), TIMEOUT) as u64);
    }
    vi.disconnect()?;
    drop(descriptors);
    drop(vi);
    context.finish()
}

/// Sends one message and checks its echo. Returns false if the connection is lost.
pub(crate) fn round_trip(
    vi: &Vi,
    serial: u64,
    descriptors: &mut Vec<vipl::Descriptor>,
) -> Result<bool, Failure> {
    let mut receives = Queue::new(vi, QueueKind::Receive);
    let mut sends = Queue::new(vi, QueueKind::Send);
    let mut next = || descriptors.pop().ok_or("a descriptor is missing");
    receives.post(next()?)?;
    let mut descriptor = next()?;
    let length = message::write(serial, descriptor.buffer_mut(0));
    descriptor.set_used_bytes(0, length);
    sends.post(descriptor)?;
    let timeout = Timeout::After(TIMEOUT);
    let received = receives
        .take(timeout)?
        .ok_or("timed out waiting for an echo")?;
    let sent = sends.take(timeout)?.ok_or("a send does not complete")?;
    if received.status.is_flushed() || sent.status.is_flushed() {
        return Ok(false);
    }
    if !received.status.is_ok() || !sent.status.is_ok() {
        return Err(format!("send: {}, receive: {}", sent.status, received.status).into());
    }
    if message::read(received.first_bytes()) != Some(serial) {
        return Err(format!("the echo of message {serial} is damaged").into());
    }
    descriptors.extend([received.descriptor, sent.descriptor]);
    Ok(true)
}
