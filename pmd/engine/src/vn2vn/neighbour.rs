//! The other VN_Ports of the link: who they are, how large frames from them may be, when they are gone.
//!
//! The table is bounded. What the owner was not told yet is a state of the entries, so that no
//! queue of events can grow; an entry whose going was not told keeps its place until it is.

use fcvi_frame::MacAddress;
use fcvi_frame::fc::{FcType, NPortId};
use fcvi_frame::fcoe;
use fcvi_frame::fip::{Claim, VnPort};

use super::config::Vn2vnConfig;
use super::counters::{Vn2vnCounter, Vn2vnCounters};
use super::path::Path;

/// Another VN_Port of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its N_Port_ID.
    pub id: NPortId,
    /// Its Port_Name.
    pub port_name: u64,
    /// Its Node_Name.
    pub node_name: u64,
    /// The address of its interface, to which FIP frames go.
    pub enode_mac: MacAddress,
    /// The address of its FCoE frames.
    pub vn_port_mac: MacAddress,
    /// The largest FCoE PDU that it takes, as it says.
    pub max_fcoe_bytes: u16,
    /// The largest FCoE PDU that is known to arrive from it, and that both take; `None` as long
    /// as none is.
    pub path_fcoe_bytes: Option<u16>,
    /// Whether it speaks FC-VI.
    pub supports_fc_vi: bool,
}

impl Neighbour {
    pub(super) fn new(port: &VnPort, claim: &Claim) -> Self {
        Self {
            id: port.id.n_port_id,
            port_name: port.id.port_name,
            node_name: port.node_name,
            enode_mac: port.enode_mac,
            vn_port_mac: port.id.mac,
            max_fcoe_bytes: claim.max_fcoe_bytes,
            path_fcoe_bytes: None,
            supports_fc_vi: claim.fc4.supports(FcType::Vi),
        }
    }

    /// The largest data field of an FC frame that is known to arrive from it; 0 if none is.
    pub fn data_field_bytes(&self) -> usize {
        let pdu_bytes = self.path_fcoe_bytes.unwrap_or(0);
        fcoe::data_field_for_mtu(usize::from(pdu_bytes))
    }

    /// Whether this beacon, which says nothing of sizes, is its own.
    fn is_from(&self, port: &VnPort) -> bool {
        self.id == port.id.n_port_id
            && self.port_name == port.id.port_name
            && self.node_name == port.node_name
            && self.enode_mac == port.enode_mac
    }

    /// Whether a claim says what an earlier one said; that of a path test may have another size.
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
    /// Nothing was heard of it for the lifetime of a neighbour.
    Silent,
    /// The same port has another N_Port_ID, address or size now; it is found anew.
    Changed,
    /// Another port has its N_Port_ID now.
    Displaced,
    /// It never sent a beacon, the owner did not keep it, and there was no room for others.
    Evicted,
}

/// What the owner was told of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    Found,
    Heard,
}

#[derive(Clone, Debug)]
struct Entry {
    neighbour: Neighbour,
    heard_ns: u64,
    has_beaconed: bool,
    /// The owner has something with it.
    is_kept: bool,
    path: Path,
    told: Told,
    gone: Option<GoneReason>,
}

impl Entry {
    /// It must make room for others: only its claim speaks for it, and claims are cheap.
    fn is_to_yield(&self) -> bool {
        self.gone.is_none() && !self.has_beaconed && !self.is_kept
    }

    /// Its first beacon came and its path is known, and the owner was told neither.
    fn is_to_be_heard(&self) -> bool {
        let is_usable = self.has_beaconed && self.neighbour.path_fcoe_bytes.is_some();
        self.told == Told::Found && is_usable
    }

    fn has_news(&self) -> bool {
        self.gone.is_some() || self.told == Told::Nothing || self.is_to_be_heard()
    }

    fn is_to_ask(&self) -> bool {
        self.gone.is_none() && self.path.is_to_ask()
    }
}

/// What the owner is told next of the neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    Found(Neighbour),
    Heard(Neighbour),
    Gone(Neighbour, GoneReason),
}

/// Which frame told of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A claim notification to all.
    Notification,
    /// One to us alone: the other end tests its path, perhaps with a smaller size than its own.
    PathTest,
    /// A claim response whose Ethernet payload has so many bytes, padding included.
    Response {
        /// That number.
        pdu_bytes: usize,
    },
}

