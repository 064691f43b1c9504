//! The PLOGIs and LOGOs of others that were accepted: each is believed once [FCVI P-10].
//!
//! A network can repeat a frame, and hold it, for R_A_TOV. What names a request is the S_ID,
//! the command and the OX_ID; FLOGI is not here, for it is believed only if the port that sent
//! it confirms it (`doubt`).

use std::collections::VecDeque;

use fcvi_frame::els::ElsCommand;
use fcvi_frame::fc::NPortId;

/// Requests of one port that are remembered, at most.
const PER_PORT: usize = 32;

#[derive(Clone, Copy, Debug)]
struct Request {
    /// Until when it may come again.
    until_ns: u64,
    s_id: NPortId,
    ox_id: u16,
    command: ElsCommand,
}

/// What was accepted within R_A_TOV, the oldest first.
#[derive(Debug)]
pub(super) struct Accepted {
    requests: VecDeque<Request>,
    max: usize,
    r_a_tov_ns: u64,
}

impl Accepted {
    /// Room for `neighbours` times half of what one port may have.
    pub(super) fn new(neighbours: u16, r_a_tov_ns: u64) -> Self {
        let max = (usize::from(neighbours) * PER_PORT / 2).max(PER_PORT);
        Self {
            requests: VecDeque::with_capacity(max),
            max,
            r_a_tov_ns,
        }
    }

    /// This request is accepted. If there are too many, the oldest of its port is forgotten, or
    /// the oldest of all.
    pub(super) fn remember(&mut self, now_ns: u64, s_id: NPortId, command: ElsCommand, ox_id: u16) {
        while self.requests.front().is_some_and(|r| r.until_ns <= now_ns) {
            self.requests.pop_front();
        }
        if self.contains(now_ns, s_id, command, ox_id) {
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
            command,
        });
    }

    /// Whether this request was accepted within R_A_TOV.
    pub(super) fn contains(
        &self,
        now_ns: u64,
        s_id: NPortId,
        command: ElsCommand,
        ox_id: u16,
    ) -> bool {
        self.requests
            .iter()
            .any(|r| r.until_ns > now_ns && (r.s_id, r.ox_id, r.command) == (s_id, ox_id, command))
    }
}

#[cfg(test)]
mod tests {
    use super::{Accepted, PER_PORT};
    use fcvi_frame::els::ElsCommand::{Logo, Plogi};
    use fcvi_frame::fc::NPortId;

    const ONE: NPortId = NPortId::from_bytes([0, 0, 1]);
    const TWO: NPortId = NPortId::from_bytes([0, 0, 2]);

    #[test]
    fn a_request_is_known_by_port_command_and_exchange_for_r_a_tov() {
        let mut accepted = Accepted::new(2, 1000);
        accepted.remember(5, ONE, Logo, 7);
        assert!(accepted.contains(1004, ONE, Logo, 7));
        assert!(!accepted.contains(1005, ONE, Logo, 7));
        for (s_id, command, ox_id) in [(TWO, Logo, 7), (ONE, Plogi, 7), (ONE, Logo, 8)] {
            assert!(!accepted.contains(5, s_id, command, ox_id));
        }
    }

    #[test]
    fn it_does_not_grow_and_no_port_displaces_another_one() {
        let mut accepted = Accepted::new(8, 1000);
        let room = accepted.requests.capacity();
        accepted.remember(0, TWO, Logo, 7);
        for ox_id in 0..1000 {
            accepted.remember(0, ONE, Logo, ox_id);
        }
        for _ in 0..1000 {
            accepted.remember(0, ONE, Logo, 999);
        }
        assert!(accepted.contains(0, TWO, Logo, 7));
        assert!(accepted.contains(0, ONE, Logo, 1000 - PER_PORT as u16));
        assert!(!accepted.contains(0, ONE, Logo, 999 - PER_PORT as u16));
        for number in 3..200 {
            accepted.remember(1, NPortId::from_bytes([0, 0, number]), Plogi, 1);
        }
        assert_eq!((accepted.requests.len(), accepted.max), (128, 128));
        assert!(!accepted.contains(1, TWO, Logo, 7));
        accepted.remember(1001, TWO, Logo, 7);
        assert_eq!(accepted.requests.len(), 1);
        assert_eq!(accepted.requests.capacity(), room);
    }
}
