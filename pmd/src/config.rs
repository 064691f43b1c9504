//! The configuration file: NICs, their ports, timers and limits.
//!
//! TOML; every key has its unit in its name and a default; unknown keys are errors. See `configs/`.

mod address;
mod admission;
mod check;
mod conflicts;
mod error;
mod file;
mod key_file;
mod keys;
mod parse;
mod port;
mod privileged;
mod process;
mod progress;
mod quota_shares;
mod rdma_miss_limits;
mod recovery;
mod tls;
mod transport;

use std::ffi::OsStr;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use fcvi_frame::fc::NPortId;
use pmd_port::environment;
use serde::Deserialize;
use vi_types::LockPolicy;

use admission::UserDatabase;
use file::{File, TablePath};

use crate::coalesce::MAX_FRAMES;

pub(crate) use address::ip_address;
pub use address::{OwnHost, host_address};
pub use admission::Refusal;
pub use error::ConfigError;
pub use port::{CopyMode, PortKind, WITHOUT_DPDK};
pub use privileged::PRIVILEGED_CONFIG;
pub use process::{
    ApplicationConfig, Idle, Principal, ProcessConfig, Quota, QuotaConfig, Shares, UserQuota,
};
pub use progress::Progress;
pub use tls::TlsConfig;
pub use transport::TransportKind;

/// Environment variable with the path of the configuration file, which is read when a NIC is opened by name.
pub const CONFIG_VARIABLE: &str = "VIADUCT_CONFIG";

/// Environment variable that overrides `protection` of every NIC that is opened by name: `strict` or
/// `lenient`.
pub const PROTECTION_VARIABLE: &str = "VIPL_PROTECTION";

/// Minimum of FCVI_ULP_TIMEOUT: a quarter of it is used as an interval.
const MIN_ULP_TIMEOUT_MS: u64 = 4;
/// Discriminator length that every provider supports (VIPL 2.4); programs written for it have no larger buffers.
const MIN_DISCRIMINATOR_BYTES: u16 = 16;

/// A whole configuration file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The NICs, in order: VINIC0, VINIC1, ... unless they have a `name`.
    #[serde(rename = "nic")]
    pub nics: Vec<NicConfig>,
    /// Other names of NICs: `alias = "VINIC0"`.
    pub alias: std::collections::BTreeMap<String, String>,
    /// The datapath process that opens these NICs and serves applications; without it, each program opens the NICs
    /// itself.
    pub process: Option<ProcessConfig>,
}

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

/// Another host and its N_Port_IDs, for networks without discovery.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NeighbourConfig {
    /// Its host address: IPv4 or IPv6.
    pub host: IpAddr,
    /// Its N_Port_IDs: `"00.01.01"`, or a range `"00.01.01-00.01.08"`.
    pub n_port_ids: String,
}

/// Fault injection rates, in parts per million of the frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FaultConfig {
    /// Seed of the random choices.
    pub seed: u64,
    /// Frames lost.
    pub loss_ppm: u32,
    /// Frames sent twice.
    pub duplication_ppm: u32,
    /// Frames reordered.
    pub reordering_ppm: u32,
    /// Frames with a flipped bit.
    pub corruption_ppm: u32,
    /// Frames delayed.
    pub delay_ppm: u32,
    /// Maximum delay of a frame, in port calls.
    pub delay_turns: u32,
}

