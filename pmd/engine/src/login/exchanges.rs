//! The OX_IDs of our requests.
//!
//! A link service has no message ID: only its OX_ID tells which request is answered. So an
//! OX_ID that was on the wire is dead for twice R_A_TOV, answered or not: the request may be
//! on its way for R_A_TOV, and then its answer [FCVI P-10, P-11]. A port that starts anew begins
//! somewhere else.
//!
//! FARP and the LOGOs to ports that are not logged in have a share each. Of what is left one
//! half is the neighbours', in equal parts that none can take from another; the other half is
//! whoever's needs more.

use crate::synonym::{Check, skips};

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

/// One OX_ID.
#[derive(Clone, Copy, Debug, Default)]
struct Exchange {
    /// When it may be used again.
    free_ns: u64,
    /// The place of the neighbour that it was opened for.
    neighbour: u16,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    first: usize,
    count: usize,
    /// How many of them come before the one that is next.
    cursor: usize,
}

/// A range of OX_IDs.
#[derive(Debug)]
pub(super) struct ExchangeIds {
    first: u16,
    all: Vec<Exchange>,
    farp: Range,
    strangers: Range,
    neighbours: Range,
    /// Of the neighbours' range, what each of them has for certain.
    own: usize,
    /// For each neighbour, how many are not free; counted anew for each that is opened.
    taken: Vec<usize>,
    /// For how long one is dead that was on the wire.
    dead_ns: u64,
}

impl ExchangeIds {
    /// `first` and those that follow, without 0xFFFF: one in eight for strangers, one in 32 for
    /// FARP, the others for the neighbours. `begin`: a random number; where the neighbours begin.
    pub(super) fn new(
        first: u16,
        count: u16,
        neighbours: u16,
        begin: u64,
        r_a_tov_ns: u64,
    ) -> Self {
        let count = usize::from(count.min(u16::MAX - first));
        let neighbours = usize::from(neighbours);
        let (farp, strangers) = (count.div_ceil(32), count / 8);
        let rest = count - farp - strangers;
        let range = |first, count| Range {
            first,
            count,
            cursor: 0,
        };
        // With so few that a half does not go round, all are in equal parts.
        let own = match rest.checked_div(2 * neighbours) {
            Some(0) => rest.checked_div(neighbours).unwrap_or(0),
            own => own.unwrap_or(0),
        };
        Self {
            first,
            all: vec![Exchange::default(); count],
            farp: range(0, farp),
            strangers: range(farp, strangers),
            neighbours: Range {
                cursor: begin.checked_rem(rest as u64).unwrap_or(0) as usize,
                ..range(farp + strangers, rest)
            },
            own,
            taken: vec![0; neighbours],
            dead_ns: r_a_tov_ns.saturating_mul(2),
        }
    }

    /// Opens an exchange; `None` if all OX_IDs of the share are in use or dead.
    pub(super) fn open(&mut self, now_ns: u64, share: Share) -> Option<u16> {
        let (range, neighbour) = match share {
            Share::Farp => (&mut self.farp, 0),
            Share::Stranger => (&mut self.strangers, 0),
            Share::Neighbour(at) => {
                if !self.allows(now_ns, at) {
                    return None;
                }
                (&mut self.neighbours, at as u16)
            }
        };
        let in_turn = (0..range.count).map(|n| range.first + (range.cursor + n) % range.count);
        let at = in_turn
            .into_iter()
            .find(|at| self.all[*at].free_ns <= now_ns)?;
        range.cursor = (at - range.first + 1) % range.count;
        self.all[at] = Exchange {
            free_ns: OPEN,
            neighbour,
        };
        Some(self.first + at as u16)
    }

    /// Whether the neighbour of this place may have one more: of its own part, or of what is
    /// nobody's.
    fn allows(&mut self, now_ns: u64, at: usize) -> bool {
        self.taken.fill(0);
        let range = self.neighbours;
        for exchange in &self.all[range.first..range.first + range.count] {
            if exchange.free_ns > now_ns
                && let Some(taken) = self.taken.get_mut(usize::from(exchange.neighbour))
            {
                *taken += 1;
            }
        }
        let Some(taken) = self.taken.get(at) else {
            return false;
        };
        let shared = range.count - self.own * self.taken.len();
        let more = self
            .taken
            .iter()
            .map(|taken| taken.saturating_sub(self.own));
        *taken < self.own || more.sum::<usize>() < shared
    }

