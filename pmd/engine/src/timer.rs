//! The table of deadlines, with one slot per key.
//!
//! Setting a key again moves its deadline, so that the table holds at most one entry per key,
//! however many connections are made.

/// Purpose of a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TimerKey {
    /// The incomplete message of an endpoint.
    Receive(u32),
    /// The connection procedure of an endpoint.
    Connect(u32),
    /// The response that an endpoint waits for.
    Response(u32),
    /// The delayed acknowledgement of an endpoint.
    Acknowledge(u32),
    /// The peer of an endpoint is silent.
    Recover(u32),
    /// A connection request of another port.
    Incoming(u32),
    /// A disconnect that waits for its response.
    Disconnect(u32),
    /// Probes of idle peers.
    Liveness,
}

/// Position of a key that is not in the heap.
const NOT_IN_HEAP: u32 = u32::MAX;
/// Number of keys per endpoint.
pub(crate) const KEYS_PER_VI: usize = 5;

/// Deadlines in nanoseconds of the caller's clock: a binary heap with an index of its entries.
#[derive(Debug)]
pub(crate) struct TimerTable {
    heap: Vec<(u64, TimerKey)>,
    /// Position of each key in the heap.
    positions: Vec<u32>,
    vis: usize,
    incoming: usize,
}

impl TimerTable {
    /// Creates a table for every key of these numbers of endpoints, requests and disconnects.
    pub(crate) fn new(vis: usize, incoming: usize, closing: usize) -> Self {
        let keys = 1 + KEYS_PER_VI * vis + incoming + closing;
        Self {
            heap: Vec::with_capacity(keys),
            positions: vec![NOT_IN_HEAP; keys],
            vis,
            incoming,
        }
    }

    fn number(&self, key: TimerKey) -> usize {
        match key {
            TimerKey::Liveness => 0,
            TimerKey::Receive(slot) => 1 + slot as usize,
            TimerKey::Connect(slot) => 1 + self.vis + slot as usize,
            TimerKey::Response(slot) => 1 + 2 * self.vis + slot as usize,
            TimerKey::Acknowledge(slot) => 1 + 3 * self.vis + slot as usize,
            TimerKey::Recover(slot) => 1 + 4 * self.vis + slot as usize,
            TimerKey::Incoming(index) => 1 + KEYS_PER_VI * self.vis + index as usize,
            TimerKey::Disconnect(index) => {
                1 + KEYS_PER_VI * self.vis + self.incoming + index as usize
            }
        }
    }

    /// Sets the deadline of a key, in place of an earlier one.
    pub(crate) fn set(&mut self, at_ns: u64, key: TimerKey) {
        let number = self.number(key);
        let position = match self.positions[number] {
            NOT_IN_HEAP => {
                self.heap.push((at_ns, key));
                self.heap.len() - 1
            }
            position => {
                self.heap[position as usize].0 = at_ns;
                position as usize
            }
        };
        self.settle(position);
    }

    /// Removes the deadline of a key, if it has one.
    pub(crate) fn clear(&mut self, key: TimerKey) {
        let number = self.number(key);
        if self.positions[number] != NOT_IN_HEAP {
            self.remove(self.positions[number] as usize);
        }
    }

    /// Returns the earliest deadline.
    #[inline]
    pub(crate) fn next(&self) -> Option<u64> {
        self.heap.first().map(|(at, _)| *at)
    }

    /// Removes and returns one expired key.
    #[inline]
    pub(crate) fn pop_due(&mut self, now_ns: u64) -> Option<TimerKey> {
        match self.heap.first() {
            Some((at, key)) if *at <= now_ns => {
                let key = *key;
                self.remove(0);
                Some(key)
            }
            _ => None,
        }
    }

    fn remove(&mut self, position: usize) {
        let (_, key) = self.heap.swap_remove(position);
        let number = self.number(key);
        self.positions[number] = NOT_IN_HEAP;
        if position < self.heap.len() {
            self.settle(position);
        }
    }

    /// Restores the heap order for the entry at this position.
    fn settle(&mut self, mut position: usize) {
        while position > 0 && self.heap[position] < self.heap[(position - 1) / 2] {
            self.heap.swap(position, (position - 1) / 2);
            self.note(position);
            position = (position - 1) / 2;
        }
        loop {
            let left = 2 * position + 1;
            let right = left + 1;
            let child = if right < self.heap.len() && self.heap[right] < self.heap[left] {
                right
            } else {
                left
            };
            if child >= self.heap.len() || self.heap[position] < self.heap[child] {
                break;
            }
            self.heap.swap(position, child);
            self.note(position);
            position = child;
        }
        self.note(position);
    }

    fn note(&mut self, position: usize) {
        let number = self.number(self.heap[position].1);
        self.positions[number] = position as u32;
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::rng::Rng;
    use std::collections::BTreeMap;

    #[test]
    fn deadlines_fire_in_order_and_not_before_their_time() {
        let mut timers = TimerTable::new(4, 4, 4);
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

    #[test]
    fn timer_table_matches_a_sorted_map() {
        let seed = 0x7131;
        println!("seed {seed:#x}");
        let mut rng = Rng::new(seed);
        let mut timers = TimerTable::new(7, 5, 3);
        let mut model: BTreeMap<TimerKey, u64> = BTreeMap::new();
        for _ in 0..20_000 {
            let n = rng.below(7) as u32;
            let key = match rng.below(8) {
                0 => TimerKey::Receive(n),
                1 => TimerKey::Connect(n),
                2 => TimerKey::Incoming(n % 5),
                3 => TimerKey::Disconnect(n % 3),
                4 => TimerKey::Response(n),
                5 => TimerKey::Acknowledge(n),
                6 => TimerKey::Recover(n),
                _ => TimerKey::Liveness,
            };
            let at = rng.below(100);
            match rng.below(3) {
                0 => {
                    timers.clear(key);
                    model.remove(&key);
                }
                1 => {
                    let due = model.iter().map(|(key, at)| (*at, *key)).min();
                    let due = due.filter(|(first, _)| *first <= at).map(|(_, key)| key);
                    assert_eq!(timers.pop_due(at), due);
                    due.map(|key| model.remove(&key));
                }
                _ => {
                    timers.set(at, key);
                    model.insert(key, at);
                }
            }
            assert_eq!(timers.next(), model.values().min().copied());
            assert_eq!(timers.len(), model.len());
        }
    }
}
