//! Completion queues: made, resized, ended (VIPL 3.6).

use super::{ControlError, Outcome};
use crate::cq::Room;
use crate::device::Device;
use crate::notify::{self, Ended};
use crate::resource_error::{Limit, LimitOf, LimitReached, ResourceError};
use crate::sync::Ordering;
use crate::vi::CqShared;

/// How many entries were asked for, if there may be so many.
fn checked(device: &Device, entries: u64) -> Outcome<u32> {
    if entries == 0 {
        return Err(ControlError::InvalidParameter);
    }
    let limit = device.config.max_cq_entries;
    u32::try_from(entries)
        .ok()
        .filter(|entries| *entries <= limit)
        .ok_or_else(|| LimitReached::exceeded(Limit::MaxCqEntries, limit, entries).into())
}

/// Makes a completion queue (VIPL 3.6.1).
pub(crate) fn create_cq(device: &'static Device, instance: u64, entries: u64) -> Outcome<u64> {
    let entries = checked(device, entries)?;
    let room = Room::new(entries).ok_or(ResourceError::OutOfMemory)?;
    let held = device.hold();
    if held.is_none() || !device.instances.is_open(instance) {
        return Err(ControlError::InvalidParameter);
    }
    for index in 0..device.cqs.len() {
        let Some(cq) = device
            .cqs
            .get_or_make(index, || Some(CqShared::new(device, index)))
        else {
            break;
        };
        if cq.live_handle() == 0 {
            // SAFETY: we hold the turn.
            unsafe { cq.ring.reset(room) };
            return Ok(cq.revive(instance));
        }
    }
    Err(LimitReached::all_in_use(Limit::MaxCq, device.config.max_cq, LimitOf::Nic).into())
}

/// Changes the size of a completion queue; what is in it stays, in its order (VIPL 3.6.3). It
/// never holds fewer entries than are in it, or than descriptors can be posted on the attached
/// work queues.
pub(crate) fn resize_cq(cq: &'static CqShared, handle: u64, entries: u64) -> Outcome<()> {
    let mut needed = checked(cq.device, entries)?.max(cq.needed_entries());
    loop {
        // The memory is made while nobody has to wait for it; more may be needed meanwhile.
        let room = Room::new(needed).ok_or(ResourceError::OutOfMemory)?;
        let held = cq.device.hold();
        if !cq.is_live(handle) {
            return Err(ControlError::InvalidParameter);
        }
        // SAFETY: we hold the turn.
        needed = cq.needed_entries().max(unsafe { cq.ring.len() });
        if !room.holds(needed) {
            continue;
        }
        // SAFETY: we hold the turn.
        let old = unsafe { cq.ring.resize(room) };
        drop(held);
        drop(old);
        return Ok(());
    }
}

/// Ends a completion queue to which no work queue is attached (VIPL 3.6.2).
pub(crate) fn destroy_cq(cq: &'static CqShared, handle: u64) -> Outcome<()> {
    let held = cq.device.hold();
    if !cq.is_live(handle) {
        return Err(ControlError::InvalidParameter);
    }
    if cq.attached.load(Ordering::Relaxed) > 0 {
        return Err(ResourceError::CqInUse.into());
    }
    let ended = retire(cq);
    drop(held);
    // Whoever waits on it learns that it is gone.
    cq.device.wake_sleepers();
    notify::settle(ended.into_iter().collect());
    Ok(())
}

/// Ends a completion queue and gives its memory back. The caller holds the turn.
pub(super) fn retire(cq: &'static CqShared) -> Option<Ended> {
    cq.retire();
    // SAFETY: we hold the turn.
    unsafe { cq.ring.discard() };
    cq.notify.end()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::nic;

    #[test]
    fn a_stale_handle_is_refused_without_the_turn() {
        let config = crate::config::NicConfig {
            segment: format!("unit-{}-stale-cq", std::process::id()),
            ..crate::config::NicConfig::default()
        };
        let (device, instance) = crate::device::open_unattended(&config).unwrap();
        let cq = nic::create_cq(instance, 1).unwrap();
        nic::destroy_cq(cq).unwrap();
        // As in a forked child, where whoever held the turn will never give it back.
        let held = device.hold();
        let (sender, told) = std::sync::mpsc::channel();
        let calls = std::thread::spawn(move || {
            sender.send(nic::destroy_cq(cq)).unwrap();
            sender.send(nic::resize_cq(cq, 1)).unwrap();
        });
        for _ in 0..2 {
            let answer = told.recv_timeout(Duration::from_secs(20));
            assert_eq!(answer, Ok(Err(ControlError::InvalidParameter)));
        }
        drop(held);
        calls.join().unwrap();
        crate::device::close(device, instance).unwrap();
    }
}