/// One NIC.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NicConfig {
    /// Its name; by default VINICn with its index.
    pub name: String,
    /// FC-VI frames over a port, or VI/TCP.
    pub transport: TransportKind,
    /// `vi-tcp`: the TCP port of VI/TCP, the same on all hosts that connect; 1 to 65535.
    pub tcp_port: u16,
    /// `vi-tcp`: sends wait until the peer has posted receives, if both peers enable it: a sender may be ahead of its
    /// receiver. Without it a message without a posted receive breaks a reliable connection.
    pub flow_control: bool,
    /// `vi-tcp`: with flow control, an otherwise silent receiver advertises new receives as soon as its peer has fewer
    /// than this many credits; 1 to 32767.
    pub credits_low: u16,
    /// `vi-tcp`: all connections use TLS; hosts without TLS, or with certificates of other authorities, are rejected.
    /// The TCP port cannot be shared by several programs.
    pub tls: Option<TlsConfig>,
    /// `vi-tcp`: a file of pre-shared keys: the NIC connects only to hosts that prove possession of the key for their
    /// address. Each line is `"ADDRESS" = "KEY"`, or `"*"` for all other hosts; a key is 16 to 64 bytes
    /// in hexadecimal. The file must be accessible to its owner only. It is read when the NIC is opened.
    pub key_file: Option<PathBuf>,
    /// Driver of the port.
    pub port: PortKind,
    /// `shm`: name of the segment.
    pub segment: String,
    /// Directory of the segment (`shm`), or of the programs that share a TCP port (`vi-tcp`). Default: the runtime
    /// directory of the user, or /dev/shm.
    pub directory: Option<PathBuf>,
    /// `shm`: capacity of the ring from one station to another, in frames; a power of two.
    pub ring_frames: u32,
    /// `shm`: maximum number of stations in the segment.
    pub max_stations: u32,
    /// `af_packet`, `af_xdp`: network interface.
    pub interface: String,
    /// On a wire: the N_Port_ID of this NIC, or a range of which each program claims a free one. Without it discovery
    /// is used: each program claims an N_Port_ID by FIP VN2VN, logs in to its neighbours, and requests their host
    /// addresses.
    pub n_port_ids: String,
    /// Discovery: Port_Name of this NIC, `"20:00:52:54:00:00:00:01"`, for one program at a time. Default: a
    /// random one for each NIC handle.
    pub port_name: Option<String>,
    /// Discovery: Node_Name of this NIC, likewise.
    pub node_name: Option<String>,
    /// Discovery: beacon interval; a neighbour whose beacons are missing for two and a half
    /// intervals is removed. All ports of a link should have the same. Milliseconds.
    pub beacon_ms: u64,
    /// Discovery: timeout of opening the NIC for an N_Port_ID, and of a connection request for
    /// an unknown host. Milliseconds.
    pub discovery_ms: u64,
    /// `af_packet`: frames in the receive ring. `af_xdp`: frames of each queue, rounded up to a power of two. `dpdk`:
    /// frames of each queue.
    pub rx_frames: u32,
    /// On a wire: frames in the send ring; `af_xdp` rounds up to a power of two.
    pub tx_frames: u32,
    /// `af_xdp`: the first receive queue of the interface, and the send queue; 0 to 65535.
    pub queue: u32,
    /// `af_xdp`, `dpdk`: number of receive queues of the interface or device; 1 to 64.
    pub queues: u32,
    /// `af_xdp`: whether frames are copied.
    pub copy: CopyMode,
    /// `dpdk`: DPDK name of the device, followed by its comma-separated keys: a PCI address, `"0000:01:00.0"`, a
    /// virtual device, `"net_memif0,role=server"`, or `"ring:NAME"`, one end of a pair of rings in this process. Each
    /// NIC has its own device, except that two NICs may have the two ends of such a pair.
    pub device: String,
    /// `dpdk`: further EAL arguments. EAL is initialized once per process: the same for all NICs of a file.
    pub args: Vec<String>,
    /// `dpdk`: use huge pages, which hardware NICs require; otherwise ordinary pages. The same for all NICs of a file.
    pub huge_pages: bool,
    /// `dpdk`: MiB that are allocated at the start, at most 1048576. With `huge_pages`, 0 means allocation on
    /// demand. The same for all NICs of a file.
    pub memory_mb: u32,
    /// `dpdk`: MTU to set on the device, 302 to 2546 bytes. Default: its current MTU.
    pub mtu_bytes: Option<u32>,
    /// Host address of this NIC: IPv4 or IPv6. With `vi-tcp` a link-local address includes its interface,
    /// `fe80::1%eth0`. Default: `::1` on `shm`, 127.0.0.1 with `vi-tcp`; required on a wire.
    pub host: Option<OwnHost>,
    /// Other hosts, for networks without discovery.
    pub neighbour: Vec<NeighbourConfig>,
    /// Hosts file of the name service. Default: the system's.
    pub hosts_file: Option<PathBuf>,
    /// Which thread polls. In a file with `[process]`: `pinned`, also by default.
    pub progress: Progress,
    /// `pinned`: the core; 0 to 1023. In a file with `[process]` several NICs may have the same core: one thread polls
    /// them all. Default: the last core that the process may use.
    pub core: Option<usize>,
    /// `inline`: time without a call after which the NIC's thread starts polling, microseconds.
    pub takeover_us: u64,
    /// `inline`: maximum burst of consecutively posted sends, in frames on a wire, in messages per system call with
    /// `vi-tcp`; 1 to 32; 1 sends each immediately. An incomplete burst is sent by the next call that does not post, or
    /// when the NIC's thread starts polling.
    pub coalesce_frames: u32,
    /// Time that blocking calls and the NIC's thread spin before they sleep, microseconds.
    pub spin_us: u64,
    /// Access of VIs without a protection tag. [`PROTECTION_VARIABLE`] overrides it for NICs that are opened by name.
    pub protection: Protection,
    /// Locking of registered pages.
    pub lock_memory: LockPolicy,
    /// Maximum number of VIs, up to 4096.
    pub max_vi: u32,
    /// Maximum number of descriptors on each work queue.
    pub max_descriptors_per_queue: u32,
    /// Maximum number of segments in a descriptor, including the address segment; 253 to 65535.
    pub max_segments_per_descriptor: u32,
    /// Maximum number of completion queues.
    pub max_cq: u32,
    /// Maximum number of entries of a completion queue.
    pub max_cq_entries: u32,
    /// Maximum number of pending notify handlers of each work queue and completion queue.
    pub max_notifies_per_queue: u32,
    /// Maximum number of threads in one process that call such handlers: one for each queue with which a handler was
    /// ever registered, until the queue is destroyed.
    pub max_notify_threads: u32,
    /// Maximum message length in bytes.
    pub max_transfer_bytes: u32,
    /// Maximum number of registered regions, up to 65535.
    pub max_regions: u32,
    /// Maximum number of registered bytes, counted in whole pages.
    pub max_registered_bytes: u64,
    /// Maximum length in bytes of one registered region.
    pub max_region_bytes: u64,
    /// Maximum number of protection tags.
    pub max_ptags: u32,
    /// Maximum number of pending incoming connection requests.
    pub max_incoming: u32,
    /// Maximum length of a discriminator in bytes, 16 to 44; with `vi-tcp` 16. VipConnectWait writes up to this many
    /// bytes after the host address that it returns; connection requests with longer discriminators are rejected.
    pub max_discriminator_bytes: u16,
    /// Maximum number of concurrent RDMA reads that a VI serves, which is advertised to its peer; 1 to 256.
    pub max_rdma_reads: u16,
    /// Maximum number of descriptors of a VI in flight (sent and not complete): RDMA reads and all descriptors
    /// posted after them; at Reliable Reception and with `recovery` all descriptors. Further descriptors
    /// wait. 1 to 256. The peer may have a different value: each side queues up to 256 responses while its port
    /// has no room.
    pub max_in_flight: u32,
    /// Token bucket size for RDMA accesses of one peer (an N_Port; with `vi-tcp` a host address or user) whose handle
    /// names no region of the VI's tag; 1 to 1000000. While the bucket is empty, all accesses of the peer are refused without a lookup,
    /// valid ones too.
    pub rdma_miss_burst: u32,
    /// Tokens added to that bucket per hour; 1 to 1000000.
    pub rdma_misses_per_hour: u32,
    /// Number of such accesses, including those refused without a lookup, after which a connection breaks, also at
    /// Unreliable Delivery; 1 to 1000000.
    pub rdma_misses_per_connection: u32,
    /// Maximum number of log lines per second that peers and programs cause on this NIC: asynchronous errors without a
    /// handler, rejected connections. Suppressed lines are counted. 1 to 1000000.
    pub max_log_lines_per_second: u32,
    /// E_D_TOV in milliseconds. Accepting a connection fails if the client does not confirm it within four times this,
    /// or within FCVI_ULP_TIMEOUT if that is less.
    pub e_d_tov_ms: u64,
    /// R_A_TOV in milliseconds. Default: 1000 on `shm`, 10000 on a wire.
    pub r_a_tov_ms: Option<u64>,
    /// FCVI_ULP_TIMEOUT in milliseconds, at least 4. Default: twice R_A_TOV.
    pub ulp_timeout_ms: Option<u64>,
    /// On a wire, or with `vi-tcp`: keep-alive interval; a peer that was silent for this long is probed, and
    /// declared lost after three intervals without a response. Milliseconds; 0 disables probes.
    pub probe_interval_ms: u64,
    /// Timeout for ports of a host that have not responded to a request after another port of the host responded
    /// NO_MATCH. Milliseconds. Default: 2000 on `shm`, where all ports exist and may only be slow; 100 on a wire, where
    /// most of a configured range may be unused.
    pub silent_port_ms: Option<u64>,
    /// Initial retry interval of an unmatched peer-to-peer request. Each interval is four times the previous one, up to
    /// a quarter of FCVI_ULP_TIMEOUT; with `recovery` up to a 16th of it, but at least 100 ms, or the quarter where
    /// that is less. Applies to every other unanswered frame of a peer-to-peer connection, too, and matters only where
    /// frames are lost. With `vi-tcp` each interval is twice the previous one, up to 16 times the first. Milliseconds.
    pub peer_retry_ms: u64,
    /// Message recovery (retransmission of lost frames) is offered for connections of the reliable levels, and used if
    /// both peers offer it. Without it the first lost frame breaks a reliable connection. Default: off for `shm`, which
    /// is lossless, on for the others.
    pub recovery: Option<bool>,
    /// Recovery: messages after which a receiver acknowledges at the latest; 1 to 256.
    pub recovery_ack_messages: u32,
    /// Recovery: bytes after which a receiver acknowledges at the latest.
    pub recovery_ack_bytes: u32,
    /// Recovery: maximum delay of an acknowledgement, by which a send completes
    /// later. Microseconds.
    pub recovery_ack_us: u64,
    /// Recovery: minimum timeout after which a silent peer is probed. Microseconds.
    pub recovery_timeout_us: u64,
    /// Recovery: number of probes of a silent peer before the connection breaks, at intervals that double up
    /// to a 16th of FCVI_ULP_TIMEOUT (at least 100 ms, at most a second); 1 to 100. The limit for a peer that
    /// responds without making progress is FCVI_ULP_TIMEOUT.
    pub recovery_tries: u32,
    /// Recovery: minimum congestion window of a connection, in unacknowledged frames.
    pub recovery_min_window_frames: u32,
    /// Recovery: maximum window of a connection, in unacknowledged frames; limited to
    /// `rx_frames`. The windows of all peers together should fit into a port's receive ring.
    pub recovery_window_frames: u32,
    /// Recovery: maximum number of out-of-order ranges of frames that a VI keeps; 1 to 4096.
    pub recovery_islands: u32,
    /// Copy messages between two VIs of this NIC from memory to memory, without frames: much faster, but `capture` and
    /// `fault` do not apply to them. Connections are still established by frames. Default: off; on in a file with
    /// `[process]`, where a NIC with `fault` or `capture` must set it explicitly.
    pub shortcut: bool,
    /// Fault injection, for tests of programs.
    pub fault: Option<FaultConfig>,
    /// Write every frame to this pcapng file. For debugging; slow.
    pub capture: Option<PathBuf>,
}

