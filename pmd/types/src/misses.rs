//! Limits how fast a peer can guess memory handles (ADR 0041).
//!
//! A *miss* is an RDMA access of a peer whose handle was looked up and names no region of the VI's
//! tag. Each peer has a token bucket of misses. While it is empty, accesses of the peer are refused
//! without a look-up, whether right or wrong; after a number of refusals the connection breaks.
//! Accesses that are not refused take no token, and a connection of a peer without recent misses
//! costs one flag test per message.
//!
//! A peer that can take many keys, as an IPv6 host its addresses, also has a bucket for each *group*
//! of keys ([`MissKey::group`]), and all peers of a NIC together have one. While that one is empty,
//! peers with a miss so recent that one of their buckets is not full are refused; others are not.

use alloc::collections::BTreeMap;

/// Limits on misses, of each peer and each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissLimits {
    /// Tokens in a full bucket: misses that are looked up at once; not 0.
    pub burst: u32,
    /// Time after which one token is added; not 0.
    pub interval_ns: u64,
    /// Refused accesses, with or without a look-up, after which a connection breaks; not 0.
    pub per_connection: u32,
}

impl Default for MissLimits {
    fn default() -> Self {
        Self {
            burst: 64,
            interval_ns: 60_000_000_000,
            per_connection: 256,
        }
    }
}

/// Maximum number of buckets. If there are more, the fullest one is evicted.
const MAX_BUCKETS: usize = 4096;
/// Size and rate of the bucket of a group of peers, as a multiple of those of its members.
const GROUP_SHARE: u32 = 4;
/// Size and rate of the bucket of all peers together, as a multiple of those of one.
const TOTAL_SHARE: u32 = 16;

/// Identifies a peer, or a group of peers.
pub trait MissKey: Copy + Ord {
    /// Returns the key of the next larger group of peers that it belongs to.
    fn group(self) -> Option<Self> {
        None
    }
}

/// A token bucket, as the time at which it is full again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bucket {
    full_at_ns: u64,
}

impl Bucket {
    /// Takes a token, or goes into debt: connections that were not limited before may miss once
    /// more each, and the peer waits longer for that.
    fn take(&mut self, limits: &MissLimits, now_ns: u64) {
        let from = self.full_at_ns.max(now_ns);
        self.full_at_ns = from.saturating_add(limits.interval_ns.max(1));
    }

    fn is_full(self, now_ns: u64) -> bool {
        self.full_at_ns <= now_ns
    }

    fn is_empty(self, limits: &MissLimits, now_ns: u64) -> bool {
        let all_but_one = u64::from(limits.burst.max(1) - 1);
        let most_ns = all_but_one.saturating_mul(limits.interval_ns.max(1));
        self.full_at_ns.saturating_sub(now_ns) > most_ns
    }
}

/// Misses of one connection.
#[derive(Debug, Default)]
pub struct ConnectionMisses {
    watched: bool,
    refused: u32,
    /// The bucket of a connection whose peer has none.
    own: Bucket,
}

impl ConnectionMisses {
    /// Reports whether [`PeerMisses::may_look_up`] must be called before the next look-up.
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.watched
    }

    /// Returns the number of refused accesses of this connection, with or without a look-up.
    pub fn refused(&self) -> u32 {
        self.refused
    }
}

impl MissLimits {
    /// Returns the limits of a bucket that is `share` times as large.
    fn times(&self, share: u32) -> Self {
        Self {
            burst: self.burst.max(1).saturating_mul(share),
            interval_ns: self.interval_ns / u64::from(share),
            ..*self
        }
    }
}

/// Misses of all peers of a NIC, by peer key.
#[derive(Debug)]
pub struct PeerMisses<K> {
    limits: MissLimits,
    /// At most [`MAX_BUCKETS`]; a peer without one has a full bucket.
    buckets: BTreeMap<K, Bucket>,
    /// The bucket of all peers with a key.
    total: Bucket,
}

