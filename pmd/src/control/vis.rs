//! VIs made and ended (VIPL 3.2, 3.3.5).

use super::{
    ControlError, LISTEN_TIMEOUT, Outcome, attributes, check_settings, cq, poller_of,
    start_listening, tell_leniency, working_poller_for,
};
use crate::attach::calls;
use crate::datapath::ViPath;
use crate::device::Device;
use crate::driver::Driver;
use crate::notify::{self, Ended};
use crate::poller::Poller;
use crate::resource_error::{Limit, LimitOf, LimitReached, ResourceError};
use crate::sync::Ordering;
use crate::vi::{CqShared, ViSettings, ViShared, cq_of};

/// The completion queues of these handles; 0 for none.
fn resolve_cqs(
    device: &Device,
    (send_cq, recv_cq): (u64, u64),
) -> Outcome<[Option<&'static CqShared>; 2]> {
    let cq = |raw: u64| match cq_of(raw) {
        Some(cq) if core::ptr::eq(cq.device, device) => Ok(Some(cq)),
        None if raw == 0 => Ok(None),
        Some(_) | None => Err(ControlError::InvalidParameter),
    };
    Ok([cq(send_cq)?, cq(recv_cq)?])
}

/// Attaches a VI to its completion queues and brings it to life; gives its handle.
///
/// # Safety
/// The caller holds the turn.
unsafe fn revive(
    vi: &ViShared,
    instance: u64,
    (send_cq, recv_cq): (u64, u64),
    cqs: [Option<&'static CqShared>; 2],
) -> u64 {
    for cq in cqs.into_iter().flatten() {
        cq.attached.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the turn, as our caller promises.
        unsafe { cq.ring.reserve(cq.needed_entries()) };
    }
    vi.send_cq.store(send_cq, Ordering::Relaxed);
    vi.recv_cq.store(recv_cq, Ordering::Relaxed);
    vi.revive(instance)
}

fn all_in_use(device: &Device) -> ControlError {
    LimitReached::all_in_use(Limit::MaxVi, device.config.max_vi, LimitOf::Nic).into()
}

/// Why there is no VI in this place.
fn none_made(device: &Device, index: u32) -> ControlError {
    match index < device.vis.len() {
        true => ResourceError::OutOfMemory.into(),
        false => all_in_use(device),
    }
}

/// Could a VI be made, or changed, so? For a NIC whose engine is elsewhere.
pub(crate) fn check_vi(device: &Device, settings: &ViSettings, cqs: (u64, u64)) -> Outcome<()> {
    let _turn = device.hold();
    check_settings(device, settings)?;
    resolve_cqs(device, cqs).map(|_| ())
}

/// The library's part of a VI that the datapath process made and calls `remote`.
pub(crate) fn adopt_vi(
    device: &'static Device,
    instance: u64,
    settings: &ViSettings,
    cq_handles: (u64, u64),
    remote: u64,
) -> Outcome<u64> {
    let index = calls::index_of(remote);
    let mut held = device.hold();
    let driver = held
        .as_mut()
        .filter(|_| device.instances.is_open(instance))
        .ok_or(ControlError::InvalidParameter)?;
    let (_, tag) = check_settings(device, settings)?;
    let depth = device.config.max_descriptors_per_queue;
    let vi = device
        .vis
        .get_or_make(index, || ViShared::new(device, index, depth))
        .ok_or_else(|| none_made(device, index))?;
    let mut ended = Vec::new();
    let served = |driver: &mut Driver| driver.attachment()?.served_at(vi.index);
    if served(driver).is_some() {
        // The process has destroyed it, and whoever asked for that is on the way back.
        detach_local(vi, driver, &mut ended);
    }
    let attachment = driver.attachment().ok_or(ControlError::InvalidParameter)?;
    // Behind that, since it may have been the last to use a completion queue.
    let cqs = match resolve_cqs(device, cq_handles) {
        Ok(cqs) => cqs,
        Err(error) => {
            drop(held);
            settle(device, ended);
            return Err(error);
        }
    };
    attributes::note(vi, settings, tag);
    device.regions.use_tag(tag.number());
    vi.remote.store(remote, Ordering::Relaxed);
    // SAFETY: we hold the turn.
    let handle = unsafe { revive(vi, instance, cq_handles, cqs) };
    let [send_cq, recv_cq] = cqs;
    attachment.add(vi, handle, remote, (send_cq, recv_cq));
    drop(held);
    settle(device, ended);
    tell_leniency(device, tag);
    Ok(handle)
}

/// Wakes who sleeps for what has ended; the caller does not hold the turn any more.
fn settle(device: &'static Device, ended: Vec<Ended>) {
    device.wake_sleepers();
    notify::settle(ended);
}

/// Makes a VI; returns its handle (VIPL 3.2.1). 0 for a completion queue means none.
pub(crate) fn create_vi(
    device: &'static Device,
    instance: u64,
    settings: &ViSettings,
    cq_handles: (u64, u64),
) -> Outcome<u64> {
    start_listening(device, instance, LISTEN_TIMEOUT)?;
    let mut held = device.hold();
    let (level, tag) = check_settings(device, settings)?;
    let poller = working_poller_for(&mut held, device, instance)?;
    let cqs = resolve_cqs(device, cq_handles)?;
    let index = poller
        .engine
        .create_vi(attributes::params(level, settings))
        .ok_or_else(|| all_in_use(device))?;
    let depth = device.config.max_descriptors_per_queue;
    let Some(vi) = device
        .vis
        .get_or_make(index.0, || ViShared::new(device, index.0, depth))
    else {
        poller.engine.destroy_vi(index);
        return Err(none_made(device, index.0));
    };
    attributes::note(vi, settings, tag);
    device.regions.use_tag(tag.number());
    // SAFETY: we hold the turn.
    let handle = unsafe { revive(vi, instance, cq_handles, cqs) };
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

/// Takes a VI that ended out of the poller and off its completion queues.
pub(super) fn detach(vi: &'static ViShared, poller: &mut Poller, ended: &mut Vec<Ended>) {
    ended.extend(vi.notify.end());
    attributes::give_tag_back(vi);
    let place = poller.path.vis.get_mut(vi.index.0 as usize);
    let Some(path) = place.and_then(Option::take) else {
        return;
    };
    poller.path.clients.forget(&path);
    detach_cqs(vi, [path.send_reports.cq, path.recv_reports.cq], ended);
}

/// As [`detach`], where the engine is elsewhere.
pub(crate) fn detach_local(vi: &'static ViShared, driver: &mut Driver, ended: &mut Vec<Ended>) {
    ended.extend(vi.notify.end());
    attributes::give_tag_back(vi);
    if let Some(attachment) = driver.attachment() {
        detach_cqs(vi, attachment.remove(vi.index), ended);
    }
}

fn detach_cqs(vi: &'static ViShared, cqs: [Option<&'static CqShared>; 2], ended: &mut Vec<Ended>) {
    for cq in cqs.into_iter().flatten() {
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
    device.tell(poller.path.take_happened());
    Ok(())
}

pub(super) fn end_connection(vi: &'static ViShared, poller: &mut Poller) {
    let now_ns = poller.clock.now_ns();
    vi.broken.store(false, Ordering::Relaxed);
    poller.engine.disconnect(now_ns, vi.index, &mut poller.path);
    // Under the turn, as whoever reports an error is; what came of this connection is reported.
    vi.disconnects.fetch_add(1, Ordering::Relaxed);
    // A descriptor that was flushed into memory that is gone has been reported; the VI is
    // Idle all the same.
    poller.path.failed.retain(|failed| *failed != vi.index);
    poller.path.flush();
}
