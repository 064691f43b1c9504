//! The calls on a NIC that are not on the data path: create, destroy, register,
//! connect. Each takes the NIC's turn for a moment; none of them waits in it.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use fcvi_frame::connect::{Attributes, HostAddress, NetAddress};
use fcvi_frame::fc::NPortId;
use vi_engine::{ConnId, ConnectCommand, ConnectError, EndpointState, Indication, Level};

use crate::config::{PortKind, Protection, TransportKind, ip_address};
use crate::device::Device;
use crate::driver::Driver;
use crate::memory::{RegionError, TagCheck};
use crate::poller::Poller;
use crate::progress::{TimedOut, wait};
use crate::resource_error::ResourceError;
use crate::sleepers::Event;
use crate::sync::Ordering;
use crate::token::Held;
use crate::transport::ListenState;
use crate::vi::{ViSettings, ViShared};

pub(crate) mod attributes;
pub(crate) mod choices;
mod cq;
mod peer;
mod release;
mod tags;
pub(crate) mod users;
mod vis;

pub(crate) use cq::{create_cq, destroy_cq, resize_cq};
pub(crate) use peer::{connect_peer_done, connect_peer_request, connect_peer_wait};
pub(crate) use release::release_instance;
pub(crate) use tags::destroy_ptag;
pub(crate) use vis::{adopt_vi, check_vi, create_vi, destroy_vi, detach_local, disconnect};

/// Reliability level bits that are served: all three.
pub const LEVELS_SUPPORTED: u16 = 1 | 2 | 4;

/// Of these, the levels with RDMA reads: a read that is lost without notice would never end.
pub const RDMA_READ_LEVELS: u16 = 2 | 4;

/// Timeout for a port that another program has.
pub(crate) const LISTEN_TIMEOUT: Duration = Duration::from_secs(1);
const LISTEN_RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// Why a control call failed, in the words of the guide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum ControlError {
    /// A parameter or handle is not valid.
    InvalidParameter,
    /// A limit was reached, or the object is in use.
    Resource(ResourceError),
    /// The VI is in the wrong state.
    InvalidState,
    /// The reliability level is not supported, or differs from the peer's.
    ReliabilityLevel,
    /// The maximum transfer size is not supported, or differs.
    Mtu,
    /// The quality of service is not supported, or differs.
    Qos,
    /// The protection tag is not valid.
    Ptag,
    /// RDMA reads are not supported at this reliability level.
    RdmaRead,
    /// Not in time.
    Timeout,
    /// The peer's consumer said no.
    Reject,
    /// Nobody waits there.
    NoMatch,
    /// The host cannot be reached.
    NotReachable,
    /// Nothing is posted.
    QueueEmpty,
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InvalidParameter => "a parameter or handle is not valid",
            Self::Resource(why) => return why.fmt(f),
            Self::InvalidState => "the VI is in the wrong state",
            Self::ReliabilityLevel => "the reliability level is not supported, or differs",
            Self::Mtu => "the maximum transfer size is not supported, or differs",
            Self::Qos => "the quality of service is not supported, or differs",
            Self::Ptag => "the protection tag is not valid",
            Self::RdmaRead => "RDMA reads are not supported at this reliability level",
            Self::Timeout => "timed out",
            Self::Reject => "rejected by the peer",
            Self::NoMatch => "no program listens there",
            Self::NotReachable => "the host cannot be reached",
            Self::QueueEmpty => "nothing is posted",
        })
    }
}

impl From<ConnectError> for ControlError {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Timeout => Self::Timeout,
            ConnectError::Rejected => Self::Reject,
            ConnectError::NoMatch => Self::NoMatch,
            ConnectError::NotReachable => Self::NotReachable,
            ConnectError::ReliabilityLevel => Self::ReliabilityLevel,
            ConnectError::MaxTransferSize => Self::Mtu,
            ConnectError::Qos => Self::Qos,
            ConnectError::Resources => ResourceError::Connection.into(),
            ConnectError::InvalidState => Self::InvalidState,
            ConnectError::Invalid => Self::InvalidParameter,
        }
    }
}

impl From<RegionError> for ControlError {
    fn from(error: RegionError) -> Self {
        match error {
            RegionError::Invalid => Self::InvalidParameter,
            RegionError::Resource(why) => Self::Resource(why),
        }
    }
}

impl From<ResourceError> for ControlError {
    fn from(error: ResourceError) -> Self {
        Self::Resource(error)
    }
}