/// Returns a key and those of its groups, each with the share of its bucket.
fn with_groups<K: MissKey>(key: K) -> impl Iterator<Item = (K, u32)> {
    core::iter::successors(Some((key, 1)), |(key, share)| {
        Some((key.group()?, GROUP_SHARE * share))
    })
}

impl<K: MissKey> PeerMisses<K> {
    /// Creates an empty table.
    pub fn new(limits: MissLimits) -> Self {
        Self {
            limits,
            buckets: BTreeMap::new(),
            total: Bucket::default(),
        }
    }

    /// Starts a connection with this peer: it is watched from the start if the peer, or another of
    /// its groups, has missed recently. Without a key the connection has a bucket of its own.
    pub fn connect(&self, key: Option<K>) -> ConnectionMisses {
        let has_bucket = |key| with_groups(key).any(|(key, _)| self.buckets.contains_key(&key));
        ConnectionMisses {
            watched: key.is_some_and(has_bucket),
            ..ConnectionMisses::default()
        }
    }

    /// Reports whether the next access of a watched connection may be looked up. If not, counts it
    /// as refused.
    pub fn may_look_up(
        &mut self,
        now_ns: u64,
        key: Option<K>,
        connection: &mut ConnectionMisses,
    ) -> bool {
        let (is_full, is_empty) = match key {
            None => (
                connection.own.is_full(now_ns),
                connection.own.is_empty(&self.limits, now_ns),
            ),
            Some(key) => self.check(now_ns, key),
        };
        if is_full {
            connection.watched = false;
        }
        let may = !is_empty;
        if !may {
            connection.refused = connection.refused.saturating_add(1);
        }
        may
    }

    /// Counts a miss.
    pub fn miss(&mut self, now_ns: u64, key: Option<K>, connection: &mut ConnectionMisses) {
        connection.watched = true;
        connection.refused = connection.refused.saturating_add(1);
        let limits = self.limits;
        let Some(key) = key else {
            connection.own.take(&limits, now_ns);
            return;
        };
        self.total.take(&limits.times(TOTAL_SHARE), now_ns);
        for (key, share) in with_groups(key) {
            self.bucket(now_ns, key).take(&limits.times(share), now_ns);
        }
    }

    /// Reports whether the number of refused accesses breaks the connection.
    pub fn is_exhausted(&self, connection: &ConnectionMisses) -> bool {
        connection.refused >= self.limits.per_connection
    }

    /// Returns whether all buckets of a peer are full, and whether it is to be refused. Removes full
    /// buckets.
    fn check(&mut self, now_ns: u64, key: K) -> (bool, bool) {
        let is_limited = self.total.is_empty(&self.limits.times(TOTAL_SHARE), now_ns);
        let (mut all_full, mut refused) = (true, false);
        for (key, share) in with_groups(key) {
            let Some(bucket) = self.buckets.get(&key) else {
                continue;
            };
            if bucket.is_full(now_ns) {
                self.buckets.remove(&key);
                continue;
            }
            all_full = false;
            refused |= is_limited || bucket.is_empty(&self.limits.times(share), now_ns);
        }
        (all_full, refused)
    }

    fn bucket(&mut self, now_ns: u64, key: K) -> &mut Bucket {
        if !self.buckets.contains_key(&key) {
            self.make_room(now_ns);
        }
        self.buckets.entry(key).or_default()
    }

