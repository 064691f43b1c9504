//! The configuration file: NICs, their ports, timers and limits.
//!
//! TOML; every key has its unit in its name and a default, an unknown key is an error. See `configs/`.

mod address;
mod admission;
mod check;
mod conflicts;
mod file;
mod key_file;
mod keys;
mod misses;
mod mistake;
mod parse;
mod port;
mod privileged;
mod process;
mod progress;
mod recovery;
mod shares;
mod tls;
mod transport;

use std::ffi::OsStr;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use fcvi_frame::fc::NPortId;
use pmd_port::environment;
use serde::Deserialize;

use admission::Directory;
use file::{File, Place};

use crate::coalesce::MOST_FRAMES;
use crate::memory::LockPolicy;

pub(crate) use address::ip_address;
pub use address::{OwnHost, host_address};
pub use admission::Refusal;
pub use mistake::ConfigError;
pub use port::{CopyMode, PortKind, WITHOUT_DPDK};
pub use privileged::PRIVILEGED_CONFIG;
pub use process::{ApplicationConfig, Idle, ProcessConfig, Quota, QuotaConfig, Who};
pub use progress::Progress;
pub use tls::TlsConfig;
pub use transport::TransportKind;

/// The file named by this variable is read when a NIC is opened by name.
pub const CONFIG_VARIABLE: &str = "VIADUCT_CONFIG";

/// `strict` or `lenient` in this variable takes the place of `protection` of every NIC that
/// is opened by name.
pub const PROTECTION_VARIABLE: &str = "VIPL_PROTECTION";

/// The shortest FCVI_ULP_TIMEOUT: a quarter of it is a time, too.
const MIN_ULP_TIMEOUT_MS: u64 = 4;
/// What every provider takes (VIPL 2.4); programs of that time have room for no more.
const MIN_DISCRIMINATOR_BYTES: u16 = 16;

/// A whole configuration file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The NICs, in order: VINIC0, VINIC1, ... unless they name themselves.
    #[serde(rename = "nic")]
    pub nics: Vec<NicConfig>,
    /// Other names for NICs: `alias = "VINIC0"`.
    pub alias: std::collections::BTreeMap<String, String>,
    /// The process that opens these NICs and serves applications; without it, each program opens them itself.
    pub process: Option<ProcessConfig>,
}

/// What a VI without a protection tag may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protection {
    /// It cannot be created.
    #[default]
    Strict,
    /// It may use every region of its process.
    Lenient,
}

/// Another host and its ports, for networks without discovery.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NeighbourConfig {
    /// Its host address: IPv4 or IPv6.
    pub host: IpAddr,
    /// Its N_Port_IDs: `"00.01.01"` or a range `"00.01.01-00.01.08"`.
    pub n_port_ids: String,
}

/// Faults that are injected on purpose, in parts per million of the frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FaultConfig {
    /// Seed of the random choices.
    pub seed: u64,
    /// Frames lost.
    pub loss_ppm: u32,
    /// Frames sent twice.
    pub duplication_ppm: u32,
    /// Frames overtaken by later ones.
    pub reordering_ppm: u32,
    /// Frames with a flipped bit.
    pub corruption_ppm: u32,
    /// Frames held back.
    pub delay_ppm: u32,
    /// How many port calls a frame is held back, at most.
    pub delay_turns: u32,
}

