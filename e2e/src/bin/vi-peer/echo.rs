//! Echo over Reliable Delivery: a server of many clients, and a client that sends until it is told to stop.

use std::io::{self, BufRead};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use vipl::{ConnectionRequest, Nic, Ptag, ReliabilityLevel, Timeout, Vi, VipError};

use crate::events::Events;
use crate::queue::{Queue, Side};
use crate::station::{Names, Station, TIMEOUT, make_descriptors, make_vi, tell, tell_counters};
use crate::{Failure, Server, message};

/// How often a thread that waits looks whether it is to end.
const LOOK_UP: Timeout = Timeout::After(Duration::from_millis(100));
/// How often a client tells how far it is.
const TELL_EACH: Duration = Duration::from_millis(20);
/// A client that is later than this does not make up for it: how slow it was would be hidden by
/// how fast it is afterwards.
const DEBT: Duration = Duration::from_millis(10);
/// A round trip that takes longer is a stall.
const STALL: Duration = Duration::from_millis(50);
/// What the input says to have the counters told.
const COUNTERS: &str = "counters";
/// Receives for each client.
const RECEIVES: usize = 2;

/// Set when the program is to end.
type Stop = Arc<OnceLock<()>>;

fn stop_is_asked(stop: &Stop) -> bool {
    stop.get().is_some()
}

/// What every thread of a server needs.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) nic: Nic,
    pub(crate) ptag: Ptag,
    pub(crate) names: Names,
    pub(crate) events: Events,
    stop: Stop,
}

impl Shared {
    /// Is the program to end?
    pub(crate) fn ends(&self) -> bool {
        stop_is_asked(&self.stop)
    }
}

/// Serves any number of clients until the input ends.
pub(crate) fn serve(nic: &str, name: &str) -> Result<(), Failure> {
    listen(nic, name, serve_client)
}

