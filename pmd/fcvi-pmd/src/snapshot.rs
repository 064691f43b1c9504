//! What a running process says of itself: one moment, as plain data.
//!
//! Counts are totals since what they count began, and never go down; rates are differences of two snapshots.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A process at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The process itself.
    pub process: ProcessInfo,
    /// Its pollers, one for each core.
    pub cores: Vec<CoreInfo>,
    /// Its NICs, in the order of the configuration.
    pub nics: Vec<NicInfo>,
    /// The applications that are attached.
    pub applications: Vec<ApplicationInfo>,
    /// Their VIs.
    pub vis: Vec<ViInfo>,
}

/// The process itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// Its process ID.
    pub pid: u32,
    /// The version of the program.
    pub version: String,
    /// How long it has been running, seconds.
    pub uptime_s: f64,
    /// The file that it was started with.
    pub config: String,
    /// Log lines that were lost because its standard error was not read.
    #[serde(default)]
    pub log_lines_lost: u64,
}

/// A poller.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CoreInfo {
    /// The core that it is pinned to.
    pub core: usize,
    /// Turns taken.
    pub turns: u64,
    /// Turns that found work.
    pub busy_turns: u64,
    /// The part of all turns that found work: 0 to 1.
    pub busy_ratio: f64,
    /// It sleeps at this moment.
    pub sleeping: bool,
}

impl CoreInfo {
    /// A poller with these counts.
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

/// `part` of `whole`; 0 of nothing.
pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

/// What a NIC's port is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NicState {
    /// It looks for an N_Port_ID that nobody else has.
    #[default]
    Probing,
    /// It can be reached.
    Up,
    /// What carries its frames failed.
    Failed,
}

impl NicState {
    /// As it is shown.
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
    /// What the driver drives: an interface, a segment.
    pub device: String,
    /// Its N_Port_ID; `None` while it looks for one.
    pub n_port_id: Option<String>,
    /// Its host address.
    pub host: String,
    /// What its port is doing.
    pub state: NicState,
    /// Frames that came in.
    pub rx_frames: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Frames that went out.
    pub tx_frames: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Messages between two programs here that were copied from memory to memory, without frames.
    pub local_messages: u64,
    /// Their bytes.
    pub local_bytes: u64,
    /// Every counter that `pmd::nic::counters` names; what was dropped is among them, by its reason.
    pub counters: BTreeMap<String, u64>,
}

/// What a counter of a NIC is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterKind {
    /// Something that was dropped, and why; a total.
    Drop,
    /// Something that happened; a total.
    Event,
    /// How much there is now.
    Level,
}

/// Counters that say how much there is, not how much there was.
const LEVELS: [&str; 6] = [
    "vis",
    "exchanges_open",
    "exchanges_dead",
    "regions",
    "registered_bytes",
    "port_failed",
];

/// Tells by its name what a counter is.
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
    /// What was dropped: the reasons and how often, those that never happened left out.
    pub fn drops(&self) -> impl Iterator<Item = (&str, u64)> {
        let drops = self
            .counters
            .iter()
            .filter(|(name, count)| **count > 0 && counter_kind(name) == CounterKind::Drop);
        drops.map(|(name, count)| (name.as_str(), *count))
    }
}

/// An application that is attached to a NIC; a program attached to two of them is there twice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplicationInfo {
    /// Its process ID.
    pub pid: u32,
    /// The name of its program.
    pub command: String,
    /// Its user.
    pub uid: u32,
    /// The name of its user; the number where it has none.
    pub user: String,
    /// The name of the NIC.
    pub nic: String,
    /// Its VIs.
    pub vis: u32,
    /// Its registered regions.
    pub regions: u32,
    /// Those with a bounce buffer, since the process cannot reach their memory.
    pub bounce_buffer_regions: u32,
    /// Their bytes, in whole pages.
    pub registered_bytes: u64,
    /// Descriptors taken from it.
    pub posted: u64,
    /// Descriptors completed for it.
    pub completed: u64,
    /// Calls of it that wait: for a connection, for its end.
    pub waiting: u32,
    /// Calls of it that failed because of a limit.
    pub refused_calls: u64,
    /// What it may have and has, by the keys of `[process.quota]`.
    pub quotas: BTreeMap<String, QuotaInfo>,
}

/// A quota of an application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaInfo {
    /// As much as it may have.
    pub limit: u64,
    /// As much as it has.
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
    /// The other end, if it is connected.
    pub peer: Option<PeerInfo>,
    /// Descriptors on its send queue.
    pub send_depth: u32,
    /// Descriptors on its receive queue.
    pub recv_depth: u32,
    /// Messages sent.
    pub messages_sent: u64,
    /// Their bytes.
    pub bytes_sent: u64,
    /// Messages received.
    pub messages_received: u64,
    /// Their bytes.
    pub bytes_received: u64,
    /// RDMA accesses of the peer that named no region, or were refused without a look-up, on this
    /// connection or the last one.
    pub rdma_refused: u32,
}

/// The other end of a connection.
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
    fn json_says_everything_and_comes_back_the_same() {
        let snapshot = sample::snapshot(3);
        let text = serde_json::to_string(&snapshot).unwrap();
        assert_eq!(serde_json::from_str::<Snapshot>(&text).unwrap(), snapshot);
        assert!(text.contains("\"drop_bad_crc\":9"), "{text}");
        assert!(text.contains("\"state\":\"probing\""), "{text}");
    }

    #[test]
    fn counters_are_told_apart_by_their_names() {
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
    fn a_poller_that_took_no_turn_was_not_busy() {
        assert_eq!(CoreInfo::new(0, 0, 0, false).busy_ratio, 0.0);
        assert_eq!(CoreInfo::new(0, 8, 2, false).busy_ratio, 0.25);
    }
}
