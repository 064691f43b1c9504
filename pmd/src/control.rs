//! The calls on a NIC that are not on the data path: create, destroy, register,
//! connect. Each takes the NIC's turn for a moment; none of them waits in it.

use std::time::{Duration, Instant};

use fcvi_frame::connect::{Attributes, HostAddress, NetAddress};
use vi_engine::{ConnId, ConnectCommand, ConnectError, EndpointState, Indication, Level};

use crate::config::Protection;
use crate::datapath::ViPath;
use crate::device::Device;
use crate::memory::{RegionError, TagCheck};
use crate::notify::{self, Ended};
use crate::poller::Poller;
use crate::progress::{TimedOut, wait};
use crate::queue::Reaped;
use crate::sleepers::Event;
use crate::sync::Ordering;
use crate::token::Held;
use crate::vi::{ViSettings, ViShared, cq_of};

pub(crate) mod attributes;
mod cq;
mod peer;
mod tags;

pub(crate) use cq::{create_cq, destroy_cq, resize_cq};
pub(crate) use peer::{connect_peer_done, connect_peer_request, connect_peer_wait};
pub(crate) use tags::destroy_ptag;

/// Reliability level bits that are served: all three.
pub const LEVELS_SUPPORTED: u16 = 1 | 2 | 4;

/// Of these, the levels with RDMA reads: a read that is lost without notice would never end.
pub const RDMA_READ_LEVELS: u16 = 2 | 4;

/// Why a control call failed, in the words of the guide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ControlError {
    /// A parameter or handle is not valid.
    InvalidParameter,
    /// A limit was reached, or the object is in use.
    Resource,
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
            ConnectError::Resources => Self::Resource,
            ConnectError::InvalidState => Self::InvalidState,
            ConnectError::Invalid => Self::InvalidParameter,
        }
    }
}

impl From<RegionError> for ControlError {
    fn from(error: RegionError) -> Self {
        match error {
            RegionError::Invalid => Self::InvalidParameter,
            RegionError::Resource => Self::Resource,
        }
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
    held: &'a mut Held<'_, Option<Poller>>,
    vi: &ViShared,
    handle: u64,
) -> Outcome<&'a mut Poller> {
    held.as_mut()
        .filter(|_| vi.is_live(handle))
        .ok_or(ControlError::InvalidParameter)
}

/// The poller, for a call of an opening that needs a port which carries frames.
fn working_poller_for<'a>(
    held: &'a mut Held<'_, Option<Poller>>,
    device: &Device,
    instance: u64,
) -> Outcome<&'a mut Poller> {
    let poller = poller_for(held, device, instance)?;
    match poller.failure {
        None => Ok(poller),
        Some(_) => Err(ControlError::Resource),
    }
}

/// The poller, for a call on an opening of the NIC.
fn poller_for<'a>(
    held: &'a mut Held<'_, Option<Poller>>,
    device: &Device,
    instance: u64,
) -> Outcome<&'a mut Poller> {
    held.as_mut()
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
    let limit = u64::from(device.config.max_transfer_bytes);
    if settings.max_transfer_bytes == 0 || settings.max_transfer_bytes > limit {
        return Err(ControlError::Mtu);
    }
    if settings.qos != 0 {
        return Err(ControlError::Qos);
    }
    let tag = if settings.ptag == 0 {
        match device.config.protection {
            Protection::Strict => return Err(ControlError::Ptag),
            Protection::Lenient => TagCheck::Lenient,
        }
    } else {
        let tag = device
            .instances
            .tag(device.number(), settings.ptag)
            .ok_or(ControlError::Ptag)?;
        TagCheck::Tag(tag)
    };
    if settings.rdma_read && settings.reliability & RDMA_READ_LEVELS == 0 {
        return Err(ControlError::RdmaRead);
    }
    Ok((level, tag))
}

/// Says once that a VI goes without a tag. Not under the turn: the logger is the program's.
fn tell_leniency(device: &Device, tag: TagCheck) {
    if tag == TagCheck::Lenient && !device.leniency_told.swap(true, Ordering::Relaxed) {
        log::warn!(
            "NIC {}: protection is lenient: VIs without a tag may use every region of this process",
            device.config.name
        );
    }
}

