//! OX_ID, SEQ_ID and SEQ_CNT, and when they may be used again [FCVI P-10].
//!
//! OX_IDs are used round-robin from 0x0000 to 0xF7FF; those above are for the link services of the
//! login machine. Each keeps its next SEQ_ID and SEQ_CNT, so that the triple repeats only after 256
//! uses of the OX_ID. An exchange that ended normally frees its OX_ID at once; that of an abandoned
//! one is in quarantine for R_A_TOV. The OX_ID of a link service request is in quarantine for twice
//! that, answered or not: only the OX_ID identifies the reply, and request and reply may each be in
//! the network for R_A_TOV. An empty pool is back-pressure. Connection procedures, of which many
//! may be abandoned within a second, leave a share of the pool to messages.

use std::collections::VecDeque;

use fcvi_frame::profile::FIRST_LOGIN_OX_ID;

/// Number of OX_IDs of this pool. 0xFFFF means "unassigned" and is never used.
pub(crate) const OX_IDS: usize = FIRST_LOGIN_OX_ID as usize;
/// OX_IDs reserved for messages.
const MESSAGE_SHARE: usize = OX_IDS / 4;

/// Identifiers of the first sequence of a new exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exchange {
    pub(crate) ox_id: u16,
    pub(crate) seq_id: u8,
    pub(crate) seq_cnt: u16,
}

#[derive(Clone, Copy, Default)]
struct OxIdState {
    seq_id: u8,
    open: bool,
    seq_cnt: u16,
}

/// The OX_IDs of one N_Port.
pub(crate) struct ExchangePool {
    ox_ids: Vec<OxIdState>,
    cursor: usize,
    /// OX_IDs that are neither in use nor in quarantine.
    free: usize,
    quarantined: VecDeque<(u64, u16)>,
    /// Those of link service requests, with twice the time.
    quarantined_requests: VecDeque<(u64, u16)>,
    /// The earliest expiry in both queues.
    next_expiry_ns: u64,
    r_a_tov_ns: u64,
}

impl ExchangePool {
    pub(crate) fn new(r_a_tov_ns: u64, first: u16) -> Self {
        Self {
            ox_ids: vec![OxIdState::default(); OX_IDS],
            cursor: first as usize % OX_IDS,
            free: OX_IDS,
            quarantined: VecDeque::with_capacity(OX_IDS),
            // Few are open at a time; it grows if there are more.
            quarantined_requests: VecDeque::with_capacity(1024),
            next_expiry_ns: u64::MAX,
            r_a_tov_ns,
        }
    }

    /// Opens an exchange; `None` if all OX_IDs are in use or in quarantine.
    #[inline]
    pub(crate) fn open(&mut self, now_ns: u64) -> Option<Exchange> {
        if self.next_expiry_ns <= now_ns {
            self.expire_quarantine(now_ns);
        }
        if self.free == 0 {
            return None;
        }
        loop {
            let at = self.cursor;
            self.cursor = if at + 1 == OX_IDS { 0 } else { at + 1 };
            let state = &mut self.ox_ids[at];
            if !state.open {
                self.free -= 1;
                state.open = true;
                let seq_id = state.seq_id;
                state.seq_id = seq_id.wrapping_add(1);
                return Some(Exchange {
                    ox_id: at as u16,
                    seq_id,
                    seq_cnt: state.seq_cnt,
                });
            }
        }
    }

    /// Opens an exchange of a connection procedure or an ELS; `None` if only the share of messages
    /// is left.
    pub(crate) fn open_control(&mut self, now_ns: u64) -> Option<Exchange> {
        self.expire_quarantine(now_ns);
        if self.free <= MESSAGE_SHARE {
            return None;
        }
        self.open(now_ns)
    }

    /// As [`ExchangePool::open_control`], with the first free OX_ID from `start` on, so that others
    /// cannot predict it.
    pub(crate) fn open_control_from(&mut self, now_ns: u64, start: u32) -> Option<Exchange> {
        let next = core::mem::replace(&mut self.cursor, start as usize % OX_IDS);
        let exchange = self.open_control(now_ns);
        self.cursor = next;
        exchange
    }

    /// Closes an exchange that ended normally. `seq_cnt` follows the last one sent on it.
    #[inline]
    pub(crate) fn close(&mut self, ox_id: u16, seq_cnt: u16) {
        if let Some(state) = self.ox_ids.get_mut(ox_id as usize) {
            self.free += usize::from(state.open);
            state.open = false;
            state.seq_cnt = seq_cnt;
        }
    }

    /// Takes back an exchange on which nothing was sent: the next one has its identifiers.
    #[inline]
    pub(crate) fn take_back(&mut self, unused: Exchange) {
        if let Some(state) = self.ox_ids.get_mut(unused.ox_id as usize) {
            self.free += usize::from(state.open);
            state.open = false;
            state.seq_id = unused.seq_id;
            self.cursor = unused.ox_id as usize;
        }
    }

    /// Ends an abandoned exchange: frames of it may still be in the network.
    pub(crate) fn abandon(&mut self, now_ns: u64, ox_id: u16, seq_cnt: u16) {
        let free_ns = now_ns.saturating_add(self.r_a_tov_ns);
        if self.needs_quarantine(ox_id, seq_cnt, free_ns) {
            self.quarantined.push_back((free_ns, ox_id));
        }
    }