impl Default for NicConfig {
    fn default() -> Self {
        let recovery = vi_engine::RecoveryConfig::default();
        let misses = vi_engine::MissLimits::default();
        Self {
            name: String::new(),
            transport: TransportKind::FcVi,
            tcp_port: vitcp_lite::profile::TCP_PORT,
            flow_control: false,
            credits_low: 64,
            tls: None,
            key_file: None,
            port: PortKind::Shm,
            segment: "default".into(),
            directory: None,
            ring_frames: 256,
            max_stations: 64,
            interface: String::new(),
            n_port_ids: String::new(),
            port_name: None,
            node_name: None,
            beacon_ms: 8000,
            discovery_ms: 10_000,
            rx_frames: 4096,
            tx_frames: 1024,
            queue: 0,
            queues: 1,
            copy: CopyMode::Auto,
            device: String::new(),
            args: Vec::new(),
            huge_pages: false,
            memory_mb: 256,
            mtu_bytes: None,
            host: None,
            neighbour: Vec::new(),
            hosts_file: None,
            progress: Progress::Inline,
            core: None,
            takeover_us: 1000,
            coalesce_frames: MAX_FRAMES,
            spin_us: 50,
            protection: Protection::Strict,
            lock_memory: LockPolicy::BestEffort,
            max_vi: 1024,
            max_descriptors_per_queue: 1024,
            max_segments_per_descriptor: 256,
            max_cq: 1024,
            max_cq_entries: 1 << 20,
            max_notifies_per_queue: 1024,
            max_notify_threads: 1024,
            max_transfer_bytes: 1 << 20,
            max_regions: 32768,
            max_registered_bytes: 1 << 40,
            max_region_bytes: 1 << 40,
            max_ptags: 4096,
            max_incoming: 256,
            max_discriminator_bytes: MIN_DISCRIMINATOR_BYTES,
            max_rdma_reads: 16,
            max_in_flight: 64,
            rdma_miss_burst: misses.burst,
            rdma_misses_per_hour: rdma_miss_limits::per_hour(&misses),
            rdma_misses_per_connection: misses.per_connection,
            max_log_lines_per_second: 50,
            e_d_tov_ms: 2000,
            r_a_tov_ms: None,
            ulp_timeout_ms: None,
            probe_interval_ms: 1000,
            silent_port_ms: None,
            peer_retry_ms: 10,
            recovery: None,
            recovery_ack_messages: recovery.ack_messages,
            recovery_ack_bytes: recovery.ack_bytes,
            recovery_ack_us: recovery.ack_delay_ns / 1000,
            recovery_timeout_us: recovery.min_timeout_ns / 1000,
            recovery_tries: recovery.tries,
            recovery_min_window_frames: recovery.min_window_frames,
            recovery_window_frames: recovery.max_window_frames,
            recovery_islands: recovery.max_received_ranges,
            shortcut: false,
            fault: None,
            capture: None,
        }
    }
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, or contains errors: all of them, each with its line.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::read_with(path, None)
    }

    /// Reads a file for a process that serves applications: the users and groups in it must exist on
    /// this host.
    ///
    /// # Errors
    /// Those of [`Self::read`], and unknown names.
    pub fn read_to_serve(path: &Path) -> Result<Self, ConfigError> {
        Self::read_with(path, Some(&admission::SystemUserDatabase))
    }

    fn read_with(path: &Path, users: Option<&dyn UserDatabase>) -> Result<Self, ConfigError> {
        std::fs::read(path)
            .map_err(|e| ConfigError::new(format!("cannot be read: {e}")))
            .and_then(ConfigError::decode)
            .and_then(|text| Self::parse_with(&text, users))
            .map_err(|e| e.in_file(path))
    }

    /// Parses the text of a file and checks every value.
    ///
    /// # Errors
    /// All errors of the text, each with its line.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Self::parse_with(text, None)
    }

    fn parse_with(text: &str, users: Option<&dyn UserDatabase>) -> Result<Self, ConfigError> {
        let (mut file, mut config) = File::read(text)?;
        let is_served = config.process.is_some();
        for (index, nic) in config.nics.iter_mut().enumerate() {
            if nic.name.is_empty() {
                nic.name = Self::default_nic_name(index);
            }
            let at = TablePath::nic(index, &nic.name);
            if is_served && file.value(&at, "progress").is_none() {
                nic.progress = Progress::Pinned;
            }
            if is_served && file.value(&at, "shortcut").is_none() {
                nic.shortcut = true;
            }
        }
        conflicts::check(&mut file, &config);
        if let Some(users) = users {
            conflicts::check_to_serve(&mut file, &config, users);
        }
        file.finish()?;
        Ok(config)
    }

    /// Returns the name of a NIC without `name`.
    fn default_nic_name(index: usize) -> String {
        format!("VINIC{index}")
    }

    /// Returns the configuration of this program: from the file named by [`CONFIG_VARIABLE`], in a privileged program
    /// from [`PRIVILEGED_CONFIG`], or the built-in one with the single NIC VINIC0 on `shm`; with `protection` from
    /// [`PROTECTION_VARIABLE`].
    pub fn from_environment() -> Result<Self, ConfigError> {
        let mut config = match privileged::config_path()? {
            Some(path) => Self::read(&path)?,
            None => Self {
                nics: vec![NicConfig {
                    name: "VINIC0".into(),
                    ..NicConfig::default()
                }],
                ..Self::default()
            },
        };
        if let Some(protection) = environment::variable(PROTECTION_VARIABLE) {
            config.override_protection(&protection)?;
        }
        Ok(config)
    }

    fn override_protection(&mut self, value: &OsStr) -> Result<(), ConfigError> {
        if let Some(protection) = parse_protection(value)? {
            for nic in &mut self.nics {
                nic.protection = protection;
            }
        }
        Ok(())
    }

    /// Finds a NIC by device name (VIPL 6.5): its name, an alias, `VINIC` for the
    /// first one, `VINICn` by index, or its [`NicConfig::wire_name`].
    pub fn nic(&self, device: &str) -> Option<&NicConfig> {
        let device = self.alias.get(device).map_or(device, String::as_str);
        if let Some(nic) = self.nics.iter().find(|nic| nic.name == device) {
            return Some(nic);
        }
        if device == "VINIC" {
            return self.nics.first();
        }
        if let Some(number) = device.strip_prefix("VINIC") {
            return self.nics.get(number.parse::<usize>().ok()?);
        }
        self.nics.iter().find(|nic| nic.wire_name() == Some(device))
    }
}

