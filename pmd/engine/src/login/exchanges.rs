//! The OX_IDs of our requests.
//!
//! Each neighbour has a share of its own, so that none can use up what the others need;
//! so have FARP, and the LOGOs to ports that are not logged in. Within a share they are
//! taken in turn. An exchange that was answered, and one that has no answer, frees its
//! OX_ID at once; one that was given up is dead for R_A_TOV [FCVI P-10].

/// Free from this time on, which never comes: the exchange is open.
const OPEN: u64 = u64::MAX;

/// Who an OX_ID is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    /// The requests to the neighbour of this place.
    Neighbour(usize),
    /// FARP-REQ and FARP-REPLY.
    Farp,
    /// LOGO to ports that are not logged in.
    Stranger,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    first: usize,
    count: usize,
    /// How many of them come after the one that is next.
    cursor: usize,
}

/// A range of OX_IDs.
#[derive(Debug)]
pub(super) struct ExchangeIds {
    first: u16,
    /// When each may be used again.
    free_ns: Vec<u64>,
    /// FARP, strangers, then the neighbours.
    shares: Vec<Range>,
    r_a_tov_ns: u64,
}

impl ExchangeIds {
    /// `first` and those that follow, without 0xFFFF: one in eight for strangers, one in 32 for
    /// FARP, the others in equal shares for the neighbours.
    pub(super) fn new(first: u16, count: u16, neighbours: u16, r_a_tov_ns: u64) -> Self {
        let count = usize::from(count.min(u16::MAX - first));
        let (farp, strangers) = (count.div_ceil(32), count / 8);
        let each = (count - farp - strangers)
            .checked_div(usize::from(neighbours))
            .unwrap_or(0);
        let mut begin = 0;
        let mut range = |count: usize| {
            let first = begin;
            begin += count;
            Range {
                first,
                count,
                cursor: 0,
            }
        };
        let mut shares = vec![range(farp), range(strangers)];
        shares.extend((0..neighbours).map(|_| range(each)));
        Self {
            first,
            free_ns: vec![0; count],
            shares,
            r_a_tov_ns,
        }
    }

    /// Opens an exchange; `None` if all OX_IDs of the share are in use or dead.
    pub(super) fn open(&mut self, now_ns: u64, share: Share) -> Option<u16> {
        let number = match share {
            Share::Farp => 0,
            Share::Stranger => 1,
            Share::Neighbour(at) => 2 + at,
        };
        let range = self.shares.get_mut(number)?;
        let in_turn = (0..range.count).map(|n| range.first + (range.cursor + n) % range.count);
        let at = in_turn.into_iter().find(|at| self.free_ns[*at] <= now_ns)?;
        range.cursor = (at - range.first + 1) % range.count;
        self.free_ns[at] = OPEN;
        Some(self.first + at as u16)
    }

    /// The OX_ID of a request of FARP, which has no answer: the exchange ends when it is sent.
    pub(super) fn one_way(&mut self) -> Option<u16> {
        let ox_id = self.open(0, Share::Farp)?;
        self.close(ox_id);
        Some(ox_id)
    }

    /// The exchange was answered.
    pub(super) fn close(&mut self, ox_id: u16) {
        if let Some(at) = self.place(ox_id) {
            self.free_ns[at] = 0;
        }
    }

    /// Frames of the exchange may still be on their way.
    pub(super) fn abandon(&mut self, now_ns: u64, ox_id: u16) {
        if let Some(at) = self.place(ox_id) {
            self.free_ns[at] = now_ns.saturating_add(self.r_a_tov_ns);
        }
    }

    /// Whether the OX_ID is one of the range.
    pub(super) fn contains(&self, ox_id: u16) -> bool {
        self.place(ox_id).is_some()
    }

    #[cfg(test)]
    pub(super) fn open_count(&self) -> usize {
        self.free_ns.iter().filter(|at_ns| **at_ns == OPEN).count()
    }

    fn place(&self, ox_id: u16) -> Option<usize> {
        let at = usize::from(ox_id.checked_sub(self.first)?);
        (at < self.free_ns.len()).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::{ExchangeIds, Share};
    use std::collections::BTreeSet;

    #[test]
    fn an_answered_exchange_is_free_and_an_abandoned_one_dead() {
        let share = Share::Neighbour(0);
        let mut ids = ExchangeIds::new(0xFFFB, 100, 1, 1000);
        assert!(ids.contains(0xFFFE) && !ids.contains(0xFFFF) && !ids.contains(0xFFFA));
        let opened: Vec<_> = (0..4).map(|_| ids.open(5, share)).collect();
        assert_eq!(opened, [Some(0xFFFC), Some(0xFFFD), Some(0xFFFE), None]);
        ids.abandon(5, 0xFFFC);
        ids.close(0xFFFE);
        assert_eq!(ids.open_count(), 1);
        assert_eq!(ids.open(5, share), Some(0xFFFE));
        assert_eq!(ids.open(1004, share), None);
        assert_eq!(ids.open(1005, share), Some(0xFFFC));
        ids.close(0);
        ids.abandon(0, 0xFFFF);
        assert_eq!(ids.open_count(), 3);
    }

    #[test]
    fn the_shares_are_in_turn_and_do_not_meet() {
        let mut ids = ExchangeIds::new(0xF800, 2047, 256, 1000);
        let mut all = BTreeSet::new();
        let neighbours = (0..256).map(Share::Neighbour);
        let sizes = neighbours.map(|share| (share, 6));
        for (share, size) in sizes.chain([(Share::Farp, 64), (Share::Stranger, 255)]) {
            let mut opened: Vec<_> = std::iter::from_fn(|| ids.open(0, share)).collect();
            assert_eq!(opened.len(), size, "{share:?}");
            assert!(opened.iter().all(|ox_id| all.insert(*ox_id)));
            opened.iter().for_each(|ox_id| ids.close(*ox_id));
            let again: Vec<_> = (0..size).filter_map(|_| ids.open(0, share)).collect();
            assert_eq!(again, opened);
            opened.clear();
        }
        assert_eq!(ids.open(0, Share::Neighbour(256)), None);
    }

    #[test]
    fn an_empty_range_opens_nothing() {
        for (first, count, neighbours) in [(0xFFFF, 1, 1), (0, 0, 1), (0, 10, 0)] {
            let mut ids = ExchangeIds::new(first, count, neighbours, 1000);
            assert_eq!(ids.open(0, Share::Neighbour(0)), None);
        }
    }
}
