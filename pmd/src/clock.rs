//! Nanoseconds since the NIC was opened, read cheaply once a turn.

use std::time::Instant;

/// Time-stamp counter ticks after which the clock itself is read again: about a microsecond.
#[cfg(target_arch = "x86_64")]
const STALE_TICKS: u64 = 3000;

/// A monotonic clock that asks the system only when its last answer may be stale.
pub(crate) struct Clock {
    base: Instant,
    now_ns: u64,
    #[cfg(target_arch = "x86_64")]
    ticks: u64,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            base: Instant::now(),
            now_ns: 0,
            #[cfg(target_arch = "x86_64")]
            ticks: 0,
        }
    }

    /// Now, at most about a microsecond ago.
    #[inline]
    pub(crate) fn now_ns(&mut self) -> u64 {
        #[cfg(target_arch = "x86_64")]
        {
            // SAFETY: every x86-64 processor has the instruction; it reads a counter.
            let ticks = unsafe { core::arch::x86_64::_rdtsc() };
            if ticks.wrapping_sub(self.ticks) < STALE_TICKS {
                return self.now_ns;
            }
            self.ticks = ticks;
        }
        self.now_ns = self.base.elapsed().as_nanos() as u64;
        self.now_ns
    }

    /// The last answer of [`Clock::now_ns`].
    #[inline]
    pub(crate) fn last_ns(&self) -> u64 {
        self.now_ns
    }
}
