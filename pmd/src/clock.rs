//! Nanoseconds that a NIC has lived, read cheaply once a turn.
//!
//! Somebody looks after a NIC many times a second. If nobody did for longer, the host or the process
//! was stopped, and what came meanwhile waits unseen. That time counts as [`LONGEST_GAP_NS`], and from
//! the next reading on: first what came is looked at (docs/adr/0021).

use std::time::Instant;

/// What a gap between two readings counts at most: some upkeeps of a NIC that is left alone.
const LONGEST_GAP_NS: u64 = 200_000_000;

/// A monotonic clock that asks the system once in many turns, and stands still while nobody asks.
pub(crate) struct Clock {
    base: Instant,
    /// What of the time since `base` was not lived.
    missed_ns: u64,
    now_ns: u64,
    /// The last reading came after too long a gap, and did not count it yet.
    stood: bool,
    /// Looks since it was read.
    looks: u32,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            base: Instant::now(),
            missed_ns: 0,
            now_ns: 0,
            stood: false,
            looks: u32::MAX,
        }
    }

    /// Now.
    pub(crate) fn now_ns(&mut self) -> u64 {
        self.looks = 0;
        self.advance(self.base.elapsed().as_nanos() as u64)
    }

    /// It is so long since `base`.
    #[inline]
    fn advance(&mut self, elapsed_ns: u64) -> u64 {
        let gap_ns = elapsed_ns - self.missed_ns - self.now_ns;
        let counted_ns = gap_ns.min(LONGEST_GAP_NS);
        self.missed_ns += gap_ns - counted_ns;
        self.stood = gap_ns > LONGEST_GAP_NS && !self.stood;
        if !self.stood {
            self.now_ns += counted_ns;
        }
        self.now_ns
    }

    /// Now, or as it was up to so many looks ago.
    #[inline]
    pub(crate) fn look_ns(&mut self, looks: u32) -> u64 {
        if self.looks >= looks {
            return self.now_ns();
        }
        self.looks += 1;
        self.now_ns
    }

    /// The last answer.
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
    fn a_pause_counts_as_the_longest_gap_once_what_came_was_looked_at() {
        let mut clock = Clock::new();
        assert_eq!(clock.advance(10), 10);
        assert_eq!(clock.advance(LONGEST_GAP_NS), LONGEST_GAP_NS);
        // Half a minute in which the host stood still.
        let resumed = LONGEST_GAP_NS + 30 * SECOND_NS;
        assert_eq!(clock.advance(resumed), LONGEST_GAP_NS);
        assert_eq!(clock.last_ns(), LONGEST_GAP_NS);
        assert_eq!(clock.advance(resumed), 2 * LONGEST_GAP_NS);
        assert_eq!(clock.advance(resumed + 7), 2 * LONGEST_GAP_NS + 7);
    }

    /// A thread that never gets its core sooner still sees time go on.
    #[test]
    fn a_clock_that_is_read_too_rarely_goes_slowly() {
        let mut clock = Clock::new();
        let read = (1..=100)
            .map(|second| clock.advance(second * SECOND_NS))
            .last();
        assert_eq!(read, Some(50 * LONGEST_GAP_NS));
    }
}
