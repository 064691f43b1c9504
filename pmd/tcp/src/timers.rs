//! Timers of a VI/TCP NIC.

use std::collections::{BTreeMap, BTreeSet};

/// Identifies a timer; each has at most one expiry time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TimerKey {
    /// Timeout of a connection without a VI, by its number.
    Connection(u32),
    /// Retry or timeout of a VI's connection request.
    Request(u32),
    /// Timeout of a VI's oldest pending response.
    Response(u32),
    /// Retry of the shared listener.
    SharedListener,
    /// The next turn of a TLS handshake.
    Handshakes,
}

/// Timers in nanoseconds, ordered by expiry.
#[derive(Debug, Default)]
pub(super) struct Timers {
    expiry: BTreeMap<TimerKey, u64>,
    order: BTreeSet<(u64, TimerKey)>,
}

impl Timers {
    pub(super) fn set(&mut self, at_ns: u64, key: TimerKey) {
        if let Some(before_ns) = self.expiry.insert(key, at_ns) {
            self.order.remove(&(before_ns, key));
        }
        self.order.insert((at_ns, key));
    }

    pub(super) fn clear(&mut self, key: TimerKey) {
        if let Some(at_ns) = self.expiry.remove(&key) {
            self.order.remove(&(at_ns, key));
        }
    }

    pub(super) fn next(&self) -> Option<u64> {
        self.order.first().map(|(at_ns, _)| *at_ns)
    }

    /// Removes and returns an expired timer.
    pub(super) fn pop_due(&mut self, now_ns: u64) -> Option<TimerKey> {
        let (at_ns, key) = *self.order.first().filter(|(at_ns, _)| *at_ns <= now_ns)?;
        self.order.remove(&(at_ns, key));
        self.expiry.remove(&key);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pop_due_returns_timers_in_order_of_expiry() {
        let mut timers = Timers::default();
        timers.set(30, TimerKey::Response(1));
        timers.set(20, TimerKey::Request(1));
        timers.set(10, TimerKey::Response(1));
        timers.set(40, TimerKey::Connection(7));
        timers.clear(TimerKey::Connection(7));
        assert_eq!(timers.next(), Some(10));
        assert_eq!(timers.pop_due(9), None);
        assert_eq!(timers.pop_due(50), Some(TimerKey::Response(1)));
        assert_eq!(timers.pop_due(50), Some(TimerKey::Request(1)));
        assert_eq!(timers.pop_due(50), None);
        timers.set(60, TimerKey::SharedListener);
        timers.set(70, TimerKey::SharedListener);
        assert_eq!(timers.next(), Some(70));
    }
}
