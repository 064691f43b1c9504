//! The other VN_Ports of the link: their identity, maximum frame size and lifetime.
//!
//! The table is bounded. What was not reported to the owner yet is a state of the entries, so that
//! no queue of events can grow; an entry is kept until its end was reported.
//!
//! A claim is easy to forge. One that contradicts a known neighbour ends it only if that neighbour
//! does not answer any more: a pinned one, which is logged in, is doubted, and its owner verifies the
//! login; another one is sent a claim.

use fcvi_frame::MacAddress;
use fcvi_frame::fc::{FcType, NPortId};
use fcvi_frame::fip::{Claim, VnPort};

use super::config::Vn2vnConfig;
use super::counters::{Vn2vnCounter, Vn2vnCounters};
use super::path::PathState;
use crate::Neighbour;
use crate::random::Random;
use crate::rate_limiter::RateLimiter;

impl Neighbour {
    pub(super) fn new(port: &VnPort, claim: &Claim, fc_type: FcType) -> Self {
        Self {
            id: port.id.n_port_id,
            port_name: port.id.port_name,
            node_name: port.node_name,
            enode_mac: port.enode_mac,
            max_fcoe_bytes: claim.max_fcoe_bytes,
            path_fcoe_bytes: None,
            supports_fc4: claim.fc4.supports(fc_type),
        }
    }

    /// Reports whether this beacon, which contains no size, is from this neighbour.
    fn is_from(&self, port: &VnPort) -> bool {
        self.id == port.id.n_port_id
            && self.port_name == port.id.port_name
            && self.node_name == port.node_name
            && self.enode_mac == port.enode_mac
    }

    /// Reports whether a claim is from the same port at the same addresses.
    fn is_same_station(&self, other: &Neighbour) -> bool {
        let identity = |n: &Neighbour| (n.id, n.port_name, n.enode_mac);
        identity(self) == identity(other)
    }

    /// Reports whether a claim equals an earlier one; that of a path test may have another size.
    fn is_same(&self, other: &Neighbour, size_counts: bool) -> bool {
        let other = Neighbour {
            path_fcoe_bytes: self.path_fcoe_bytes,
            max_fcoe_bytes: if size_counts {
                other.max_fcoe_bytes
            } else {
                self.max_fcoe_bytes
            },
            ..*other
        };
        *self == other
    }
}

/// Why a neighbour is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoneReason {
    /// No frame of it was received for the lifetime of a neighbour.
    Silent,
    /// The same port has another N_Port_ID, address or size now; it is found anew.
    Changed,
    /// Another port has its N_Port_ID now.
    Displaced,
    /// It was not pinned, and the table was full.
    Evicted,
}

/// The last event of a neighbour that was reported to the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reported {
    Nothing,
    Found,
    Ready,
}

#[derive(Clone, Debug)]
struct NeighbourEntry {
    neighbour: Neighbour,
    last_rx_ns: u64,
    has_beaconed: bool,
    /// It is logged in: it is neither evicted nor replaced.
    is_pinned: bool,
    /// A claim contradicts it, and a claim was sent to it: it is gone if it does not respond.
    is_doubted: bool,
    /// A claim contradicts it, it is pinned, and this is not reported yet.
    doubt_pending: bool,
    /// Answers to it while it is pinned.
    answers: RateLimiter,
    path: PathState,
    reported: Reported,
    gone: Option<GoneReason>,
}

impl NeighbourEntry {
    fn is_evictable(&self) -> bool {
        self.gone.is_none() && !self.is_pinned
    }

    /// Handles a claim that contradicts this neighbour.
    fn doubt(&mut self, now_ns: u64, config: &Vn2vnConfig) {
        if self.is_pinned {
            self.doubt_pending = true;
        } else if !self.is_doubted {
            self.is_doubted = true;
            if !matches!(self.path, PathState::Testing { .. }) {
                let full_bytes = config.fcoe_bytes().min(self.neighbour.max_fcoe_bytes);
                let size_bytes = config.fallback().min(full_bytes);
                self.path = PathState::new(now_ns, size_bytes, config);
            }
        }
    }

    /// Handles a claim of this neighbour that is the same as before: it is still there.
    fn confirm(&mut self) {
        if core::mem::take(&mut self.is_doubted)
            && let Some(size_bytes) = self.neighbour.path_fcoe_bytes
        {
            self.path = PathState::Known(size_bytes);
        }
    }

