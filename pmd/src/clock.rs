//! Nanoseconds since the NIC was opened, read cheaply once a turn.

use std::time::Instant;

/// A monotonic clock that asks the system once in many turns.
pub(crate) struct Clock {
    base: Instant,
    now_ns: u64,
    /// Looks since it was read.
    looks: u32,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            base: Instant::now(),
            now_ns: 0,
            looks: u32::MAX,
        }
    }

    /// Now.
    pub(crate) fn now_ns(&mut self) -> u64 {
        self.looks = 0;
        self.now_ns = self.base.elapsed().as_nanos() as u64;
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