/// Makes a VI; returns its handle (VIPL 3.2.1). 0 for a completion queue means none.
pub(crate) fn create_vi(
    device: &'static Device,
    instance: u64,
    settings: &ViSettings,
    (send_cq, recv_cq): (u64, u64),
) -> Outcome<u64> {
    let mut held = device.hold();
    let (level, tag) = check_settings(device, settings)?;
    let poller = working_poller_for(&mut held, device, instance)?;
    let cq = |raw: u64| match cq_of(raw) {
        Some(cq) if core::ptr::eq(cq.device, device) => Ok(Some(cq)),
        None if raw == 0 => Ok(None),
        Some(_) | None => Err(ControlError::InvalidParameter),
    };
    let cqs = [cq(send_cq)?, cq(recv_cq)?];
    let index = poller
        .engine
        .create_vi(attributes::params(level, settings))
        .ok_or(ControlError::Resource)?;
    let depth = device.config.max_descriptors_per_queue;
    let Some(vi) = device
        .vis
        .get_or_make(index.0, || ViShared::new(device, index.0, depth))
    else {
        poller.engine.destroy_vi(index);
        return Err(ControlError::Resource);
    };
    attributes::note(vi, settings, tag);
    for cq in cqs.into_iter().flatten() {
        cq.attached.fetch_add(1, Ordering::Relaxed);
        // SAFETY: we hold the turn.
        unsafe { cq.ring.reserve(cq.needed_entries()) };
    }
    vi.send_cq.store(send_cq, Ordering::Relaxed);
    vi.recv_cq.store(recv_cq, Ordering::Relaxed);
    let handle = vi.revive(instance);
    if let Some(place) = poller.path.vis.get_mut(index.0 as usize) {
        let [send_cq, recv_cq] = cqs;
        *place = Some(ViPath::new(vi, handle, tag, send_cq, recv_cq));
    }
    drop(held);
    tell_leniency(device, tag);
    Ok(handle)
}

/// Ends a VI that is Idle and whose queues are empty (VIPL 3.2.2).
pub(crate) fn destroy_vi(vi: &'static ViShared, handle: u64) -> Outcome<()> {
    let mut held = vi.device.hold();
    let poller = poller_of(&mut held, vi, handle)?;
    let retired = {
        // Nobody posts or reaps while it is decided whether there is anything to reap.
        let _ends = vi.close_ends();
        let empty = vi.send.is_empty() && vi.recv.is_empty();
        let ended = empty && poller.engine.destroy_vi(vi.index);
        if ended {
            vi.retire();
        }
        ended
    };
    if !retired {
        return Err(ControlError::InvalidState);
    }
    let mut ended = Vec::new();
    detach(vi, poller, &mut ended);
    drop(held);
    // Whoever waits on it learns that it is gone.
    vi.device.wake_sleepers();
    notify::settle(ended);
    Ok(())
}

/// Ends a VI in whatever state it is, with whatever is on its queues.
fn release_vi(vi: &'static ViShared, poller: &mut Poller, ended: &mut Vec<Ended>) {
    {
        let _ends = vi.close_ends();
        vi.retire();
    }
    end_connection(vi, poller);
    for queue in [&vi.send, &vi.recv] {
        let mut end = queue.reap_end.hold();
        while let Reaped::Done { .. } = queue.reap(&mut end) {}
    }
    if !poller.engine.destroy_vi(vi.index) {
        log::error!("NIC {}: a VI could not be released", vi.device.config.name);
    }
    detach(vi, poller, ended);
}

/// Takes a VI that ended out of the poller and off its completion queues.
fn detach(vi: &'static ViShared, poller: &mut Poller, ended: &mut Vec<Ended>) {
    ended.extend(vi.notify.end());
    let place = poller.path.vis.get_mut(vi.index.0 as usize);
    let Some(path) = place.and_then(Option::take) else {
        return;
    };
    let reports = [path.send_reports, path.recv_reports];
    for cq in reports.into_iter().filter_map(|reports| reports.cq) {
        let last = cq.attached.fetch_sub(1, Ordering::Relaxed) == 1;
        // A queue that outlived its opening for the sake of this VI.
        if last && !vi.device.instances.is_open(cq.instance()) {
            ended.extend(cq::retire(cq));
        }
    }
}

