//! The OX_IDs of our requests.
//!
//! A link service has no message ID: only its OX_ID identifies the request of a reply. So an OX_ID
//! that was on the wire is in quarantine for twice R_A_TOV, answered or not: request and reply may
//! each be in the network for R_A_TOV [FCVI P-10, P-11]. Each is chosen at random among the free
//! ones, so that a station that does not see the request cannot forge its reply.
//!
//! FARP and the LOGOs to ports that are not logged in have a share each. One half of the others is
//! reserved for the neighbours in equal parts; the other half is shared by all of them.

use super::synonym::{Check, skips};
use crate::random::Random;

/// Value of `free_ns` while the exchange is open.
const OPEN: u64 = u64::MAX;

/// Use of an OX_ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    /// Requests to the neighbour in this slot.
    Neighbour(usize),
    /// FARP-REQ and FARP-REPLY.
    Farp,
    /// LOGO to ports that are not logged in.
    NotLoggedIn,
}

/// State of one OX_ID.
#[derive(Clone, Copy, Debug, Default)]
struct Exchange {
    /// Time at which it may be used again.
    free_ns: u64,
    /// Slot of the neighbour that it was opened for.
    neighbour: u16,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    first: usize,
    count: usize,
}

/// The OX_IDs of this machine.
#[derive(Debug)]
pub(super) struct ExchangeIds {
    first: u16,
    all: Vec<Exchange>,
    farp: Range,
    not_logged_in: Range,
    neighbours: Range,
    /// OX_IDs of the neighbours' range that are reserved for each.
    reserved: usize,
    /// OX_IDs that each neighbour has in use or in quarantine; counted anew for each allocation.
    in_use: Vec<usize>,
    /// Quarantine of an OX_ID that was on the wire, in nanoseconds.
    quarantine_ns: u64,
    random: Random,
}

impl ExchangeIds {
    /// Creates the range of `count` OX_IDs from `first` on, without 0xFFFF: one in eight for ports
    /// that are not logged in, one in 32 for FARP, the others for the neighbours. `seed`: 64 random
    /// bits.
    pub(super) fn new(first: u16, count: u16, neighbours: u16, seed: u64, r_a_tov_ns: u64) -> Self {
        let count = usize::from(count.min(u16::MAX - first));
        let neighbours = usize::from(neighbours);
        let (farp, not_logged_in) = (count.div_ceil(32), count / 8);
        let remaining = count - farp - not_logged_in;
        let range = |first, count| Range { first, count };
        // If a half is not enough for all, everything is reserved in equal parts.
        let reserved = match remaining.checked_div(2 * neighbours) {
            Some(0) => remaining.checked_div(neighbours).unwrap_or(0),
            reserved => reserved.unwrap_or(0),
        };
        Self {
            first,
            all: vec![Exchange::default(); count],
            farp: range(0, farp),
            not_logged_in: range(farp, not_logged_in),
            neighbours: range(farp + not_logged_in, remaining),
            reserved,
            in_use: vec![0; neighbours],
            quarantine_ns: r_a_tov_ns.saturating_mul(2),
            random: Random::new(seed),
        }
    }

    /// Opens an exchange; `None` if all OX_IDs of the share are in use or in quarantine.
    pub(super) fn open(&mut self, now_ns: u64, share: Share) -> Option<u16> {
        let (range, neighbour) = match share {
            Share::Farp => (self.farp, 0),
            Share::NotLoggedIn => (self.not_logged_in, 0),
            Share::Neighbour(at) => {
                if !self.may_open(now_ns, at) {
                    return None;
                }
                (self.neighbours, at as u16)
            }
        };
        let is_free = |at: &usize| self.all[*at].free_ns <= now_ns;
        let free = || (range.first..range.first + range.count).filter(is_free);
        let chosen = self.random.below(free().count() as u64) as usize;
        let at = free().nth(chosen)?;
        self.all[at] = Exchange {
            free_ns: OPEN,
            neighbour,
        };
        Some(self.first + at as u16)
    }

    /// Reports whether the neighbour in this slot may open one more: reserved for it, or shared.
    fn may_open(&mut self, now_ns: u64, at: usize) -> bool {
        self.in_use.fill(0);
        let range = self.neighbours;
        for exchange in &self.all[range.first..range.first + range.count] {
            if exchange.free_ns > now_ns
                && let Some(in_use) = self.in_use.get_mut(usize::from(exchange.neighbour))
            {
                *in_use += 1;
            }
        }
        let Some(in_use) = self.in_use.get(at) else {
            return false;
        };
        let shared = range.count - self.reserved * self.in_use.len();
        let more = self
            .in_use
            .iter()
            .map(|in_use| in_use.saturating_sub(self.reserved));
        *in_use < self.reserved || more.sum::<usize>() < shared
    }

