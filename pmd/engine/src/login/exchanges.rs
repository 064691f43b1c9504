//! The OX_IDs of our requests.
//!
//! They are taken in turn. An exchange that was answered frees its OX_ID at once;
//! one that was given up, and one whose answer nobody waits for, is dead for
//! R_A_TOV [FCVI P-10].

/// Free from this time on, which never comes: the exchange is open.
const OPEN: u64 = u64::MAX;

/// A range of OX_IDs.
#[derive(Debug)]
pub(super) struct ExchangeIds {
    first: u16,
    /// When each may be used again.
    free_ns: Vec<u64>,
    cursor: usize,
    r_a_tov_ns: u64,
}

impl ExchangeIds {
    /// `first` and those that follow, without 0xFFFF.
    pub(super) fn new(first: u16, count: u16, r_a_tov_ns: u64) -> Self {
        let count = count.min(u16::MAX - first);
        Self {
            first,
            free_ns: vec![0; usize::from(count)],
            cursor: 0,
            r_a_tov_ns,
        }
    }

    /// Opens an exchange; `None` if all OX_IDs are in use or dead.
    pub(super) fn open(&mut self, now_ns: u64) -> Option<u16> {
        let count = self.free_ns.len();
        let (later, earlier) = self.free_ns.split_at(self.cursor);
        let free = |at_ns: &u64| *at_ns <= now_ns;
        let at = match earlier.iter().position(free) {
            Some(at) => self.cursor + at,
            None => later.iter().position(free)?,
        };
        self.free_ns[at] = OPEN;
        self.cursor = (at + 1) % count;
        Some(self.first + at as u16)
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
    use super::ExchangeIds;

    #[test]
    fn an_answered_exchange_is_free_and_an_abandoned_one_dead() {
        let mut ids = ExchangeIds::new(0xFFFC, 100, 1000);
        assert!(ids.contains(0xFFFE) && !ids.contains(0xFFFF) && !ids.contains(0xFFFB));
        let opened: Vec<_> = (0..4).map(|_| ids.open(5)).collect();
        assert_eq!(opened, [Some(0xFFFC), Some(0xFFFD), Some(0xFFFE), None]);
        ids.abandon(5, 0xFFFC);
        ids.close(0xFFFE);
        assert_eq!(ids.open_count(), 1);
        assert_eq!(ids.open(5), Some(0xFFFE));
        assert_eq!(ids.open(1004), None);
        assert_eq!(ids.open(1005), Some(0xFFFC));
        ids.close(0);
        ids.abandon(0, 0xFFFF);
        assert_eq!(ids.open_count(), 3);
    }

    #[test]
    fn an_empty_range_opens_nothing() {
        assert_eq!(ExchangeIds::new(0xFFFF, 1, 1000).open(0), None);
        assert_eq!(ExchangeIds::new(0, 0, 1000).open(0), None);
    }
}
