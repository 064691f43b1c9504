//! Control calls on a NIC, outside of the data path: create, destroy, register,
//! connect. Each holds the NIC's backend lock briefly; none blocks while holding it.

use std::thread;
use std::time::{Duration, Instant};

use fcvi_frame::connect::Attributes;
use fcvi_frame::fc::NPortId;
use vi_core::biased_lock::BiasedGuard;
use vi_core::memory::TagCheck;
use vi_core::sync::Ordering;
use vi_engine::{ConnId, ConnectCommand, Indication};
use vi_types::{
    CallError, HostAddress, NetAddress, Outcome, PtagHandle, ReliabilityLevel, ResourceError,
    ViAttributes, ViState,
};

use crate::call_waiters::Object;
use crate::config::{PortKind, Protection, TransportKind, ip_address};
use crate::device::Device;
use crate::listen_retry::{LISTEN_TIMEOUT, retry_listening};
use crate::lookup::Vi;
use crate::nic_backend::Backend;
use crate::poller::Poller;
use crate::progress::{TimedOut, wait_for};
use crate::transport::ListenState;

pub(crate) mod attributes;
pub(crate) mod connection_options;
mod cq;
mod peer;
pub(crate) mod peer_user;
mod release;
mod tags;
mod vis;

pub(crate) use cq::{create_cq, destroy_cq, resize_cq};
pub(crate) use peer::{connect_peer_done, connect_peer_request, connect_peer_wait};
pub(crate) use release::release_nic_handle;
pub(crate) use tags::destroy_ptag;
pub(crate) use vis::{adopt_vi, check_vi, create_vi, destroy_vi, detach_local, disconnect};

impl From<TimedOut> for CallError {
    fn from(_: TimedOut) -> Self {
        Self::Timeout
    }
}

/// Returns the poller, for a call on a VI. While the backend lock is held, the VI is neither destroyed nor its slot
/// reused.
fn poller_of<'a>(
    held: &'a mut BiasedGuard<'_, Option<Backend>>,
    vi: Vi,
    handle: u64,
) -> Outcome<&'a mut Poller> {
    held.as_mut()
        .and_then(Backend::poller_mut)
        .filter(|_| vi.is_live(handle))
        .ok_or(CallError::InvalidParameter)
}

/// Returns the poller, for a call on a NIC handle that needs a working port.
fn working_poller_for<'a>(
    held: &'a mut BiasedGuard<'_, Option<Backend>>,
    device: &Device,
    nic_handle: u64,
) -> Outcome<&'a mut Poller> {
    let poller = poller_for(held, device, nic_handle)?;
    match poller.failure {
        None => Ok(poller),
        Some(_) => Err(ResourceError::NicFailed.into()),
    }
}

/// Returns the poller, for a call on a NIC handle.
fn poller_for<'a>(
    held: &'a mut BiasedGuard<'_, Option<Backend>>,
    device: &Device,
    nic_handle: u64,
) -> Outcome<&'a mut Poller> {
    held.as_mut()
        .and_then(Backend::poller_mut)
        .filter(|_| device.nic_handles.is_open(nic_handle))
        .ok_or(CallError::InvalidParameter)
}

/// Returns the number of a protection tag; 0 for none, if protection is lenient.
fn tag_number(device: &Device, ptag: Option<PtagHandle>) -> Outcome<u32> {
    match (ptag, device.config.protection) {
        (None, Protection::Strict) => Err(CallError::Ptag),
        (None, Protection::Lenient) => Ok(0),
        (Some(ptag), _) => device
            .nic_handles
            .tag(device.shared.number, ptag.into_raw())
            .ok_or(CallError::Ptag),
    }
}

/// Validates the attributes of a VI in the order in which the guide lists their errors. The caller
/// holds the backend lock, so that the tag exists until the VI uses it.
fn check_settings(
    device: &Device,
    settings: &ViAttributes,
) -> Outcome<(ReliabilityLevel, TagCheck)> {
    let level =
        ReliabilityLevel::from_bit(settings.reliability).ok_or(CallError::ReliabilityLevel)?;
    let limit = u64::from(device.max_transfer_bytes());
    if settings.max_transfer_bytes == 0 || settings.max_transfer_bytes > limit {
        return Err(CallError::MaxTransferSize);
    }
    if settings.qos != 0 {
        return Err(CallError::Qos);
    }
    let tag = match tag_number(device, settings.ptag)? {
        0 => TagCheck::LENIENT,
        tag => TagCheck::tag(tag),
    };
    if settings.rdma_read && settings.reliability & ReliabilityLevel::RDMA_READ_BITS == 0 {
        return Err(CallError::RdmaRead);
    }
    Ok((level, tag))
}