    /// Returns the OX_ID of a FARP request, whose exchange ends when it is sent: the reply uses an
    /// exchange of its own.
    pub(super) fn one_way(&mut self) -> Option<u16> {
        let ox_id = self.open(0, Share::Farp)?;
        self.cancel(ox_id);
        Some(ox_id)
    }

    /// Frees the OX_ID of a request that was not sent.
    pub(super) fn cancel(&mut self, ox_id: u16) {
        if let Some(at) = self.index_of(ox_id) {
            self.all[at].free_ns = 0;
        }
    }

    /// Ends an exchange, answered or given up: its frames may still be in the network.
    pub(super) fn end(&mut self, now_ns: u64, ox_id: u16) {
        if let Some(at) = self.index_of(ox_id) {
            let quarantined = !skips(Check::QuarantinedLoginExchange);
            self.all[at].free_ns = if quarantined {
                now_ns.saturating_add(self.quarantine_ns)
            } else {
                0
            };
        }
    }

    /// Reports whether the OX_ID is one of this machine.
    pub(super) fn contains(&self, ox_id: u16) -> bool {
        self.index_of(ox_id).is_some()
    }

    #[cfg(test)]
    pub(super) fn open_count(&self) -> usize {
        let open = |exchange: &&Exchange| exchange.free_ns == OPEN;
        self.all.iter().filter(open).count()
    }

    fn index_of(&self, ox_id: u16) -> Option<usize> {
        let at = usize::from(ox_id.checked_sub(self.first)?);
        (at < self.all.len()).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::{ExchangeIds, Share};
    use std::collections::BTreeSet;

    #[test]
    fn sent_exchange_is_quarantined_and_unsent_one_is_free() {
        let share = Share::Neighbour(0);
        let mut ids = ExchangeIds::new(0xFFFB, 100, 1, 0, 1000);
        assert!(ids.contains(0xFFFE) && !ids.contains(0xFFFF) && !ids.contains(0xFFFA));
        let mut opened: Vec<_> = (0..4).map(|_| ids.open(5, share)).collect();
        opened.sort_unstable();
        assert_eq!(opened, [None, Some(0xFFFC), Some(0xFFFD), Some(0xFFFE)]);
        ids.end(5, 0xFFFC);
        ids.cancel(0xFFFE);
        assert_eq!(ids.open_count(), 1);
        assert_eq!(ids.open(5, share), Some(0xFFFE));
        assert_eq!(ids.open(2004, share), None);
        assert_eq!(ids.open(2005, share), Some(0xFFFC));
        ids.cancel(0);
        ids.end(0, 0xFFFF);
        assert_eq!(ids.open_count(), 3);
    }

    /// Of 2047 there are 64 for FARP, 255 for ports that are not logged in, 1728 for 256
    /// neighbours.
    #[test]
    fn shares_of_ox_ids_are_disjoint() {
        let mut ids = ExchangeIds::new(0xF800, 2047, 256, 1_000_007, 1000);
        let mut all = BTreeSet::new();
        let others = (1..256).map(|at| (Share::Neighbour(at), 3));
        // The first neighbour takes all that is shared.
        let first = (Share::Neighbour(0), 3 + 1728 - 256 * 3);
        let shares = [first, (Share::Farp, 64), (Share::NotLoggedIn, 255)];
        for (share, size) in shares.into_iter().chain(others) {
            let opened: Vec<_> = std::iter::from_fn(|| ids.open(0, share)).collect();
            assert_eq!(opened.len(), size, "{share:?}");
            assert!(opened.iter().all(|ox_id| all.insert(*ox_id)));
        }
        assert_eq!((all.len(), ids.open_count()), (2047, 2047));
        assert_eq!(ids.open(0, Share::Neighbour(256)), None);
    }

    /// A station that was sent requests, or provoked some, cannot tell the next OX_ID.
    #[test]
    fn ox_ids_are_in_no_order_and_differ_after_a_restart() {
        let ids = |seed| {
            let mut ids = ExchangeIds::new(0xF800, 2047, 256, seed, 1000);
            let opened: Vec<_> = (0..256)
                .filter_map(|at| ids.open(0, Share::Neighbour(at)))
                .collect();
            opened
        };
        let opened = ids(3);
        assert_eq!(opened.len(), 256);
        let near = |pair: &&[u16]| pair[0].abs_diff(pair[1]) < 16;
        let near = opened.windows(2).filter(near).count();
        assert!(near < 20, "{near} of 255 are near their predecessor");
        let low = opened.iter().filter(|ox_id| **ox_id < 0xFC00).count();
        assert!((64..192).contains(&low), "{low} of 256 in one part");
        assert_ne!(opened[..4], ids(4)[..4]);
    }

    #[test]
    fn empty_range_opens_nothing() {
        for (first, count, neighbours) in [(0xFFFF, 1, 1), (0, 0, 1), (0, 10, 0)] {
            let mut ids = ExchangeIds::new(first, count, neighbours, 7, 1000);
            assert_eq!(ids.open(0, Share::Neighbour(0)), None);
        }
    }
}