    /// Reports whether its first beacon arrived and its path is known, and this is not reported
    /// yet.
    fn is_ready(&self) -> bool {
        let is_usable = self.has_beaconed && self.neighbour.path_fcoe_bytes.is_some();
        self.reported == Reported::Found && is_usable
    }

    fn has_change(&self) -> bool {
        let has_news = self.reported == Reported::Nothing || self.is_ready();
        self.gone.is_some() || has_news || self.doubt_pending
    }

    fn is_path_test_due(&self) -> bool {
        self.gone.is_none() && self.path.is_claim_due()
    }
}

/// A change of the table to report to the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NeighbourChange {
    Found(Neighbour),
    Ready(Neighbour),
    Gone(Neighbour, GoneReason),
    Doubted(Neighbour),
}

/// The frame from which a neighbour is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A claim notification to all.
    Notification,
    /// One to us alone: a path test of the remote side, perhaps with a smaller size than its own.
    PathTest,
    /// A claim response.
    Response {
        /// Its Ethernet payload, padding included.
        pdu_bytes: usize,
    },
}

/// Result of a beacon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BeaconOutcome {
    /// It is from a neighbour.
    Known,
    /// Its sender is unknown, and is to be sent a claim.
    Unknown,
    /// Its sender is unknown, and the table is full.
    NoRoom,
}

/// The neighbours of a port.
#[derive(Debug)]
pub(super) struct Neighbours {
    /// Current ones, at most `max`, and as many whose end was not reported yet.
    entries: Vec<NeighbourEntry>,
    max: usize,
    random: Random,
    own_fcoe_bytes: u16,
    /// Number of entries with a path test to send, and with a change to report.
    path_tests: usize,
    changes: usize,
}

impl Neighbours {
    pub(super) fn new(config: &Vn2vnConfig, seed: u64) -> Self {
        let max = config.max_neighbours.max(1);
        Self {
            entries: Vec::with_capacity(2 * max),
            max,
            random: Random::new(seed),
            own_fcoe_bytes: config.fcoe_bytes(),
            path_tests: 0,
            changes: 0,
        }
    }

