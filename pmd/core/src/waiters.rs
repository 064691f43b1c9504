//! Threads that sleep until an event on a NIC, and the notification that wakes them.
//!
//! ```text
//!  waiter:    count += 1;  heavy barrier;  check  -> sleep, unless `changed` was changed meanwhile
//!  notifier:  the event;   light barrier;  count? -> changed += 1; wake
//! ```
//! Either the waiter sees the event when it checks, or the notifier sees the waiter, and `changed`
//! prevents the sleep. While no thread waits, a notification costs one load of `count`.
//!
//! Each thread waits for some [`Event`]s, and other events do not wake it. There are more queues
//! than bits: a waiter checks again when it is woken.

use core::ops::BitOrAssign;
use core::time::Duration;

use crate::sync::{
    AtomicU32, AtomicU64, Ordering, futex_wait_for, futex_wake_for, heavy_barrier, light_barrier,
    monotonic_ns,
};

/// A set of events for which threads can wait, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event(u32);

impl Event {
    /// The empty set.
    pub const NONE: Event = Event(0);
    /// A change of a connection, a port or a host: all threads that wait for any of these check.
    pub const CONTROL: Event = Event(1);
    /// All events.
    pub const ALL: Event = Event(u32::MAX);

    /// A completion on a work queue of this VI.
    pub(crate) const fn on_work_queue(vi: u32, receive: bool) -> Self {
        Self::numbered(vi.wrapping_mul(2).wrapping_add(receive as u32))
    }

    /// An entry in this completion queue.
    pub(crate) const fn on_completion_queue(index: u32) -> Self {
        // Other bits than those of the first VIs, for a program with few of both.
        Self::numbered(index.wrapping_add(16))
    }

    /// A new state of this VI, or the outcome of a connection call on it.
    #[inline]
    pub const fn on_connection(vi: u32) -> Self {
        Self::numbered(vi.wrapping_add(8))
    }

    /// A connection request for this listener.
    #[inline]
    pub const fn on_listener(number: u64) -> Self {
        Self::numbered((number % 31) as u32)
    }

    /// The union of both sets.
    #[inline]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn numbered(number: u32) -> Self {
        Self(2 << (number % 31))
    }

    /// Returns true for [`Event::NONE`].
    #[inline]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl BitOrAssign for Event {
    #[inline]
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// The threads that wait on one NIC.
pub struct Waiters {
    count: AtomicU32,
    /// Incremented by each wake; the futex on which the threads sleep.
    changed: AtomicU32,
    /// The time of the first wake since a thread went to sleep; 0: there was none.
    woken_at_ns: AtomicU64,
}

impl Waiters {
    /// Creates a set without waiting threads.
    pub(crate) fn new() -> Self {
        Self {
            count: AtomicU32::new(0),
            changed: AtomicU32::new(0),
            woken_at_ns: AtomicU64::new(0),
        }
    }

    /// Returns true if a thread sleeps or is about to.
    #[inline]
    pub fn any(&self) -> bool {
        // SeqCst: a caller that has seen the notification of a waiter also sees the waiter.
        self.count.load(Ordering::SeqCst) != 0
    }

    /// Wakes the threads that wait for any of these events; returns their number. Cheap while no thread waits.
    #[inline]
    pub fn notify(&self, events: Event) -> usize {
        // Partner: the heavy barrier in `sleep`.
        light_barrier();
        if self.count.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.wake(events)
    }

    /// Wakes the threads that wait for any of these events; returns their number.
    #[cold]
    pub fn wake(&self, events: Event) -> usize {
        // Relaxed: for a measurement only.
        if self.woken_at_ns.load(Ordering::Relaxed) == 0 {
            self.woken_at_ns.store(monotonic_ns(), Ordering::Relaxed);
        }
        self.changed.fetch_add(1, Ordering::SeqCst);
        futex_wake_for(&self.changed, events.0)
    }

    /// Returns the time since threads were woken first after the last one went to sleep: of a thread that was just
    /// woken, what that took.
    pub fn since_wake(&self) -> Option<Duration> {
        let woken_at_ns = self.woken_at_ns.load(Ordering::Relaxed);
        let since_ns = monotonic_ns().saturating_sub(woken_at_ns);
        (woken_at_ns != 0).then_some(Duration::from_nanos(since_ns))
    }

    /// Calls `check`, and sleeps for at most `limit_ns` if it returns `None`. May return early.
    /// `before_sleep` is called before the sleep.
    pub fn sleep<T>(
        &self,
        wanted: Event,
        limit_ns: Option<u64>,
        check: impl FnOnce() -> Option<T>,
        before_sleep: impl FnOnce(),
    ) -> Option<T> {
        self.woken_at_ns.store(0, Ordering::Relaxed);
        let seen = self.changed.load(Ordering::SeqCst);
        self.count.fetch_add(1, Ordering::SeqCst);
        // Partner: the light barrier in `notify`.
        heavy_barrier();
        let found = check();
        if found.is_none() && limit_ns != Some(0) {
            before_sleep();
            futex_wait_for(&self.changed, seen, limit_ns, wanted.0);
        }
        self.count.fetch_sub(1, Ordering::SeqCst);
        found
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    #[test]
    fn each_queue_event_has_one_bit_other_than_control() {
        for number in 0..100 {
            for event in [
                Event::on_work_queue(number, false),
                Event::on_work_queue(number, true),
                Event::on_completion_queue(number),
                Event::on_connection(number),
                Event::on_listener(number.into()),
            ] {
                assert_eq!(event.0.count_ones(), 1);
                assert_ne!(event, Event::CONTROL);
            }
        }
        let first = [false, true].map(|receive| Event::on_work_queue(0, receive));
        assert_ne!(first[0], first[1]);
        assert!(!first.contains(&Event::on_completion_queue(0)));
    }

    #[test]
    fn event_wakes_only_threads_that_wait_for_it() {
        let (waiters, stop) = (Waiters::new(), AtomicBool::new(false));
        let mine = Event::on_work_queue(3, true);
        let mut others = Event::on_work_queue(3, false);
        others |= Event::CONTROL;
        others |= Event::on_completion_queue(3);
        thread::scope(|scope| {
            scope.spawn(|| {
                let check = || stop.load(Ordering::SeqCst).then_some(());
                while waiters.sleep(mine, None, check, || ()).is_none() {}
            });
            // Mostly it was asleep while the other events were signalled before.
            let mut woken = (0, 0);
            while woken.0 < 200 {
                woken.1 += waiters.wake(others);
                woken.0 += waiters.wake(mine);
                thread::yield_now();
            }
            stop.store(true, Ordering::SeqCst);
            waiters.notify(mine);
            assert_eq!(woken.1, 0, "by events it did not wait for");
        });
        assert!(!waiters.any());
    }

    #[test]
    fn sleep_returns_at_once_if_check_finds_or_limit_is_zero() {
        let waiters = Waiters::new();
        let found = waiters.sleep(Event::CONTROL, None, || Some(7), || panic!("it sleeps"));
        assert_eq!(found, Some(7));
        let found = waiters.sleep(
            Event::CONTROL,
            Some(0),
            || None::<u8>,
            || panic!("it sleeps"),
        );
        assert_eq!(found, None);
        let slept = waiters.sleep(Event::CONTROL, Some(1000), || None::<u8>, || ());
        assert_eq!(slept, None, "timed out");
    }
}
