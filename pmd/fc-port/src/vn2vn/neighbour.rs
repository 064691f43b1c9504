//! The other VN_Ports of the link: their identity, maximum frame size and lifetime.
//!
//! The table is bounded. What was not reported to the owner yet is a state of the entries, so that
//! no queue of events can grow; an entry is kept until its end was reported.

use fcvi_frame::MacAddress;
use fcvi_frame::fc::{FcType, NPortId};
use fcvi_frame::fip::{Claim, VnPort};

use super::config::Vn2vnConfig;
use super::counters::{Vn2vnCounter, Vn2vnCounters};
use super::path::PathState;
use crate::Neighbour;

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
    /// It never sent a beacon, was not pinned, and the table was full.
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
    /// It is not evicted.
    is_pinned: bool,
    path: PathState,
    reported: Reported,
    gone: Option<GoneReason>,
}

impl NeighbourEntry {
    /// Reports whether it may be evicted: only its claim was received, which is easy to forge.
    fn is_evictable(&self) -> bool {
        self.gone.is_none() && !self.has_beaconed && !self.is_pinned
    }

    /// Reports whether its first beacon arrived and its path is known, and this is not reported
    /// yet.
    fn is_ready(&self) -> bool {
        let is_usable = self.has_beaconed && self.neighbour.path_fcoe_bytes.is_some();
        self.reported == Reported::Found && is_usable
    }

    fn has_change(&self) -> bool {
        self.gone.is_some() || self.reported == Reported::Nothing || self.is_ready()
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
    entries: Vec<NeighbourEntry>,
    max: usize,
    own_fcoe_bytes: u16,
    /// Number of entries with a path test to send, and with a change to report.
    path_tests: usize,
    changes: usize,
}

impl Neighbours {
    pub(super) fn new(config: &Vn2vnConfig) -> Self {
        let max = config.max_neighbours.max(1);
        Self {
            entries: Vec::with_capacity(max),
            max,
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
        let holder = |n: &Neighbour| n.id == claimed.id && n.port_name != claimed.port_name;
        if let Some(entry) = self.find(holder) {
            let is_alive = now_ns.saturating_sub(entry.last_rx_ns) < config.missed_beacon_ns();
            if is_alive && rank(&entry.neighbour) > rank(&claimed) {
                counters.count(Vn2vnCounter::DropContested);
                return;
            }
            self.end(GoneReason::Displaced, holder, counters);
        }
        let same_port = |n: &Neighbour| n.port_name == claimed.port_name;
        let size_counts = source != Source::PathTest;
        match self.find(same_port) {
            Some(entry) if entry.neighbour.is_same(&claimed, size_counts) => {
                entry.last_rx_ns = now_ns;
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
        if self.entries.len() >= self.max {
            self.evict(counters);
        }
        if self.entries.len() >= self.max {
            counters.count(Vn2vnCounter::DropNeighboursFull);
            return;
        }
        let full_bytes = self.own_fcoe_bytes.min(neighbour.max_fcoe_bytes);
        self.entries.push(NeighbourEntry {
            neighbour,
            last_rx_ns: now_ns,
            has_beaconed: false,
            is_pinned: false,
            path: PathState::new(now_ns, full_bytes, config),
            reported: Reported::Nothing,
            gone: None,
        });
        counters.count(Vn2vnCounter::Found);
    }

    /// Evicts the oldest evictable entry.
    fn evict(&mut self, counters: &mut Vn2vnCounters) {
        let entries = self.entries.iter().filter(|entry| entry.is_evictable());
        let oldest = entries.min_by_key(|entry| entry.last_rx_ns);
        if let Some(port_name) = oldest.map(|entry| entry.neighbour.port_name) {
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
        }
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
        let is_full = self.entries.len() >= self.max
            && !self.entries.iter().any(NeighbourEntry::is_evictable);
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

    /// Ends neighbours that were silent, and continues path tests.
    pub(super) fn handle_timeout(
        &mut self,
        now_ns: u64,
        config: &Vn2vnConfig,
        counters: &mut Vn2vnCounters,
    ) {
        let lifetime_ns = config.neighbour_lifetime_ns;
        let mut at = 0;
        while let Some(entry) = self.entries.get_mut(at) {
            let is_silent = entry.last_rx_ns.saturating_add(lifetime_ns) <= now_ns;
            if entry.gone.is_none() && is_silent {
                counters.count(Vn2vnCounter::Gone);
                if entry.reported == Reported::Nothing {
                    self.entries.swap_remove(at);
                    continue;
                }
                entry.gone = Some(GoneReason::Silent);
            } else {
                entry.path.handle_timeout(now_ns, config, counters);
            }
            at += 1;
        }
        self.recount();
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
                e.reported == Reported::Nothing || (is_up && e.is_ready())
            };
            let entry = self.entries.iter_mut().find(is_next)?;
            if entry.reported == Reported::Nothing {
                entry.reported = Reported::Found;
                Some(NeighbourChange::Found(entry.neighbour))
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
