//! What an `af_xdp` port is opened with, and why opening it may fail.

use core::fmt;
use std::io;
use std::time::Duration;

use crate::af_packet::{AfPacketConfig, AfPacketError, Promiscuous};
use crate::port::MacBytes;

/// The most queues of one port.
const QUEUES_MAX: u32 = 64;
/// No interface has more queues than this.
const QUEUE_MAX: u32 = 65_535;

/// Whether frames are copied between the interface's memory and the port's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyMode {
    /// Not if the interface's driver can do without, else yes.
    #[default]
    Auto,
    /// Never: opening the port fails if the driver cannot do without.
    ZeroCopy,
    /// Always, which every driver can.
    Copy,
}

/// What an `af_xdp` port is opened with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AfXdpConfig {
    /// The network interface, as `ip link` shows it.
    pub interface: String,
    /// Our station address; may differ from the interface's own.
    pub mac: MacBytes,
    /// EtherTypes that are received.
    pub ethertypes: Vec<u16>,
    /// The first queue to receive at, and the one to send at. Queues count from 0.
    pub queue: u32,
    /// At how many queues frames are received, 1 to 64.
    pub queues: u32,
    /// Chunks for received frames, of each queue; rounded up to a power of two.
    pub rx_frames: u32,
    /// Chunks for frames to send; rounded up to a power of two.
    pub tx_frames: u32,
    /// When the interface is asked for every frame on the wire.
    pub promiscuous: Promiscuous,
    /// Addresses that are received besides our own and
    /// [`SEGMENT_BROADCAST`](crate::af_packet::SEGMENT_BROADCAST).
    pub multicast: Vec<MacBytes>,
    /// Receive frames to the interface's own address too.
    pub interface_address: bool,
    /// Whether frames are copied.
    pub copy: CopyMode,
    /// How long frames may stand in the send ring while the kernel takes none: those that stood
    /// longer must not reach the wire, and the port fails. Shorter by some than the time after
    /// which those who sent them use their identifiers again.
    pub standstill_limit: Duration,
}

/// Half of the time that a frame may be on its way (R_A_TOV), unless told.
const STANDSTILL_LIMIT: Duration = Duration::from_secs(5);

impl AfXdpConfig {
    /// The configuration for a station on an interface, with defaults for the rest.
    pub fn new(interface: impl Into<String>, mac: MacBytes) -> Self {
        let like = AfPacketConfig::new(interface, mac);
        Self {
            interface: like.interface,
            mac: like.mac,
            ethertypes: like.ethertypes,
            queue: 0,
            queues: 1,
            rx_frames: like.rx_frames,
            tx_frames: like.tx_frames,
            promiscuous: like.promiscuous,
            multicast: like.multicast,
            interface_address: like.interface_address,
            copy: CopyMode::Auto,
            standstill_limit: STANDSTILL_LIMIT,
        }
    }

    /// The part of it that any port on an interface has.
    pub(super) fn common(&self) -> AfPacketConfig {
        AfPacketConfig {
            ethertypes: self.ethertypes.clone(),
            rx_frames: self.rx_frames,
            tx_frames: self.tx_frames,
            promiscuous: self.promiscuous,
            multicast: self.multicast.clone(),
            interface_address: self.interface_address,
            ..AfPacketConfig::new(self.interface.clone(), self.mac)
        }
    }

    /// Refuses what no interface could be opened with.
    pub(super) fn check(&self) -> Result<(), AfXdpError> {
        self.common().check()?;
        if self.queue > QUEUE_MAX {
            return Err(AfXdpError::BadConfig {
                key: "queue",
                reason: "must be 0 to 65535",
            });
        }
        if !(1..=QUEUES_MAX).contains(&self.queues) {
            return Err(AfXdpError::BadConfig {
                key: "queues",
                reason: "must be 1 to 64",
            });
        }
        Ok(())
    }
}

