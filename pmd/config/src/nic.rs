//! A NIC: the keys that all NICs have, and the tables beside its network.

use std::path::PathBuf;

use serde::Deserialize;
use vi_types::LockPolicy;

use crate::address::OwnHost;
use crate::addressing::Addressing;
use crate::file::read_table;
use crate::network::Network;
use crate::progress::Progress;
use crate::recovery::{Recovery, RecoveryParameters};
use crate::table::{self, Choice as _, Form, Value, range, table, table_form, value};

/// An hour.
pub(crate) const HOUR_MS: u64 = 3_600_000;
/// Ten seconds.
pub(crate) const TEN_SECONDS_US: u64 = 10_000_000;
/// Minimum of FCVI_ULP_TIMEOUT: a quarter of it is used as an interval.
pub(crate) const MIN_ULP_TIMEOUT_MS: u64 = 4;
/// Discriminator length that every provider supports (VIPL 2.4); programs written for it have no larger buffers.
const MIN_DISCRIMINATOR_BYTES: u64 = 16;
/// Maximum number of queues of a NIC that can have handlers: two of each VI, and every completion queue.
const MAX_NOTIFY_THREADS: u64 = 2 * 4096 + 65536;
/// Maximum of the limits on refused RDMA accesses.
const MAX_MISSES: u64 = 1_000_000;

/// Access of VIs without a protection tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protection {
    /// Such VIs cannot be created.
    #[default]
    Strict,
    /// They may access all regions of their process.
    Lenient,
}

impl Value for Protection {
    fn text(&self) -> String {
        table::word(self, '_')
    }
}

impl Value for LockPolicy {
    fn text(&self) -> String {
        table::word(self, '_')
    }
}

table! {
    /// One NIC.
    pub struct NicConfig in "[[nic]]" {
        /// Its name; by default VINICn with its index.
        pub name: String = String::new(), value("a name in quotes, \"VINIC0\"");
        /// What connects it with other NICs.
        pub network: Network = Network::default(), Form::Choice(Network::TABLES);
        /// Host address of this NIC: IPv4 or IPv6. With `[nic.vi_tcp]` a link-local address includes its interface,
        /// `fe80::1%eth0`. Default: `::1` over shared memory, 127.0.0.1 with `[nic.vi_tcp]`; required on a wire.
        pub host: Option<OwnHost> = None, value("an IP address in quotes, \"192.0.2.1\" or \"2001:db8::1\"");
        /// Hosts file of the name service. Default: the system's.
        pub hosts_file: Option<PathBuf> = None, value("the path of a file, in quotes");
        /// On a wire: how the NIC gets its N_Port_ID and finds other hosts. Default: `[nic.discovery]`.
        pub addressing: Addressing = Addressing::default(), Form::OptionalChoice(Addressing::TABLES);
        /// Which thread polls. In a file with `[process]`: `pinned`, also by default.
        pub progress: Progress = Progress::default(), Form::OneOf(Progress::TABLES);
        /// Time that blocking calls and the NIC's thread poll before they sleep, microseconds. Default: 50, and of
        /// blocking calls up to 1000 as long as their waits end within a few times what waking threads takes.
        pub spin_us: Option<u64> = None, range(0, TEN_SECONDS_US);
        /// Access of VIs without a protection tag. The environment variable `VIPL_PROTECTION` overrides it for NICs that
        /// are opened by name.
        pub protection: Protection = Protection::Strict, value("\"strict\" or \"lenient\"");
        /// Locking of registered pages.
        pub lock_memory: LockPolicy = LockPolicy::BestEffort,
            value("\"best_effort\", \"required\" or \"never\"");
        /// FCVI_ULP_TIMEOUT in milliseconds. Default: twice R_A_TOV.
        pub ulp_timeout_ms: Option<u64> = None, range(MIN_ULP_TIMEOUT_MS, 2 * HOUR_MS);
        /// Initial retry interval of an unmatched peer-to-peer request. Each interval is four times the previous one, up
        /// to a quarter of FCVI_ULP_TIMEOUT; with recovery up to a 16th of it, but at least 100 ms, or the quarter where
        /// that is less. Applies to every other unanswered frame of a peer-to-peer connection, too, and matters only
        /// where frames are lost. With `[nic.vi_tcp]` each interval is twice the previous one, up to 16 times the first.
        /// Milliseconds.
        pub peer_retry_ms: u64 = 10, range(1, HOUR_MS);
        /// What its programs and peers may use.
        pub limits: Limits = Limits::default(), table::subtable::<Limits>();
        /// Of NICs with FC-VI frames, all but those with `[nic.vi_tcp]`.
        pub fc_vi: FcVi = FcVi::default(), table::subtable::<FcVi>();
        /// Message recovery (retransmission of lost frames), of NICs with FC-VI frames: offered for connections of the
        /// reliable levels, and used if both peers offer it. Without it the first lost frame breaks a reliable
        /// connection. `false`, `true`, or the table, which means `true`. Default: off over shared memory, which is
        /// lossless, on on a wire.
        pub recovery: Option<Recovery> = None,
            Form::SwitchOrTable(table_form::<RecoveryParameters>("", read_table::<RecoveryParameters>));
    }
}

