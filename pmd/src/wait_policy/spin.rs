//! How long a thread polls before it sleeps.
//!
//! A wait that sleeps takes two wake-ups: a frame wakes the NIC's thread, and that the waiting one. Two peers that answer
//! each other both sleep as soon as one of them polls for less than that: then each answer takes several wake-ups,
//! although none needs one. So the time is adapted to what they cost on this machine: threads poll through waits as long
//! as these end within a few times that cost. Longer waits, and those that time out, reduce the time again: for a NIC
//! that waits for long, polling only costs processor time.

use core::time::Duration;

use vi_core::sync::{AtomicU32, Ordering};

/// The least time, and that of the NIC's own thread, which begins to poll when the program has ceased.
const SHORTEST: Duration = Duration::from_micros(50);
/// The longest time, however much waking threads costs.
const LONGEST: Duration = Duration::from_millis(1);
/// One wait in this many polls for the least time only, so that it sleeps and the cost is measured again.
const WAITS_PER_PROBE: u32 = 256;

/// The time that the threads which wait on a NIC poll before they sleep.
///
/// Relaxed: independent numbers, of which an old value or a lost update does no harm.
#[derive(Debug)]
pub(crate) struct SpinPolicy {
    /// The configured time; `None` if it is adapted.
    configured: Option<Duration>,
    /// The NIC's thread sleeps, too, while the program waits.
    nic_thread_sleeps: bool,
    spin_ns: AtomicU32,
    waits: AtomicU32,
    /// From a frame for the sleeping NIC until its thread runs; not measured on all ports.
    nic_thread: MeanTime,
    /// From the event until the thread that waits for it runs.
    waiter: MeanTime,
}

impl SpinPolicy {
    /// Creates a policy with a fixed time, or one that adapts it.
    pub(crate) fn new(configured_us: Option<u64>, nic_thread_sleeps: bool) -> Self {
        Self {
            configured: configured_us.map(Duration::from_micros),
            nic_thread_sleeps,
            spin_ns: AtomicU32::new(SHORTEST.as_nanos() as u32),
            waits: AtomicU32::new(0),
            nic_thread: MeanTime::default(),
            waiter: MeanTime::default(),
        }
    }

    /// Returns how long a waiting thread polls, at the begin of a wait.
    pub(crate) fn of_wait(&self) -> Duration {
        if let Some(configured) = self.configured {
            return configured;
        }
        let waits = self.waits.load(Ordering::Relaxed).wrapping_add(1);
        self.waits.store(waits, Ordering::Relaxed);
        if waits.is_multiple_of(WAITS_PER_PROBE) {
            return SHORTEST;
        }
        self.adapted()
    }

    /// Returns how long the NIC's thread polls.
    pub(crate) fn of_nic_thread(&self) -> Duration {
        self.configured.unwrap_or(SHORTEST)
    }

    /// Notes what the wake-up of the NIC's thread by a frame took.
    pub(crate) fn nic_thread_woken(&self, wake_up: Duration) {
        self.nic_thread.add(wake_up);
    }

    /// Adapts to a wait that slept and ended after `waited`, `wake_up` after what it waited for, if that is known.
    pub(crate) fn wait_slept(&self, waited: Duration, wake_up: Option<Duration>) {
        if let Some(wake_up) = wake_up {
            self.waiter.add(wake_up);
        }
        let cost = self.cost();
        let longest = (cost * 4).clamp(SHORTEST, LONGEST);
        // The wait would have been shorter by the wake-ups.
        if waited <= longest + cost {
            self.set(longest);
        } else {
            self.reduce();
        }
    }

    /// Adapts to a wait that timed out.
    pub(crate) fn wait_timed_out(&self) {
        self.reduce();
    }

    /// Halves the time, down to one in which a peer that sleeps can answer.
    fn reduce(&self) {
        let least = (self.cost() * 3 / 2).clamp(SHORTEST, LONGEST);
        self.set((self.adapted() / 2).max(least));
    }

    /// Returns what the wake-ups of a wait that sleeps take.
    fn cost(&self) -> Duration {
        let waiter = self.waiter.get().unwrap_or(MeanTime::ASSUMED);
        if self.nic_thread_sleeps {
            waiter + self.nic_thread.get().unwrap_or(waiter)
        } else {
            waiter
        }
    }

    fn adapted(&self) -> Duration {
        Duration::from_nanos(self.spin_ns.load(Ordering::Relaxed).into())
    }

    fn set(&self, time: Duration) {
        // At most `LONGEST`.
        self.spin_ns
            .store(time.as_nanos() as u32, Ordering::Relaxed);
    }
}