/// Why an `af_xdp` port could not be opened; the text says what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum AfXdpError {
    /// The process may not open such sockets, or load programs.
    NotPermitted,
    /// The kernel was built without AF_XDP or BPF, or is older than 5.11.
    NoKernelSupport {
        /// What it lacks.
        lacking: &'static str,
    },
    /// A key of the configuration has an impossible value.
    BadConfig {
        /// The key.
        key: &'static str,
        /// What it must be.
        reason: &'static str,
    },
    /// Something that would keep an `af_packet` port from being opened too.
    Interface(AfPacketError),
    /// Frames of the interface can be longer than a chunk.
    MtuTooLong {
        /// The interface.
        interface: String,
        /// Its MTU.
        mtu_bytes: u32,
        /// The largest MTU that will do.
        limit_bytes: u32,
    },
    /// Another program steers the frames of the interface.
    AnotherProgram {
        /// The interface.
        interface: String,
    },
    /// The interface takes no program, neither in its driver nor in the kernel.
    ProgramRefused {
        /// The interface.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The interface has no such queue.
    NoSuchQueue {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
    },
    /// Frames can be received at the queue, and not sent.
    NoSendQueue {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// How many queues the interface has to send at.
        queues: u32,
    },
    /// Another socket has the queue.
    QueueTaken {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
    },
    /// Zero copy was asked for, and the queue does not do it.
    ZeroCopyRefused {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// The process may not keep so much memory in place.
    MemoryLimit {
        /// How much that is.
        memory_bytes: usize,
    },
    /// The kernel gave no memory for chunks or rings.
    Memory {
        /// How much all chunks take.
        memory_bytes: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// Any other refusal of the kernel.
    Os {
        /// What was asked of it.
        call: &'static str,
        /// What it said.
        source: io::Error,
    },
}

impl From<AfPacketError> for AfXdpError {
    fn from(error: AfPacketError) -> Self {
        match error {
            AfPacketError::NotPermitted => Self::NotPermitted,
            AfPacketError::BadConfig { key, reason } => Self::BadConfig { key, reason },
            AfPacketError::Os { call, source } => Self::Os { call, source },
            other => Self::Interface(other),
        }
    }
}

const NOT_PERMITTED: &str = "no permission to open an AF_XDP socket and to load an XDP program: \
    give the program the capabilities (setcap cap_net_raw,cap_net_admin,cap_bpf+ep PROGRAM; \
    kernels before 5.11 also want LimitMEMLOCK=infinity) or run it as root of the host; in a \
    user namespace that is never allowed";

impl fmt::Display for AfXdpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPermitted => f.write_str(NOT_PERMITTED),
            Self::NoKernelSupport { lacking } => write!(
                f,
                "this kernel has no {lacking}: take one of Linux 5.11 or later with \
                 CONFIG_XDP_SOCKETS and CONFIG_BPF_SYSCALL, or port = \"af_packet\""
            ),
            Self::BadConfig { key, reason } => write!(f, "{key} {reason}"),
            Self::Interface(error) => error.fmt(f),
            Self::MtuTooLong {
                interface,
                mtu_bytes,
                limit_bytes,
            } => write!(
                f,
                "interface {interface:?} has an MTU of {mtu_bytes} bytes, {limit_bytes} are the \
                 most that a chunk holds: lower it with `ip link set {interface} mtu 2500`, \
                 which the longest FCoE frame fits into, or take port = \"af_packet\""
            ),
            Self::AnotherProgram { interface } => write!(
                f,
                "interface {interface:?} has another XDP program, of this or another process: \
                 `ip link show {interface}` names it; end its owner, or take port = \"af_packet\", \
                 which several programs can share"
            ),
            Self::ProgramRefused { interface, source } => write!(
                f,
                "interface {interface:?} takes no XDP program ({source}): the kernel's log may \
                 say why (`dmesg`); port = \"af_packet\" needs none"
            ),
            Self::NoSuchQueue { interface, queue } => write!(
                f,
                "interface {interface:?} has no queue {queue}: they count from 0, and \
                 `ethtool -l {interface}` says how many there are"
            ),
            Self::NoSendQueue {
                interface,
                queue,
                queues,
            } => write!(
                f,
                "interface {interface:?} sends at {queues} queues, counted from 0, and queue \
                 {queue} only receives: set queue to one that sends, or give it as many of both \
                 (`ethtool -L {interface} rx N tx N`)"
            ),
            Self::QueueTaken { interface, queue } => write!(
                f,
                "queue {queue} of interface {interface:?} is another AF_XDP socket's: end its \
                 owner, or choose another queue"
            ),
            Self::ZeroCopyRefused {
                interface,
                queue,
                source,
            } => write!(
                f,
                "queue {queue} of interface {interface:?} does not do without copying ({source}): \
                 set copy = \"auto\", and see that the queue exists (`ethtool -l {interface}`)"
            ),
            Self::MemoryLimit { memory_bytes } => write!(
                f,
                "{memory_bytes} bytes of buffers are more than this process may keep in memory: \
                 raise the limit (`ulimit -l`, LimitMEMLOCK= of a service), give the program \
                 cap_ipc_lock, or lower rx_frames or tx_frames"
            ),
            Self::Memory {
                memory_bytes,
                source,
            } => write!(
                f,
                "the kernel gave no memory for {memory_bytes} bytes of buffers and their rings \
                 ({source}): lower rx_frames or tx_frames"
            ),
            Self::Os { call, source } => write!(f, "{call}: {source}"),
        }
    }
}

impl std::error::Error for AfXdpError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Interface(error) => error.source(),
            Self::ProgramRefused { source, .. }
            | Self::ZeroCopyRefused { source, .. }
            | Self::Memory { source, .. }
            | Self::Os { source, .. } => Some(source),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_values_are_refused_by_key() {
        let refused_key = |change: fn(&mut AfXdpConfig)| {
            let mut config = AfXdpConfig::new("eth0", [0x0e, 0xfd, 0, 0, 0, 1]);
            assert!(config.check().is_ok());
            change(&mut config);
            match config.check() {
                Err(AfXdpError::BadConfig { key, .. }) => key,
                other => panic!("expected a refusal, got {other:?}"),
            }
        };
        assert_eq!(refused_key(|c| c.mac = [1, 0, 0, 0, 0, 1]), "mac");
        assert_eq!(refused_key(|c| c.ethertypes.clear()), "ethertypes");
        assert_eq!(refused_key(|c| c.rx_frames = 0), "rx_frames");
        assert_eq!(refused_key(|c| c.tx_frames = 65_537), "tx_frames");
        assert_eq!(refused_key(|c| c.queue = 65_536), "queue");
        assert_eq!(refused_key(|c| c.queues = 0), "queues");
        assert_eq!(refused_key(|c| c.queues = 65), "queues");
    }
}