/// One NIC.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NicConfig {
    /// Its name; VINICn by its place if empty.
    pub name: String,
    /// FC-VI frames over a port, or VI/TCP.
    pub transport: TransportKind,
    /// `vi-tcp`: the TCP port of VI/TCP, the same on all hosts that connect; 1 to 65535.
    pub tcp_port: u16,
    /// `vi-tcp`: sends wait until the other end has posted receives, where both ends say so: a sender may be ahead of its
    /// receiver. Without it a message for which there is no receive breaks a reliable connection.
    pub flow_control: bool,
    /// `vi-tcp`: with flow control, a receiver that says nothing else tells its peer of new receives as soon as this knows of
    /// fewer than so many; 1 to 32767.
    pub credits_low: u16,
    /// `vi-tcp`: all connections are of TLS, and hosts without it, or with certificates of other authorities, get none.
    /// One program has the port.
    pub tls: Option<TlsConfig>,
    /// `vi-tcp`: a file of keys that are shared with other hosts: with it the NIC speaks with nobody who does not prove to
    /// have the one for its host. Each line is `"ADDRESS" = "KEY"`, or `"*"` for all other hosts; a key is 16 to 64 bytes
    /// in hexadecimal. Only its owner may read it. It is read when the NIC is opened.
    pub key_file: Option<PathBuf>,
    /// Driver of the port.
    pub port: PortKind,
    /// `shm`: name of the segment.
    pub segment: String,
    /// Of the segment (`shm`), or of programs that share a port (`vi-tcp`). Default: the user's runtime one or /dev/shm.
    pub directory: Option<PathBuf>,
    /// `shm`: frames that can wait from one station to another; a power of two.
    pub ring_frames: u32,
    /// `shm`: stations in the segment.
    pub max_stations: u32,
    /// `af_packet`, `af_xdp`: network interface.
    pub interface: String,
    /// On a wire: our N_Port_ID, or a range of which each program takes a free one. Without it ports find each other:
    /// each program gets an N_Port_ID by FIP VN2VN, logs in with its neighbours, and learns from them which hosts they
    /// are.
    pub n_port_ids: String,
    /// Discovery: our Port_Name, `"20:00:52:54:00:00:00:01"`, for one program at a time. Default: a
    /// random one for each opening.
    pub port_name: Option<String>,
    /// Discovery: our Node_Name, likewise.
    pub node_name: Option<String>,
    /// Discovery: from one beacon to the next; a neighbour that is silent for two and a half of
    /// these is gone. All ports of a link should have the same. Milliseconds.
    pub beacon_ms: u64,
    /// Discovery: opening the NIC waits so long for an N_Port_ID, and a connection request for
    /// a host that is not known. Milliseconds.
    pub discovery_ms: u64,
    /// `af_packet`: frames in the receive ring. `af_xdp`: of each queue, rounded up to a power of two. `dpdk`: of each
    /// queue.
    pub rx_frames: u32,
    /// On a wire: frames in the send ring; `af_xdp` rounds up to a power of two.
    pub tx_frames: u32,
    /// `af_xdp`: the first queue of the interface to receive at, and the one to send at; 0 to 65535.
    pub queue: u32,
    /// `af_xdp`, `dpdk`: at how many queues of the interface or device frames are received; 1 to 64.
    pub queues: u32,
    /// `af_xdp`: whether frames are copied.
    pub copy: CopyMode,
    /// `dpdk`: the device as DPDK names it, with its keys behind commas: a PCI address, `"0000:01:00.0"`, a virtual
    /// device, `"net_memif0,role=server"`, or `"ring:NAME"`, one of the two ends of a pair of rings in this process.
    /// No two NICs have the same one, but for the two ends of such a pair.
    pub device: String,
    /// `dpdk`: further arguments of EAL, which is started once in a process: NICs of a file have the same.
    pub args: Vec<String>,
    /// `dpdk`: memory is taken in huge pages, which cards need; else in ordinary pages. NICs of a file have the same.
    pub huge_pages: bool,
    /// `dpdk`: MiB that are reserved at the start, at most 1048576. With `huge_pages` 0 means: what is needed, when it
    /// is needed. NICs of a file have the same.
    pub memory_mb: u32,
    /// `dpdk`: the MTU that the device is given, 302 to 2546 bytes. Default: that which it has.
    pub mtu_bytes: Option<u32>,
    /// Our host address: IPv4 or IPv6. With `vi-tcp` a link-local one has its interface, `fe80::1%eth0`. Default: `::1` on
    /// `shm`, 127.0.0.1 with `vi-tcp`; must be given on a wire.
    pub host: Option<OwnHost>,
    /// Other hosts, for ports without discovery.
    pub neighbour: Vec<NeighbourConfig>,
    /// Hosts file of the name service. Default: the system's.
    pub hosts_file: Option<PathBuf>,
    /// Who polls. In a file with `[process]`: `pinned`, also by default.
    pub progress: Progress,
    /// `pinned`: the core; 0 to 1023. In a file with `[process]` several NICs may name the same: one thread polls them
    /// all. Default: the last of those that the process may use.
    pub core: Option<usize>,
    /// `inline`: the NIC's thread takes over after so long without a call, microseconds.
    pub takeover_us: u64,
    /// `inline`: sends that are posted one after the other go to a port on a wire in bursts of up to so many frames, with
    /// `vi-tcp` to TCP in calls of up to so many messages, 1 to 32; 1: each at once. What waits for others goes with the
    /// next call that does not post, or when the NIC's thread takes over.
    pub coalesce_frames: u32,
    /// Waiting calls and the NIC's thread spin for so long before they sleep, microseconds.
    pub spin_us: u64,
    /// VIs without a tag. A NIC that is opened by name obeys [`PROTECTION_VARIABLE`] first.
    pub protection: Protection,
    /// Locking of registered pages.
    pub lock_memory: LockPolicy,
    /// VIs, at most 4096.
    pub max_vi: u32,
    /// Descriptors on each work queue.
    pub max_descriptors_per_queue: u32,
    /// Segments in a descriptor, the address segment included; 253 to 65535.
    pub max_segments_per_descriptor: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries that can be asked for in a completion queue.
    pub max_cq_entries: u32,
    /// Handlers that wait to be called, on each work queue and completion queue.
    pub max_notifies_per_queue: u32,
    /// Threads that call such handlers in one process: one for each queue that was ever asked to,
    /// until it ends.
    pub max_notify_threads: u32,
    /// Longest message in bytes.
    pub max_transfer_bytes: u32,
    /// Registered regions, at most 65535.
    pub max_regions: u32,
    /// Registered bytes, counted in whole pages.
    pub max_registered_bytes: u64,
    /// Bytes of one registered region.
    pub max_region_bytes: u64,
    /// Protection tags.
    pub max_ptags: u32,
    /// Connection requests of others that wait for the program.
    pub max_incoming: u32,
    /// Bytes of a discriminator, 16 to 44; with `vi-tcp` 16. VipConnectWait writes so many behind the host address that it
    /// returns; connection requests with longer ones are refused.
    pub max_discriminator_bytes: u16,
    /// RDMA reads of a peer that a VI serves at a time, which its peer is told; 1 to 256.
    pub max_rdma_reads: u16,
    /// Descriptors of a VI that are sent and not complete, at a time: RDMA reads and all that is
    /// posted behind them, at Reliable Reception and with `recovery` everything. What is posted
    /// beyond waits. 1 to 256. The other end may have another value: each keeps up to 256 responses that its port
    /// has no room for.
    pub max_in_flight: u32,
    /// RDMA accesses of one peer (an N_Port; with `vi-tcp` a host) whose handle names no region of the VI's tag, which are
    /// looked up at once; 1 to 1000000. Beyond, its accesses are refused without a look-up, right ones too.
    pub rdma_miss_burst: u32,
    /// So many more are looked up in an hour; 1 to 1000000.
    pub rdma_misses_per_hour: u32,
    /// A connection breaks after so many of them and of those refused without a look-up, also at Unreliable Delivery; 1 to 1000000.
    pub rdma_misses_per_connection: u32,
    /// Log lines in a second about what peers and programs cause on this NIC: asynchronous errors that no handler takes,
    /// connections refused. What is left out is counted. 1 to 1000000.
    pub max_log_lines_per_second: u32,
    /// E_D_TOV in milliseconds.
    pub e_d_tov_ms: u64,
    /// R_A_TOV in milliseconds. Default: 1000 on `shm`, 10000 on a wire.
    pub r_a_tov_ms: Option<u64>,
    /// FCVI_ULP_TIMEOUT in milliseconds, at least 4. Default: twice R_A_TOV.
    pub ulp_timeout_ms: Option<u64>,
    /// On a wire: a peer that was silent for so long is asked whether it lives; three
    /// such intervals without an answer and it is lost. Milliseconds; 0: it is never asked.
    pub probe_interval_ms: u64,
    /// After another program of a host said NO_MATCH, how long a silent one is waited for. Milliseconds.
    /// Default: 2000 on `shm`, where each is there and may only be slow; 100 on a wire, where
    /// most of a configured range may be nobody's.
    pub silent_port_ms: Option<u64>,
    /// A peer request that found no match is sent again after so long, then after four times that, and so on up to a
    /// quarter of FCVI_ULP_TIMEOUT; with `recovery` up to a 16th of it, but 100 ms at least, or the quarter where that
    /// is less. So is every other frame that makes a peer-to-peer connection, while it is not answered. It only matters
    /// where frames are lost. With `vi-tcp` each time is twice the one before, up to 16 times the first. Milliseconds.
    pub peer_retry_ms: u64,
    /// Message recovery is offered for connections of the reliable levels, and in force where both
    /// ends offer it: what the network loses is sent again. Without it the first lost frame breaks
    /// a reliable connection. Default: off for `shm`, which loses nothing, on for the others.
    pub recovery: Option<bool>,
    /// Recovery: a receiver acknowledges after so many messages at the latest; 1 to 256.
    pub recovery_ack_messages: u32,
    /// Recovery: a receiver acknowledges after so many bytes at the latest.
    pub recovery_ack_bytes: u32,
    /// Recovery: a receiver acknowledges after so long at the latest; a send completes that much
    /// later. Microseconds.
    pub recovery_ack_us: u64,
    /// Recovery: a peer is taken for silent after so long at the earliest, and asked. Microseconds.
    pub recovery_timeout_us: u64,
    /// Recovery: a peer that stays silent is asked so often, each time after twice the time before, up
    /// to a 16th of FCVI_ULP_TIMEOUT (100 ms at least, a second at most), then the connection breaks;
    /// 1 to 100. One that answers and takes nothing has FCVI_ULP_TIMEOUT.
    pub recovery_tries: u32,
    /// Recovery: frames of a connection that may be unacknowledged, however many are lost.
    pub recovery_min_window_frames: u32,
    /// Recovery: frames of a connection that may be unacknowledged, at most; never more than
    /// `rx_frames`. What all peers send at a time should fit into a port's receive ring.
    pub recovery_window_frames: u32,
    /// Recovery: runs of frames that a VI keeps ahead of order; 1 to 4096.
    pub recovery_islands: u32,
    /// Messages between two VIs of this NIC go from memory to memory, without frames: faster by
    /// far, but the port does not see them, and so `capture` and `fault` do not, either. Their
    /// connections are made by frames all the same. Default: off; on in a file with `[process]`,
    /// where a NIC with `fault` or `capture` must say which of the two is wanted.
    pub shortcut: bool,
    /// Injected faults, for tests of programs.
    pub fault: Option<FaultConfig>,
    /// Write every frame to this pcapng file. For debugging: slow.
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
            coalesce_frames: MOST_FRAMES,
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
            rdma_misses_per_hour: misses::per_hour(&misses),
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
            recovery_islands: recovery.max_islands,
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
    /// The file cannot be read, or has mistakes: all of them, each with its line.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::read_with(path, None)
    }

    /// Reads a file for the process that serves applications: the users and groups that it names must be known to
    /// this host.
    ///
    /// # Errors
    /// Those of [`Self::read`], and unknown names.
    pub fn read_to_serve(path: &Path) -> Result<Self, ConfigError> {
        Self::read_with(path, Some(&admission::Host))
    }

    fn read_with(path: &Path, names: Option<&dyn Directory>) -> Result<Self, ConfigError> {
        std::fs::read(path)
            .map_err(|e| ConfigError::new(format!("cannot be read: {e}")))
            .and_then(ConfigError::text)
            .and_then(|text| Self::parse_with(&text, names))
            .map_err(|e| e.in_file(path))
    }

    /// Parses the text of a file and checks every value.
    ///
    /// # Errors
    /// All mistakes of the text, each with its line.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        Self::parse_with(text, None)
    }

    fn parse_with(text: &str, names: Option<&dyn Directory>) -> Result<Self, ConfigError> {
        let (mut file, mut config) = File::read(text)?;
        let is_served = config.process.is_some();
        for (index, nic) in config.nics.iter_mut().enumerate() {
            if nic.name.is_empty() {
                nic.name = Self::name_by_place(index);
            }
            let place = Place::nic(index, &nic.name);
            if is_served && file.value(&place, "progress").is_none() {
                nic.progress = Progress::Pinned;
            }
            if is_served && file.value(&place, "shortcut").is_none() {
                nic.shortcut = true;
            }
        }
        conflicts::find(&mut file, &config);
        if let Some(names) = names {
            conflicts::find_strangers(&mut file, &config, names);
        }
        file.finish()?;
        Ok(config)
    }

    /// What a NIC is called that does not name itself.
    fn name_by_place(index: usize) -> String {
        format!("VINIC{index}")
    }

    /// The configuration that applies: of the file named by [`CONFIG_VARIABLE`], in a privileged program
    /// [`PRIVILEGED_CONFIG`], or the built-in one with the single NIC VINIC0 on `shm`; with what [`PROTECTION_VARIABLE`]
    /// says.
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
        if let Some(protection) = protection_of(value)? {
            for nic in &mut self.nics {
                nic.protection = protection;
            }
        }
        Ok(())
    }

    /// The NIC of this device name (VIPL 6.5): its own name, an alias, `VINIC` for the
    /// first, `VINICn` by place, or its [`NicConfig::wire_name`].
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

