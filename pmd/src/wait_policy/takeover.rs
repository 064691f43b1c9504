//! How long the program makes no call before the NIC's thread polls in its place.
//!
//! A program that awaits RDMA writes by polling its memory makes no calls, while its peers wait for its NIC. The NIC's
//! thread that takes over and finds work waiting has taken over too late, and looks sooner the next time. If there was
//! none, or the program polls, it looks ever less often.

use core::time::Duration;

/// The shortest time: looking costs a wake-up of the thread.
const SHORTEST: Duration = Duration::from_micros(50);
/// The time after a takeover that was late, as a fraction of the time before.
const SHORTER: u32 = 4;

/// The time without a call of the program after which the NIC's thread polls.
#[derive(Debug)]
pub(crate) struct TakeoverPolicy {
    silence: Duration,
    /// The configured time.
    longest: Duration,
}

impl TakeoverPolicy {
    pub(crate) fn new(takeover_us: u64) -> Self {
        let longest = Duration::from_micros(takeover_us);
        Self {
            silence: longest,
            longest,
        }
    }

    /// Returns the time.
    pub(crate) fn silence(&self) -> Duration {
        self.silence
    }

    /// Adapts to a takeover after such a time, which found work waiting.
    pub(crate) fn was_late(&mut self) {
        let shorter = (self.silence / SHORTER).max(SHORTEST);
        self.silence = shorter.min(self.longest);
    }

    /// Adapts to a takeover that found no work, or to a program that has polled since the last look.
    pub(crate) fn was_early(&mut self) {
        self.silence = (self.silence * 2).min(self.longest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_takeovers_shorten_the_time_and_early_ones_restore_it() {
        let mut policy = TakeoverPolicy::new(1000);
        for expected_us in [250, 62, 50, 50] {
            policy.was_late();
            assert_eq!(policy.silence().as_micros(), expected_us);
        }
        for expected_us in [100, 200, 400, 800, 1000, 1000] {
            policy.was_early();
            assert_eq!(policy.silence().as_micros(), expected_us);
        }
    }

    #[test]
    fn configured_time_is_never_exceeded() {
        let mut policy = TakeoverPolicy::new(10);
        policy.was_late();
        policy.was_early();
        assert_eq!(policy.silence(), Duration::from_micros(10));
    }
}
