//! Creates, resizes and destroys completion queues (VIPL 3.6).

use vi_core::cq::RingStorage;
use vi_core::notify_slot::{EndedNotifier, join_ended};
use vi_core::sync::Ordering;
use vi_core::vi::CqShared;
use vi_types::{CallError, Limit, LimitOf, LimitReached, Outcome, ResourceError};

use crate::device::Device;
use crate::lookup::Cq;

/// Validates the requested number of entries.
fn check_entries(device: &Device, entries: u64) -> Outcome<u32> {
    if entries == 0 {
        return Err(CallError::InvalidParameter);
    }
    let limit = device.config.limits.max_cq_entries;
    u32::try_from(entries)
        .ok()
        .filter(|entries| *entries <= limit)
        .ok_or_else(|| LimitReached::exceeded(Limit::MaxCqEntries, limit, entries).into())
}

/// Creates a completion queue (VIPL 3.6.1).
pub(crate) fn create_cq(device: &'static Device, nic_handle: u64, entries: u64) -> Outcome<u64> {
    let entries = check_entries(device, entries)?;
    let storage = RingStorage::new(entries).ok_or(ResourceError::OutOfMemory)?;
    let held = device.lock();
    if held.is_none() || !device.nic_handles.is_open(nic_handle) {
        return Err(CallError::InvalidParameter);
    }
    for index in 0..device.shared.cqs.slots() {
        let Some(cq) =
            (device.shared.cqs).get_or_make(index, || Some(CqShared::new(&device.shared, index)))
        else {
            break;
        };
        if cq.live_handle() == 0 {
            // SAFETY: we hold the backend lock.
            unsafe { cq.ring.reset(storage) };
            return Ok(cq.revive(nic_handle));
        }
    }
    Err(LimitReached::all_in_use(Limit::MaxCq, device.config.limits.max_cq, LimitOf::Nic).into())
}

/// Resizes a completion queue and keeps its entries in order (VIPL 3.6.3). Its capacity is at least
/// its number of entries, and the number of descriptors that can be posted on the attached work
/// queues.
pub(crate) fn resize_cq(cq: Cq, handle: u64, entries: u64) -> Outcome<()> {
    let mut needed = check_entries(cq.device, entries)?.max(cq.needed_entries());
    loop {
        // Allocated without the backend lock; more entries may be needed meanwhile.
        let storage = RingStorage::new(needed).ok_or(ResourceError::OutOfMemory)?;
        let held = cq.device.lock();
        if !cq.is_live(handle) {
            return Err(CallError::InvalidParameter);
        }
        // SAFETY: we hold the backend lock.
        needed = cq.needed_entries().max(unsafe { cq.ring.count() });
        if !storage.holds(needed) {
            continue;
        }
        // SAFETY: we hold the backend lock.
        let old = unsafe { cq.ring.resize(storage) };
        drop(held);
        drop(old);
        return Ok(());
    }
}

/// Destroys a completion queue without attached work queues (VIPL 3.6.2).
pub(crate) fn destroy_cq(cq: Cq, handle: u64) -> Outcome<()> {
    let held = cq.device.lock();
    if !cq.is_live(handle) {
        return Err(CallError::InvalidParameter);
    }
    if cq.attached.load(Ordering::Relaxed) > 0 {
        return Err(ResourceError::CqInUse.into());
    }
    let ended = retire(&cq);
    drop(held);
    // Calls that wait on it return.
    cq.device.shared.wake_all_waiters();
    join_ended(ended.into_iter().collect());
    Ok(())
}

/// Destroys a completion queue and frees its memory. The caller holds the backend lock.
pub(super) fn retire(cq: &CqShared) -> Option<EndedNotifier> {
    cq.retire();
    // SAFETY: we hold the backend lock.
    unsafe { cq.ring.discard() };
    cq.notify.end()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::nic;

    #[test]
    fn stale_cq_handle_is_refused_without_the_backend_lock() {
        let config = crate::config::NicConfig {
            network: crate::config::Network::segment(format!(
                "unit-{}-stale-cq",
                std::process::id()
            )),
            ..crate::config::NicConfig::default()
        };
        let (device, nic_handle) = crate::open::open_without_threads(&config).unwrap();
        let cq = nic::create_cq(nic_handle, 1).unwrap();
        nic::destroy_cq(cq).unwrap();
        // As in a forked child, where another thread may have held the backend lock, which is never released.
        let held = device.lock();
        let (sender, results) = std::sync::mpsc::channel();
        let calls = std::thread::spawn(move || {
            sender.send(nic::destroy_cq(cq)).unwrap();
            sender.send(nic::resize_cq(cq, 1)).unwrap();
        });
        for _ in 0..2 {
            let result = results.recv_timeout(Duration::from_secs(20));
            assert_eq!(result, Ok(Err(CallError::InvalidParameter)));
        }
        drop(held);
        calls.join().unwrap();
        crate::open::close(device, nic_handle).unwrap();
    }
}
