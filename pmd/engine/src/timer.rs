//! One table of deadlines.
//!
//! Entries are never cancelled: whoever fires looks whether its deadline still
//! stands and sets a later one if not, so that each key has one entry at a time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What a deadline is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TimerKey {
    /// The incomplete message of an endpoint.
    Receive(u32),
    /// The connection procedure of an endpoint.
    Connect(u32),
    /// A connection request of another port.
    Incoming(u32),
    /// A disconnect that waits for its response.
    Closing(u32),
    /// Peers that may have gone.
    Liveness,
}

/// Deadlines in nanoseconds of the caller's clock.
#[derive(Debug, Default)]
pub(crate) struct TimerTable {
    heap: BinaryHeap<Reverse<(u64, TimerKey)>>,
}

impl TimerTable {
    pub(crate) fn with_capacity(entries: usize) -> Self {
        Self {
            heap: BinaryHeap::with_capacity(entries),
        }
    }

    pub(crate) fn set(&mut self, at_ns: u64, key: TimerKey) {
        self.heap.push(Reverse((at_ns, key)));
    }

    /// The earliest deadline.
    #[inline]
    pub(crate) fn next(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// Takes one entry whose time has come.
    #[inline]
    pub(crate) fn pop_due(&mut self, now_ns: u64) -> Option<TimerKey> {
        match self.heap.peek() {
            Some(Reverse((at, key))) if *at <= now_ns => {
                let key = *key;
                self.heap.pop();
                Some(key)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_fire_in_order_and_not_before_their_time() {
        let mut timers = TimerTable::default();
        timers.set(30, TimerKey::Connect(1));
        timers.set(10, TimerKey::Receive(2));
        timers.set(20, TimerKey::Liveness);
        assert_eq!(timers.next(), Some(10));
        assert_eq!(timers.pop_due(9), None);
        assert_eq!(timers.pop_due(25), Some(TimerKey::Receive(2)));
        assert_eq!(timers.pop_due(25), Some(TimerKey::Liveness));
        assert_eq!(timers.pop_due(25), None);
        assert_eq!(timers.next(), Some(30));
    }
}
