//! What connects a NIC with others: a port for FC-VI frames, or VI/TCP.

use std::path::PathBuf;

use serde::Deserialize;

use crate::error::{Step, ValueError};
use crate::file::read_complete_table;
use crate::nic::HOUR_MS;
use crate::table::{self, Form, Table as _, Value, choice, range, table, table_form, value};

/// Maximum length of the name of a network interface, in bytes.
const MAX_INTERFACE_BYTES: usize = 15;
/// Prefix of a device that is one end of a pair of rings in this process, and the length of the name after it, in
/// bytes.
const RING: &str = "ring:";
const RING_BYTES: core::ops::RangeInclusive<usize> = 1..=32;
/// Required form of an interface.
const INTERFACE: Form =
    value("the name of a network interface, in quotes, 1 to 15 bytes: `ip link` lists interfaces");
/// Required form of a directory.
const DIRECTORY: Form = value("the path of a directory, in quotes");
const TRUE_OR_FALSE: Form = value("true or false");

choice! {
    /// What connects a NIC with others.
    pub enum Network {
        /// Shared memory between the processes of one user on this host.
        Shm(Shm) = "shm",
        /// A network interface, through a packet socket.
        AfPacket(AfPacket) = "af_packet",
        /// A network interface, through AF_XDP sockets, which bypass the kernel's network stack.
        AfXdp(AfXdp) = "af_xdp",
        /// A DPDK device. Programs need the feature `dpdk` to open it.
        Dpdk(Dpdk) = "dpdk",
        /// VI/TCP, without a port: a TCP connection for each VI.
        ViTcp(ViTcp) = "vi_tcp",
    }
}

impl Default for Network {
    fn default() -> Self {
        Self::Shm(Shm::default())
    }
}

table! {
    /// A shared-memory segment.
    pub struct Shm in "[nic.shm]" {
        /// Name of the segment.
        pub segment: String = "default".into(), value("1 to 64 letters, digits, '.', '_' or '-', in quotes");
        /// Directory of the segment. Default: the runtime directory of the user, or /dev/shm.
        pub directory: Option<PathBuf> = None, DIRECTORY;
        /// Capacity of the ring from one station to another, in frames; a power of two.
        pub ring_frames: u32 = 256, range(8, 65536);
        /// Maximum number of stations in the segment.
        pub max_stations: u32 = 64, range(1, 255);
        /// Maximum number of files that are mapped of each other station, for RDMA writes and reads, and long sends,
        /// without frames: one for each allocation of `viaduct_alloc` that is accessed. 0 disables direct access in both
        /// directions.
        pub max_direct_files: u32 = 1024, range(0, 16384);
    }
}

table! {
    /// A packet socket of a network interface.
    pub struct AfPacket in "[nic.af_packet]" {
        /// Network interface; required.
        pub interface: String = String::new(), INTERFACE;
        /// Frames in the receive ring.
        pub rx_frames: u32 = RX_FRAMES, FRAMES;
        /// Frames in the send ring.
        pub tx_frames: u32 = TX_FRAMES, FRAMES;
        /// Keep-alive interval; a peer that was silent for this long is probed, and declared lost after three intervals
        /// without a response. Milliseconds; 0 disables probes.
        pub probe_interval_ms: u64 = PROBE_INTERVAL_MS, PROBE_INTERVAL;
    }
}

table! {
    /// AF_XDP sockets of a network interface.
    pub struct AfXdp in "[nic.af_xdp]" {
        /// Network interface; required. Each NIC has its own.
        pub interface: String = String::new(), INTERFACE;
        /// The first receive queue of the interface, and the send queue.
        pub queue: u32 = 0, range(0, 65535);
        /// Number of receive queues.
        pub queues: u32 = 1, QUEUES;
        /// Whether frames are copied.
        pub copy: CopyMode = CopyMode::Auto, value("\"auto\", \"zero-copy\" or \"copy\"");
        /// Frames of each receive queue, rounded up to a power of two.
        pub rx_frames: u32 = RX_FRAMES, FRAMES;
        /// Frames of the send queue, rounded up to a power of two.
        pub tx_frames: u32 = TX_FRAMES, FRAMES;
        /// Keep-alive interval, as in `[nic.af_packet]`.
        pub probe_interval_ms: u64 = PROBE_INTERVAL_MS, PROBE_INTERVAL;
    }
}