impl From<TimedOut> for ControlError {
    fn from(_: TimedOut) -> Self {
        Self::Timeout
    }
}

/// Result of a control call.
pub(crate) type Outcome<T> = Result<T, ControlError>;

/// The poller, for a call on a VI. Under the turn a VI neither ends nor gives its place to
/// another one.
fn poller_of<'a>(
    held: &'a mut Held<'_, Option<Driver>>,
    vi: &ViShared,
    handle: u64,
) -> Outcome<&'a mut Poller> {
    held.as_mut()
        .and_then(Driver::engine_mut)
        .filter(|_| vi.is_live(handle))
        .ok_or(ControlError::InvalidParameter)
}

/// The poller, for a call of an opening that needs a port which carries frames.
fn working_poller_for<'a>(
    held: &'a mut Held<'_, Option<Driver>>,
    device: &Device,
    instance: u64,
) -> Outcome<&'a mut Poller> {
    let poller = poller_for(held, device, instance)?;
    match poller.failure {
        None => Ok(poller),
        Some(_) => Err(ResourceError::NicFailed.into()),
    }
}

/// The poller, for a call on an opening of the NIC.
fn poller_for<'a>(
    held: &'a mut Held<'_, Option<Driver>>,
    device: &Device,
    instance: u64,
) -> Outcome<&'a mut Poller> {
    held.as_mut()
        .and_then(Driver::engine_mut)
        .filter(|_| device.instances.is_open(instance))
        .ok_or(ControlError::InvalidParameter)
}

fn level(bit: u16) -> Option<Level> {
    match bit {
        1 => Some(Level::UnreliableDelivery),
        2 => Some(Level::ReliableDelivery),
        4 => Some(Level::ReliableReception),
        _ => None,
    }
}

/// Checks the attributes of a VI in the order in which the guide lists their errors. The caller
/// holds the turn, so that the tag is there until the VI has it.
fn check_settings(device: &Device, settings: &ViSettings) -> Outcome<(Level, TagCheck)> {
    let level = level(settings.reliability).ok_or(ControlError::ReliabilityLevel)?;
    let limit = u64::from(device.max_transfer_bytes());
    if settings.max_transfer_bytes == 0 || settings.max_transfer_bytes > limit {
        return Err(ControlError::Mtu);
    }
    if settings.qos != 0 {
        return Err(ControlError::Qos);
    }
    let tag = if settings.ptag == 0 {
        match device.config.protection {
            Protection::Strict => return Err(ControlError::Ptag),
            Protection::Lenient => TagCheck::LENIENT,
        }
    } else {
        let tag = device
            .instances
            .tag(device.number(), settings.ptag)
            .ok_or(ControlError::Ptag)?;
        TagCheck::tag(tag)
    };
    if settings.rdma_read && settings.reliability & RDMA_READ_LEVELS == 0 {
        return Err(ControlError::RdmaRead);
    }
    Ok((level, tag))
}

/// Says once that a VI goes without a tag. Not under the turn: the logger is the program's.
fn tell_leniency(device: &Device, tag: TagCheck) {
    if tag == TagCheck::LENIENT && !device.leniency_told.swap(true, Ordering::Relaxed) {
        log::warn!(
            "NIC {}: protection is lenient: VIs without a tag may use every region of this process",
            device.config.name
        );
    }
}

/// Retries while another program has a TCP port: it may end, or begin to share the port. `attempt` gives `None` for a
/// retry, and a result when its argument says that the timeout has expired.
pub(crate) fn retry_listening<T>(
    timeout: Duration,
    mut attempt: impl FnMut(bool) -> Option<T>,
) -> T {
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(result) = attempt(Instant::now() >= deadline) {
            return result;
        }
        // No event reports that another program has begun to accept, or has ended.
        thread::sleep(LISTEN_RETRY_INTERVAL);
    }
}

/// Starts listening, if the transport has a port. Retries until `timeout` while another program has the port, without
/// the turn: that program may never share it.
pub(crate) fn start_listening(device: &Device, instance: u64, timeout: Duration) -> Outcome<()> {
    retry_listening(timeout, |is_last_try| {
        let mut held = device.hold();
        let poller = match working_poller_for(&mut held, device, instance) {
            Ok(poller) => poller,
            Err(error) => return Some(Err(error)),
        };
        match poller.engine.start_listening(is_last_try) {
            ListenState::Listening => Some(Ok(())),
            ListenState::PortTaken if !is_last_try => None,
            ListenState::PortTaken | ListenState::Failed => Some(Err(ResourceError::Listen.into())),
        }
    })
}