    /// The OX_ID of a request of FARP, whose exchange ends when it is sent: nobody looks at the
    /// OX_ID of what comes of it.
    pub(super) fn one_way(&mut self) -> Option<u16> {
        let ox_id = self.open(0, Share::Farp)?;
        self.cancel(ox_id);
        Some(ox_id)
    }

    /// The request was not sent.
    pub(super) fn cancel(&mut self, ox_id: u16) {
        if let Some(at) = self.place(ox_id) {
            self.all[at].free_ns = 0;
        }
    }

    /// The exchange was answered, or is given up: its frames may still be on their way.
    pub(super) fn end(&mut self, now_ns: u64, ox_id: u16) {
        if let Some(at) = self.place(ox_id) {
            let held = !skips(Check::DeadLoginExchange);
            self.all[at].free_ns = if held {
                now_ns.saturating_add(self.dead_ns)
            } else {
                0
            };
        }
    }

    /// Whether the OX_ID is one of the range.
    pub(super) fn contains(&self, ox_id: u16) -> bool {
        self.place(ox_id).is_some()
    }

    #[cfg(test)]
    pub(super) fn open_count(&self) -> usize {
        let open = |exchange: &&Exchange| exchange.free_ns == OPEN;
        self.all.iter().filter(open).count()
    }

    fn place(&self, ox_id: u16) -> Option<usize> {
        let at = usize::from(ox_id.checked_sub(self.first)?);
        (at < self.all.len()).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::{ExchangeIds, Share};
    use std::collections::BTreeSet;

    #[test]
    fn an_exchange_that_was_on_the_wire_is_dead_and_one_that_was_not_is_free() {
        let share = Share::Neighbour(0);
        let mut ids = ExchangeIds::new(0xFFFB, 100, 1, 0, 1000);
        assert!(ids.contains(0xFFFE) && !ids.contains(0xFFFF) && !ids.contains(0xFFFA));
        let opened: Vec<_> = (0..4).map(|_| ids.open(5, share)).collect();
        assert_eq!(opened, [Some(0xFFFC), Some(0xFFFD), Some(0xFFFE), None]);
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

    /// Of 2047 there are 64 for FARP, 255 for strangers, 1728 for 256 neighbours.
    #[test]
    fn nobody_takes_what_is_anothers() {
        let mut ids = ExchangeIds::new(0xF800, 2047, 256, 1_000_007, 1000);
        let mut all = BTreeSet::new();
        let others = (1..256).map(|at| (Share::Neighbour(at), 3));
        // The first one takes what is nobody's.
        let first = (Share::Neighbour(0), 3 + 1728 - 256 * 3);
        let shares = [first, (Share::Farp, 64), (Share::Stranger, 255)];
        for (share, size) in shares.into_iter().chain(others) {
            let opened: Vec<_> = std::iter::from_fn(|| ids.open(0, share)).collect();
            assert_eq!(opened.len(), size, "{share:?}");
            assert!(opened.iter().all(|ox_id| all.insert(*ox_id)));
        }
        assert_eq!((all.len(), ids.open_count()), (2047, 2047));
        assert_eq!(ids.open(0, Share::Neighbour(256)), None);
    }

    #[test]
    fn who_starts_anew_begins_somewhere_else() {
        let first = |begin| {
            let mut ids = ExchangeIds::new(0, 100, 1, begin, 1000);
            ids.open(0, Share::Neighbour(0))
        };
        assert_ne!(first(3), first(4));
        assert!(first(u64::MAX).is_some_and(|ox_id| ox_id < 100));
    }

    #[test]
    fn an_empty_range_opens_nothing() {
        for (first, count, neighbours) in [(0xFFFF, 1, 1), (0, 0, 1), (0, 10, 0)] {
            let mut ids = ExchangeIds::new(first, count, neighbours, 7, 1000);
            assert_eq!(ids.open(0, Share::Neighbour(0)), None);
        }
    }
}