    fn make_room(&mut self, now_ns: u64) {
        if self.buckets.len() < MAX_BUCKETS {
            return;
        }
        self.buckets.retain(|_, bucket| !bucket.is_full(now_ns));
        if self.buckets.len() < MAX_BUCKETS {
            return;
        }
        let fullest = self.buckets.iter().min_by_key(|(_, b)| b.full_at_ns);
        if let Some(key) = fullest.map(|(key, _)| *key) {
            self.buckets.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use protocol_testkit::rng::Rng;

    const LIMITS: MissLimits = MissLimits {
        burst: 4,
        interval_ns: 100,
        per_connection: 16,
    };

    impl MissKey for u32 {}

    /// Makes an access that would miss. Returns true if it was looked up.
    fn guess<K: MissKey>(
        peers: &mut PeerMisses<K>,
        now_ns: u64,
        key: Option<K>,
        connection: &mut ConnectionMisses,
    ) -> bool {
        let looked_up = !connection.is_watched() || peers.may_look_up(now_ns, key, connection);
        if looked_up {
            peers.miss(now_ns, key, connection);
        }
        looked_up
    }

    #[test]
    fn burst_of_misses_is_looked_up_then_one_per_interval() {
        for key in [None, Some(7)] {
            let mut peers = PeerMisses::new(LIMITS);
            let mut connection = peers.connect(key);
            assert!(!connection.is_watched());
            let at = |now_ns, times, connection: &mut _, peers: &mut _| {
                let tries = (0..times).filter(|_| guess(peers, now_ns, key, connection));
                tries.count()
            };
            assert_eq!(at(1000, 6, &mut connection, &mut peers), 4);
            assert_eq!(at(1099, 1, &mut connection, &mut peers), 0);
            assert_eq!(at(1100, 2, &mut connection, &mut peers), 1);
            assert_eq!(at(1400, 4, &mut connection, &mut peers), 3);
            assert_eq!(connection.refused(), 13);
            assert!(!peers.is_exhausted(&connection));
            at(1400, 3, &mut connection, &mut peers);
            assert!(peers.is_exhausted(&connection));
        }
    }

    #[test]
    fn full_bucket_ends_the_watch_of_a_connection() {
        let mut peers = PeerMisses::new(LIMITS);
        let mut connection = peers.connect(Some(7));
        assert!(guess(&mut peers, 0, Some(7), &mut connection));
        assert!(peers.may_look_up(99, Some(7), &mut connection));
        assert!(connection.is_watched());
        assert!(peers.connect(Some(7)).is_watched());
        assert!(peers.may_look_up(100, Some(7), &mut connection));
        assert!(!connection.is_watched());
        assert!(!peers.connect(Some(7)).is_watched());
    }

    #[test]
    fn new_connection_of_a_peer_without_tokens_is_limited_and_others_are_not() {
        let mut peers = PeerMisses::new(LIMITS);
        for _ in 0..4 {
            let mut connection = peers.connect(Some(7));
            assert!(guess(&mut peers, 0, Some(7), &mut connection));
        }
        let mut next = peers.connect(Some(7));
        assert!(!guess(&mut peers, 0, Some(7), &mut next));
        assert_eq!(next.refused(), 1);
        let mut other = peers.connect(Some(8));
        assert!(!other.is_watched());
        assert!(guess(&mut peers, 0, Some(8), &mut other));
        assert!(!peers.connect(None).is_watched());
    }

    /// A host of a network.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Host {
        network: u32,
        number: Option<u32>,
    }

    impl MissKey for Host {
        fn group(self) -> Option<Self> {
            let number = None;
            self.number.is_some().then_some(Self { number, ..self })
        }
    }

    fn host(network: u32, number: u32) -> Option<Host> {
        let number = Some(number);
        Some(Host { network, number })
    }

    /// Counts the guesses looked up if each is made on a new connection, from these hosts.
    fn guesses(
        peers: &mut PeerMisses<Host>,
        now_ns: u64,
        from: impl Iterator<Item = Option<Host>>,
    ) -> usize {
        from.filter(|key| {
            let mut connection = peers.connect(*key);
            guess(peers, now_ns, *key, &mut connection)
        })
        .count()
    }

    #[test]
    fn peer_with_many_keys_is_limited_as_a_group() {
        let mut peers = PeerMisses::new(LIMITS);
        // Connected before any miss.
        let mut before = peers.connect(host(1, 5_000));
        let most = (GROUP_SHARE * LIMITS.burst) as usize;
        let from = |network| (0..1_000).map(move |number| host(network, number));
        assert_eq!(guesses(&mut peers, 0, from(1)), most);
        assert!(!before.is_watched());
        assert!(guess(&mut peers, 0, host(1, 5_000), &mut before));
        let mut honest = peers.connect(host(2, 0));
        assert!(!honest.is_watched() && guess(&mut peers, 0, host(2, 0), &mut honest));
        // A group gains GROUP_SHARE tokens in an interval; its last guess took one in advance.
        let quarter_ns = LIMITS.interval_ns / u64::from(GROUP_SHARE);
        assert_eq!(guesses(&mut peers, 3 * quarter_ns, from(1)), 2);
    }

    /// Beyond the total each network has one try, until its own bucket is full again.
    #[test]
    fn many_groups_together_are_limited_and_peers_without_misses_are_not() {
        let mut peers = PeerMisses::new(LIMITS);
        let total = (TOTAL_SHARE * LIMITS.burst) as usize;
        let networks = total as u32 / 4;
        let from = |round| (0..networks).map(move |network| host(network, round));
        let looked_up: usize = (0..8)
            .map(|round| guesses(&mut peers, 0, from(round)))
            .sum();
        assert_eq!(looked_up, total);
        let honest = host(networks, 0);
        let mut connection = peers.connect(honest);
        assert!(!connection.is_watched());
        assert!(guess(&mut peers, 0, honest, &mut connection));
        assert!(!guess(&mut peers, 0, honest, &mut connection));
        assert_eq!(
            guesses(&mut peers, 0, core::iter::once(host(networks, 1))),
            0
        );
    }

    #[test]
    fn table_of_peers_is_bounded_and_forgets_the_fullest_bucket() {
        let mut peers = PeerMisses::new(LIMITS);
        let miss = |peers: &mut PeerMisses<u32>, now_ns, key, times| {
            let mut connection = peers.connect(Some(key));
            (0..times).for_each(|_| peers.miss(now_ns, Some(key), &mut connection));
        };
        miss(&mut peers, 0, 1_000_000, 4);
        for key in 0..MAX_BUCKETS as u32 + 100 {
            miss(&mut peers, 1, key, 1);
        }
        assert_eq!(peers.buckets.len(), MAX_BUCKETS);
        assert!(peers.connect(Some(1_000_000)).is_watched());
        miss(&mut peers, 1_000, 2_000_000, 1);
        assert_eq!(peers.buckets.len(), 1, "full buckets are removed");
    }

    /// For any pattern of right and wrong accesses: look-ups that miss are bounded by the bucket,
    /// and by one more for each connection, which may not be watched yet. Only peers that missed
    /// as often as the bucket allows are limited.
    #[test]
    fn misses_are_bounded_for_any_pattern() {
        const PEERS: usize = 3;
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let mut peers = PeerMisses::new(LIMITS);
            let mut connections: Vec<(usize, ConnectionMisses)> = Vec::new();
            let (mut misses, mut connected) = ([0u64; PEERS], [0u64; PEERS]);
            let mut now_ns = 0;
            for _ in 0..400 {
                match rng.below(10) {
                    0 => now_ns += rng.below(300),
                    1 => {
                        let peer = rng.below(PEERS as u64) as usize;
                        connected[peer] += 1;
                        connections.push((peer, peers.connect(Some(peer as u32))));
                    }
                    _ if connections.is_empty() => {}
                    right => {
                        let at = rng.below(connections.len() as u64) as usize;
                        let (peer, connection) = &mut connections[at];
                        let key = Some(*peer as u32);
                        if right > 5 {
                            misses[*peer] += u64::from(guess(&mut peers, now_ns, key, connection));
                            continue;
                        }
                        let before = connection.refused();
                        let may =
                            !connection.is_watched() || peers.may_look_up(now_ns, key, connection);
                        let enough = misses[*peer] >= u64::from(LIMITS.burst);
                        assert!(may || enough, "seed {seed}: limited without misses");
                        assert_eq!(connection.refused(), before + u32::from(!may));
                    }
                }
                for peer in 0..PEERS {
                    let tokens = u64::from(LIMITS.burst) + now_ns / LIMITS.interval_ns;
                    let most = tokens + connected[peer];
                    assert!(misses[peer] <= most, "seed {seed}, peer {peer}: {misses:?}");
                }
            }
        }
    }
}
