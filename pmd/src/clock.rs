//! The clock of a NIC: nanoseconds during which it was polled, read cheaply in each poll.
//!
//! A NIC is polled many times a second. After a longer gap the host or the process was stopped, and
//! what arrived meanwhile is unprocessed. Such a gap counts as [`LONGEST_GAP_NS`], and only from the
//! next reading on, so that received frames are processed first (docs/adr/0021).

use std::time::Instant;

/// The most that a gap between two readings counts: several upkeep intervals of an idle NIC.
const LONGEST_GAP_NS: u64 = 200_000_000;

/// A monotonic clock that reads the system clock once in many polls, and does not count long gaps.
pub(crate) struct Clock {
    base: Instant,
    /// The time since `base` that is not counted.
    skipped_ns: u64,
    now_ns: u64,
    /// The last reading followed a long gap, which is counted by the next one.
    gap_pending: bool,
    /// Calls of [`Clock::coarse_ns`] since the last reading.
    calls: u32,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            base: Instant::now(),
            skipped_ns: 0,
            now_ns: 0,
            gap_pending: false,
            calls: u32::MAX,
        }
    }

    /// Reads the system clock; returns the time.
    pub(crate) fn now_ns(&mut self) -> u64 {
        self.calls = 0;
        self.advance(self.base.elapsed().as_nanos() as u64)
    }

    /// Advances to a reading of `elapsed_ns` since `base`; returns the time.
    #[inline]
    fn advance(&mut self, elapsed_ns: u64) -> u64 {
        let gap_ns = elapsed_ns - self.skipped_ns - self.now_ns;
        let counted_ns = gap_ns.min(LONGEST_GAP_NS);
        self.skipped_ns += gap_ns - counted_ns;
        self.gap_pending = gap_ns > LONGEST_GAP_NS && !self.gap_pending;
        if !self.gap_pending {
            self.now_ns += counted_ns;
        }
        self.now_ns
    }

    /// Returns the time, as of at most `max_calls` calls ago.
    #[inline]
    pub(crate) fn coarse_ns(&mut self, max_calls: u32) -> u64 {
        if self.calls >= max_calls {
            return self.now_ns();
        }
        self.calls += 1;
        self.now_ns
    }

    /// Returns the time of the last reading.
    #[inline]
    pub(crate) fn last_ns(&self) -> u64 {
        self.now_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn long_gap_counts_as_longest_gap_from_second_reading() {
        let mut clock = Clock::new();
        assert_eq!(clock.advance(10), 10);
        assert_eq!(clock.advance(LONGEST_GAP_NS), LONGEST_GAP_NS);
        // The host is stopped for half a minute.
        let resumed = LONGEST_GAP_NS + 30 * SECOND_NS;
        assert_eq!(clock.advance(resumed), LONGEST_GAP_NS);
        assert_eq!(clock.last_ns(), LONGEST_GAP_NS);
        assert_eq!(clock.advance(resumed), 2 * LONGEST_GAP_NS);
        assert_eq!(clock.advance(resumed + 7), 2 * LONGEST_GAP_NS + 7);
    }

    /// Time advances also for a thread that is always scheduled after a long gap.
    #[test]
    fn clock_read_only_after_long_gaps_advances_slowly() {
        let mut clock = Clock::new();
        let read = (1..=100)
            .map(|second| clock.advance(second * SECOND_NS))
            .last();
        assert_eq!(read, Some(50 * LONGEST_GAP_NS));
    }
}
