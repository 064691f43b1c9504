//! OX_ID, SEQ_ID and SEQ_CNT, and when they may be used again [FCVI P-10].
//!
//! OX_IDs go round-robin through 0x0000..=0xF7FF; those behind are for the link
//! services of the login machine. Each remembers the SEQ_ID and
//! the SEQ_CNT that come next on it, so that the triple repeats only after 256
//! uses of the OX_ID. An exchange that ended cleanly frees its OX_ID at once;
//! one that was given up is dead for R_A_TOV. A question of a link service is dead for twice
//! that, answered or not: nothing but its OX_ID tells what is answered, it may be on its way for
//! R_A_TOV, and then its answer. A dry pool is back-pressure.
//! Connection procedures, of which many may be given up in a second, leave a
//! share of the pool to the messages.

use std::collections::VecDeque;

use crate::login::FIRST_OX_ID;
use crate::synonym::{Check, skips};

/// Those from here on are not ours. 0xFFFF means "unassigned" and is never used.
pub(crate) const OX_IDS: usize = FIRST_OX_ID as usize;
/// OX_IDs that only messages may take.
const MESSAGE_SHARE: usize = OX_IDS / 4;

/// What a sequence of a new exchange is sent with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exchange {
    pub(crate) ox_id: u16,
    pub(crate) seq_id: u8,
    pub(crate) seq_cnt: u16,
}

#[derive(Clone, Copy, Default)]
struct Next {
    seq_id: u8,
    open: bool,
    seq_cnt: u16,
}

/// The OX_IDs of one N_Port.
pub(crate) struct ExchangePool {
    next: Vec<Next>,
    cursor: usize,
    /// How many are neither in use nor dead.
    free: usize,
    dead: VecDeque<(u64, u16)>,
    /// Those of questions, which are dead for longer.
    dead_questions: VecDeque<(u64, u16)>,
    /// When the first of all of them is over.
    revive_ns: u64,
    r_a_tov_ns: u64,
}

impl ExchangePool {
    pub(crate) fn new(r_a_tov_ns: u64, first: u16) -> Self {
        Self {
            next: vec![Next::default(); OX_IDS],
            cursor: first as usize % OX_IDS,
            free: OX_IDS,
            dead: VecDeque::with_capacity(OX_IDS),
            // Few are asked at a time; more make it grow.
            dead_questions: VecDeque::with_capacity(1024),
            revive_ns: u64::MAX,
            r_a_tov_ns,
        }
    }

    /// Opens an exchange; `None` if all OX_IDs are in use or dead.
    #[inline]
    pub(crate) fn open(&mut self, now_ns: u64) -> Option<Exchange> {
        if self.revive_ns <= now_ns {
            self.revive(now_ns);
        }
        if self.free == 0 {
            return None;
        }
        loop {
            let at = self.cursor;
            self.cursor = if at + 1 == OX_IDS { 0 } else { at + 1 };
            let next = &mut self.next[at];
            if !next.open {
                self.free -= 1;
                next.open = true;
                let seq_id = next.seq_id;
                next.seq_id = seq_id.wrapping_add(1);
                return Some(Exchange {
                    ox_id: at as u16,
                    seq_id,
                    seq_cnt: next.seq_cnt,
                });
            }
        }
    }

    /// Opens an exchange of a connection procedure or an ELS; `None` if only the
    /// share of the messages is left.
    pub(crate) fn open_control(&mut self, now_ns: u64) -> Option<Exchange> {
        self.revive(now_ns);
        if self.free <= MESSAGE_SHARE {
            return None;
        }
        self.open(now_ns)
    }

    /// The exchange ended cleanly; `seq_cnt` is one more than the last one sent on it.
    #[inline]
    pub(crate) fn close(&mut self, ox_id: u16, seq_cnt: u16) {
        if let Some(next) = self.next.get_mut(ox_id as usize) {
            self.free += usize::from(next.open);
            next.open = false;
            next.seq_cnt = seq_cnt;
        }
    }

    /// The exchange was given up: frames of it may still be on their way.
    pub(crate) fn abandon(&mut self, now_ns: u64, ox_id: u16, seq_cnt: u16) {
        let free_ns = now_ns.saturating_add(self.r_a_tov_ns);
        if self.is_to_be_held(ox_id, seq_cnt, free_ns) {
            self.dead.push_back((free_ns, ox_id));
        }
    }

    /// The exchange of a link service is over, answered or not.
    pub(crate) fn end_question(&mut self, now_ns: u64, ox_id: u16, seq_cnt: u16) {
        let free_ns = now_ns.saturating_add(self.r_a_tov_ns.saturating_mul(2));
        if self.is_to_be_held(ox_id, seq_cnt, free_ns) {
            self.dead_questions.push_back((free_ns, ox_id));
        }
    }

    fn is_to_be_held(&mut self, ox_id: u16, seq_cnt: u16, free_ns: u64) -> bool {
        if skips(Check::DeadExchange) {
            self.close(ox_id, seq_cnt);
            return false;
        }
        let Some(next) = self.next.get_mut(ox_id as usize) else {
            return false;
        };
        next.seq_cnt = seq_cnt;
        self.revive_ns = self.revive_ns.min(free_ns);
        true
    }

    /// OX_IDs of exchanges that have not ended, and of those that are dead.
    pub(crate) fn usage(&self) -> (usize, usize) {
        let dead = self.dead.len() + self.dead_questions.len();
        (OX_IDS - self.free - dead, dead)
    }

    #[cold]
    fn revive(&mut self, now_ns: u64) {
        self.revive_ns = u64::MAX;
        for dead in [&mut self.dead, &mut self.dead_questions] {
            while let Some((_, ox_id)) = dead.front().copied().filter(|(at, _)| *at <= now_ns) {
                dead.pop_front();
                self.next[ox_id as usize].open = false;
                self.free += 1;
            }
            let next_ns = dead.front().map_or(u64::MAX, |(at, _)| *at);
            self.revive_ns = self.revive_ns.min(next_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_triple_repeats_only_after_256_uses_of_its_ox_id() {
        let mut pool = ExchangePool::new(1000, 0);
        let mut seen = HashSet::new();
        for round in 0..256 {
            for _ in 0..OX_IDS {
                let e = pool.open(0).unwrap();
                // the other OX_IDs behave alike; with all the set would grow to 16 million
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
    fn an_abandoned_ox_id_is_dead_for_r_a_tov_and_a_dry_pool_is_back_pressure() {
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
    fn the_ox_id_of_a_question_is_dead_for_twice_r_a_tov() {
        let mut pool = ExchangePool::new(1000, 0);
        for _ in 0..OX_IDS {
            pool.open(0).unwrap();
        }
        pool.end_question(5, 77, 3);
        pool.abandon(6, 78, 3);
        assert_eq!(pool.usage(), (OX_IDS - 2, 2));
        assert_eq!(pool.open(1006).unwrap().ox_id, 78);
        assert_eq!(pool.open(2004), None);
        assert_eq!(pool.open(2005).unwrap().ox_id, 77);
    }

    #[test]
    fn connection_procedures_leave_a_share_to_the_messages() {
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
