//! Turns of TLS handshakes: their asymmetric cryptography takes longer than anything else in a poll.
//!
//! A connection whose handshake has received data waits here. A poll serves one of them, so that the
//! others and established connections wait for one handshake at most. A handshake that a peer starts
//! also takes a token of all, and one of its source: an IPv4 address or an IPv6 /64. The source that
//! has used least is first, so that one that floods does not delay others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use vitcp_lite::Source;

const SECOND_NS: u64 = 1_000_000_000;
/// Sources kept although nothing of them waits, before those with all tokens are removed.
const MAX_IDLE_SOURCES: usize = 1024;

/// Limits on the handshakes that peers start, per second; not 0.
#[derive(Clone, Copy, Debug)]
pub struct HandshakeLimits {
    /// Of all peers.
    pub total: u32,
    /// Of one source.
    pub per_source: u32,
}

/// A token bucket of one second's tokens, as the time at which it is full again.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    full_at_ns: u64,
}

impl Bucket {
    /// Returns the time at which it has a token.
    fn ready_at(self, per_second: u32) -> u64 {
        let kept_ns = SECOND_NS - SECOND_NS / u64::from(per_second.max(1));
        self.full_at_ns.saturating_sub(kept_ns)
    }

    fn take(&mut self, per_second: u32, now_ns: u64) {
        let interval_ns = SECOND_NS / u64::from(per_second.max(1));
        self.full_at_ns = self.full_at_ns.max(now_ns) + interval_ns;
    }
}

/// Handshakes of a source that wait for their first turn.
#[derive(Debug, Default)]
struct SourceQueue {
    bucket: Bucket,
    waiting: VecDeque<u32>,
    /// Its key in [`Handshakes::order`].
    rank_ns: u64,
}

/// The connections that wait for a turn of their handshake, by number.
#[derive(Debug)]
pub(super) struct Handshakes {
    limits: HandshakeLimits,
    total: Bucket,
    sources: BTreeMap<Source, SourceQueue>,
    /// The sources with waiting connections; the first is served next.
    order: BTreeSet<(u64, Source)>,
    /// Connections that have had a turn, or are our own.
    started: VecDeque<u32>,
    /// The last turn was of a started one.
    was_started: bool,
    /// There may be a turn now.
    is_due: bool,
}

impl Handshakes {
    pub(super) fn new(limits: HandshakeLimits) -> Self {
        Self {
            limits,
            total: Bucket::default(),
            sources: BTreeMap::new(),
            order: BTreeSet::new(),
            started: VecDeque::new(),
            was_started: false,
            is_due: false,
        }
    }

    /// Checks whether a poll must look for a turn.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    /// Has the next poll look for a turn.
    pub(super) fn set_due(&mut self) {
        self.is_due = true;
    }

    /// Adds a connection that had a turn before, or is our own.
    pub(super) fn resume(&mut self, number: u32) {
        self.started.push_back(number);
        self.is_due = true;
    }

    /// Adds a new connection of a source. Returns true if it waits for a token or for others.
    pub(super) fn wait(&mut self, now_ns: u64, source: Source, number: u32) -> bool {
        if self.sources.len() >= MAX_IDLE_SOURCES + self.order.len() {
            self.sources
                .retain(|_, of| !of.waiting.is_empty() || of.bucket.full_at_ns > now_ns);
        }
        let of = self.sources.entry(source).or_default();
        if of.waiting.is_empty() {
            of.rank_ns = of.bucket.full_at_ns.max(now_ns);
            self.order.insert((of.rank_ns, source));
        }
        of.waiting.push_back(number);
        self.is_due = true;
        of.waiting.len() > 1 || self.next_at(source) > now_ns
    }

    /// Returns the time at which a source has its next token and there is one of all.
    fn next_at(&self, source: Source) -> u64 {
        let of = self.sources.get(&source).map(|of| of.bucket);
        let of = of.unwrap_or_default().ready_at(self.limits.per_source);
        of.max(self.total.ready_at(self.limits.total))
    }

