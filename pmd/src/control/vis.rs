//! Creates, destroys and disconnects VIs (VIPL 3.2, 3.3.5).

use vi_core::handle::RawHandle;
use vi_core::notify_slot::{EndedNotifier, join_ended};
use vi_core::sync::Ordering;
use vi_core::vi::{CqShared, ViShared};
use vi_types::{
    CallError, Limit, LimitOf, LimitReached, Outcome, QueueKind, ResourceError, ViAttributes,
    ViInfo, ViState,
};

use super::connecting::start_listening;
use super::{
    LocalCalls, attributes, check_settings, cq, poller_of, warn_lenient_protection,
    working_poller_for,
};
use crate::control_calls::ViCalls;
use crate::datapath::ViPath;
use crate::device::Device;
use crate::lookup::{Vi, cq_of};
use crate::nic_backend::Backend;
use vi_tcp::LISTEN_TIMEOUT;

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
    LimitReached::all_in_use(Limit::MaxVi, device.config.limits.max_vi, LimitOf::Nic).into()
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
        detach(Vi { device, shared: vi }, backend, &mut ended);
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

impl ViCalls for LocalCalls {
    fn create_vi(
        &self,
        device: &'static Device,
        nic_handle: u64,
        settings: &ViAttributes,
        cq_handles: (u64, u64),
    ) -> Outcome<u64> {
        start_listening(device, nic_handle, LISTEN_TIMEOUT)?;
        let mut held = device.lock();
        let (level, tag) = check_settings(device, settings)?;
        let (transport, state) = working_poller_for(&mut held, device, nic_handle)?;
        let cqs = resolve_cqs(device, cq_handles)?;
        let index = transport
            .create_vi(attributes::params(level, settings))
            .ok_or_else(|| all_in_use(device))?;
        let vi =
            (device.shared.vis).get_or_make(index.0, || ViShared::new(&device.shared, index.0));
        let Some(vi) = vi else {
            transport.destroy_vi(index);
            return Err(creation_error(device, index.0));
        };
        attributes::store(vi, settings, tag);
        device.shared.regions.use_tag(tag.number());
        // SAFETY: we hold the backend lock.
        let handle = unsafe { revive(vi, nic_handle, cq_handles, cqs) };
        if let Some(slot) = state.path.vis.get_mut(index.0 as usize) {
            let [send_cq, recv_cq] = cqs;
            *slot = Some(ViPath::new(vi, handle, tag, send_cq, recv_cq));
        }
        drop(held);
        warn_lenient_protection(device, tag);
        Ok(handle)
    }

    fn destroy_vi(&self, vi: Vi, handle: u64) -> Outcome<()> {
        let mut held = vi.device.lock();
        let backend = held
            .as_mut()
            .filter(|_| vi.is_live(handle))
            .ok_or(CallError::InvalidParameter)?;
        let retired = {
            // No other thread posts or reaps while the queues are checked.
            let _ends = vi.close_ends();
            let empty = vi.send.is_empty() && vi.recv.is_empty();
            let destroyed = empty && backend.destroy_vi(vi.index);
            if destroyed {
                vi.retire();
            }
            destroyed
        };
        if !retired {
            return Err(CallError::InvalidState);
        }
        let mut ended = Vec::new();
        detach(vi, backend, &mut ended);
        drop(held);
        // Calls that wait on it return.
        vi.device.shared.wake_all_waiters();
        join_ended(ended);
        Ok(())
    }

    fn query_vi(&self, vi: Vi, handle: u64) -> Outcome<ViInfo> {
        vi.device.poll();
        // Read before the state: a descriptor may be reaped at any time, but posts after a state change must not be
        // reported with the earlier state.
        let (send_queue_empty, recv_queue_empty) = (vi.send.is_empty(), vi.recv.is_empty());
        let mut held = vi.device.lock();
        let (transport, _) = poller_of(&mut held, vi, handle)?;
        Ok(ViInfo {
            state: transport.state(vi.index).unwrap_or(ViState::Idle),
            attributes: vi.settings(),
            send_queue_empty,
            recv_queue_empty,
        })
    }

    fn set_vi(&self, vi: Vi, handle: u64, settings: &ViAttributes) -> Outcome<()> {
        let mut held = vi.device.lock();
        let (transport, state) = poller_of(&mut held, vi, handle)?;
        if transport.state(vi.index) != Some(ViState::Idle) {
            return Err(CallError::InvalidState);
        }
        let (level, tag) = check_settings(vi.device, settings)?;
        // A concurrent post sees either the old attributes or the new ones.
        let no_posts = [vi.send.post_end.lock(), vi.recv.post_end.lock()];
        if !transport.set_params(vi.index, attributes::params(level, settings)) {
            return Err(CallError::InvalidState);
        }
        let regions = &vi.nic.regions;
        attributes::release_tag(&vi);
        regions.use_tag(tag.number());
        attributes::store(&vi, settings, tag);
        if let Some(path) = state.path.vi(vi.index) {
            path.set_tag(tag);
        }
        regions.begin_epoch();
        drop((no_posts, held));
        warn_lenient_protection(vi.device, tag);
        Ok(())
    }

    fn posted(&self, vi: Vi, _handle: u64, queue: QueueKind) {
        match queue {
            QueueKind::Send => vi.device.kick(&vi),
            QueueKind::Receive if vi.state() == ViState::Error => vi.device.flush_unconnected(&vi),
            QueueKind::Receive if vi.notifies_receives() => vi.device.kick(&vi),
            QueueKind::Receive => {}
        }
    }
}

/// Removes a destroyed VI from the backend and its completion queues.
pub(crate) fn detach(vi: Vi, backend: &mut Backend, ended: &mut Vec<EndedNotifier>) {
    ended.extend(vi.notify.end());
    attributes::release_tag(&vi);
    for cq in backend.remove_vi(vi.index).into_iter().flatten() {
        let last = cq.attached.fetch_sub(1, Ordering::Relaxed) == 1;
        // The NIC handle of the queue is closed already, and this VI was its last user.
        if last && !vi.device.nic_handles.is_open(cq.nic_handle()) {
            ended.extend(cq::retire(cq));
        }
    }
}
