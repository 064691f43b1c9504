//! The state of a running process as plain data.
//!
//! Counts are totals since the start of the counted object, and never decrease; rates are differences of two snapshots.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A snapshot of a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The process itself.
    pub process: ProcessInfo,
    /// The pollers, one for each core.
    pub cores: Vec<CoreInfo>,
    /// The NICs, in the order of the configuration.
    pub nics: Vec<NicInfo>,
    /// The attached applications.
    pub applications: Vec<ApplicationInfo>,
    /// The VIs of the applications.
    pub vis: Vec<ViInfo>,
}

/// The process itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// Its process ID.
    pub pid: u32,
    /// The version of the program.
    pub version: String,
    /// Time since the start, seconds.
    pub uptime_s: f64,
    /// The path of its configuration.
    pub config: String,
    /// Log lines lost because standard error was not read.
    #[serde(default)]
    pub log_lines_lost: u64,
}

/// A poller.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CoreInfo {
    /// The core that it is pinned to.
    pub core: usize,
    /// Poll iterations.
    pub turns: u64,
    /// Poll iterations that found work.
    pub busy_turns: u64,
    /// The fraction of poll iterations that found work, 0 to 1.
    pub busy_ratio: f64,
    /// True while it sleeps.
    pub sleeping: bool,
}

impl CoreInfo {
    /// Creates an entry from these counts.
    #[must_use]
    pub fn new(core: usize, turns: u64, busy_turns: u64, sleeping: bool) -> Self {
        Self {
            core,
            turns,
            busy_turns,
            busy_ratio: ratio(busy_turns, turns),
            sleeping,
        }
    }
}

/// `part / whole`; 0 if `whole` is 0.
pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

/// The state of a NIC's port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NicState {
    /// It probes for a free N_Port_ID.
    #[default]
    Probing,
    /// It is up.
    Up,
    /// It failed.
    Failed,
}

impl NicState {
    /// The name of the state.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Probing => "probing",
            Self::Up => "up",
            Self::Failed => "failed",
        }
    }
}

/// A NIC.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NicInfo {
    /// Its name in the configuration.
    pub name: String,
    /// The driver of its port.
    pub driver: String,
    /// The device of its port: an interface, a segment.
    pub device: String,
    /// Its N_Port_ID; `None` while it probes for one.
    pub n_port_id: Option<String>,
    /// Its host address.
    pub host: String,
    /// The state of its port.
    pub state: NicState,
    /// Frames received.
    pub rx_frames: u64,
    /// Bytes of frames received.
    pub rx_bytes: u64,
    /// Frames sent.
    pub tx_frames: u64,
    /// Bytes of frames sent.
    pub tx_bytes: u64,
    /// Messages between two programs of this host that were copied from memory to memory, without frames.
    pub local_messages: u64,
    /// Bytes of these messages.
    pub local_bytes: u64,
    /// All counters of `pmd::nic::counters`, including the drops by reason.
    pub counters: BTreeMap<String, u64>,
}

/// The kind of a NIC counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterKind {
    /// A total of drops for a reason.
    Drop,
    /// A total of events.
    Event,
    /// A present value.
    Level,
}

/// Names of the counters that are present values, not totals.
const LEVELS: [&str; 6] = [
    "vis",
    "exchanges_open",
    "exchanges_dead",
    "regions",
    "registered_bytes",
    "port_failed",
];

/// Derives the kind of a counter from its name.
#[must_use]
pub fn counter_kind(name: &str) -> CounterKind {
    if LEVELS.contains(&name) {
        CounterKind::Level
    } else if name
        .split('_')
        .any(|word| matches!(word, "drop" | "drops" | "dropped"))
    {
        CounterKind::Drop
    } else {
        CounterKind::Event
    }
}

impl NicInfo {
    /// Returns the reasons of drops and their counts, without those that are 0.
    pub fn drops(&self) -> impl Iterator<Item = (&str, u64)> {
        let drops = self
            .counters
            .iter()
            .filter(|(name, count)| **count > 0 && counter_kind(name) == CounterKind::Drop);
        drops.map(|(name, count)| (name.as_str(), *count))
    }
}

