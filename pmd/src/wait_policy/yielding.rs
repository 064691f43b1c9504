//! The policy by which a polling thread yields its core: the number of idle polls between yields.

use core::time::Duration;
use std::time::Instant;

use vi_core::sync::{AtomicU32, Ordering, yield_now};

/// Idle polls before a yield on a core that other threads want.
const MIN_IDLE_POLLS: u32 = 16;
/// Idle polls before a yield on a core that no other thread wants, where a yield only costs a system
/// call.
const MAX_IDLE_POLLS: u32 = 1024;
/// A yield shorter than this ran no other thread: it was only the system call.
const UNCONTENDED: Duration = Duration::from_nanos(1500);

/// The number of idle polls after which a thread yields its core, adapted to the last yields.
#[derive(Debug)]
pub(crate) struct YieldPolicy(AtomicU32);

impl YieldPolicy {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(MAX_IDLE_POLLS / 4))
    }

    /// Returns the number of idle polls before the next yield.
    #[inline]
    pub(crate) fn idle_polls(&self) -> u32 {
        // Relaxed: an independent number; an old value does no harm.
        self.0.load(Ordering::Relaxed)
    }

    /// Yields the core, and adapts to whether another thread ran.
    #[cold]
    pub(crate) fn yield_core(&self) {
        let begun = Instant::now();
        yield_now();
        self.adapt(begun.elapsed());
    }

    fn adapt(&self, away: Duration) {
        let polls = if away >= UNCONTENDED {
            MIN_IDLE_POLLS
        } else {
            (self.idle_polls() * 2).min(MAX_IDLE_POLLS)
        };
        self.0.store(polls, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contended_core_is_yielded_soon_and_uncontended_core_rarely() {
        let policy = YieldPolicy::new();
        policy.adapt(UNCONTENDED);
        assert_eq!(policy.idle_polls(), MIN_IDLE_POLLS);
        for _ in 0..32 {
            policy.adapt(UNCONTENDED / 2);
        }
        assert_eq!(policy.idle_polls(), MAX_IDLE_POLLS);
    }
}
