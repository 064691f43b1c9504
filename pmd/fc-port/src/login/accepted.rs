//! Accepted PLOGIs of other ports: each is accepted once [FCVI P-10].
//!
//! A network can duplicate and delay a frame for R_A_TOV. A request is identified by S_ID and OX_ID.
//! FLOGI and LOGO are not kept here: they end a login only if its port does not confirm it
//! (`login_verification`).

use std::collections::VecDeque;

use fcvi_frame::fc::NPortId;

/// Maximum number of requests kept per port.
const PER_PORT: usize = 32;

#[derive(Clone, Copy, Debug)]
struct Request {
    /// Expiry time.
    until_ns: u64,
    s_id: NPortId,
    ox_id: u16,
}

/// Requests accepted within R_A_TOV, oldest first.
#[derive(Debug)]
pub(super) struct AcceptedRequests {
    requests: VecDeque<Request>,
    max: usize,
    r_a_tov_ns: u64,
}

impl AcceptedRequests {
    /// Creates a table with `neighbours` times half of the maximum per port.
    pub(super) fn new(neighbours: u16, r_a_tov_ns: u64) -> Self {
        let max = (usize::from(neighbours) * PER_PORT / 2).max(PER_PORT);
        Self {
            requests: VecDeque::with_capacity(max),
            max,
            r_a_tov_ns,
        }
    }

    /// Records an accepted request. If there are too many, evicts the oldest of its port, or the
    /// oldest of all.
    pub(super) fn record(&mut self, now_ns: u64, s_id: NPortId, ox_id: u16) {
        while self.requests.front().is_some_and(|r| r.until_ns <= now_ns) {
            self.requests.pop_front();
        }
        if self.contains(now_ns, s_id, ox_id) {
            return;
        }
        let of_port = |r: &&Request| r.s_id == s_id;
        if self.requests.iter().filter(of_port).count() >= PER_PORT
            && let Some(oldest) = self.requests.iter().position(|r| r.s_id == s_id)
        {
            self.requests.remove(oldest);
        } else if self.requests.len() >= self.max {
            self.requests.pop_front();
        }
        self.requests.push_back(Request {
            until_ns: now_ns.saturating_add(self.r_a_tov_ns),
            s_id,
            ox_id,
        });
    }

    /// Reports whether this request was accepted within R_A_TOV.
    pub(super) fn contains(&self, now_ns: u64, s_id: NPortId, ox_id: u16) -> bool {
        let same = |r: &Request| r.until_ns > now_ns && (r.s_id, r.ox_id) == (s_id, ox_id);
        self.requests.iter().any(same)
    }
}

#[cfg(test)]
mod tests {
    use super::{AcceptedRequests, PER_PORT};
    use fcvi_frame::fc::NPortId;

    const ONE: NPortId = NPortId::from_bytes([0, 0, 1]);
    const TWO: NPortId = NPortId::from_bytes([0, 0, 2]);

    #[test]
    fn request_is_identified_by_port_and_exchange_for_r_a_tov() {
        let mut accepted = AcceptedRequests::new(2, 1000);
        accepted.record(5, ONE, 7);
        assert!(accepted.contains(1004, ONE, 7));
        assert!(!accepted.contains(1005, ONE, 7));
        for (s_id, ox_id) in [(TWO, 7), (ONE, 8)] {
            assert!(!accepted.contains(5, s_id, ox_id));
        }
    }

    #[test]
    fn table_does_not_grow_and_a_flooding_port_evicts_only_its_own_requests() {
        let mut accepted = AcceptedRequests::new(8, 1000);
        let room = accepted.requests.capacity();
        accepted.record(0, TWO, 7);
        for ox_id in 0..1000 {
            accepted.record(0, ONE, ox_id);
        }
        for _ in 0..1000 {
            accepted.record(0, ONE, 999);
        }
        assert!(accepted.contains(0, TWO, 7));
        assert!(accepted.contains(0, ONE, 1000 - PER_PORT as u16));
        assert!(!accepted.contains(0, ONE, 999 - PER_PORT as u16));
        for number in 3..200 {
            accepted.record(1, NPortId::from_bytes([0, 0, number]), 1);
        }
        assert_eq!((accepted.requests.len(), accepted.max), (128, 128));
        assert!(!accepted.contains(1, TWO, 7));
        accepted.record(1001, TWO, 7);
        assert_eq!(accepted.requests.len(), 1);
        assert_eq!(accepted.requests.capacity(), room);
    }
}
