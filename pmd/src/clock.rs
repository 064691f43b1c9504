//! Nanoseconds since the NIC was opened, read cheaply once a turn.

use std::time::Instant;

/// Looks between two readings of the clock while the NIC is polled without pause: some
/// microseconds. However rarely a program polls, the NIC's thread has the clock read with
/// each upkeep.
const TURNS: u32 = 4;

/// A monotonic clock that asks the system once in many turns.
pub(crate) struct Clock {
    base: Instant,
    now_ns: u64,
    turns: u32,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            base: Instant::now(),
            now_ns: 0,
            turns: 0,
        }
    }

    /// Now.
    pub(crate) fn now_ns(&mut self) -> u64 {
        self.turns = TURNS;
        self.now_ns = self.base.elapsed().as_nanos() as u64;
        self.now_ns
    }

    /// Now, at most [`TURNS`] calls ago.
    #[inline]
    pub(crate) fn turn_ns(&mut self) -> u64 {
        if self.turns == 0 {
            return self.now_ns();
        }
        self.turns -= 1;
        self.now_ns
    }

    /// The last answer.
    #[inline]
    pub(crate) fn last_ns(&self) -> u64 {
        self.now_ns
    }
}
