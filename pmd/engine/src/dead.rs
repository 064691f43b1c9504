//! Connection requests that are over, and when one may come again [FCVI P-9, P-10].
//!
//! A frame can be on its way for R_A_TOV. So long nobody may use its identifiers for something
//! else: OX_IDs are held by their pool (`exchange`), handles come in an order (`handles`), and
//! requests are remembered here. One that came to a connection, or was taken back, is known by its
//! S_ID and FCVI_CONNECTION_ID: its sender has no reason to send it again, so if it comes it is
//! late, and no consumer waits for it.
//!
//! As many are remembered as [`REMEMBERED`]. If more end within R_A_TOV, the oldest are left to
//! what else tells them: nobody answers a late RESP1 with RESP2.

use core::hash::Hash;
use std::collections::{HashSet, VecDeque};

use crate::counters::Counter;
use crate::engine::Engine;
use crate::synonym::{Check, skips};
use fcvi_frame::fc::NPortId;

/// Requests that are remembered as dead, at most.
pub(crate) const REMEMBERED: usize = 1 << 14;

/// Identifiers that ended less than R_A_TOV ago. Allocates nothing after it was made: connections
/// come and go beside messages.
#[derive(Debug)]
pub(crate) struct Dead<K> {
    /// Until when each is dead, oldest first.
    order: VecDeque<(u64, K)>,
    known: HashSet<K>,
    r_a_tov_ns: u64,
}

impl<K: Copy + Eq + Hash> Dead<K> {
    pub(crate) fn new(r_a_tov_ns: u64) -> Self {
        Self {
            order: VecDeque::with_capacity(REMEMBERED),
            // Half full at most, it is put in order again where it is.
            known: HashSet::with_capacity(2 * REMEMBERED),
            r_a_tov_ns,
        }
    }

    fn add(&mut self, now_ns: u64, key: K) {
        self.revive(now_ns);
        if self.order.len() >= REMEMBERED {
            self.forget_oldest();
        }
        if self.known.insert(key) {
            self.order.push_back((now_ns + self.r_a_tov_ns, key));
        }
    }

    fn revive(&mut self, now_ns: u64) {
        while self.order.front().is_some_and(|(at, _)| *at <= now_ns) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((_, key)) = self.order.pop_front() {
            self.known.remove(&key);
        }
    }

    fn has(&mut self, now_ns: u64, key: K) -> bool {
        self.revive(now_ns);
        self.known.contains(&key)
    }
}

impl Engine {
    /// The request of this port with this connection ID will not be sent again.
    pub(crate) fn retire_request(&mut self, now_ns: u64, s_id: NPortId, connection_id: u32) {
        self.dead_requests.add(now_ns, (s_id, connection_id));
    }

    /// Is this a request that is over? Then it is counted.
    pub(crate) fn is_late_request(
        &mut self,
        now_ns: u64,
        s_id: NPortId,
        connection_id: u32,
    ) -> bool {
        let late = self.dead_requests.has(now_ns, (s_id, connection_id));
        if late && !skips(Check::DeadRequest) {
            self.counters.count(Counter::DropLateRequest);
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_is_dead_for_r_a_tov() {
        let mut dead = Dead::new(1000);
        dead.add(5, 77);
        assert!(dead.has(1004, 77) && !dead.has(1004, 78));
        assert!(!dead.has(1005, 77));
        assert!(dead.order.is_empty() && dead.known.is_empty());
    }

    #[test]
    fn nothing_grows_however_many_come_and_go() {
        let mut dead = Dead::new(1000);
        let capacities = |dead: &Dead<usize>| (dead.order.capacity(), dead.known.capacity());
        let first = capacities(&dead);
        for key in 0..10 * REMEMBERED {
            dead.add(key as u64 / 20, key);
        }
        assert_eq!(dead.order.len(), REMEMBERED);
        let last = capacities(&dead);
        assert!(last.0 == first.0 && last.1 <= first.1, "{first:?} {last:?}");
    }

    #[test]
    fn of_too_many_the_oldest_are_forgotten() {
        let mut dead = Dead::new(1000);
        for key in 0..=REMEMBERED {
            dead.add(0, key);
        }
        assert!(!dead.has(0, 0) && dead.has(0, 1) && dead.has(0, REMEMBERED));
        assert_eq!(
            (dead.order.len(), dead.known.len()),
            (REMEMBERED, REMEMBERED)
        );
    }
}