/// Ends a connection from this side (VIPL 3.3.5).
pub(crate) fn disconnect(vi: &'static ViShared, handle: u64) -> Outcome<()> {
    let device = vi.device;
    let mut held = device.hold();
    let poller = poller_of(&mut held, vi, handle)?;
    end_connection(vi, poller);
    device.announce(poller);
    Ok(())
}

fn end_connection(vi: &'static ViShared, poller: &mut Poller) {
    let now_ns = poller.clock.now_ns();
    vi.broken.store(false, Ordering::Relaxed);
    poller.engine.disconnect(now_ns, vi.index, &mut poller.path);
    // A descriptor that was flushed into memory that is gone has been reported; the VI is
    // Idle all the same.
    poller.path.failed.retain(|failed| *failed != vi.index);
    poller.path.flush();
}

/// Releases whatever an opening that ended still owns (VIPL 3.1.2); `conns` are the requests
/// that it was told of and did not answer. The notifiers of its queues are left to the caller.
pub(crate) fn release_instance(
    device: &'static Device,
    instance: u64,
    conns: &[ConnId],
) -> Vec<Ended> {
    let mut ended = Vec::new();
    let mut held = device.hold();
    let Some(poller) = held.as_mut() else {
        return ended;
    };
    for vi in device.vis.iter() {
        if vi.live_handle() != 0 && vi.instance() == instance {
            release_vi(vi, poller, &mut ended);
        }
    }
    for cq in device.cqs.iter() {
        if cq.live_handle() == 0 || cq.instance() != instance {
            continue;
        }
        if cq.attached.load(Ordering::Relaxed) == 0 {
            ended.extend(cq::retire(cq));
        } else {
            ended.extend(cq.notify.end());
            log::warn!(
                "NIC {}: a completion queue outlives its opening: VIs of another one use it",
                device.config.name
            );
        }
    }
    let now_ns = poller.clock.now_ns();
    for conn in conns {
        // A request that is gone already needs no answer.
        let _gone = poller.engine.reject(now_ns, *conn, &mut poller.path);
    }
    poller.path.flush();
    device.regions.deregister_all(instance);
    device.announce(poller);
    ended
}

/// Waits for a connection request (VIPL 3.3.1).
pub(crate) fn connect_wait(
    device: &'static Device,
    instance: u64,
    local: &NetAddress,
    limit: Option<Duration>,
) -> Outcome<Indication> {
    let (listener, epoch) = {
        let mut held = device.hold();
        let poller = working_poller_for(&mut held, device, instance)?;
        (poller.engine.listen(local.discriminator), device.epoch())
    };
    let found = wait(device, Event::CONTROL, limit, || {
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
    let Some(poller) = held.as_mut().filter(|_| device.runs(epoch)) else {
        return Err(ControlError::InvalidParameter);
    };
    if error == ControlError::Timeout
        && let Some(indication) = poller.engine.take_indication(listener)
    {
        return Ok(indication);
    }
    poller.engine.unlisten(listener, &mut poller.path);
    poller.path.flush();
    Err(error)
}

/// Waits for the outcome of a connection procedure on a VI.
fn outcome(vi: &'static ViShared, handle: u64) -> Outcome<Attributes> {
    let device = vi.device;
    // The procedure has its own time-outs: this wait ends with them, or with the VI.
    let found = wait(device, Event::CONTROL, None, || {
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
fn hold_for_connecting(vi: &'static ViShared) -> Held<'static, Option<Poller>> {
    loop {
        let held = vi.device.hold();
        let idle = held
            .as_ref()
            .is_none_or(|poller| poller.engine.state(vi.index) == Some(EndpointState::Idle));
        if !idle || vi.connecting.load(Ordering::Relaxed) == 0 {
            return held;
        }
        drop(held);
        vi.device.wake_sleepers();
        std::thread::yield_now();
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
    let poller = held.as_mut().ok_or(ControlError::InvalidParameter)?;
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
        if poller.failure.is_some() {
            return Err(unreachable_by(vi, poller, now_ns));
        }
        let targets = poller.neighbours.ports(&remote.host);
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
        vi.device.announce(poller);
    }
    ControlError::NotReachable
}

/// State of a VI as the engine has it.
pub(crate) fn state(vi: &'static ViShared, handle: u64) -> Outcome<EndpointState> {
    let mut held = vi.device.hold();
    let poller = poller_of(&mut held, vi, handle)?;
    Ok(poller.engine.state(vi.index).unwrap_or(EndpointState::Idle))
}