    /// Ends the exchange of a link service request, answered or not.
    pub(crate) fn end_request(&mut self, now_ns: u64, ox_id: u16, seq_cnt: u16) {
        let free_ns = now_ns.saturating_add(self.r_a_tov_ns.saturating_mul(2));
        if self.needs_quarantine(ox_id, seq_cnt, free_ns) {
            self.quarantined_requests.push_back((free_ns, ox_id));
        }
    }

    fn needs_quarantine(&mut self, ox_id: u16, seq_cnt: u16, free_ns: u64) -> bool {
        let Some(state) = self.ox_ids.get_mut(ox_id as usize) else {
            return false;
        };
        state.seq_cnt = seq_cnt;
        self.next_expiry_ns = self.next_expiry_ns.min(free_ns);
        true
    }

    /// Returns the numbers of OX_IDs in use and in quarantine.
    pub(crate) fn usage(&self) -> (usize, usize) {
        let quarantined = self.quarantined.len() + self.quarantined_requests.len();
        (OX_IDS - self.free - quarantined, quarantined)
    }

    #[cold]
    fn expire_quarantine(&mut self, now_ns: u64) {
        self.next_expiry_ns = u64::MAX;
        for quarantined in [&mut self.quarantined, &mut self.quarantined_requests] {
            while let Some((_, ox_id)) =
                quarantined.front().copied().filter(|(at, _)| *at <= now_ns)
            {
                quarantined.pop_front();
                self.ox_ids[ox_id as usize].open = false;
                self.free += 1;
            }
            let next_ns = quarantined.front().map_or(u64::MAX, |(at, _)| *at);
            self.next_expiry_ns = self.next_expiry_ns.min(next_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn exchange_identifiers_repeat_only_after_256_uses_of_the_ox_id() {
        let mut pool = ExchangePool::new(1000, 0);
        let mut seen = HashSet::new();
        for round in 0..256 {
            for _ in 0..OX_IDS {
                let e = pool.open(0).unwrap();
                // The other OX_IDs behave alike; with all of them the set would grow to 16 million.
                if e.ox_id < 8 {
                    assert!(
                        seen.insert((e.ox_id, e.seq_id, e.seq_cnt)),
                        "round {round}: {e:?}"
                    );
                }
                pool.close(e.ox_id, e.seq_cnt.wrapping_add(1));
            }
        }
        assert_eq!(seen.len(), 256 * 8);
    }

    #[test]
    fn exchange_that_was_taken_back_is_opened_next() {
        let mut pool = ExchangePool::new(1000, 0xF7FF);
        let usage = pool.usage();
        let last = pool.open(0).unwrap();
        pool.take_back(last);
        assert_eq!(pool.usage(), usage);
        assert_eq!(pool.open(0), Some(last));
        pool.close(last.ox_id, last.seq_cnt.wrapping_add(1));
        let first = pool.open(0).unwrap();
        assert_eq!((last.ox_id, first.ox_id), (0xF7FF, 0));
        pool.take_back(first);
        assert_eq!(pool.open(0), Some(first));
    }

    #[test]
    fn abandoned_ox_id_is_quarantined_for_r_a_tov_and_empty_pool_opens_nothing() {
        let mut pool = ExchangePool::new(1000, 0xFFFE);
        for _ in 0..OX_IDS {
            pool.open(0).unwrap();
        }
        assert_eq!(pool.open(0), None);
        assert_eq!(pool.usage(), (OX_IDS, 0));
        pool.abandon(5, 77, 3);
        assert_eq!(pool.usage(), (OX_IDS - 1, 1));
        assert_eq!(pool.open(1004), None);
        let e = pool.open(1005).unwrap();
        assert_eq!((e.ox_id, e.seq_id, e.seq_cnt), (77, 1, 3));
        pool.close(e.ox_id, e.seq_cnt);
        assert_eq!(pool.usage(), (OX_IDS - 1, 0));
    }

    #[test]
    fn link_service_ox_id_is_quarantined_for_twice_r_a_tov() {
        let mut pool = ExchangePool::new(1000, 0);
        for _ in 0..OX_IDS {
            pool.open(0).unwrap();
        }
        pool.end_request(5, 77, 3);
        pool.abandon(6, 78, 3);
        assert_eq!(pool.usage(), (OX_IDS - 2, 2));
        assert_eq!(pool.open(1006).unwrap().ox_id, 78);
        assert_eq!(pool.open(2004), None);
        assert_eq!(pool.open(2005).unwrap().ox_id, 77);
    }

    #[test]
    fn control_exchanges_leave_a_share_for_messages() {
        let mut pool = ExchangePool::new(1000, 7);
        let mut control = 0;
        while let Some(e) = pool.open_control(0) {
            pool.abandon(0, e.ox_id, e.seq_cnt);
            control += 1;
        }
        assert_eq!(control, OX_IDS - MESSAGE_SHARE);
        for _ in 0..MESSAGE_SHARE {
            pool.open(0).unwrap();
        }
        assert_eq!(pool.open(999), None);
        assert_eq!(pool.usage(), (MESSAGE_SHARE, OX_IDS - MESSAGE_SHARE));
        assert!(pool.open_control(1000).is_some());
        assert_eq!(pool.usage(), (MESSAGE_SHARE + 1, 0));
    }
}
