//! Configuration of an `af_xdp` port, and the errors of opening it.

use core::fmt;
use std::io;
use std::time::Duration;

use crate::af_packet::{AfPacketConfig, AfPacketError, Promiscuous};
use crate::port::MacBytes;

/// Maximum number of queues of one port.
const QUEUES_MAX: u32 = 64;
/// Maximum queue index of an interface.
const QUEUE_MAX: u32 = 65_535;

/// Whether frames are copied between the interface's memory and the port's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyMode {
    /// Zero copy if the interface's driver supports it, else copying.
    #[default]
    Auto,
    /// Never: opening the port fails if the driver does not support zero copy.
    ZeroCopy,
    /// Always; every driver supports it.
    Copy,
}

/// Configuration of an `af_xdp` port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AfXdpConfig {
    /// The network interface, as listed by `ip link`.
    pub interface: String,
    /// The station address; may differ from the interface's own.
    pub mac: MacBytes,
    /// EtherTypes that are received.
    pub ethertypes: Vec<u16>,
    /// The first receive queue, which is also the send queue. Queues count from 0.
    pub queue: u32,
    /// Number of receive queues, 1 to 64.
    pub queues: u32,
    /// Chunks for received frames, of each queue; rounded up to a power of two.
    pub rx_frames: u32,
    /// Chunks for frames to send; rounded up to a power of two.
    pub tx_frames: u32,
    /// When the interface is made promiscuous.
    pub promiscuous: Promiscuous,
    /// Addresses that are received besides the station address and
    /// [`SEGMENT_BROADCAST`](crate::af_packet::SEGMENT_BROADCAST).
    pub multicast: Vec<MacBytes>,
    /// Also receives frames to the interface's own address.
    pub interface_address: bool,
    /// Whether frames are copied.
    pub copy: CopyMode,
    /// Maximum time that frames may be in the send ring while the kernel takes none: older ones
    /// must not reach the wire, and the port fails. Must be somewhat shorter than the time after
    /// which the senders reuse the frames' identifiers.
    pub standstill_limit: Duration,
}

/// Default: half of the maximum lifetime of a frame in the network (R_A_TOV).
const STANDSTILL_LIMIT: Duration = Duration::from_secs(5);

impl AfXdpConfig {
    /// Creates the default configuration for a station on an interface.
    pub fn new(interface: impl Into<String>, mac: MacBytes) -> Self {
        let base = AfPacketConfig::new(interface, mac);
        Self {
            interface: base.interface,
            mac: base.mac,
            ethertypes: base.ethertypes,
            queue: 0,
            queues: 1,
            rx_frames: base.rx_frames,
            tx_frames: base.tx_frames,
            promiscuous: base.promiscuous,
            multicast: base.multicast,
            interface_address: base.interface_address,
            copy: CopyMode::Auto,
            standstill_limit: STANDSTILL_LIMIT,
        }
    }

    /// Returns the part of the configuration that is common to ports on interfaces.
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

