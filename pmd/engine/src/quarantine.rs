//! Quarantine of connection requests that ended [FCVI P-9, P-10].
//!
//! A frame can be in the network for R_A_TOV, during which its identifiers must not be used for
//! something else: OX_IDs are kept by their pool (`exchange`), handles are allocated in an order
//! that ensures it (`handles`), and ended requests are kept here. A request that became a
//! connection, or was cancelled, is identified by its S_ID and FCVI_CONNECTION_ID: its sender has
//! no reason to repeat it, so a further copy is late and is not reported to a consumer.
//!
//! At most [`MAX_QUARANTINED`] requests are kept. If more end within R_A_TOV, the oldest are
//! evicted; a late copy of one of these gets RESP1, to which no RESP2 follows.

use core::hash::Hash;
use std::collections::{HashSet, VecDeque};

use crate::counters::Counter;
use crate::engine::Engine;
use crate::synonym::{Check, skips};
use fcvi_frame::fc::NPortId;

/// Maximum number of requests in quarantine.
pub(crate) const MAX_QUARANTINED: usize = 1 << 14;

/// Identifiers that ended less than R_A_TOV ago. Allocates at construction only, because
/// connections are made while messages are sent.
#[derive(Debug)]
pub(crate) struct Quarantine<K> {
    /// Expiry time and identifier, oldest first.
    expiries: VecDeque<(u64, K)>,
    known: HashSet<K>,
    r_a_tov_ns: u64,
}

impl<K: Copy + Eq + Hash> Quarantine<K> {
    pub(crate) fn new(r_a_tov_ns: u64) -> Self {
        Self {
            expiries: VecDeque::with_capacity(MAX_QUARANTINED),
            // At most half full, it rehashes in place.
            known: HashSet::with_capacity(2 * MAX_QUARANTINED),
            r_a_tov_ns,
        }
    }

    fn add(&mut self, now_ns: u64, key: K) {
        self.expire(now_ns);
        if self.expiries.len() >= MAX_QUARANTINED {
            self.evict_oldest();
        }
        if self.known.insert(key) {
            self.expiries.push_back((now_ns + self.r_a_tov_ns, key));
        }
    }

    fn expire(&mut self, now_ns: u64) {
        while self.expiries.front().is_some_and(|(at, _)| *at <= now_ns) {
            self.evict_oldest();
        }
    }

    fn evict_oldest(&mut self) {
        if let Some((_, key)) = self.expiries.pop_front() {
            self.known.remove(&key);
        }
    }

    fn contains(&mut self, now_ns: u64, key: K) -> bool {
        self.expire(now_ns);
        self.known.contains(&key)
    }
}

impl Engine {
    /// Puts a request that will not be repeated into quarantine.
    pub(crate) fn quarantine_request(&mut self, now_ns: u64, s_id: NPortId, connection_id: u32) {
        self.quarantined_requests.add(now_ns, (s_id, connection_id));
    }

    /// Reports whether this request is in quarantine, and counts it then.
    pub(crate) fn is_late_request(
        &mut self,
        now_ns: u64,
        s_id: NPortId,
        connection_id: u32,
    ) -> bool {
        let late = self
            .quarantined_requests
            .contains(now_ns, (s_id, connection_id));
        if late && !skips(Check::QuarantinedRequest) {
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
    fn identifier_is_quarantined_for_r_a_tov() {
        let mut quarantine = Quarantine::new(1000);
        quarantine.add(5, 77);
        assert!(quarantine.contains(1004, 77) && !quarantine.contains(1004, 78));
        assert!(!quarantine.contains(1005, 77));
        assert!(quarantine.expiries.is_empty() && quarantine.known.is_empty());
    }

    #[test]
    fn quarantine_does_not_allocate_after_construction() {
        let mut quarantine = Quarantine::new(1000);
        let capacities = |quarantine: &Quarantine<usize>| {
            (quarantine.expiries.capacity(), quarantine.known.capacity())
        };
        let first = capacities(&quarantine);
        for key in 0..10 * MAX_QUARANTINED {
            quarantine.add(key as u64 / 20, key);
        }
        assert_eq!(quarantine.expiries.len(), MAX_QUARANTINED);
        let last = capacities(&quarantine);
        assert!(last.0 == first.0 && last.1 <= first.1, "{first:?} {last:?}");
    }

    #[test]
    fn full_quarantine_evicts_the_oldest() {
        let mut quarantine = Quarantine::new(1000);
        for key in 0..=MAX_QUARANTINED {
            quarantine.add(0, key);
        }
        assert!(
            !quarantine.contains(0, 0)
                && quarantine.contains(0, 1)
                && quarantine.contains(0, MAX_QUARANTINED)
        );
        assert_eq!(
            (quarantine.expiries.len(), quarantine.known.len()),
            (MAX_QUARANTINED, MAX_QUARANTINED)
        );
    }
}