    /// Removes all entries without reporting them.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        (self.path_tests, self.changes) = (0, 0);
    }

    /// Returns the current neighbours, and when the last frame of each was received.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Neighbour, u64)> {
        let current = self.entries.iter().filter(|entry| entry.gone.is_none());
        current.map(|entry| (&entry.neighbour, entry.last_rx_ns))
    }

    fn find(&mut self, wanted: impl Fn(&Neighbour) -> bool) -> Option<&mut NeighbourEntry> {
        let mut entries = self.entries.iter_mut();
        entries.find(|entry| entry.gone.is_none() && wanted(&entry.neighbour))
    }

    /// Handles a claim or its response.
    pub(super) fn handle_claim(
        &mut self,
        now_ns: u64,
        claimed: Neighbour,
        source: Source,
        config: &Vn2vnConfig,
        counters: &mut Vn2vnCounters,
    ) {
        let rank = |n: &Neighbour| (n.port_name, n.enode_mac);
        let is_alive = |entry: &NeighbourEntry| {
            now_ns.saturating_sub(entry.last_rx_ns) < config.missed_beacon_ns()
        };
        let holder = |n: &Neighbour| n.id == claimed.id && n.port_name != claimed.port_name;
        if let Some(entry) = self.find(holder) {
            let alive = is_alive(entry);
            if alive || entry.is_pinned {
                counters.count(Vn2vnCounter::DropContested);
                if !alive || rank(&entry.neighbour) < rank(&claimed) {
                    entry.doubt(now_ns, config);
                    self.recount();
                }
                return;
            }
            self.end(GoneReason::Displaced, holder, counters);
        }
        let same_port = |n: &Neighbour| n.port_name == claimed.port_name;
        let size_counts = source != Source::PathTest;
        match self.find(same_port) {
            Some(entry) if entry.neighbour.is_same(&claimed, size_counts) => {
                entry.last_rx_ns = now_ns;
                entry.confirm();
            }
            Some(entry)
                if entry.is_pinned
                    || (is_alive(entry) && !entry.neighbour.is_same_station(&claimed)) =>
            {
                counters.count(Vn2vnCounter::DropContested);
                entry.doubt(now_ns, config);
                self.recount();
                return;
            }
            Some(_) => {
                self.end(GoneReason::Changed, same_port, counters);
                self.add(now_ns, claimed, config, counters);
            }
            None => self.add(now_ns, claimed, config, counters),
        }
        if let Source::Response { pdu_bytes } = source {
            self.response_arrived(claimed.port_name, pdu_bytes);
        }
        self.recount();
    }

    fn add(
        &mut self,
        now_ns: u64,
        neighbour: Neighbour,
        config: &Vn2vnConfig,
        counters: &mut Vn2vnCounters,
    ) {
        if self.is_full() {
            self.evict(counters);
        }
        if self.is_full() || self.entries.len() >= 2 * self.max {
            counters.count(Vn2vnCounter::DropNeighboursFull);
            return;
        }
        let full_bytes = self.own_fcoe_bytes.min(neighbour.max_fcoe_bytes);
        self.entries.push(NeighbourEntry {
            neighbour,
            last_rx_ns: now_ns,
            has_beaconed: false,
            is_pinned: false,
            is_doubted: false,
            doubt_pending: false,
            answers: RateLimiter::default(),
            path: PathState::new(now_ns, full_bytes, config),
            reported: Reported::Nothing,
            gone: None,
        });
        counters.count(Vn2vnCounter::Found);
    }

    fn is_full(&self) -> bool {
        let current = self.entries.iter().filter(|entry| entry.gone.is_none());
        current.count() >= self.max
    }

    /// Evicts a random entry that is not pinned: a station that forges neighbours cannot choose it, nor
    /// keep the table full.
    fn evict(&mut self, counters: &mut Vn2vnCounters) {
        let evictable = || self.entries.iter().filter(|entry| entry.is_evictable());
        let chosen = self.random.below(evictable().count() as u64) as usize;
        let chosen = evictable().nth(chosen);
        if let Some(port_name) = chosen.map(|entry| entry.neighbour.port_name) {
            counters.count(Vn2vnCounter::Evicted);
            self.end(GoneReason::Evicted, |n| n.port_name == port_name, counters);
        }
    }

    /// Ends a neighbour; its entry is kept if its end must be reported.
    fn end(
        &mut self,
        reason: GoneReason,
        wanted: impl Fn(&Neighbour) -> bool,
        counters: &mut Vn2vnCounters,
    ) {
        let current = |entry: &NeighbourEntry| entry.gone.is_none() && wanted(&entry.neighbour);
        let Some(at) = self.entries.iter().position(current) else {
            return;
        };
        counters.count(Vn2vnCounter::Gone);
        if self.entries[at].reported == Reported::Nothing {
            self.entries.swap_remove(at);
        } else {
            self.entries[at].gone = Some(reason);
        }
    }

    /// Pins a neighbour, or unpins it.
    pub(super) fn set_pinned(&mut self, id: NPortId, is_pinned: bool) {
        if let Some(entry) = self.find(|n| n.id == id) {
            entry.is_pinned = is_pinned;
            entry.doubt_pending &= is_pinned;
        }
    }

    /// Reports whether a neighbour is pinned.
    pub(super) fn has_pinned(&self) -> bool {
        let mut entries = self.entries.iter();
        entries.any(|entry| entry.is_pinned && entry.gone.is_none())
    }

    /// Ends the neighbour with this N_Port_ID, whose doubts were justified.
    pub(super) fn end_denied(&mut self, id: NPortId, counters: &mut Vn2vnCounters) {
        self.end(GoneReason::Changed, |n| n.id == id, counters);
        self.recount();
    }

    /// Returns the limit of answers to this port, if it is a pinned neighbour.
    pub(super) fn answer_limiter(&mut self, port: &VnPort) -> Option<&mut RateLimiter> {
        let entry = self.find(|n| n.is_from(port))?;
        entry.is_pinned.then_some(&mut entry.answers)
    }

    /// Handles a response of this size.
    fn response_arrived(&mut self, port_name: u64, pdu_bytes: usize) {
        let own_fcoe_bytes = self.own_fcoe_bytes;
        let Some(entry) = self.find(|n| n.port_name == port_name) else {
            return;
        };
        let full_bytes = own_fcoe_bytes.min(entry.neighbour.max_fcoe_bytes);
        entry.path.arrived(pdu_bytes, full_bytes);
        if let PathState::Known(size_bytes) = entry.path {
            entry.neighbour.path_fcoe_bytes = Some(size_bytes);
        }
    }

    /// Handles a beacon. After the first one, and with a known path, a login with the neighbour can
    /// start.
    pub(super) fn handle_beacon(
        &mut self,
        now_ns: u64,
        port: &VnPort,
        config: &Vn2vnConfig,
    ) -> BeaconOutcome {
        let own_fcoe_bytes = self.own_fcoe_bytes;
        let is_full = self.is_full() && !self.entries.iter().any(NeighbourEntry::is_evictable);
        let Some(entry) = self.find(|n| n.is_from(port)) else {
            return if is_full {
                BeaconOutcome::NoRoom
            } else {
                BeaconOutcome::Unknown
            };
        };
        entry.last_rx_ns = now_ns;
        entry.has_beaconed = true;
        if entry.path == PathState::Failed {
            let full_bytes = own_fcoe_bytes.min(entry.neighbour.max_fcoe_bytes);
            entry.path = PathState::new(now_ns, full_bytes, config);
        }
        self.recount();
        BeaconOutcome::Known
    }

    /// Ends neighbours that were silent, and those that were doubted and did not respond, and continues
    /// path tests. Returns true if one of the latter ended.
    pub(super) fn handle_timeout(
        &mut self,
        now_ns: u64,
        config: &Vn2vnConfig,
        counters: &mut Vn2vnCounters,
    ) -> bool {
        let mut is_replaced = false;
        let lifetime_ns = config.neighbour_lifetime_ns;
        let mut at = 0;
        while let Some(entry) = self.entries.get_mut(at) {
            let is_silent = entry.last_rx_ns.saturating_add(lifetime_ns) <= now_ns;
            entry.path.handle_timeout(now_ns, config, counters);
            let is_absent = entry.is_doubted && entry.path == PathState::Failed;
            if is_absent && entry.is_pinned {
                entry.confirm();
                entry.doubt_pending = true;
            } else if entry.gone.is_none() && (is_silent || is_absent) {
                counters.count(Vn2vnCounter::Gone);
                is_replaced |= is_absent;
                if entry.reported == Reported::Nothing {
                    self.entries.swap_remove(at);
                    continue;
                }
                entry.gone = Some(if is_absent {
                    GoneReason::Changed
                } else {
                    GoneReason::Silent
                });
            }
            at += 1;
        }
        self.recount();
        is_replaced
    }

    /// Returns the next deadline.
    pub(super) fn next_timeout(&self, config: &Vn2vnConfig) -> Option<u64> {
        let current = self.entries.iter().filter(|entry| entry.gone.is_none());
        let deadlines = current.map(|entry| {
            let silent_ns = entry
                .last_rx_ns
                .saturating_add(config.neighbour_lifetime_ns);
            let path_ns = entry.path.deadline_ns();
            path_ns.map_or(silent_ns, |path_ns| path_ns.min(silent_ns))
        });
        deadlines.min()
    }

    /// Returns the next neighbour whose path is to be tested: its interface, and the size to claim.
    pub(super) fn poll_path_test(&mut self) -> Option<(MacAddress, u16)> {
        if self.path_tests == 0 {
            return None;
        }
        let entry = self
            .entries
            .iter_mut()
            .find(|entry| entry.is_path_test_due())?;
        let size_bytes = entry.path.take_size()?;
        self.path_tests -= 1;
        Some((entry.neighbour.enode_mac, size_bytes))
    }

    /// Returns the next change to report: ends first. `Ready` waits until this port is up.
    pub(super) fn poll_change(&mut self, is_up: bool) -> Option<NeighbourChange> {
        if self.changes == 0 {
            return None;
        }
        let gone = self.entries.iter().position(|entry| entry.gone.is_some());
        let change = if let Some(at) = gone {
            let entry = self.entries.swap_remove(at);
            entry
                .gone
                .map(|reason| NeighbourChange::Gone(entry.neighbour, reason))
        } else {
            let is_next = |e: &&mut NeighbourEntry| {
                e.reported == Reported::Nothing || (is_up && e.is_ready()) || e.doubt_pending
            };
            let entry = self.entries.iter_mut().find(is_next)?;
            if entry.reported == Reported::Nothing {
                entry.reported = Reported::Found;
                Some(NeighbourChange::Found(entry.neighbour))
            } else if core::mem::take(&mut entry.doubt_pending) {
                Some(NeighbourChange::Doubted(entry.neighbour))
            } else {
                entry.reported = Reported::Ready;
                Some(NeighbourChange::Ready(entry.neighbour))
            }
        };
        self.recount();
        change
    }

    fn recount(&mut self) {
        self.path_tests = self
            .entries
            .iter()
            .filter(|entry| entry.is_path_test_due())
            .count();
        self.changes = self
            .entries
            .iter()
            .filter(|entry| entry.has_change())
            .count();
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.entries.capacity()
    }
}