/// The mean of the last measurements of a time in nanoseconds; 0: there is none.
#[derive(Debug, Default)]
struct MeanTime(AtomicU32);

impl MeanTime {
    /// Assumed before the first measurement, which alone says little.
    const ASSUMED: Duration = Duration::from_micros(20);
    /// What takes longer waits for a processor.
    const LONGEST: Duration = Duration::from_micros(250);
    /// The weight of a measurement in the mean.
    const SHARE: u32 = 8;

    fn get(&self) -> Option<Duration> {
        let ns = self.0.load(Ordering::Relaxed);
        (ns != 0).then_some(Duration::from_nanos(ns.into()))
    }

    fn add(&self, measured: Duration) {
        let old = self.get().unwrap_or(Self::ASSUMED);
        let new = (old * (Self::SHARE - 1) + measured.min(Self::LONGEST)) / Self::SHARE;
        // At most `LONGEST`.
        self.0
            .store((new.as_nanos() as u32).max(1), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn micros(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    /// Returns a policy for wake-ups that take this time, and the time that a thread polls for answers then.
    fn adapted_to(wake_up: Duration) -> (SpinPolicy, Duration) {
        let policy = SpinPolicy::new(None, true);
        for _ in 0..100 {
            policy.nic_thread_woken(wake_up);
            policy.wait_slept((wake_up * 3).min(micros(900)), Some(wake_up));
        }
        let adapted = policy.adapted();
        (policy, adapted)
    }

    #[test]
    fn short_waits_are_polled_through_and_long_ones_slept_through() {
        let (policy, adapted) = adapted_to(micros(40));
        assert!(
            (micros(310)..=micros(320)).contains(&adapted),
            "{adapted:?}"
        );
        assert_eq!(policy.of_nic_thread(), SHORTEST);
        for _ in 0..5 {
            policy.wait_slept(micros(10_000), Some(micros(40)));
        }
        let least = policy.adapted();
        assert!((micros(115)..=micros(120)).contains(&least), "{least:?}");
        policy.wait_slept(micros(450), Some(micros(40)));
        assert_eq!(policy.adapted(), least, "longer than with the wake-ups");
        policy.wait_slept(micros(380), Some(micros(40)));
        assert!(policy.adapted() > micros(310));
    }

    #[test]
    fn waits_that_time_out_reduce_the_time() {
        let (policy, adapted) = adapted_to(micros(100));
        for _ in 0..5 {
            policy.wait_timed_out();
        }
        assert!(policy.adapted() < adapted / 2);
        let (policy, _) = adapted_to(micros(1));
        policy.wait_timed_out();
        assert_eq!(policy.adapted(), SHORTEST);
    }

    #[test]
    fn time_follows_the_cost_of_waking_within_limits() {
        assert_eq!(adapted_to(micros(2)).1, SHORTEST, "a fast machine");
        assert_eq!(adapted_to(micros(1_000_000)).1, LONGEST, "a slow one");
        let policy = SpinPolicy::new(None, true);
        policy.wait_slept(micros(100), Some(micros(1_000_000)));
        assert!(policy.adapted() < LONGEST / 2, "one slow wake-up");
    }

    #[test]
    fn pinned_nic_thread_adds_no_cost_of_waking() {
        let of = |nic_thread_sleeps, nic_thread: Option<Duration>| {
            let policy = SpinPolicy::new(None, nic_thread_sleeps);
            for _ in 0..100 {
                nic_thread.inspect(|wake_up| policy.nic_thread_woken(*wake_up));
                policy.wait_slept(micros(100), Some(micros(40)));
            }
            policy.cost().as_micros()
        };
        assert_eq!(of(true, None), 79, "assumed to cost as much");
        assert_eq!(of(true, Some(micros(100))), 139);
        assert_eq!(of(false, None), 39, "a pinned one polls");
    }

    #[test]
    fn some_waits_sleep_to_measure_the_cost_again() {
        let (policy, adapted) = adapted_to(micros(100));
        let times: Vec<Duration> = (0..2 * WAITS_PER_PROBE).map(|_| policy.of_wait()).collect();
        assert_eq!(times.iter().filter(|time| **time == SHORTEST).count(), 2);
        assert_eq!(times.iter().filter(|time| **time == adapted).count(), 510);
    }

    #[test]
    fn configured_time_is_not_adapted() {
        for configured_us in [0, 70] {
            let policy = SpinPolicy::new(Some(configured_us), true);
            policy.wait_slept(micros(100), Some(micros(90)));
            policy.wait_timed_out();
            let times = [policy.of_wait(), policy.of_nic_thread()];
            assert_eq!(times, [micros(configured_us); 2]);
        }
    }
}
