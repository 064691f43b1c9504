//! One table of deadlines, one place in it for each key.
//!
//! Setting a key again moves its deadline, so that the table holds as many
//! entries as there are keys, however often connections come and go.

/// What a deadline is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TimerKey {
    /// The incomplete message of an endpoint.
    Receive(u32),
    /// The connection procedure of an endpoint.
    Connect(u32),
    /// The answer that an endpoint waits for.
    Answer(u32),
    /// What an endpoint owes its peer: an acknowledgement.
    Acknowledge(u32),
    /// The peer of an endpoint is silent.
    Recover(u32),
    /// A connection request of another port.
    Incoming(u32),
    /// A disconnect that waits for its response.
    Closing(u32),
    /// Peers that may have gone.
    Liveness,
}

/// Not in the heap.
const NOWHERE: u32 = u32::MAX;
/// Keys of each endpoint.
pub(crate) const KEYS_PER_VI: usize = 5;

/// Deadlines in nanoseconds of the caller's clock: a binary heap whose entries
/// know where they stand.
#[derive(Debug)]
pub(crate) struct TimerTable {
    heap: Vec<(u64, TimerKey)>,
    /// Where in the heap each key stands.
    places: Vec<u32>,
    vis: usize,
    incoming: usize,
}

impl TimerTable {
    /// Room for every key of so many endpoints, requests and disconnects.
    pub(crate) fn new(vis: usize, incoming: usize, closing: usize) -> Self {
        let keys = 1 + KEYS_PER_VI * vis + incoming + closing;
        Self {
            heap: Vec::with_capacity(keys),
            places: vec![NOWHERE; keys],
            vis,
            incoming,
        }
    }

    fn number(&self, key: TimerKey) -> usize {
        match key {
            TimerKey::Liveness => 0,
            TimerKey::Receive(slot) => 1 + slot as usize,
            TimerKey::Connect(slot) => 1 + self.vis + slot as usize,
            TimerKey::Answer(slot) => 1 + 2 * self.vis + slot as usize,
            TimerKey::Acknowledge(slot) => 1 + 3 * self.vis + slot as usize,
            TimerKey::Recover(slot) => 1 + 4 * self.vis + slot as usize,
            TimerKey::Incoming(index) => 1 + KEYS_PER_VI * self.vis + index as usize,
            TimerKey::Closing(index) => 1 + KEYS_PER_VI * self.vis + self.incoming + index as usize,
        }
    }

    /// Sets the deadline of a key, in place of an earlier one.
    pub(crate) fn set(&mut self, at_ns: u64, key: TimerKey) {
        let number = self.number(key);
        let place = match self.places[number] {
            NOWHERE => {
                self.heap.push((at_ns, key));
                self.heap.len() - 1
            }
            place => {
                self.heap[place as usize].0 = at_ns;
                place as usize
            }
        };
        self.settle(place);
    }

    /// Takes the deadline of a key away, if it has one.
    pub(crate) fn clear(&mut self, key: TimerKey) {
        let number = self.number(key);
        if self.places[number] != NOWHERE {
            self.remove(self.places[number] as usize);
        }
    }

    /// The earliest deadline.
    #[inline]
    pub(crate) fn next(&self) -> Option<u64> {
        self.heap.first().map(|(at, _)| *at)
    }

    /// Takes one entry whose time has come.
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

    fn remove(&mut self, place: usize) {
        let (_, key) = self.heap.swap_remove(place);
        let number = self.number(key);
        self.places[number] = NOWHERE;
        if place < self.heap.len() {
            self.settle(place);
        }
    }

    /// Moves the entry at `place` to where it belongs.
    fn settle(&mut self, mut place: usize) {
        while place > 0 && self.heap[place] < self.heap[(place - 1) / 2] {
            self.heap.swap(place, (place - 1) / 2);
            self.note(place);
            place = (place - 1) / 2;
        }
        loop {
            let left = 2 * place + 1;
            let right = left + 1;
            let child = if right < self.heap.len() && self.heap[right] < self.heap[left] {
                right
            } else {
                left
            };
            if child >= self.heap.len() || self.heap[place] < self.heap[child] {
                break;
            }
            self.heap.swap(place, child);
            self.note(place);
            place = child;
        }
        self.note(place);
    }

    fn note(&mut self, place: usize) {
        let number = self.number(self.heap[place].1);
        self.places[number] = place as u32;
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
    fn the_table_does_what_a_sorted_map_does() {
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
                3 => TimerKey::Closing(n % 3),
                4 => TimerKey::Answer(n),
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
