use std::sync::atomic::AtomicBool;
use std::sync::{OnceLock, TryLockError};

use super::*;
use crate::config::NicConfig;
use crate::notify::PollResult;
use crate::waiters::Event;

/// A queue without completions.
#[derive(Clone, Copy)]
struct Silent {
    device: &'static Device,
    live: &'static AtomicBool,
    /// Once set, the notifier whose requests must be locked while `admit` is called.
    held: &'static OnceLock<Arc<Notifier<Silent>>>,
}

impl Source for Silent {
    type Found = ();

    fn device(&self) -> &'static Device {
        self.device
    }

    fn nic(&self) -> u64 {
        0
    }

    fn is_live(&self) -> bool {
        self.live.load(Ordering::SeqCst)
    }

    fn admit(&self) -> Outcome<()> {
        if let Some(notifier) = self.held.get() {
            let locked = matches!(notifier.requests.try_lock(), Err(TryLockError::WouldBlock));
            assert!(
                locked,
                "the descriptor that admits a request may be reaped meanwhile"
            );
        }
        Ok(())
    }

    fn event(&self) -> Event {
        Event::CONTROL
    }

    fn poll(&self) -> PollResult<()> {
        if self.is_live() {
            PollResult::Pending
        } else {
            PollResult::QueueEnded
        }
    }
}

/// Opens a NIC with this limit of notify threads; returns a queue, and the NIC handle to close.
fn silent(test: &str, max_notify_threads: u32) -> (Silent, u64) {
    let config = NicConfig {
        segment: format!("unit-{}-slot-{test}", std::process::id()),
        max_notify_threads,
        ..NicConfig::default()
    };
    let (device, nic_handle) = crate::device::open_without_threads(&config).unwrap();
    let live = Box::leak(Box::new(AtomicBool::new(true)));
    let held = Box::leak(Box::default());
    (Silent { device, live, held }, nic_handle)
}

fn end(source: Silent, slots: &[&NotifySlot<Silent>]) {
    source.live.store(false, Ordering::SeqCst);
    join_ended(slots.iter().filter_map(|slot| slot.end()).collect());
    assert_eq!(threads(source), 0, "all threads ended");
}

fn threads(source: Silent) -> u32 {
    source.device.notify_threads.load(Ordering::SeqCst)
}

fn never() -> Handler<()> {
    Box::new(|_, ()| panic!("nothing completes"))
}

#[test]
fn thread_is_started_outside_of_slot_lock() {
    let (source, nic_handle) = silent("starts", 2);
    let slot = NotifySlot::new();
    let requested = slot.request_with(source, never(), |source| {
        let locked = matches!(slot.0.try_lock(), Err(TryLockError::WouldBlock));
        assert!(
            !locked,
            "a holder of the backend lock may wait for this lock"
        );
        Running::start(source)
    });
    assert_eq!(requested, Ok(()));
    end(source, &[&slot]);
    crate::device::close(source.device, nic_handle).unwrap();
}

#[test]
fn queue_destroyed_while_thread_starts_has_no_thread() {
    let (source, nic_handle) = silent("ends", 2);
    let slot = NotifySlot::new();
    let handler = never();
    let requested = slot.request_with(source, handler, |source| {
        end(source, &[&slot]);
        Running::start(source)
    });
    assert_eq!(requested, Err(CallError::InvalidParameter));
    assert_eq!(threads(source), 0);
    assert!(slot.end().is_none());
    crate::device::close(source.device, nic_handle).unwrap();
}

#[test]
fn concurrent_first_requests_share_one_thread_also_at_limit() {
    for limit in [2, 1] {
        let (source, nic_handle) = silent(&format!("both-{limit}"), limit);
        let slot = NotifySlot::new();
        let requested = slot.request_with(source, never(), |source| {
            assert_eq!(slot.request(source, never()), Ok(()));
            Running::start(source)
        });
        assert_eq!(requested, Ok(()), "limit {limit}");
        assert_eq!(threads(source), 1);
        let pending = slot.lock().as_ref().unwrap().notifier.lock().pending.len();
        assert_eq!(pending, 2);
        end(source, &[&slot]);
        crate::device::close(source.device, nic_handle).unwrap();
    }
}

#[test]
fn queue_check_and_request_count_are_under_one_lock() {
    let (source, nic_handle) = silent("admit", 1);
    let slot = NotifySlot::new();
    assert_eq!(slot.request(source, never()), Ok(()));
    let notifier = Arc::clone(&slot.lock().as_ref().unwrap().notifier);
    assert!(source.held.set(notifier).is_ok());
    assert_eq!(slot.request(source, never()), Ok(()));
    end(source, &[&slot]);
    crate::device::close(source.device, nic_handle).unwrap();
}

#[test]
fn notify_threads_of_nic_are_limited() {
    let (source, nic_handle) = silent("limit", 2);
    let slots = [(); 3].map(|()| NotifySlot::new());
    for slot in &slots[..2] {
        assert_eq!(slot.request(source, never()), Ok(()));
        assert_eq!(slot.request(source, never()), Ok(()), "the same thread");
    }
    let reached = LimitReached::all_in_use(Limit::MaxNotifyThreads, 2u32, LimitOf::Nic);
    assert_eq!(slots[2].request(source, never()), Err(reached.into()));
    // The thread of a destroyed queue no longer counts.
    join_ended(slots[0].end().into_iter().collect());
    assert_eq!(slots[2].request(source, never()), Ok(()));
    assert_eq!(threads(source), 2);
    end(source, &[&slots[1], &slots[2]]);
    crate::device::close(source.device, nic_handle).unwrap();
}
