//! Threads that sleep until something happens on a NIC, and who wakes them.
//!
//! ```text
//!  who sleeps:  count += 1;   heavy barrier;  look  -> sleep, unless `changed` moved meanwhile
//!  who tells:   what happened; light barrier;  count? -> changed += 1; wake
//! ```
//! Either the sleeper finds what happened when it looks, or it is seen, and `changed` keeps it
//! from falling asleep. While nobody sleeps, telling costs one look at `count`.
//!
//! Each thread sleeps for some [`Event`]s, and others do not wake it. There are more queues than
//! bits: whoever sleeps looks again when it is woken.

use core::ops::BitOrAssign;

use crate::sync::{
    AtomicU32, Ordering, futex_wait_for, futex_wake_for, heavy_barrier, light_barrier,
};

/// What can be slept for, one bit for each; a set of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Event(u32);

impl Event {
    /// Nothing.
    pub(crate) const NONE: Event = Event(0);
    /// Who waits for a connection, a port or a host should look, whatever for: each does.
    pub(crate) const CONTROL: Event = Event(1);
    /// Whatever anybody sleeps for.
    pub(crate) const ALL: Event = Event(u32::MAX);

    /// A completion on a work queue of this VI.
    pub(crate) const fn on_work_queue(vi: u32, receive: bool) -> Self {
        Self::numbered(vi.wrapping_mul(2).wrapping_add(receive as u32))
    }

    /// An entry in this completion queue.
    pub(crate) const fn on_completion_queue(index: u32) -> Self {
        // Other bits than those of the first VIs, for a program that has few of both.
        Self::numbered(index.wrapping_add(16))
    }

    /// Another state of this VI, or the outcome of a connection call on it.
    pub(crate) const fn on_connection(vi: u32) -> Self {
        Self::numbered(vi.wrapping_add(8))
    }

    /// A request for this listener.
    pub(crate) const fn on_listener(number: u64) -> Self {
        Self::numbered((number % 31) as u32)
    }

    /// Both.
    pub(crate) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn numbered(number: u32) -> Self {
        Self(2 << (number % 31))
    }

    /// True for [`Event::NONE`].
    #[inline]
    pub(crate) const fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl BitOrAssign for Event {
    #[inline]
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// Those who sleep on one NIC.
pub(crate) struct Sleepers {
    count: AtomicU32,
    /// Moves with each wake; they sleep on it.
    changed: AtomicU32,
}

impl Sleepers {
    pub(crate) fn new() -> Self {
        Self {
            count: AtomicU32::new(0),
            changed: AtomicU32::new(0),
        }
    }

    /// Does anybody sleep, or is about to?
    pub(crate) fn any(&self) -> bool {
        // SeqCst: after the bell of a sleeper was seen, so is the sleeper.
        self.count.load(Ordering::SeqCst) != 0
    }

    /// This happened: wakes those who sleep for any of it.
    #[inline]
    pub(crate) fn tell(&self, happened: Event) {
        // Partner: the heavy barrier in `sleep`.
        light_barrier();
        if self.count.load(Ordering::Relaxed) != 0 {
            self.wake(happened);
        }
    }

    /// Wakes those who sleep for any of it; how many there were.
    #[cold]
    pub(crate) fn wake(&self, happened: Event) -> usize {
        self.changed.fetch_add(1, Ordering::SeqCst);
        futex_wake_for(&self.changed, happened.0)
    }

    /// Looks, and sleeps for at most so long if nothing is found. May return early.
    /// `lie_down` is called before the sleep.
    pub(crate) fn sleep<T>(
        &self,
        wanted: Event,
        limit_ns: Option<u64>,
        look: impl FnOnce() -> Option<T>,
        lie_down: impl FnOnce(),
    ) -> Option<T> {
        let seen = self.changed.load(Ordering::SeqCst);
        self.count.fetch_add(1, Ordering::SeqCst);
        // Partner: the light barrier in `tell`.
        heavy_barrier();
        let found = look();
        if found.is_none() && limit_ns != Some(0) {
            lie_down();
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
    fn every_queue_has_one_bit_and_control_its_own() {
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
    fn what_happens_wakes_those_who_sleep_for_it_and_nobody_else() {
        let (sleepers, over) = (Sleepers::new(), AtomicBool::new(false));
        let mine = Event::on_work_queue(3, true);
        let mut others = Event::on_work_queue(3, false);
        others |= Event::CONTROL;
        others |= Event::on_completion_queue(3);
        thread::scope(|scope| {
            scope.spawn(|| {
                let look = || over.load(Ordering::SeqCst).then_some(());
                while sleepers.sleep(mine, None, look, || ()).is_none() {}
            });
            // Most of the times when it is woken it slept through what came before.
            let mut woken = (0, 0);
            while woken.0 < 200 {
                woken.1 += sleepers.wake(others);
                woken.0 += sleepers.wake(mine);
                thread::yield_now();
            }
            over.store(true, Ordering::SeqCst);
            sleepers.tell(mine);
            assert_eq!(woken.1, 0, "by what it did not sleep for");
        });
        assert!(!sleepers.any());
    }

    #[test]
    fn who_finds_something_or_has_no_time_does_not_sleep() {
        let sleepers = Sleepers::new();
        let found = sleepers.sleep(Event::CONTROL, None, || Some(7), || panic!("it sleeps"));
        assert_eq!(found, Some(7));
        let found = sleepers.sleep(
            Event::CONTROL,
            Some(0),
            || None::<u8>,
            || panic!("it sleeps"),
        );
        assert_eq!(found, None);
        let slept = sleepers.sleep(Event::CONTROL, Some(1000), || None::<u8>, || ());
        assert_eq!(slept, None, "its time is over");
    }
}