/// What [`PROTECTION_VARIABLE`] says of VIs without a protection tag, if it says anything.
///
/// # Errors
/// It says something else.
pub fn protection_of_environment() -> Result<Option<Protection>, ConfigError> {
    let value = environment::variable(PROTECTION_VARIABLE).unwrap_or_default();
    protection_of(&value)
}

fn protection_of(value: &OsStr) -> Result<Option<Protection>, ConfigError> {
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
        let mut found = self.mistakes();
        found.extend((0..self.neighbour.len()).flat_map(|at| self.neighbour_mistakes(at)));
        found.extend(self.tls.iter().flat_map(TlsConfig::mistakes));
        found.extend(self.fault.iter().flat_map(FaultConfig::mistakes));
        if found.is_empty() {
            return Ok(());
        }
        let texts: Vec<_> = found.into_iter().map(|mistake| mistake.text).collect();
        Err(ConfigError::new(texts.join("; ")))
    }

    /// Do ports of this NIC's network find each other?
    pub fn discovers(&self) -> bool {
        self.is_on_wire() && self.n_port_ids.is_empty()
    }

    /// Our Port_Name and Node_Name, as far as they are given.
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

    /// R_A_TOV in milliseconds.
    pub fn r_a_tov_ms(&self) -> u64 {
        let near = self.transport == TransportKind::FcVi && !self.port.is_on_wire();
        self.r_a_tov_ms.unwrap_or(match near {
            true => 1000,
            false => u64::from(fcvi_frame::profile::R_A_TOV_MS),
        })
    }

    /// How long a silent port is waited for after another said NO_MATCH, in milliseconds.
    pub fn silent_port_ms(&self) -> u64 {
        self.silent_port_ms.unwrap_or(match self.is_on_wire() {
            false => 2000,
            true => 100,
        })
    }

    /// FCVI_ULP_TIMEOUT in milliseconds.
    pub fn ulp_timeout_ms(&self) -> u64 {
        self.ulp_timeout_ms
            .unwrap_or_else(|| self.r_a_tov_ms().saturating_mul(2).max(MIN_ULP_TIMEOUT_MS))
    }

    /// The N_Port_IDs that our programs may take.
    pub fn own_ids(&self) -> Result<Vec<NPortId>, ConfigError> {
        parse::ids(&self.n_port_ids).map_err(ConfigError::new)
    }
}

#[cfg(test)]
mod tests;