table! {
    /// Limits of a NIC.
    pub struct Limits in "[nic.limits]" {
        /// Maximum number of VIs.
        pub max_vi: u32 = 1024, range(1, 4096);
        /// Maximum number of descriptors on each work queue.
        pub max_descriptors_per_queue: u32 = 1024, range(2, 65536);
        /// Maximum number of segments in a descriptor, including the address segment.
        pub max_segments_per_descriptor: u32 = 256, range(253, 65535);
        /// Maximum number of completion queues.
        pub max_cq: u32 = 1024, range(1, 65536);
        /// Maximum number of entries of a completion queue.
        pub max_cq_entries: u32 = 1 << 20, range(1, 1 << 24);
        /// Maximum number of pending notify handlers of each work queue and completion queue.
        pub max_notifies_per_queue: u32 = 1024, range(1, 1 << 20);
        /// Maximum number of threads in one process that call such handlers: one for each queue with which a handler was
        /// ever registered, until the queue is destroyed.
        pub max_notify_threads: u32 = 1024, range(1, MAX_NOTIFY_THREADS);
        /// Maximum message length in bytes.
        pub max_transfer_bytes: u32 = 1 << 20, range(65536, 0x7FFF_FFFF);
        /// Maximum number of registered regions.
        pub max_regions: u32 = 32768, range(1, 65535);
        /// Maximum number of registered bytes, counted in whole pages.
        pub max_registered_bytes: u64 = 1 << 40, range(4096, 1 << 47);
        /// Maximum length in bytes of one registered region.
        pub max_region_bytes: u64 = 1 << 40, range(1, 1 << 47);
        /// Maximum number of protection tags, at least `max_vi`.
        pub max_ptags: u32 = 4096, range(1, 1 << 24);
        /// Maximum number of pending incoming connection requests.
        pub max_incoming: u32 = 256, range(1, 65536);
        /// Maximum length of a discriminator in bytes; with `[nic.vi_tcp]` 16. VipConnectWait writes up to this many
        /// bytes after the host address that it returns; connection requests with longer discriminators are rejected.
        pub max_discriminator_bytes: u16 = MIN_DISCRIMINATOR_BYTES as u16,
            range(MIN_DISCRIMINATOR_BYTES, vi_types::Discriminator::MAX_BYTES as u64);
        /// Maximum number of concurrent RDMA reads that a VI serves, which is advertised to its peer.
        pub max_rdma_reads: u16 = 16, range(1, 256);
        /// Maximum number of descriptors of a VI in flight (sent and not complete): RDMA reads and all descriptors
        /// posted after them; at Reliable Reception and with recovery all descriptors. Further descriptors wait. The
        /// peer may have a different value: each side queues up to 256 responses while its port has no room.
        pub max_in_flight: u32 = 64, range(1, 256);
        /// Token bucket size for RDMA accesses of one peer (an N_Port; with `[nic.vi_tcp]` a host address or user) whose
        /// handle names no region of the VI's tag. While the bucket is empty, all accesses of the peer are refused without a lookup,
        /// valid ones too.
        pub rdma_miss_burst: u32 = 64, range(1, MAX_MISSES);
        /// Tokens added to that bucket per hour.
        pub rdma_misses_per_hour: u32 = 60, range(1, MAX_MISSES);
        /// Number of such accesses, including those refused without a lookup, after which a connection breaks, also at
        /// Unreliable Delivery.
        pub rdma_misses_per_connection: u32 = 256, range(1, MAX_MISSES);
        /// Maximum number of log lines per second that peers and programs cause on this NIC: asynchronous errors without
        /// a handler, rejected connections. Suppressed lines are counted.
        pub max_log_lines_per_second: u32 = 50, range(1, 1_000_000);
    }
}