    /// Removes and returns the connection with the next turn; otherwise the time at which there is one.
    pub(super) fn next(&mut self, now_ns: u64) -> Result<u32, Option<u64>> {
        let first = self.order.first().copied();
        let at_ns = first.map(|(_, source)| self.next_at(source));
        let has_new = at_ns.is_some_and(|at_ns| at_ns <= now_ns);
        let is_turn_of_new = self.was_started && has_new;
        self.was_started = !is_turn_of_new && !self.started.is_empty();
        if self.was_started
            && let Some(number) = self.started.pop_front()
        {
            return Ok(number);
        }
        let Some((rank_ns, source)) = first.filter(|_| has_new) else {
            self.is_due = false;
            return Err(at_ns);
        };
        self.order.remove(&(rank_ns, source));
        self.total.take(self.limits.total, now_ns);
        let of = self.sources.entry(source).or_default();
        of.bucket.take(self.limits.per_source, now_ns);
        let number = of.waiting.pop_front();
        if !of.waiting.is_empty() {
            of.rank_ns = of.bucket.full_at_ns;
            self.order.insert((of.rank_ns, source));
        }
        number.ok_or(None)
    }

    /// Removes a connection.
    pub(super) fn cancel(&mut self, source: Source, number: u32) {
        self.started.retain(|other| *other != number);
        if let Some(of) = self.sources.get_mut(&source) {
            of.waiting.retain(|other| *other != number);
            if of.waiting.is_empty() {
                self.order.remove(&(of.rank_ns, source));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, SocketAddr};

    const LIMITS: HandshakeLimits = HandshakeLimits {
        total: 10,
        per_source: 5,
    };
    const TENTH_NS: u64 = SECOND_NS / 10;

    fn source(number: u8) -> Source {
        Source::host(SocketAddr::new(Ipv4Addr::new(192, 0, 2, number).into(), 1))
    }

    /// Takes all turns that there are at a time.
    fn turns(handshakes: &mut Handshakes, now_ns: u64) -> Vec<u32> {
        core::iter::from_fn(|| handshakes.next(now_ns).ok()).collect()
    }

    #[test]
    fn source_has_its_share_and_then_its_rate() {
        let mut handshakes = Handshakes::new(LIMITS);
        let delayed = (0..20).filter(|number| handshakes.wait(0, source(1), *number));
        assert_eq!(delayed.count(), 19);
        assert_eq!(turns(&mut handshakes, 0), [0, 1, 2, 3, 4]);
        assert_eq!(handshakes.next(0), Err(Some(2 * TENTH_NS)));
        assert!(!handshakes.is_due());
        assert_eq!(turns(&mut handshakes, 2 * TENTH_NS), [5]);
        assert_eq!(turns(&mut handshakes, 6 * TENTH_NS), [6, 7]);
        assert!(!handshakes.wait(6 * TENTH_NS, source(2), 100));
        assert_eq!(turns(&mut handshakes, 6 * TENTH_NS), [100]);
    }

    #[test]
    fn source_that_has_used_least_is_served_first() {
        let mut handshakes = Handshakes::new(LIMITS);
        for number in 0..60 {
            handshakes.wait(0, source((number % 3) as u8), number);
        }
        assert_eq!(turns(&mut handshakes, 0).len(), LIMITS.total as usize);
        assert!(handshakes.wait(TENTH_NS / 2, source(9), 100));
        assert_eq!(turns(&mut handshakes, TENTH_NS), [100]);
        assert_eq!(turns(&mut handshakes, 3 * TENTH_NS).len(), 2);
    }

    #[test]
    fn started_and_new_handshakes_alternate() {
        let mut handshakes = Handshakes::new(LIMITS);
        for number in 0..3 {
            handshakes.wait(0, source(1), number);
            handshakes.resume(10 + number);
        }
        assert_eq!(turns(&mut handshakes, 0), [10, 0, 11, 1, 12, 2]);
    }

    #[test]
    fn cancelled_handshakes_have_no_turn() {
        let mut handshakes = Handshakes::new(LIMITS);
        for number in 0..3 {
            handshakes.wait(0, source(1), number);
        }
        handshakes.resume(10);
        for number in [0, 10] {
            handshakes.cancel(source(1), number);
        }
        handshakes.cancel(source(2), 1);
        assert_eq!(turns(&mut handshakes, 0), [1, 2]);
        handshakes.wait(0, source(1), 3);
        handshakes.cancel(source(1), 3);
        assert_eq!(handshakes.next(0), Err(None));
        // Sources without a debt are not kept.
        for number in 0..5 * MAX_IDLE_SOURCES as u32 {
            let address = SocketAddr::new(Ipv4Addr::from_bits(number).into(), 1);
            handshakes.wait(SECOND_NS, Source::host(address), number);
            handshakes.cancel(Source::host(address), number);
        }
        assert!(handshakes.sources.len() <= MAX_IDLE_SOURCES + 1);
    }
}