/// Has each client's request answered on a thread of its own until the input ends.
pub(crate) fn listen(
    nic: &str,
    name: &str,
    serve: impl Fn(&Shared, ConnectionRequest) -> Result<(), String> + Clone + Send + 'static,
) -> Result<(), Failure> {
    let station = Station::open(nic)?;
    let shared = Shared {
        nic: station.nic().clone(),
        ptag: station.ptag().clone(),
        names: Arc::clone(station.names()),
        events: station.events().clone(),
        stop: Stop::default(),
    };
    let local = shared.nic.local_address(name.as_bytes())?;
    let listener = thread::spawn({
        let shared = shared.clone();
        move || -> Result<(), String> {
            let mut clients = Vec::new();
            while !shared.ends() {
                match shared.nic.connect_wait(&local, LOOK_UP) {
                    Ok(request) => {
                        let (shared, serve) = (shared.clone(), serve.clone());
                        clients.push(thread::spawn(move || serve(&shared, request)));
                    }
                    Err(VipError::Timeout) => {}
                    Err(error) => return Err(format!("cannot listen: {error}")),
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
            COUNTERS => tell_counters(shared.nic.handle())?,
            other => return Err(format!("no such command: {other:?}").into()),
        }
    }
    // Nobody else sets it.
    let _ = shared.stop.set(());
    listener.join().map_err(|_| "the listener panicked")??;
    drop(shared);
    station.finish()
}

/// What a client calls itself.
pub(crate) fn name_of(request: &ConnectionRequest) -> String {
    String::from_utf8_lossy(request.remote().discriminator.as_bytes()).into_owned()
}

/// Sends back what a client sends, and tells how much that was.
pub(crate) fn serve_client(shared: &Shared, request: ConnectionRequest) -> Result<(), String> {
    let name = name_of(&request);
    match echo(shared, request, &name) {
        Ok(messages) => {
            println!("left {name} after {messages}");
            Ok(())
        }
        Err(error) => Err(format!("{name}: {error}")),
    }
}

/// Sends back what one client sends until it is gone.
fn echo(shared: &Shared, mut request: ConnectionRequest, name: &str) -> Result<u64, Failure> {
    let level = ReliabilityLevel::ReliableDelivery;
    let vi = make_vi(&shared.nic, &shared.ptag, &shared.names, level, name)?;
    let mut receives = Queue::new(&vi, Side::Receive);
    let mut sends = Queue::new(&vi, Side::Send);
    for descriptor in make_descriptors(&shared.nic, &shared.ptag, RECEIVES)? {
        receives.post(descriptor)?;
    }
    match request.accept(&vi) {
        // The client died while it asked.
        Err(VipError::Timeout) => return Ok(0),
        // It wants another kind of connection, and is told that there is none: as it leaves, its request is rejected.
        Err(VipError::InvalidMtu | VipError::InvalidReliabilityLevel) => {
            println!("refused {name}");
            return Ok(0);
        }
        outcome => outcome?,
    }
    println!("connected {name}");
    let mut messages = 0;
    while !shared.ends() {
        let Some(received) = receives.take(LOOK_UP)? else {
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

/// Sends and checks what comes back until the input or the connection ends.
pub(crate) fn ping(
    nic: &str,
    server: &Server,
    own: &str,
    per_second: Option<u32>,
) -> Result<(), Failure> {
    let station = Station::open(nic)?;
    let vi = station.vi(ReliabilityLevel::ReliableDelivery, "server")?;
    let mut descriptors = station.descriptors(2)?;
    station.connect(&vi, server, own)?;
    println!("connected");
    let stop = Stop::default();
    thread::spawn({
        let stop = Arc::clone(&stop);
        // Not the NIC itself: it is closed when the connection ends, and this thread still reads.
        let nic = station.nic().handle();
        move || {
            let goes_on = |line: io::Result<String>| {
                line.is_ok_and(|line| line == COUNTERS) && tell_counters(nic).is_ok()
            };
            // Whatever else comes, the end of the input or an error, is the end.
            let _ = io::stdin().lock().lines().all(goes_on);
            stop.set(())
        }
    });
    let mut serial = 0;
    let mut told = Instant::now();
    let mut due = Instant::now();
    let (mut shortest, mut longest) = (Duration::MAX, Duration::ZERO);
    let mut stalls = 0;
    let mut is_lost = false;
    while !is_lost && !stop_is_asked(&stop) {
        if let Some(per_second) = per_second {
            let now = Instant::now();
            let earliest = now.checked_sub(DEBT).unwrap_or(now);
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
        if told.elapsed() >= TELL_EACH {
            told = Instant::now();
            println!("stalls {stalls}\nalive {serial}");
        }
    }
    // It may be told to stop by whoever was quicker to hear of the loss.
    is_lost |= station.losses(vi.handle(), Duration::ZERO) > 0;
    tell("round_trips", serial);
    if serial > 0 {
        tell("shortest_us", shortest.as_micros() as u64);
        tell("longest_us", longest.as_micros() as u64);
    }
    if is_lost {
        tell("losses", station.losses(vi.handle(), TIMEOUT) as u64);
    }
    vi.disconnect()?;
    drop(descriptors);
    drop(vi);
    station.finish()
}

/// One message there and back; false if the connection is lost.
pub(crate) fn round_trip(
    vi: &Vi,
    serial: u64,
    descriptors: &mut Vec<vipl::Descriptor>,
) -> Result<bool, Failure> {
    let mut receives = Queue::new(vi, Side::Receive);
    let mut sends = Queue::new(vi, Side::Send);
    let mut next = || descriptors.pop().ok_or("a descriptor is missing");
    receives.post(next()?)?;
    let mut descriptor = next()?;
    let length = message::write(serial, descriptor.buffer_mut(0));
    descriptor.set_used_bytes(0, length);
    sends.post(descriptor)?;
    let timeout = Timeout::After(TIMEOUT);
    let received = receives
        .take(timeout)?
        .ok_or("no echo on a connection that stands")?;
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
