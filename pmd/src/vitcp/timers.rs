//! What is to be done later, and when.

use std::collections::{BTreeMap, BTreeSet};

/// What a moment is for: one moment for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    /// A connection that is not, or no more, a VI's waits no longer.
    Connection(u32),
    /// The connection request of a VI asks again, or is over.
    Request(u32),
    /// A VI's oldest answer is late.
    Answer(u32),
    /// The door is tried again.
    Door,
}

/// Moments in nanoseconds, the next one first.
#[derive(Debug, Default)]
pub(super) struct Timers {
    of: BTreeMap<Key, u64>,
    order: BTreeSet<(u64, Key)>,
}

impl Timers {
    pub(super) fn set(&mut self, at_ns: u64, key: Key) {
        if let Some(before_ns) = self.of.insert(key, at_ns) {
            self.order.remove(&(before_ns, key));
        }
        self.order.insert((at_ns, key));
    }

    pub(super) fn clear(&mut self, key: Key) {
        if let Some(at_ns) = self.of.remove(&key) {
            self.order.remove(&(at_ns, key));
        }
    }

    pub(super) fn next(&self) -> Option<u64> {
        self.order.first().map(|(at_ns, _)| *at_ns)
    }

    /// Takes one whose moment has come.
    pub(super) fn pop_due(&mut self, now_ns: u64) -> Option<Key> {
        let (at_ns, key) = *self.order.first().filter(|(at_ns, _)| *at_ns <= now_ns)?;
        self.order.remove(&(at_ns, key));
        self.of.remove(&key);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_one_moment_and_the_earliest_comes_first() {
        let mut timers = Timers::default();
        timers.set(30, Key::Answer(1));
        timers.set(20, Key::Request(1));
        timers.set(10, Key::Answer(1));
        timers.set(40, Key::Connection(7));
        timers.clear(Key::Connection(7));
        assert_eq!(timers.next(), Some(10));
        assert_eq!(timers.pop_due(9), None);
        assert_eq!(timers.pop_due(50), Some(Key::Answer(1)));
        assert_eq!(timers.pop_due(50), Some(Key::Request(1)));
        assert_eq!(timers.pop_due(50), None);
        timers.set(60, Key::Door);
        timers.set(70, Key::Door);
        assert_eq!(timers.next(), Some(70));
    }
}
