//! Creates, destroys and disconnects VIs (VIPL 3.2, 3.3.5).

use vi_core::handle::RawHandle;
use vi_core::notify_slot::{EndedNotifier, join_ended};
use vi_core::sync::Ordering;
use vi_core::vi::{CqShared, ViShared};
use vi_types::{CallError, Limit, LimitOf, LimitReached, Outcome, ResourceError, ViAttributes};

use super::{
    attributes, check_settings, cq, poller_of, start_listening, warn_lenient_protection,
    working_poller_for,
};
use crate::call_waiters::Object;
use crate::datapath::ViPath;
use crate::device::Device;
use crate::listen_retry::LISTEN_TIMEOUT;
use crate::lookup::{Vi, cq_of};
use crate::nic_backend::Backend;
use crate::poller::Poller;

/// Resolves completion queue handles; 0 for none.
fn resolve_cqs(
    device: &Device,
    (send_cq, recv_cq): (u64, u64),
) -> Outcome<[Option<&'static CqShared>; 2]> {
    let cq = |raw: u64| match cq_of(raw) {
        Some(cq) if core::ptr::eq(cq.device, device) => Ok(Some(cq.shared)),
        None if raw == 0 => Ok(None),
        Some(_) | None => Err(CallError::InvalidParameter),
    };
    Ok([cq(send_cq)?, cq(recv_cq)?])
}