table! {
    /// A DPDK device. EAL is initialized once per process: `args`, `huge_pages` and `memory_mb` are the same for all NICs
    /// of a file.
    pub struct Dpdk in "[nic.dpdk]" {
        /// DPDK name of the device, followed by its comma-separated keys: a PCI address, `"0000:01:00.0"`, a virtual
        /// device, `"net_memif0,role=server"`, or `"ring:NAME"`, one end of a pair of rings in this process. Required.
        /// Each NIC has its own device, except that two NICs may have the two ends of such a pair.
        pub device: String = String::new(),
            value("a DPDK device, in quotes: \"0000:01:00.0\" or \"net_memif0,role=server\"");
        /// Further EAL arguments.
        pub args: Vec<String> = Vec::new(), value("a list of EAL arguments, in quotes: [\"-l\", \"0\"]");
        /// Use huge pages, which hardware NICs require; otherwise ordinary pages.
        pub huge_pages: bool = false, TRUE_OR_FALSE;
        /// MiB that are allocated at the start. With `huge_pages`, 0 means allocation on demand.
        pub memory_mb: u32 = 256, range(0, 1 << 20);
        /// MTU to set on the device, in bytes. Default: its current MTU.
        pub mtu_bytes: Option<u32> = None, range(302, 2546);
        /// Number of receive queues.
        pub queues: u32 = 1, QUEUES;
        /// Frames of each receive queue.
        pub rx_frames: u32 = RX_FRAMES, FRAMES;
        /// Frames of the send queue.
        pub tx_frames: u32 = TX_FRAMES, FRAMES;
        /// Keep-alive interval, as in `[nic.af_packet]`.
        pub probe_interval_ms: u64 = PROBE_INTERVAL_MS, PROBE_INTERVAL;
    }
}

table! {
    /// VI/TCP.
    pub struct ViTcp in "[nic.vi_tcp]" {
        /// TCP port, the same on all hosts that connect.
        pub port: u16 = 8420, range(1, 65535), was "tcp_port";
        /// Directory of the programs that share a TCP port. Default: the runtime directory of the user, or /dev/shm.
        pub directory: Option<PathBuf> = None, DIRECTORY;
        /// Sends wait until the peer has posted receives, if both peers enable it: a sender may be ahead of its receiver.
        /// Without it a message without a posted receive breaks a reliable connection.
        pub flow_control: bool = false, TRUE_OR_FALSE;
        /// With flow control, an otherwise silent receiver advertises new receives as soon as its peer has fewer than
        /// this many credits.
        pub credits_low: u16 = 64, range(1, 32767);
        /// Keep-alive interval, as in `[nic.af_packet]`.
        pub probe_interval_ms: u64 = PROBE_INTERVAL_MS, PROBE_INTERVAL;
        /// A file of pre-shared keys: the NIC connects only to hosts that prove possession of the key for their address.
        /// Each line is `"ADDRESS" = "KEY"`, or `"*"` for all other hosts; a key is 16 to 64 bytes in hexadecimal. The
        /// file must be accessible to its owner only. It is read when the NIC is opened.
        pub key_file: Option<PathBuf> = None, value("the path of a file, in quotes");
        /// All connections use TLS; hosts without TLS, or with certificates of other authorities, are rejected. The TCP
        /// port cannot be shared by several programs. Rust programs need the feature `tls` of `vipl` to open it.
        pub tls: Option<TlsConfig> = None, Form::Table(table_form::<TlsConfig>(
            ", with certificate, private_key and authorities",
            read_complete_table::<TlsConfig>,
        ));
    }
}

table! {
    /// TLS of a NIC with VI/TCP: version 1.3, with mutual authentication. The three files are required.
    pub struct TlsConfig in "[nic.vi_tcp.tls]" {
        /// Certificate chain of this host: PEM, its own certificate first, and at most three others. Clients require
        /// the host address of this NIC among the subjectAltNames.
        pub certificate: PathBuf = PathBuf::new(),
            value("the path of a PEM file with the certificate of this host, in quotes");
        /// Private key of the certificate: PEM, owned by this user or root, and not accessible to others.
        pub private_key: PathBuf = PathBuf::new(),
            value("the path of a PEM file with its private key, in quotes");
        /// Certificates of the trusted authorities, which must have issued the certificates of other hosts: PEM.
        pub authorities: PathBuf = PathBuf::new(),
            value("the path of a PEM file with the trusted CA certificates, in quotes");
        /// Maximum number of handshakes that peers start per second; further ones wait.
        pub max_handshakes_per_second: u32 = 400, range(1, 1_000_000);
        /// Of these, maximum number of one source: an IPv4 address, or an IPv6 /64.
        pub max_handshakes_per_source: u32 = 200, range(1, 1_000_000);
    }
}

const RX_FRAMES: u32 = 4096;
const TX_FRAMES: u32 = 1024;
const FRAMES: Form = range(1, 65536);
const QUEUES: Form = range(1, 64);
const PROBE_INTERVAL_MS: u64 = 1000;
const PROBE_INTERVAL: Form = range(0, HOUR_MS);

