//! Quarantine of connection requests that ended [FCVI P-9, P-10].
//!
//! A frame can be in the network for R_A_TOV, during which its identifiers must not be used for
//! something else: OX_IDs are kept by their pool (`exchange`), handles are allocated in an order
//! that ensures it (`handles`), and ended requests are kept here. A request that became a
//! connection, or was cancelled, is identified by its S_ID and FCVI_CONNECTION_ID: its sender has
//! no reason to repeat it, so a further copy is late and is not reported to a consumer.
//!
//! | table | contents | entries |
//! | --- | --- | --- |
//! | `received` | requests of other ports that were received and ended | [`MAX_RECEIVED`] |
//! | `announced` | requests that were cancelled before they were received | [`MAX_ANNOUNCED`] |
//! | `own` | our requests that ended: only their late acceptances are answered | [`MAX_OWN`] |
//!
//! If more end within R_A_TOV, the oldest are evicted; a late copy of one of these gets RESP1, to
//! which no RESP2 follows. Any station can fill `announced` by forged frames, and evict only what
//! is there. It cannot name the next request of another port, whose ID it would have to guess.

use core::hash::Hash;
use std::collections::{HashSet, VecDeque};

use fcvi_frame::fc::NPortId;

/// Maximum number of ended requests of other ports.
pub(crate) const MAX_RECEIVED: usize = 1 << 14;
/// Maximum number of requests that were cancelled before they were received.
pub(crate) const MAX_ANNOUNCED: usize = 1 << 10;
/// Maximum number of ended requests of this port.
const MAX_OWN: usize = 1 << 12;
/// Entries that one call removes because their time has passed. Others are removed by later calls:
/// no request has the identifiers of another one, so that it does not matter when.
const EXPIRED_PER_CALL: usize = 64;

/// The requests in quarantine.
#[derive(Debug)]
pub(crate) struct RequestQuarantine {
    /// By S_ID and connection ID.
    received: Quarantine<(NPortId, u32)>,
    announced: Quarantine<(NPortId, u32)>,
    /// By our handle and connection ID.
    own: Quarantine<(u32, u32)>,
}

impl RequestQuarantine {
    pub(crate) fn new(r_a_tov_ns: u64) -> Self {
        Self {
            received: Quarantine::new(MAX_RECEIVED, r_a_tov_ns),
            announced: Quarantine::new(MAX_ANNOUNCED, r_a_tov_ns),
            // Request and response can each be in the network for R_A_TOV.
            own: Quarantine::new(MAX_OWN, r_a_tov_ns.saturating_mul(2)),
        }
    }
}

/// Identifiers that ended less than a given time ago. Allocates at construction only, because
/// connections are made while messages are sent.
#[derive(Debug)]
struct Quarantine<K> {
    /// Expiry time and identifier, oldest first.
    expiries: VecDeque<(u64, K)>,
    known: HashSet<K>,
    capacity: usize,
    lifetime_ns: u64,
}

impl<K: Copy + Eq + Hash> Quarantine<K> {
    fn new(capacity: usize, lifetime_ns: u64) -> Self {
        Self {
            expiries: VecDeque::with_capacity(capacity),
            // At most half full, it rehashes in place.
            known: HashSet::with_capacity(2 * capacity),
            capacity,
            lifetime_ns,
        }
    }

    fn add(&mut self, now_ns: u64, key: K) {
        self.expire(now_ns);
        if self.expiries.len() >= self.capacity {
            self.evict_oldest();
        }
        if self.known.insert(key) {
            self.expiries
                .push_back((now_ns.saturating_add(self.lifetime_ns), key));
        }
    }

    fn expire(&mut self, now_ns: u64) {
        for _ in 0..EXPIRED_PER_CALL {
            if self.expiries.front().is_none_or(|(at, _)| *at > now_ns) {
                return;
            }
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

impl RequestQuarantine {
    /// Adds a received request, by its S_ID and connection ID, that will not be repeated.
    pub(crate) fn add_received(&mut self, now_ns: u64, request: (NPortId, u32)) {
        self.received.add(now_ns, request);
    }

    /// Adds a request that was cancelled before it was received.
    pub(crate) fn add_announced(&mut self, now_ns: u64, request: (NPortId, u32)) {
        self.announced.add(now_ns, request);
    }

    /// Reports whether this request will not be repeated: it is late.
    pub(crate) fn is_late(&mut self, now_ns: u64, request: (NPortId, u32)) -> bool {
        self.received.contains(now_ns, request) || self.announced.contains(now_ns, request)
    }

    /// Adds a request of ours, by our handle and its connection ID, that needs no further acceptance.
    pub(crate) fn add_own(&mut self, now_ns: u64, request: (u32, u32)) {
        self.own.add(now_ns, request);
    }

    /// Reports whether this request of ours ended recently.
    pub(crate) fn has_own(&mut self, now_ns: u64, request: (u32, u32)) -> bool {
        self.own.contains(now_ns, request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifier_is_quarantined_for_r_a_tov() {
        let mut quarantine = Quarantine::new(MAX_RECEIVED, 1000);
        quarantine.add(5, 77);
        assert!(quarantine.contains(1004, 77) && !quarantine.contains(1004, 78));
        assert!(!quarantine.contains(1005, 77));
        assert!(quarantine.expiries.is_empty() && quarantine.known.is_empty());
    }

    #[test]
    fn quarantine_does_not_allocate_after_construction() {
        let mut quarantine = Quarantine::new(MAX_RECEIVED, 1000);
        let capacities = |quarantine: &Quarantine<usize>| {
            (quarantine.expiries.capacity(), quarantine.known.capacity())
        };
        let first = capacities(&quarantine);
        for key in 0..10 * MAX_RECEIVED {
            quarantine.add(key as u64 / 20, key);
        }
        assert_eq!(quarantine.expiries.len(), MAX_RECEIVED);
        let last = capacities(&quarantine);
        assert!(last.0 == first.0 && last.1 <= first.1, "{first:?} {last:?}");
    }

    #[test]
    fn requests_that_expire_together_are_removed_in_parts() {
        let mut quarantine = Quarantine::new(MAX_RECEIVED, 1000);
        for key in 0..MAX_RECEIVED {
            quarantine.add(0, key);
        }
        for call in 1..=MAX_RECEIVED / EXPIRED_PER_CALL {
            assert!(!quarantine.contains(1000, MAX_RECEIVED));
            let left = MAX_RECEIVED - call * EXPIRED_PER_CALL;
            assert_eq!(
                (quarantine.expiries.len(), quarantine.known.len()),
                (left, left)
            );
        }
    }

    #[test]
    fn full_quarantine_evicts_the_oldest() {
        let mut quarantine = Quarantine::new(MAX_RECEIVED, 1000);
        for key in 0..=MAX_RECEIVED {
            quarantine.add(0, key);
        }
        assert!(
            !quarantine.contains(0, 0)
                && quarantine.contains(0, 1)
                && quarantine.contains(0, MAX_RECEIVED)
        );
        assert_eq!(
            (quarantine.expiries.len(), quarantine.known.len()),
            (MAX_RECEIVED, MAX_RECEIVED)
        );
    }
}