/// An application attached to a NIC; a program that is attached to two NICs has two entries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplicationInfo {
    /// Its process ID.
    pub pid: u32,
    /// The name of its program.
    pub command: String,
    /// Its user.
    pub uid: u32,
    /// The name of its user; the user ID if it has no name.
    pub user: String,
    /// The name of the NIC.
    pub nic: String,
    /// Number of its VIs.
    pub vis: u32,
    /// Number of its registered regions.
    pub regions: u32,
    /// Number of regions with a bounce buffer, since the process cannot access their memory.
    pub bounce_buffer_regions: u32,
    /// Registered bytes, in whole pages.
    pub registered_bytes: u64,
    /// Descriptors submitted by it.
    pub posted: u64,
    /// Descriptors completed for it.
    pub completed: u64,
    /// Short messages of private memory that were passed without system calls, sent and received.
    pub inline_messages: u64,
    /// Calls in progress.
    pub waiting: u32,
    /// Calls that failed because of a limit, and posts for which the process had no memory.
    pub refused_calls: u64,
    /// Quotas and their use, by the keys of `[process.quota]`.
    pub quotas: BTreeMap<String, QuotaInfo>,
}

/// A quota of an application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaInfo {
    /// The limit.
    pub limit: u64,
    /// The amount in use.
    pub in_use: u64,
}

/// A VI of an application.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViInfo {
    /// The process ID of its application.
    pub application: u32,
    /// The name of its NIC.
    pub nic: String,
    /// Its number on the NIC.
    pub index: u32,
    /// Its state: Idle, ConnectPending, Connected or Error.
    pub state: String,
    /// Its reliability level: UD, RD or RR.
    pub reliability: String,
    /// The peer, if the VI is connected.
    pub peer: Option<PeerInfo>,
    /// Descriptors on its send queue.
    pub send_depth: u32,
    /// Descriptors on its receive queue.
    pub recv_depth: u32,
    /// Messages sent.
    pub messages_sent: u64,
    /// Bytes of messages sent.
    pub bytes_sent: u64,
    /// Messages received.
    pub messages_received: u64,
    /// Bytes of messages received.
    pub bytes_received: u64,
    /// RDMA accesses of the peer to no registered region, or refused without a look-up, on the present or last
    /// connection.
    pub rdma_refused: u32,
}

/// The peer of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerInfo {
    /// Its host address.
    pub host: String,
    /// Its N_Port_ID; empty with VI/TCP.
    pub n_port_id: String,
}

#[cfg(test)]
pub(crate) mod sample;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshot_round_trips_through_json() {
        let snapshot = sample::snapshot(3);
        let text = serde_json::to_string(&snapshot).unwrap();
        assert_eq!(serde_json::from_str::<Snapshot>(&text).unwrap(), snapshot);
        assert!(text.contains("\"drop_bad_crc\":9"), "{text}");
        assert!(text.contains("\"state\":\"probing\""), "{text}");
    }

    #[test]
    fn counter_kind_is_derived_from_the_name() {
        for drop in [
            "drop_bad_crc",
            "port_drop_rx_ring_full",
            "events_dropped",
            "vn_port_drop_full",
        ] {
            assert_eq!(counter_kind(drop), CounterKind::Drop, "{drop}");
        }
        for event in [
            "connects",
            "tx_frames",
            "lost_messages",
            "registrations_unlocked",
        ] {
            assert_eq!(counter_kind(event), CounterKind::Event, "{event}");
        }
        for level in LEVELS {
            assert_eq!(counter_kind(level), CounterKind::Level, "{level}");
        }
        let snapshot = sample::snapshot(0);
        let drops: Vec<_> = snapshot.nics[0].drops().collect();
        assert_eq!(drops, [("drop_bad_crc", 3)]);
    }

    #[test]
    fn busy_ratio_without_polls_is_zero() {
        assert_eq!(CoreInfo::new(0, 0, 0, false).busy_ratio, 0.0);
        assert_eq!(CoreInfo::new(0, 8, 2, false).busy_ratio, 0.25);
    }
}