/// Whether the frames of an `af_xdp` port are copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CopyMode {
    /// Zero-copy if the driver of the interface supports it.
    #[default]
    Auto,
    /// Zero-copy: opening the NIC fails if the driver does not support it.
    ZeroCopy,
    /// Always copied.
    Copy,
}

impl Value for CopyMode {
    fn text(&self) -> String {
        table::word(self, '-')
    }
}

impl Network {
    /// Returns a segment of this name, with the other defaults.
    #[must_use]
    pub fn segment(name: impl Into<String>) -> Self {
        Self::Shm(Shm {
            segment: name.into(),
            ..Shm::default()
        })
    }

    /// Returns whether it is a wire, which may lose frames, and needs discovery or configured N_Port_IDs.
    #[must_use]
    pub fn is_on_wire(&self) -> bool {
        match self {
            Self::Shm(_) | Self::ViTcp(_) => false,
            Self::AfPacket(_) | Self::AfXdp(_) | Self::Dpdk(_) => true,
        }
    }

    /// Returns the keys of VI/TCP.
    #[must_use]
    pub fn vi_tcp(&self) -> Option<&ViTcp> {
        match self {
            Self::ViTcp(tcp) => Some(tcp),
            _ => None,
        }
    }

    /// Returns the keys of VI/TCP, to change them.
    #[must_use]
    pub fn vi_tcp_mut(&mut self) -> Option<&mut ViTcp> {
        match self {
            Self::ViTcp(tcp) => Some(tcp),
            _ => None,
        }
    }

    /// Returns the name of its segment of memory, if it is one.
    #[must_use]
    pub fn segment_name(&self) -> Option<&str> {
        match self {
            Self::Shm(shm) => Some(&shm.segment),
            Self::AfPacket(_) | Self::AfXdp(_) | Self::Dpdk(_) | Self::ViTcp(_) => None,
        }
    }

    /// As [`Network::segment_name`], to change it.
    #[must_use]
    pub fn segment_name_mut(&mut self) -> Option<&mut String> {
        match self {
            Self::Shm(shm) => Some(&mut shm.segment),
            Self::AfPacket(_) | Self::AfXdp(_) | Self::Dpdk(_) | Self::ViTcp(_) => None,
        }
    }

    /// Returns the name of the port on its wire: the network interface, or the DPDK device with its keys. `None` without
    /// a wire, and if it is not set.
    #[must_use]
    pub fn wire(&self) -> Option<&str> {
        let name = match self {
            Self::Shm(_) | Self::ViTcp(_) => "",
            Self::AfPacket(AfPacket { interface, .. }) | Self::AfXdp(AfXdp { interface, .. }) => {
                interface
            }
            Self::Dpdk(dpdk) => &dpdk.device,
        };
        (!name.is_empty()).then_some(name)
    }

    /// As [`Self::wire`], a DPDK device without its keys.
    #[must_use]
    pub fn wire_name(&self) -> Option<&str> {
        let name = self.wire()?.split(',').next()?;
        (!name.is_empty()).then_some(name)
    }

    /// Returns its name, and where it is, for status output.
    #[must_use]
    pub fn summary(&self) -> String {
        match self {
            Self::Shm(shm) => format!("{}, segment {:?}", self.name(), shm.segment),
            Self::AfPacket(_) | Self::AfXdp(_) | Self::Dpdk(_) => {
                let wire = self.wire_name().unwrap_or_default();
                format!("{} on {wire}", self.name())
            }
            Self::ViTcp(tcp) if tcp.tls.is_some() => "VI/TCP with TLS".into(),
            Self::ViTcp(_) => "VI/TCP".into(),
        }
    }

    /// Returns the default of R_A_TOV in milliseconds: shared memory delivers no frame late.
    #[must_use]
    pub fn default_r_a_tov_ms(&self) -> u64 {
        match self {
            Self::Shm(_) => 1000,
            Self::AfPacket(_) | Self::AfXdp(_) | Self::Dpdk(_) | Self::ViTcp(_) => 10_000,
        }
    }

    /// Returns the capacity of a receive ring on a wire, in frames.
    #[must_use]
    pub fn rx_frames(&self) -> Option<u32> {
        match self {
            Self::Shm(_) | Self::ViTcp(_) => None,
            Self::AfPacket(port) => Some(port.rx_frames),
            Self::AfXdp(port) => Some(port.rx_frames),
            Self::Dpdk(port) => Some(port.rx_frames),
        }
    }