    /// Validates the configuration, independently of any interface.
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

/// Why an `af_xdp` port could not be opened; the text includes the remedy.
#[derive(Debug)]
#[non_exhaustive]
pub enum AfXdpError {
    /// The process has no permission to open AF_XDP sockets, or to load programs.
    NotPermitted,
    /// The kernel was built without AF_XDP or BPF, or is older than 5.11.
    NoKernelSupport {
        /// The missing feature.
        lacking: &'static str,
    },
    /// A key of the configuration has an invalid value.
    BadConfig {
        /// The key.
        key: &'static str,
        /// The allowed values.
        reason: &'static str,
    },
    /// An error that would prevent opening an `af_packet` port too.
    Interface(AfPacketError),
    /// Frames of the interface can be longer than a chunk.
    MtuTooLong {
        /// The interface.
        interface: String,
        /// Its MTU.
        mtu_bytes: u32,
        /// The maximum MTU.
        limit_bytes: u32,
    },
    /// Another XDP program is attached to the interface.
    AnotherProgram {
        /// The interface.
        interface: String,
    },
    /// The interface accepts no program, neither in its driver nor in the kernel.
    ProgramRefused {
        /// The interface.
        interface: String,
        /// The error of the system call.
        source: io::Error,
    },
    /// The interface has no such queue.
    NoSuchQueue {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
    },
    /// The queue can receive but not send.
    NoSendQueue {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// The number of send queues of the interface.
        queues: u32,
    },
    /// Another socket is bound to the queue.
    QueueTaken {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
    },
    /// Zero copy was configured, and the queue does not support it.
    ZeroCopyRefused {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// The error of the system call.
        source: io::Error,
    },
    /// The limit of locked memory is too small.
    MemoryLimit {
        /// The required size.
        memory_bytes: usize,
    },
    /// The kernel could not allocate chunks or rings.
    Memory {
        /// The size of all chunks.
        memory_bytes: usize,
        /// The error of the system call.
        source: io::Error,
    },
    /// Any other failed system call.
    Os {
        /// The operation.
        call: &'static str,
        /// The error of the system call.
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
    kernels before 5.11 also need LimitMEMLOCK=infinity) or run it as root of the host; it is \
    never permitted in a user namespace";

impl fmt::Display for AfXdpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPermitted => f.write_str(NOT_PERMITTED),
            Self::NoKernelSupport { lacking } => write!(
                f,
                "this kernel has no {lacking}: use Linux 5.11 or later with \
                 CONFIG_XDP_SOCKETS and CONFIG_BPF_SYSCALL, or [nic.af_packet]"
            ),
            Self::BadConfig { key, reason } => write!(f, "{key} {reason}"),
            Self::Interface(error) => error.fmt(f),
            Self::MtuTooLong {
                interface,
                mtu_bytes,
                limit_bytes,
            } => write!(
                f,
                "interface {interface:?} has an MTU of {mtu_bytes} bytes, at most {limit_bytes} \
                 fit into a chunk: lower it with `ip link set {interface} mtu 2500`, \
                 which suffices for the longest FCoE frame, or use [nic.af_packet]"
            ),
            Self::AnotherProgram { interface } => write!(
                f,
                "interface {interface:?} has another XDP program, of this or another process: \
                 `ip link show {interface}` names it; end its owner, or use [nic.af_packet], \
                 which several programs can share"
            ),
            Self::ProgramRefused { interface, source } => write!(
                f,
                "interface {interface:?} accepts no XDP program ({source}): see the kernel's log \
                 (`dmesg`), or use [nic.af_packet], which needs none"
            ),
            Self::NoSuchQueue { interface, queue } => write!(
                f,
                "interface {interface:?} has no queue {queue}: queues count from 0, and \
                 `ethtool -l {interface}` lists how many there are"
            ),
            Self::NoSendQueue {
                interface,
                queue,
                queues,
            } => write!(
                f,
                "interface {interface:?} sends on {queues} queues, counted from 0, and queue \
                 {queue} only receives: set queue to one that sends, or configure as many of both \
                 (`ethtool -L {interface} rx N tx N`)"
            ),
            Self::QueueTaken { interface, queue } => write!(
                f,
                "queue {queue} of interface {interface:?} is used by another AF_XDP socket: end \
                 its owner, or choose another queue"
            ),
            Self::ZeroCopyRefused {
                interface,
                queue,
                source,
            } => write!(
                f,
                "queue {queue} of interface {interface:?} does not support zero copy ({source}): \
                 set copy = \"auto\", and check that the queue exists (`ethtool -l {interface}`)"
            ),
            Self::MemoryLimit { memory_bytes } => write!(
                f,
                "{memory_bytes} bytes of buffers exceed this process's limit of locked memory: \
                 raise it (`ulimit -l`, LimitMEMLOCK= of a service), give the program \
                 cap_ipc_lock, or lower rx_frames or tx_frames"
            ),
            Self::Memory {
                memory_bytes,
                source,
            } => write!(
                f,
                "allocating {memory_bytes} bytes of buffers and their rings failed \
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
    fn invalid_values_are_rejected_by_key() {
        let refused_key = |change: fn(&mut AfXdpConfig)| {
            let mut config = AfXdpConfig::new("eth0", [0x0e, 0xfd, 0, 0, 0, 1]);
            assert!(config.check().is_ok());
            change(&mut config);
            match config.check() {
                Err(AfXdpError::BadConfig { key, .. }) => key,
                other => panic!("expected BadConfig, got {other:?}"),
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
