//! How long a thread that polls for what another process does keeps its core.

use core::time::Duration;
use std::time::Instant;

use crate::sync::{AtomicU32, Ordering, yield_now};

/// Turns that find nothing before the core is offered: on a core that others want as well.
const LEAST_TURNS: u32 = 16;
/// On a core that nobody else wants, where each offer costs a system call and brings nothing.
const MOST_TURNS: u32 = 1024;
/// A core that comes back sooner was not wanted: nothing but the system call took place.
const NOT_WANTED: Duration = Duration::from_nanos(1500);

/// Turns that find nothing before a thread offers its core to others, as many as the last
/// offers taught.
#[derive(Debug)]
pub(crate) struct Patience(AtomicU32);

impl Patience {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(MOST_TURNS / 4))
    }

    /// So many.
    #[inline]
    pub(crate) fn turns(&self) -> u32 {
        // Relaxed: a number by itself; an old one is as good.
        self.0.load(Ordering::Relaxed)
    }

    /// Offers the core, and learns whether somebody wanted it.
    #[cold]
    pub(crate) fn give_way(&self) {
        let begun = Instant::now();
        yield_now();
        self.learn(begun.elapsed());
    }

    fn learn(&self, away: Duration) {
        let turns = if away >= NOT_WANTED {
            LEAST_TURNS
        } else {
            (self.turns() * 2).min(MOST_TURNS)
        };
        self.0.store(turns, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_that_others_want_is_offered_soon_and_one_that_nobody_wants_rarely() {
        let patience = Patience::new();
        patience.learn(NOT_WANTED);
        assert_eq!(patience.turns(), LEAST_TURNS);
        for _ in 0..32 {
            patience.learn(NOT_WANTED / 2);
        }
        assert_eq!(patience.turns(), MOST_TURNS);
    }
}