    /// Returns the keep-alive interval in milliseconds; 0 with `[nic.shm]`, where the port reports lost peers.
    #[must_use]
    pub fn probe_interval_ms(&self) -> u64 {
        match self {
            Self::Shm(_) => 0,
            Self::AfPacket(port) => port.probe_interval_ms,
            Self::AfXdp(port) => port.probe_interval_ms,
            Self::Dpdk(port) => port.probe_interval_ms,
            Self::ViTcp(tcp) => tcp.probe_interval_ms,
        }
    }

    /// Returns the errors of the values.
    pub(crate) fn errors(&self) -> Vec<ValueError> {
        let mut found = self.range_errors();
        match self {
            Self::Shm(shm) => found.extend(shm.errors()),
            Self::AfPacket(port) => found.extend(interface_error(&port.interface)),
            Self::AfXdp(port) => found.extend(interface_error(&port.interface)),
            Self::Dpdk(dpdk) => found.extend(dpdk.errors()),
            Self::ViTcp(tcp) => found.extend(tcp.tls.iter().flat_map(TlsConfig::errors)),
        }
        let table = Step::Table(self.name());
        let under = |error: ValueError| error.under(table.clone());
        found.into_iter().map(under).collect()
    }
}

impl Shm {
    fn errors(&self) -> Vec<ValueError> {
        let mut found = Vec::new();
        let frames = self.ring_frames;
        if !frames.is_power_of_two() && (8..=65536).contains(&frames) {
            let text = format!("ring_frames = {frames}: must be a power of two, 8 to 65536");
            found.push(ValueError::new("ring_frames", text));
        }
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if !(1..=64).contains(&self.segment.len()) || !self.segment.chars().all(is_allowed) {
            let text = format!(
                "segment = {:?}: must be 1 to 64 letters, digits, '.', '_' or '-'",
                self.segment
            );
            found.push(ValueError::new("segment", text));
        }
        found
    }
}

fn interface_error(interface: &str) -> Option<ValueError> {
    let text = match interface.len() {
        0 => "requires interface = \"...\": `ip link` lists interfaces".to_owned(),
        1..=MAX_INTERFACE_BYTES => return None,
        _ => format!(
            "interface = {interface:?}: must have at most {MAX_INTERFACE_BYTES} bytes: `ip link` lists interfaces"
        ),
    };
    Some(ValueError::new("interface", text))
}

impl Dpdk {
    /// Returns the number of NICs that may use the same device.
    pub(crate) fn device_users(&self) -> usize {
        match self.device.starts_with(RING) {
            true => 2,
            false => 1,
        }
    }

    fn errors(&self) -> Vec<ValueError> {
        let mut found: Vec<ValueError> = self.device_error().into_iter().collect();
        let mut add = |key, text: String| found.push(ValueError::new(key, text));
        if !self.args.iter().all(|word| is_line(word)) {
            let text = format!(
                "args = {:?}: each element must be one argument, not empty",
                self.args
            );
            add("args", text);
        }
        if self.memory_mb == 0 && !self.huge_pages {
            let text = "memory_mb = 0: requires huge_pages = true: set that, or the number of MiB, \
                        since ordinary pages are allocated at the start";
            add("memory_mb", text.into());
        }
        found
    }

    fn device_error(&self) -> Option<ValueError> {
        let device = &self.device;
        let is_ring = |name: &str| {
            RING_BYTES.contains(&name.len())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        let text = if device.is_empty() {
            "requires device = \"...\": a PCI address, or a virtual device and its keys, \
             \"net_memif0,role=server\""
                .to_owned()
        } else if let Some(name) = device.strip_prefix(RING)
            && !is_ring(name)
        {
            format!("device = {device:?}: must be {RING} with 1 to 32 letters or digits")
        } else if !is_line(device) || device.starts_with(',') {
            format!(
                "device = {device:?}: must be a device name, followed by its comma-separated keys"
            )
        } else {
            return None;
        };
        Some(ValueError::new("device", text))
    }
}

fn is_line(text: &str) -> bool {
    !text.is_empty() && !text.contains(['\0', '\n'])
}

impl TlsConfig {
    fn errors(&self) -> Vec<ValueError> {
        let paths = [
            ("certificate", &self.certificate),
            ("private_key", &self.private_key),
            ("authorities", &self.authorities),
        ];
        paths
            .into_iter()
            .filter(|(_, path)| path.as_os_str().is_empty())
            .map(|(key, _)| {
                let text = format!("{key} = \"\": must be the path of a PEM file");
                ValueError::new(key, text)
            })
            .chain(self.range_errors())
            .map(|error| error.under(Step::Table("tls")))
            .collect()
    }
}