/// Reads [`PROTECTION_VARIABLE`]; `None` if it is not set.
///
/// # Errors
/// It has an invalid value.
pub fn protection_from_environment() -> Result<Option<Protection>, ConfigError> {
    let value = environment::variable(PROTECTION_VARIABLE).unwrap_or_default();
    parse_protection(&value)
}

fn parse_protection(value: &OsStr) -> Result<Option<Protection>, ConfigError> {
    match value.to_str() {
        Some("") => Ok(None),
        Some("strict") => Ok(Some(Protection::Strict)),
        Some("lenient") => Ok(Some(Protection::Lenient)),
        Some(_) | None => Err(ConfigError::new(format!(
            "{PROTECTION_VARIABLE}={value:?}: must be strict or lenient"
        ))),
    }
}

impl NicConfig {
    /// Checks every value.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let mut errors = self.errors();
        errors.extend((0..self.neighbour.len()).flat_map(|index| self.neighbour_errors(index)));
        errors.extend(self.tls.iter().flat_map(TlsConfig::errors));
        errors.extend(self.fault.iter().flat_map(FaultConfig::errors));
        if errors.is_empty() {
            return Ok(());
        }
        let texts: Vec<_> = errors.into_iter().map(|error| error.text).collect();
        Err(ConfigError::new(texts.join("; ")))
    }

    /// Returns whether this NIC uses discovery.
    pub fn discovers(&self) -> bool {
        self.is_on_wire() && self.n_port_ids.is_empty()
    }

    /// Returns the configured Port_Name and Node_Name.
    pub(crate) fn own_names(&self) -> Result<(Option<u64>, Option<u64>), ConfigError> {
        let name = |key, text: &Option<String>| {
            text.as_deref()
                .map(|text| parse::name(key, text).map_err(ConfigError::new))
                .transpose()
        };
        Ok((
            name("port_name", &self.port_name)?,
            name("node_name", &self.node_name)?,
        ))
    }

    /// Returns R_A_TOV in milliseconds.
    pub fn r_a_tov_ms(&self) -> u64 {
        let is_on_segment = self.transport == TransportKind::FcVi && !self.port.is_on_wire();
        self.r_a_tov_ms.unwrap_or(match is_on_segment {
            true => 1000,
            false => u64::from(fcvi_frame::profile::R_A_TOV_MS),
        })
    }

    /// Returns the timeout for a silent port after another one responded NO_MATCH, in milliseconds.
    pub fn silent_port_ms(&self) -> u64 {
        self.silent_port_ms.unwrap_or(match self.is_on_wire() {
            false => 2000,
            true => 100,
        })
    }

    /// Returns FCVI_ULP_TIMEOUT in milliseconds.
    pub fn ulp_timeout_ms(&self) -> u64 {
        self.ulp_timeout_ms
            .unwrap_or_else(|| self.r_a_tov_ms().saturating_mul(2).max(MIN_ULP_TIMEOUT_MS))
    }

    /// Returns the N_Port_IDs that programs of this host may claim.
    pub fn own_ids(&self) -> Result<Vec<NPortId>, ConfigError> {
        parse::ids(&self.n_port_ids).map_err(ConfigError::new)
    }
}

#[cfg(test)]
mod tests;