/// Waits for a connection request (VIPL 3.3.1).
pub(crate) fn connect_wait(
    device: &'static Device,
    instance: u64,
    local: &NetAddress,
    limit: Option<Duration>,
) -> Outcome<Indication> {
    start_listening(device, instance, LISTEN_TIMEOUT)?;
    let (listener, epoch) = {
        let mut held = device.hold();
        let poller = working_poller_for(&mut held, device, instance)?;
        let now_ns = poller.clock.now_ns();
        let listener = poller.engine.listen(now_ns, local.discriminator);
        (listener, device.epoch())
    };
    let event = Event::CONTROL.or(Event::on_listener(listener));
    let found = wait(device, event, limit, || {
        let mut held = device.hold();
        match working_poller_for(&mut held, device, instance) {
            Ok(poller) => poller.engine.take_indication(listener).map(Ok),
            Err(gone) => Some(Err(gone)),
        }
    });
    let error = match found {
        Ok(Ok(indication)) => return Ok(indication),
        Ok(Err(gone)) => gone,
        Err(TimedOut) => ControlError::Timeout,
    };
    let mut held = device.hold();
    // The engine of a later epoch knows nothing of our listener.
    let Some(poller) = held
        .as_mut()
        .and_then(Driver::engine_mut)
        .filter(|_| device.runs(epoch))
    else {
        return Err(ControlError::InvalidParameter);
    };
    if error == ControlError::Timeout
        && let Some(indication) = poller.engine.take_indication(listener)
    {
        return Ok(indication);
    }
    let now_ns = poller.clock.now_ns();
    poller.engine.unlisten(now_ns, listener, &mut poller.path);
    poller.path.flush();
    Err(error)
}

/// Waits for the outcome of a connection procedure on a VI.
fn outcome(vi: &'static ViShared, handle: u64) -> Outcome<Attributes> {
    let device = vi.device;
    // The procedure has its own time-outs: this wait ends with them, or with the VI.
    let event = Event::CONTROL.or(Event::on_connection(vi.index.0));
    let found = wait(device, event, None, || {
        let mut held = device.hold();
        match poller_of(&mut held, vi, handle) {
            Ok(poller) => poller
                .engine
                .take_outcome(vi.index)
                .map(|outcome| outcome.map_err(ControlError::from)),
            Err(gone) => Some(Err(gone)),
        }
    });
    vi.connecting.fetch_sub(1, Ordering::Relaxed);
    Ok(found??.attributes)
}