table! {
    /// FC-VI frames of a NIC.
    pub struct FcVi in "[nic.fc_vi]" {
        /// E_D_TOV in milliseconds. Accepting a connection fails if the client does not confirm it within four times this,
        /// or within FCVI_ULP_TIMEOUT if that is less.
        pub e_d_tov_ms: u64 = 2000, range(1, HOUR_MS);
        /// R_A_TOV in milliseconds: the maximum lifetime of a frame in the network. Default: 1000 over shared memory, 10000
        /// on a wire.
        pub r_a_tov_ms: Option<u64> = None, range(1, HOUR_MS);
        /// Timeout for ports of a host that have not responded to a request after another port of the host responded
        /// NO_MATCH. Milliseconds. Default: 2000 over shared memory, where all ports exist and may only be slow; 100 on a
        /// wire, where most of a configured range may be unused.
        pub silent_port_ms: Option<u64> = None, range(0, HOUR_MS);
        /// Copy messages between two VIs of this NIC from memory to memory, without frames: much faster, but `capture`
        /// and `fault` do not apply to them. Connections are still established by frames. Default: off; on in a file with
        /// `[process]`, where a NIC with `fault` or `capture` must set it explicitly.
        pub shortcut: bool = false, value("true or false");
        /// Write every frame to this pcapng file. For debugging; slow.
        pub capture: Option<PathBuf> = None, value("the path of a file, in quotes");
        /// Fault injection, for tests of programs.
        pub fault: Option<FaultConfig> = None, table::subtable::<FaultConfig>();
    }
}

table! {
    /// Fault injection rates, in parts per million of the frames.
    pub struct FaultConfig in "[nic.fc_vi.fault]" {
        /// Seed of the random choices.
        pub seed: u64 = 0, range(0, u64::MAX);
        /// Frames lost.
        pub loss_ppm: u32 = 0, range(0, 1_000_000);
        /// Frames sent twice.
        pub duplication_ppm: u32 = 0, range(0, 1_000_000);
        /// Frames reordered.
        pub reordering_ppm: u32 = 0, range(0, 1_000_000);
        /// Frames with a flipped bit.
        pub corruption_ppm: u32 = 0, range(0, 1_000_000);
        /// Frames delayed.
        pub delay_ppm: u32 = 0, range(0, 1_000_000);
        /// Maximum delay of a frame, in port calls.
        pub delay_turns: u32 = 0, range(0, 1_000_000);
    }
}

impl std::fmt::Display for FaultConfig {
    /// Formats the keys and values.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use crate::table::Table as _;
        for (index, (key, value)) in Self::KEYS.iter().zip(self.texts()).enumerate() {
            let space = if index > 0 { " " } else { "" };
            write!(f, "{space}{}={value}", key.name)?;
        }
        Ok(())
    }
}

impl NicConfig {
    /// Returns whether this NIC uses discovery.
    #[must_use]
    pub fn discovers(&self) -> bool {
        self.network.is_on_wire() && matches!(self.addressing, Addressing::Discovery(_))
    }

    /// Returns R_A_TOV in milliseconds.
    #[must_use]
    pub fn r_a_tov_ms(&self) -> u64 {
        self.fc_vi
            .r_a_tov_ms
            .unwrap_or(self.network.default_r_a_tov_ms())
    }

    /// Returns the timeout for a silent port after another one responded NO_MATCH, in milliseconds.
    #[must_use]
    pub fn silent_port_ms(&self) -> u64 {
        let is_on_wire = self.network.is_on_wire();
        let default = if is_on_wire { 100 } else { 2000 };
        self.fc_vi.silent_port_ms.unwrap_or(default)
    }

    /// Returns FCVI_ULP_TIMEOUT in milliseconds.
    #[must_use]
    pub fn ulp_timeout_ms(&self) -> u64 {
        self.ulp_timeout_ms
            .unwrap_or_else(|| self.r_a_tov_ms().saturating_mul(2).max(MIN_ULP_TIMEOUT_MS))
    }

    /// Returns the parameters of message recovery; `None` if it is not offered to peers. The windows are limited by the
    /// capacity of a receive ring.
    #[must_use]
    pub fn recovery(&self) -> Option<RecoveryParameters> {
        let mut parameters = match &self.recovery {
            Some(Recovery::Switch(false)) => return None,
            None if !self.network.is_on_wire() => return None,
            Some(Recovery::Switch(true)) | None => RecoveryParameters::default(),
            Some(Recovery::Parameters(parameters)) => parameters.clone(),
        };
        if let Some(frames) = self.network.rx_frames() {
            parameters.window_frames = parameters.window_frames.min(frames);
        }
        let most = parameters.window_frames;
        parameters.min_window_frames = parameters.min_window_frames.min(most);
        Some(parameters)
    }
}