/// What became of a beacon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beaconed {
    /// It was a neighbour's.
    Known,
    /// Its sender is not known, and should hear a claim.
    Unknown,
    /// Its sender is not known, and there is no room for it.
    NoRoom,
}

/// The neighbours of a port.
#[derive(Debug)]
pub(super) struct Neighbours {
    entries: Vec<Entry>,
    max: usize,
    own_fcoe_bytes: u16,
    /// Entries with something to send, and with something to tell.
    asking: usize,
    news: usize,
}

impl Neighbours {
    pub(super) fn new(config: &Vn2vnConfig) -> Self {
        let max = config.max_neighbours.max(1);
        Self {
            entries: Vec::with_capacity(max),
            max,
            own_fcoe_bytes: config.fcoe_bytes(),
            asking: 0,
            news: 0,
        }
    }

    /// Forgets all of them, untold.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        (self.asking, self.news) = (0, 0);
    }

    /// Those that are there, and when something was heard of each last.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Neighbour, u64)> {
        let there = self.entries.iter().filter(|entry| entry.gone.is_none());
        there.map(|entry| (&entry.neighbour, entry.heard_ns))
    }

    fn find(&mut self, is_it: impl Fn(&Neighbour) -> bool) -> Option<&mut Entry> {
        let mut entries = self.entries.iter_mut();
        entries.find(|entry| entry.gone.is_none() && is_it(&entry.neighbour))
    }

    /// A claim or its response.
    pub(super) fn claimed(
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
            let is_there = now_ns.saturating_sub(entry.heard_ns) < config.missed_beacon_ns();
            if is_there && rank(&entry.neighbour) > rank(&claimed) {
                counters.count(Vn2vnCounter::DropContested);
                return;
            }
            self.end(GoneReason::Displaced, holder, counters);
        }
        let same_port = |n: &Neighbour| n.port_name == claimed.port_name;
        let size_counts = source != Source::PathTest;
        match self.find(same_port) {
            Some(entry) if entry.neighbour.is_same(&claimed, size_counts) => {
                entry.heard_ns = now_ns;
            }
            Some(_) => {
                self.end(GoneReason::Changed, same_port, counters);
                self.add(now_ns, claimed, config, counters);
            }
            None => self.add(now_ns, claimed, config, counters),
        }
        if let Source::Response { pdu_bytes } = source {
            self.arrived(claimed.port_name, pdu_bytes);
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
        self.entries.push(Entry {
            neighbour,
            heard_ns: now_ns,
            has_beaconed: false,
            is_kept: false,
            path: Path::new(now_ns, full_bytes, config),
            told: Told::Nothing,
            gone: None,
        });
        counters.count(Vn2vnCounter::Found);
    }

    /// The oldest one that must makes room.
    fn evict(&mut self, counters: &mut Vn2vnCounters) {
        let entries = self.entries.iter().filter(|entry| entry.is_to_yield());
        let oldest = entries.min_by_key(|entry| entry.heard_ns);
        if let Some(port_name) = oldest.map(|entry| entry.neighbour.port_name) {
            self.end(GoneReason::Evicted, |n| n.port_name == port_name, counters);
        }
    }

    /// A neighbour ends; it keeps its place if its end must be told.
    fn end(
        &mut self,
        reason: GoneReason,
        is_it: impl Fn(&Neighbour) -> bool,
        counters: &mut Vn2vnCounters,
    ) {
        let there = |entry: &Entry| entry.gone.is_none() && is_it(&entry.neighbour);
        let Some(at) = self.entries.iter().position(there) else {
            return;
        };
        counters.count(Vn2vnCounter::Gone);
        if self.entries[at].told == Told::Nothing {
            self.entries.swap_remove(at);
        } else {
            self.entries[at].gone = Some(reason);
        }
    }

    /// Whether this neighbour stays until it is silent, even if no beacon of it came.
    pub(super) fn keep(&mut self, id: NPortId, is_kept: bool) {
        if let Some(entry) = self.find(|n| n.id == id) {
            entry.is_kept = is_kept;
        }
    }

    /// A response of this size came.
    fn arrived(&mut self, port_name: u64, pdu_bytes: usize) {
        let own_fcoe_bytes = self.own_fcoe_bytes;
        let Some(entry) = self.find(|n| n.port_name == port_name) else {
            return;
        };
        let full_bytes = own_fcoe_bytes.min(entry.neighbour.max_fcoe_bytes);
        entry.path.arrived(pdu_bytes, full_bytes);
        if let Path::Known(size_bytes) = entry.path {
            entry.neighbour.path_fcoe_bytes = Some(size_bytes);
        }
    }

    /// A beacon. The first one of a neighbour, and a known path, make it one to log in with.
    pub(super) fn beaconed(
        &mut self,
        now_ns: u64,
        port: &VnPort,
        config: &Vn2vnConfig,
    ) -> Beaconed {
        let own_fcoe_bytes = self.own_fcoe_bytes;
        let is_full =
            self.entries.len() >= self.max && !self.entries.iter().any(Entry::is_to_yield);
        let Some(entry) = self.find(|n| n.is_from(port)) else {
            return if is_full {
                Beaconed::NoRoom
            } else {
                Beaconed::Unknown
            };
        };
        entry.heard_ns = now_ns;
        entry.has_beaconed = true;
        if entry.path == Path::Failed {
            let full_bytes = own_fcoe_bytes.min(entry.neighbour.max_fcoe_bytes);
            entry.path = Path::new(now_ns, full_bytes, config);
        }
        self.recount();
        Beaconed::Known
    }

    /// Ends those that were silent, and goes on with paths.
    pub(super) fn handle_timeout(
        &mut self,
        now_ns: u64,
        config: &Vn2vnConfig,
        counters: &mut Vn2vnCounters,
    ) {
        let lifetime_ns = config.neighbour_lifetime_ns;
        let mut at = 0;
        while let Some(entry) = self.entries.get_mut(at) {
            let is_silent = entry.heard_ns.saturating_add(lifetime_ns) <= now_ns;
            if entry.gone.is_none() && is_silent {
                counters.count(Vn2vnCounter::Gone);
                if entry.told == Told::Nothing {
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

    /// The next deadline.
    pub(super) fn next_timeout(&self, config: &Vn2vnConfig) -> Option<u64> {
        let there = self.entries.iter().filter(|entry| entry.gone.is_none());
        let deadlines = there.map(|entry| {
            let silent_ns = entry.heard_ns.saturating_add(config.neighbour_lifetime_ns);
            let path_ns = entry.path.deadline_ns();
            path_ns.map_or(silent_ns, |path_ns| path_ns.min(silent_ns))
        });
        deadlines.min()
    }

    /// The next neighbour whose path is to be tested: its interface, and the size to claim.
    pub(super) fn poll_path_test(&mut self) -> Option<(MacAddress, u16)> {
        if self.asking == 0 {
            return None;
        }
        let entry = self.entries.iter_mut().find(|entry| entry.is_to_ask())?;
        let size_bytes = entry.path.take_size()?;
        self.asking -= 1;
        Some((entry.neighbour.enode_mac, size_bytes))
    }

    /// What the owner is told next: ends before beginnings. That one was heard waits until
    /// we are up.
    pub(super) fn poll_news(&mut self, is_up: bool) -> Option<News> {
        if self.news == 0 {
            return None;
        }
        let gone = self.entries.iter().position(|entry| entry.gone.is_some());
        let news = if let Some(at) = gone {
            let entry = self.entries.swap_remove(at);
            entry.gone.map(|reason| News::Gone(entry.neighbour, reason))
        } else {
            let is_next = |e: &&mut Entry| e.told == Told::Nothing || (is_up && e.is_to_be_heard());
            let entry = self.entries.iter_mut().find(is_next)?;
            if entry.told == Told::Nothing {
                entry.told = Told::Found;
                Some(News::Found(entry.neighbour))
            } else {
                entry.told = Told::Heard;
                Some(News::Heard(entry.neighbour))
            }
        };
        self.recount();
        news
    }

    fn recount(&mut self) {
        self.asking = self
            .entries
            .iter()
            .filter(|entry| entry.is_to_ask())
            .count();
        self.news = self.entries.iter().filter(|entry| entry.has_news()).count();
    }

    #[cfg(test)]
    pub(super) fn places(&self) -> usize {
        self.entries.capacity()
    }
}