/// Attaches a VI to its completion queues and makes it live; returns its handle.
///
/// # Safety
/// The caller holds the backend lock.
unsafe fn revive(
    vi: &ViShared,
    nic_handle: u64,
    (send_cq, recv_cq): (u64, u64),
    cqs: [Option<&'static CqShared>; 2],
) -> u64 {
    for cq in cqs.into_iter().flatten() {
        cq.attached.fetch_add(1, Ordering::Relaxed);
        // SAFETY: under the backend lock, as the caller promises.
        unsafe { cq.ring.reserve(cq.needed_entries()) };
    }
    vi.send_cq.store(send_cq, Ordering::Relaxed);
    vi.recv_cq.store(recv_cq, Ordering::Relaxed);
    vi.revive(nic_handle)
}

fn all_in_use(device: &Device) -> CallError {
    LimitReached::all_in_use(Limit::MaxVi, device.config.max_vi, LimitOf::Nic).into()
}

/// Returns the reason why there is no VI at this index.
fn creation_error(device: &Device, index: u32) -> CallError {
    match index < device.shared.vis.slots() {
        true => ResourceError::OutOfMemory.into(),
        false => all_in_use(device),
    }
}

/// Validates the attributes of a VI before a datapath process creates or changes it.
pub(crate) fn check_vi(device: &Device, settings: &ViAttributes, cqs: (u64, u64)) -> Outcome<()> {
    let _backend_lock = device.lock();
    check_settings(device, settings)?;
    resolve_cqs(device, cqs).map(|_| ())
}

/// Creates the local part of a VI that the datapath process has created with the handle `remote`.
pub(crate) fn adopt_vi(
    device: &'static Device,
    nic_handle: u64,
    settings: &ViAttributes,
    cq_handles: (u64, u64),
    remote: u64,
) -> Outcome<u64> {
    let index = RawHandle::unpack(remote).index;
    let mut held = device.lock();
    let backend = held
        .as_mut()
        .filter(|_| device.nic_handles.is_open(nic_handle))
        .ok_or(CallError::InvalidParameter)?;
    let (_, tag) = check_settings(device, settings)?;
    let vi = (device.shared.vis)
        .get_or_make(index, || ViShared::new(&device.shared, index))
        .ok_or_else(|| creation_error(device, index))?;
    let mut ended = Vec::new();
    let handle_at = |backend: &mut Backend| backend.attachment()?.handle_at(vi.index);
    if handle_at(backend).is_some() {
        // The process has destroyed the previous VI at this index, and that call has not returned yet.
        detach_local(Vi { device, shared: vi }, backend, &mut ended);
    }
    let attachment = backend.attachment().ok_or(CallError::InvalidParameter)?;
    // After that, since the previous VI may have been the last user of a completion queue.
    let cqs = match resolve_cqs(device, cq_handles) {
        Ok(cqs) => cqs,
        Err(error) => {
            drop(held);
            wake_and_join(device, ended);
            return Err(error);
        }
    };
    attributes::store(vi, settings, tag);
    device.shared.regions.use_tag(tag.number());
    vi.remote.store(remote, Ordering::Relaxed);
    // SAFETY: we hold the backend lock.
    let handle = unsafe { revive(vi, nic_handle, cq_handles, cqs) };
    let [send_cq, recv_cq] = cqs;
    attachment.add(vi, handle, remote, (send_cq, recv_cq));
    drop(held);
    wake_and_join(device, ended);
    warn_lenient_protection(device, tag);
    Ok(handle)
}

/// Wakes all waiters and joins ended notifiers; the caller has released the backend lock.
fn wake_and_join(device: &'static Device, ended: Vec<EndedNotifier>) {
    device.shared.wake_all_waiters();
    join_ended(ended);
}

/// Creates a VI; returns its handle (VIPL 3.2.1). 0 for a completion queue means none.
pub(crate) fn create_vi(
    device: &'static Device,
    nic_handle: u64,
    settings: &ViAttributes,
    cq_handles: (u64, u64),
) -> Outcome<u64> {
    start_listening(device, nic_handle, LISTEN_TIMEOUT)?;
    let mut held = device.lock();
    let (level, tag) = check_settings(device, settings)?;
    let poller = working_poller_for(&mut held, device, nic_handle)?;
    let cqs = resolve_cqs(device, cq_handles)?;
    let index = poller
        .engine
        .create_vi(attributes::params(level, settings))
        .ok_or_else(|| all_in_use(device))?;
    let vi = (device.shared.vis).get_or_make(index.0, || ViShared::new(&device.shared, index.0));
    let Some(vi) = vi else {
        poller.engine.destroy_vi(index);
        return Err(creation_error(device, index.0));
    };
    attributes::store(vi, settings, tag);
    device.shared.regions.use_tag(tag.number());
    // SAFETY: we hold the backend lock.
    let handle = unsafe { revive(vi, nic_handle, cq_handles, cqs) };
    if let Some(slot) = poller.path.vis.get_mut(index.0 as usize) {
        let [send_cq, recv_cq] = cqs;
        *slot = Some(ViPath::new(vi, handle, tag, send_cq, recv_cq));
    }
    drop(held);
    warn_lenient_protection(device, tag);
    Ok(handle)
}

/// Destroys a VI that is Idle and whose queues are empty (VIPL 3.2.2).
pub(crate) fn destroy_vi(vi: Vi, handle: u64) -> Outcome<()> {
    let mut held = vi.device.lock();
    let poller = poller_of(&mut held, vi, handle)?;
    let retired = {
        // No other thread posts or reaps while the queues are checked.
        let _ends = vi.close_ends();
        let empty = vi.send.is_empty() && vi.recv.is_empty();
        let destroyed = empty && poller.engine.destroy_vi(vi.index);
        if destroyed {
            vi.retire();
        }
        destroyed
    };
    if !retired {
        return Err(CallError::InvalidState);
    }
    let mut ended = Vec::new();
    detach(vi, poller, &mut ended);
    drop(held);
    // Calls that wait on it return.
    vi.device.shared.wake_all_waiters();
    join_ended(ended);
    Ok(())
}

/// Removes a destroyed VI from the poller and its completion queues.
pub(super) fn detach(vi: Vi, poller: &mut Poller, ended: &mut Vec<EndedNotifier>) {
    ended.extend(vi.notify.end());
    attributes::release_tag(&vi);
    poller.path.calls.notify(Object::Connection(vi.index));
    let slot = poller.path.vis.get_mut(vi.index.0 as usize);
    let Some(path) = slot.and_then(Option::take) else {
        return;
    };
    poller.path.clients.remove_vi(&path);
    detach_cqs(vi, [path.send_target.cq, path.recv_target.cq], ended);
}

/// As [`detach`], for a NIC of a datapath process.
pub(crate) fn detach_local(vi: Vi, backend: &mut Backend, ended: &mut Vec<EndedNotifier>) {
    ended.extend(vi.notify.end());
    attributes::release_tag(&vi);
    if let Some(attachment) = backend.attachment() {
        detach_cqs(vi, attachment.remove(vi.index), ended);
    }
}

fn detach_cqs(vi: Vi, cqs: [Option<&'static CqShared>; 2], ended: &mut Vec<EndedNotifier>) {
    for cq in cqs.into_iter().flatten() {
        let last = cq.attached.fetch_sub(1, Ordering::Relaxed) == 1;
        // The NIC handle of the queue is closed already, and this VI was its last user.
        if last && !vi.device.nic_handles.is_open(cq.nic_handle()) {
            ended.extend(cq::retire(cq));
        }
    }
}

/// Disconnects a VI (VIPL 3.3.5).
pub(crate) fn disconnect(vi: Vi, handle: u64) -> Outcome<()> {
    let device = vi.device;
    let mut held = device.lock();
    let poller = poller_of(&mut held, vi, handle)?;
    end_connection(&vi, poller);
    device.shared.notify(poller.path.take_pending_events());
    Ok(())
}

/// Disconnects a VI under the backend lock.
pub(super) fn end_connection(vi: &ViShared, poller: &mut Poller) {
    let now_ns = poller.clock.now_ns();
    vi.broken.store(false, Ordering::Relaxed);
    poller.engine.disconnect(now_ns, vi.index, &mut poller.path);
    // Under the backend lock, as error reports are: all errors of this connection have been reported.
    vi.disconnects.fetch_add(1, Ordering::Relaxed);
    // A flushed descriptor in deregistered memory has been reported; the VI becomes
    // Idle nevertheless.
    poller.path.failed.retain(|failed| *failed != vi.index);
    poller.path.flush();
}
