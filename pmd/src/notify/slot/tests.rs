use std::sync::atomic::AtomicBool;
use std::sync::{OnceLock, TryLockError};

use super::*;
use crate::config::NicConfig;
use crate::notify::Look;
use crate::sleepers::Event;

/// A queue on which nothing ever completes.
#[derive(Clone, Copy)]
struct Silent {
    device: &'static Device,
    live: &'static AtomicBool,
    /// Whose thread must not take anything off between being asked and the answer, once it is set.
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
            assert!(locked, "what admits one more may be taken off at once");
        }
        Ok(())
    }

    fn event(&self) -> Event {
        Event::CONTROL
    }

    fn look(&self) -> Look<()> {
        if self.is_live() {
            Look::Nothing
        } else {
            Look::Gone
        }
    }
}

/// A queue of a NIC that may have so many notify threads, and the opening to close.
fn silent(test: &str, max_notify_threads: u32) -> (Silent, u64) {
    let config = NicConfig {
        segment: format!("unit-{}-slot-{test}", std::process::id()),
        max_notify_threads,
        ..NicConfig::default()
    };
    let (device, instance) = crate::device::open_unattended(&config).unwrap();
    let live = Box::leak(Box::new(AtomicBool::new(true)));
    let held = Box::leak(Box::default());
    (Silent { device, live, held }, instance)
}

fn end(source: Silent, slots: &[&NotifySlot<Silent>]) {
    source.live.store(false, Ordering::SeqCst);
    settle(slots.iter().filter_map(|slot| slot.end()).collect());
    assert_eq!(threads(source), 0, "all of them ended");
}

fn threads(source: Silent) -> u32 {
    source.device.notify_threads.load(Ordering::SeqCst)
}

fn never() -> Handler<()> {
    Box::new(|_, ()| panic!("nothing completes"))
}

#[test]
fn who_ends_the_queue_does_not_wait_for_a_thread_that_starts() {
    let (source, instance) = silent("starts", 2);
    let slot = NotifySlot::new();
    let asked = slot.ask_starting(source, never(), |source| {
        let locked = matches!(slot.0.try_lock(), Err(TryLockError::WouldBlock));
        assert!(!locked, "the turn may wait for this lock");
        Running::start(source)
    });
    assert_eq!(asked, Ok(()));
    end(source, &[&slot]);
    crate::device::close(source.device, instance).unwrap();
}

#[test]
fn a_queue_that_ends_while_its_thread_starts_leaves_none() {
    let (source, instance) = silent("ends", 2);
    let slot = NotifySlot::new();
    let handler = never();
    let asked = slot.ask_starting(source, handler, |source| {
        end(source, &[&slot]);
        Running::start(source)
    });
    assert_eq!(asked, Err(ControlError::InvalidParameter));
    assert_eq!(threads(source), 0);
    assert!(slot.end().is_none());
    crate::device::close(source.device, instance).unwrap();
}

#[test]
fn two_first_requests_at_once_get_one_thread_also_at_the_limit() {
    for limit in [2, 1] {
        let (source, instance) = silent(&format!("both-{limit}"), limit);
        let slot = NotifySlot::new();
        let asked = slot.ask_starting(source, never(), |source| {
            assert_eq!(slot.ask(source, never()), Ok(()));
            Running::start(source)
        });
        assert_eq!(asked, Ok(()), "limit {limit}");
        assert_eq!(threads(source), 1);
        let waiting = slot.lock().as_ref().unwrap().notifier.lock().waiting.len();
        assert_eq!(waiting, 2);
        end(source, &[&slot]);
        crate::device::close(source.device, instance).unwrap();
    }
}

#[test]
fn nothing_is_taken_off_between_the_look_at_the_queue_and_the_count_of_the_requests() {
    let (source, instance) = silent("admit", 1);
    let slot = NotifySlot::new();
    assert_eq!(slot.ask(source, never()), Ok(()));
    let notifier = Arc::clone(&slot.lock().as_ref().unwrap().notifier);
    assert!(source.held.set(notifier).is_ok());
    assert_eq!(slot.ask(source, never()), Ok(()));
    end(source, &[&slot]);
    crate::device::close(source.device, instance).unwrap();
}

#[test]
fn a_nic_has_so_many_notify_threads_and_no_more() {
    let (source, instance) = silent("limit", 2);
    let slots = [(); 3].map(|()| NotifySlot::new());
    for slot in &slots[..2] {
        assert_eq!(slot.ask(source, never()), Ok(()));
        assert_eq!(slot.ask(source, never()), Ok(()), "the same thread");
    }
    let reached = LimitReached::all_in_use(Limit::MaxNotifyThreads, 2u32, LimitOf::Nic);
    assert_eq!(slots[2].ask(source, never()), Err(reached.into()));
    // Of a queue that ended, for another one.
    settle(slots[0].end().into_iter().collect());
    assert_eq!(slots[2].ask(source, never()), Ok(()));
    assert_eq!(threads(source), 2);
    end(source, &[&slots[1], &slots[2]]);
    crate::device::close(source.device, instance).unwrap();
}
