use std::sync::atomic::AtomicBool;
use std::sync::{OnceLock, TryLockError};

use vi_types::LockPolicy;

use super::*;
use crate::memory::table::RegionLimits;
use crate::nic_shared::NicLimits;

/// A queue without completions.
#[derive(Clone, Copy)]
struct Silent {
    nic: &'static NicShared,
    live: &'static AtomicBool,
    /// Once set, the notifier whose requests must be locked while `admit` is called.
    held: &'static OnceLock<Arc<Notifier<()>>>,
}

impl Source for Silent {
    type Found = ();

    fn nic(&self) -> &'static NicShared {
        self.nic
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
}

/// What the notify thread of a queue without completions does.
fn run(_source: Silent, notifier: &Notifier<()>) {
    while let Ok(due) = notifier.await_request() {
        assert!(due.is_none());
        std::thread::yield_now();
    }
}

fn start(source: Silent) -> Outcome<Running<()>> {
    Running::start(source, run)
}

/// Returns a queue of a NIC with this limit of notify threads.
fn silent(max_notify_threads: u32) -> Silent {
    let limits = NicLimits {
        max_vi: 0,
        max_cq: 0,
        max_descriptors_per_queue: 0,
        max_segments_per_descriptor: 0,
        max_notifies_per_queue: 1024,
        max_notify_threads,
        max_log_lines_per_second: 0,
        regions: RegionLimits {
            regions: 0,
            bytes: 0,
            region_bytes: 0,
            lock: LockPolicy::Never,
        },
        is_lenient: false,
    };
    let nic = Box::leak(Box::new(NicShared::new(0, "silent".into(), limits)));
    let live = Box::leak(Box::new(AtomicBool::new(true)));
    let held = Box::leak(Box::default());
    Silent { nic, live, held }
}

fn end(source: Silent, slots: &[&NotifySlot<()>]) {
    source.live.store(false, Ordering::SeqCst);
    join_ended(slots.iter().filter_map(|slot| slot.end()).collect());
    assert_eq!(threads(source), 0, "all threads ended");
}

fn threads(source: Silent) -> u32 {
    source.nic.notify_threads.load(Ordering::SeqCst)
}

fn never() -> Handler<()> {
    Box::new(|_, ()| panic!("nothing completes"))
}

#[test]
fn thread_is_started_outside_of_slot_lock() {
    let source = silent(2);
    let slot = NotifySlot::new();
    let requested = slot.request_with(source, never(), |source| {
        let locked = matches!(slot.0.try_lock(), Err(TryLockError::WouldBlock));
        assert!(
            !locked,
            "a holder of the backend lock may wait for this lock"
        );
        start(source)
    });
    assert_eq!(requested, Ok(()));
    end(source, &[&slot]);
}

#[test]
fn queue_destroyed_while_thread_starts_has_no_thread() {
    let source = silent(2);
    let slot = NotifySlot::new();
    let handler = never();
    let requested = slot.request_with(source, handler, |source| {
        end(source, &[&slot]);
        start(source)
    });
    assert_eq!(requested, Err(CallError::InvalidParameter));
    assert_eq!(threads(source), 0);
    assert!(slot.end().is_none());
}

#[test]
fn concurrent_first_requests_share_one_thread_also_at_limit() {
    for limit in [2, 1] {
        let source = silent(limit);
        let slot = NotifySlot::new();
        let requested = slot.request_with(source, never(), |source| {
            assert_eq!(slot.request(source, never(), run), Ok(()));
            start(source)
        });
        assert_eq!(requested, Ok(()), "limit {limit}");
        assert_eq!(threads(source), 1);
        let pending = slot.lock().as_ref().unwrap().notifier.lock().pending.len();
        assert_eq!(pending, 2);
        end(source, &[&slot]);
    }
}

#[test]
fn queue_check_and_request_count_are_under_one_lock() {
    let source = silent(1);
    let slot = NotifySlot::new();
    assert_eq!(slot.request(source, never(), run), Ok(()));
    let notifier = Arc::clone(&slot.lock().as_ref().unwrap().notifier);
    assert!(source.held.set(notifier).is_ok());
    assert_eq!(slot.request(source, never(), run), Ok(()));
    end(source, &[&slot]);
}

#[test]
fn notify_threads_of_nic_are_limited() {
    let source = silent(2);
    let slots = [(); 3].map(|()| NotifySlot::new());
    for slot in &slots[..2] {
        assert_eq!(slot.request(source, never(), run), Ok(()));
        assert_eq!(
            slot.request(source, never(), run),
            Ok(()),
            "the same thread"
        );
    }
    let reached = LimitReached::all_in_use(Limit::MaxNotifyThreads, 2u32, LimitOf::Nic);
    assert_eq!(slots[2].request(source, never(), run), Err(reached.into()));
    // The thread of a destroyed queue no longer counts.
    join_ended(slots[0].end().into_iter().collect());
    assert_eq!(slots[2].request(source, never(), run), Ok(()));
    assert_eq!(threads(source), 2);
    end(source, &[&slots[1], &slots[2]]);
}