/// The turn, once no earlier connection call on this VI still has its outcome to collect:
/// a call that another thread's disconnect ended must not be given the next one's.
fn hold_for_connecting(vi: &'static ViShared) -> Held<'static, Option<Driver>> {
    loop {
        let held = vi.device.hold();
        let idle = held
            .as_ref()
            .and_then(Driver::engine)
            .is_none_or(|poller| poller.engine.state(vi.index) == Some(EndpointState::Idle));
        if !idle || vi.connecting.load(Ordering::Relaxed) == 0 {
            return held;
        }
        drop(held);
        vi.device.wake_sleepers();
        thread::yield_now();
    }
}

/// Accepts a request with a VI (VIPL 3.3.2).
pub(crate) fn connect_accept(conn: ConnId, vi: &'static ViShared, handle: u64) -> Outcome<()> {
    {
        let mut held = hold_for_connecting(vi);
        let poller = poller_of(&mut held, vi, handle)?;
        let now_ns = poller.clock.now_ns();
        poller
            .engine
            .accept(now_ns, conn, vi.index, &mut poller.path)?;
        vi.connecting.fetch_add(1, Ordering::Relaxed);
        poller.path.flush();
    }
    outcome(vi, handle).map(|_| ())
}

/// Rejects a request (VIPL 3.3.3).
pub(crate) fn connect_reject(device: &'static Device, conn: ConnId) -> Outcome<()> {
    let mut held = device.hold();
    let poller = held
        .as_mut()
        .and_then(Driver::engine_mut)
        .ok_or(ControlError::InvalidParameter)?;
    let now_ns = poller.clock.now_ns();
    poller.engine.reject(now_ns, conn, &mut poller.path)?;
    poller.path.flush();
    Ok(())
}

/// A limit as the engine counts it.
fn timeout_ns(limit: Option<Duration>) -> Option<u64> {
    limit.map(|l| u64::try_from(l.as_nanos()).unwrap_or(u64::MAX))
}

/// Requests a connection (VIPL 3.3.4).
pub(crate) fn connect_request(
    vi: &'static ViShared,
    handle: u64,
    local: &NetAddress,
    remote: &NetAddress,
    limit: Option<Duration>,
) -> Outcome<Attributes> {
    let limit = find_host(vi, handle, remote.host, limit)?;
    {
        let mut held = hold_for_connecting(vi);
        let poller = poller_of(&mut held, vi, handle)?;
        let now_ns = poller.clock.now_ns();
        // Ports that joined before this call are asked, too, also when no turn was taken since.
        poller.serve_port_events(now_ns);
        if poller.failure.is_some() {
            return Err(unreachable_by(vi, poller, now_ns));
        }
        let targets = targets(vi, poller, remote.host);
        let command = ConnectCommand {
            local: *local,
            remote: *remote,
            targets: &targets,
            timeout_ns: timeout_ns(limit),
        };
        poller
            .engine
            .connect(now_ns, vi.index, &command, &mut poller.path)?;
        vi.connecting.fetch_add(1, Ordering::Relaxed);
        poller.path.flush();
    }
    outcome(vi, handle)
}

/// The ports of a host; the log says why there are none on a segment of shared memory.
fn targets(vi: &ViShared, poller: &Poller, host: HostAddress) -> Vec<NPortId> {
    let found = poller.neighbours.ports(&host);
    let (device, config) = (vi.device, &vi.device.config);
    let is_on_segment = config.transport == TransportKind::FcVi && config.port == PortKind::Shm;
    if found.is_empty() && is_on_segment {
        let (host, own, segment) = (ip_address(host), config.own_host(), &config.segment);
        let line = format_args!(
            "connection request to {host}: not on segment {segment}, whose programs have the host {own}: connect to \
             localhost, or set host = \"{host}\" in the configuration of all programs of the segment"
        );
        device.log_limited(log::Level::Warn, line);
    }
    found
}

/// Waits until the ports of a host are known, on a network where they are found; what is left of
/// the limit then.
fn find_host(
    vi: &'static ViShared,
    handle: u64,
    host: HostAddress,
    limit: Option<Duration>,
) -> Outcome<Option<Duration>> {
    let device = vi.device;
    if !device.config.discovers() {
        return Ok(limit);
    }
    let start = Instant::now();
    if poller_of(&mut device.hold(), vi, handle)?.look_for(host)? {
        let longest = Duration::from_millis(device.config.discovery_ms);
        let look = || match poller_of(&mut device.hold(), vi, handle) {
            Ok(poller) => {
                let is_over = poller.failure.is_some() || !poller.is_looking_for(host);
                is_over.then_some(Ok(()))
            }
            Err(gone) => Some(Err(gone)),
        };
        let longest = limit.unwrap_or(longest).min(longest);
        // After the limit what is known by then is asked; the request's own may be over, too.
        if let Ok(found) = wait(device, Event::CONTROL, Some(longest), look) {
            found?;
        }
    }
    match limit.map(|limit| limit.saturating_sub(start.elapsed())) {
        Some(Duration::ZERO) => Err(ControlError::Timeout),
        left => Ok(left),
    }
}

/// A request on a NIC that cannot reach anybody: a reliable VI goes to Error, and what is
/// posted on it comes back flushed (VIPL 3.3.4).
#[cold]
fn unreachable_by(vi: &'static ViShared, poller: &mut Poller, now_ns: u64) -> ControlError {
    if poller.engine.state(vi.index) != Some(EndpointState::Idle) {
        return ControlError::InvalidState;
    }
    if level(vi.settings().reliability) != Some(Level::UnreliableDelivery) {
        poller.engine.fail_vi(now_ns, vi.index, &mut poller.path);
        vi.device.tell(poller.path.take_happened());
    }
    ControlError::NotReachable
}

/// State of a VI as the engine has it.
pub(crate) fn state(vi: &'static ViShared, handle: u64) -> Outcome<EndpointState> {
    let mut held = vi.device.hold();
    let poller = poller_of(&mut held, vi, handle)?;
    Ok(poller.engine.state(vi.index).unwrap_or(EndpointState::Idle))
}