/// Logs once that a VI has no protection tag. Called without the backend lock, since the logger is code of the program.
fn warn_lenient_protection(device: &Device, tag: TagCheck) {
    if tag == TagCheck::LENIENT && !device.lenient_warned.swap(true, Ordering::Relaxed) {
        log::warn!(
            "NIC {}: protection is lenient: VIs without a tag may use every region of this process",
            device.config.name
        );
    }
}

/// Starts listening, if the transport has a TCP port. Retries until `timeout` while another program uses the port,
/// without the backend lock, since that program may never share it.
pub(crate) fn start_listening(device: &Device, nic_handle: u64, timeout: Duration) -> Outcome<()> {
    retry_listening(timeout, |is_last_try| {
        let mut held = device.lock();
        let poller = match working_poller_for(&mut held, device, nic_handle) {
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
    nic_handle: u64,
    local: &NetAddress,
    limit: Option<Duration>,
) -> Outcome<Indication> {
    start_listening(device, nic_handle, LISTEN_TIMEOUT)?;
    let (listener, epoch) = {
        let mut held = device.lock();
        let poller = working_poller_for(&mut held, device, nic_handle)?;
        let now_ns = poller.clock.now_ns();
        let listener = poller.engine.listen(now_ns, local.discriminator);
        (listener, device.epoch())
    };
    let objects = [Object::Listener(listener), Object::NicHandle(nic_handle)];
    let found = wait_for(device, &objects, limit, |held| {
        match working_poller_for(held, device, nic_handle) {
            Ok(poller) => poller.engine.take_indication(listener).map(Ok),
            Err(closed) => Some(Err(closed)),
        }
    });
    let error = match found {
        Ok(Ok(indication)) => return Ok(indication),
        Ok(Err(closed)) => closed,
        Err(TimedOut) => CallError::Timeout,
    };
    let mut held = device.lock();
    // The engine of a later epoch does not have this listener.
    let Some(poller) = held
        .as_mut()
        .and_then(Backend::poller_mut)
        .filter(|_| device.is_current_epoch(epoch))
    else {
        return Err(CallError::InvalidParameter);
    };
    if error == CallError::Timeout
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
fn await_outcome(vi: Vi, handle: u64) -> Outcome<Attributes> {
    let device = vi.device;
    // The procedure has its own timeouts: this wait ends with them, or with the VI.
    let connection = Object::Connection(vi.index);
    let found = wait_for(device, &[connection], None, |held| {
        match poller_of(held, vi, handle) {
            Ok(poller) => poller.engine.take_outcome(vi.index),
            Err(closed) => Some(Err(closed)),
        }
    });
    vi.connecting.fetch_sub(1, Ordering::Relaxed);
    Ok(found??.attributes)
}

/// Acquires the backend lock once no earlier connection call on this VI has its outcome pending: a call that was ended
/// by a disconnect of another thread must not receive the outcome of the next call.
fn lock_for_connecting(vi: Vi) -> BiasedGuard<'static, Option<Backend>> {
    loop {
        let mut held = vi.device.lock();
        let Some(poller) = held.as_mut().and_then(Backend::poller_mut) else {
            return held;
        };
        let idle = poller.engine.state(vi.index) == Some(ViState::Idle);
        if !idle || vi.connecting.load(Ordering::Relaxed) == 0 {
            return held;
        }
        poller.path.calls.notify(Object::Connection(vi.index));
        poller.path.calls.wake_due();
        drop(held);
        vi.device.shared.wake_all_waiters();
        thread::yield_now();
    }
}

/// Accepts a request with a VI (VIPL 3.3.2).
pub(crate) fn connect_accept(conn: ConnId, vi: Vi, handle: u64) -> Outcome<()> {
    {
        let mut held = lock_for_connecting(vi);
        let poller = poller_of(&mut held, vi, handle)?;
        let now_ns = poller.clock.now_ns();
        poller
            .engine
            .accept(now_ns, conn, vi.index, &mut poller.path)?;
        vi.connecting.fetch_add(1, Ordering::Relaxed);
        poller.path.flush();
    }
    await_outcome(vi, handle).map(|_| ())
}

/// Rejects a request (VIPL 3.3.3).
pub(crate) fn connect_reject(device: &'static Device, conn: ConnId) -> Outcome<()> {
    let mut held = device.lock();
    let poller = held
        .as_mut()
        .and_then(Backend::poller_mut)
        .ok_or(CallError::InvalidParameter)?;
    let now_ns = poller.clock.now_ns();
    poller.engine.reject(now_ns, conn, &mut poller.path)?;
    poller.path.flush();
    Ok(())
}

/// Converts a timeout for the engine.
fn timeout_ns(limit: Option<Duration>) -> Option<u64> {
    limit.map(|l| u64::try_from(l.as_nanos()).unwrap_or(u64::MAX))
}

/// Requests a connection (VIPL 3.3.4).
pub(crate) fn connect_request(
    vi: Vi,
    handle: u64,
    local: &NetAddress,
    remote: &NetAddress,
    limit: Option<Duration>,
) -> Outcome<Attributes> {
    let limit = await_host_ports(vi, handle, remote.host, limit)?;
    {
        let mut held = lock_for_connecting(vi);
        let poller = poller_of(&mut held, vi, handle)?;
        let now_ns = poller.clock.now_ns();
        // Includes ports that joined before this call, even without a poll since then.
        poller.serve_port_events(now_ns);
        if poller.failure.is_some() {
            return Err(fail_unreachable(vi, poller, now_ns));
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
    await_outcome(vi, handle)
}

/// Returns the N_Port_IDs of a host; logs the reason if there are none on a shared-memory segment.
fn targets(vi: Vi, poller: &Poller, host: HostAddress) -> Vec<NPortId> {
    let found = poller.neighbours.ports(&host);
    let (device, config) = (vi.device, &vi.device.config);
    let is_on_segment = config.transport == TransportKind::FcVi && config.port == PortKind::Shm;
    if found.is_empty() && is_on_segment {
        let (host, own, segment) = (ip_address(host), config.own_host(), &config.segment);
        let line = format_args!(
            "connection request to {host}: not on segment {segment}, whose programs have the host {own}: connect to \
             localhost, or set host = \"{host}\" in the configuration of all programs of the segment"
        );
        device.shared.log_limited(log::Level::Warn, line);
    }
    found
}

/// With discovery, waits until the N_Port_IDs of a host are known; returns the remaining
/// limit.
fn await_host_ports(
    vi: Vi,
    handle: u64,
    host: HostAddress,
    limit: Option<Duration>,
) -> Outcome<Option<Duration>> {
    let device = vi.device;
    if !device.config.discovers() {
        return Ok(limit);
    }
    let start = Instant::now();
    if poller_of(&mut device.lock(), vi, handle)?.resolve_host(host)? {
        let discovery_timeout = Duration::from_millis(device.config.discovery_ms);
        let poll = |held: &mut BiasedGuard<'_, Option<Backend>>| match poller_of(held, vi, handle) {
            Ok(poller) => {
                let is_done = poller.failure.is_some() || !poller.is_resolving_host(host);
                is_done.then_some(Ok(()))
            }
            Err(closed) => Some(Err(closed)),
        };
        let timeout = limit.unwrap_or(discovery_timeout).min(discovery_timeout);
        // After the timeout the request goes to the ports that are known; its own limit may have expired, too.
        let objects = [Object::Host(host), Object::Connection(vi.index)];
        if let Ok(found) = wait_for(device, &objects, Some(timeout), poll) {
            found?;
        }
    }
    match limit.map(|limit| limit.saturating_sub(start.elapsed())) {
        Some(Duration::ZERO) => Err(CallError::Timeout),
        left => Ok(left),
    }
}

/// Fails a request on a NIC whose port has failed: moves a reliable VI to Error, which flushes its
/// descriptors (VIPL 3.3.4).
#[cold]
fn fail_unreachable(vi: Vi, poller: &mut Poller, now_ns: u64) -> CallError {
    if poller.engine.state(vi.index) != Some(ViState::Idle) {
        return CallError::InvalidState;
    }
    if vi.settings().reliability != ReliabilityLevel::UnreliableDelivery.bit() {
        poller.engine.fail_vi(now_ns, vi.index, &mut poller.path);
        vi.device.shared.notify(poller.path.take_pending_events());
    }
    CallError::NotReachable
}

/// Returns the state of a VI in the engine.
pub(crate) fn state(vi: Vi, handle: u64) -> Outcome<ViState> {
    let mut held = vi.device.lock();
    let poller = poller_of(&mut held, vi, handle)?;
    Ok(poller.engine.state(vi.index).unwrap_or(ViState::Idle))
}
