//! Configuration of a `dpdk` port, and the errors of opening it.

use core::fmt;

use crate::af_packet::{AfPacketConfig, AfPacketError, Promiscuous};
use crate::port::MacBytes;

/// Maximum number of receive queues of one port.
const QUEUES_MAX: u32 = 64;
/// MTUs that can be set on a device: from the shortest useful frame to what fits into one buffer.
const MTU_BYTES: core::ops::RangeInclusive<u32> = 302..=2546;
/// Maximum of `memory_mb`, 1 TiB.
const MEMORY_MB_MAX: u32 = 1 << 20;

/// Prefix of a device name for a pair of rings, and the length of the name behind it.
pub(super) const RING_PREFIX: &str = "ring:";
const RING_NAME_BYTES: core::ops::RangeInclusive<usize> = 1..=32;

/// Configuration of DPDK's environment abstraction layer (EAL), which is initialized once per process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EalConfig {
    /// Allocate memory in huge pages, which hardware NICs need; else in ordinary pages.
    pub huge_pages: bool,
    /// MiB to reserve at initialization. With huge pages 0 means: allocate on demand.
    pub memory_mb: u32,
    /// Further EAL arguments. One that sets the same option as one of ours replaces it.
    pub args: Vec<String>,
}

impl Default for EalConfig {
    fn default() -> Self {
        Self {
            huge_pages: false,
            memory_mb: 256,
            args: Vec::new(),
        }
    }
}

/// Configuration of a `dpdk` port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DpdkConfig {
    /// EAL's configuration; must be equal in all ports of a process.
    pub eal: EalConfig,
    /// The device by its DPDK name: a PCI address or a virtual device, either with its keys behind commas, or a
    /// port that exists; or `ring:NAME`, one of the two ports of a pair of rings in this process.
    pub device: String,
    /// Our station address; may differ from the device's own.
    pub mac: MacBytes,
    /// Received EtherTypes.
    pub ethertypes: Vec<u16>,
    /// Number of receive queues, 1 to 64. Frames are sent on the first send queue.
    pub queues: u32,
    /// Frames that a receive queue holds, and received frames that the caller can hold besides.
    pub rx_frames: u32,
    /// Frames that the send queue holds, and frames to send that the caller can hold besides.
    pub tx_frames: u32,
    /// MTU to set on the device, 302 to 2546; `None` keeps the device's.
    pub mtu_bytes: Option<u32>,
    /// When the device is made promiscuous.
    pub promiscuous: Promiscuous,
    /// Multicast addresses to receive besides [`SEGMENT_BROADCAST`](crate::af_packet::SEGMENT_BROADCAST).
    pub multicast: Vec<MacBytes>,
    /// Also receive frames to the device's own address.
    pub interface_address: bool,
}

impl DpdkConfig {
    /// Returns the configuration for a station address on a device, with defaults for all other fields.
    pub fn new(device: impl Into<String>, mac: MacBytes) -> Self {
        let like = AfPacketConfig::new(String::new(), mac);
        Self {
            eal: EalConfig::default(),
            device: device.into(),
            mac: like.mac,
            ethertypes: like.ethertypes,
            queues: 1,
            rx_frames: like.rx_frames,
            tx_frames: like.tx_frames,
            mtu_bytes: None,
            promiscuous: like.promiscuous,
            multicast: like.multicast,
            interface_address: like.interface_address,
        }
    }

    /// Returns the fields that are common with an `af_packet` port.
    pub(super) fn common(&self, interface: &str) -> AfPacketConfig {
        AfPacketConfig {
            ethertypes: self.ethertypes.clone(),
            rx_frames: self.rx_frames,
            tx_frames: self.tx_frames,
            promiscuous: self.promiscuous,
            multicast: self.multicast.clone(),
            interface_address: self.interface_address,
            ..AfPacketConfig::new(interface, self.mac)
        }
    }

    /// Checks the values that are independent of the device.
    pub fn check(&self) -> Result<(), DpdkError> {
        let refuse = |key, reason| Err(DpdkError::BadConfig { key, reason });
        if let Err(AfPacketError::BadConfig { key, reason }) = self.common("").check() {
            return refuse(key, reason);
        }
        let is_name = |text: &str| !text.is_empty() && !text.contains(['\0', '\n']);
        if !is_name(&self.device) {
            return refuse("device", "must name a device: \"net_memif0,role=server\"");
        }
        if let Some(name) = self.device.strip_prefix(RING_PREFIX)
            && !(RING_NAME_BYTES.contains(&name.len())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric()))
        {
            return refuse(
                "device",
                "must be ring: followed by 1 to 32 letters or digits",
            );
        }
        if !self.eal.args.iter().all(|word| is_name(word)) {
            return refuse("args", "must be non-empty words without line breaks");
        }
        if !(1..=QUEUES_MAX).contains(&self.queues) {
            return refuse("queues", "must be 1 to 64");
        }
        if self.mtu_bytes.is_some_and(|mtu| !MTU_BYTES.contains(&mtu)) {
            return refuse("mtu_bytes", "must be 302 to 2546");
        }
        if self.eal.memory_mb > MEMORY_MB_MAX {
            return refuse("memory_mb", "must be at most 1048576");
        }
        if self.eal.memory_mb == 0 && !self.eal.huge_pages {
            return refuse("memory_mb", "must not be 0 without huge pages");
        }
        Ok(())
    }
}

/// Details of a failed DPDK call: its error number as text, and DPDK's log messages since the call began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailureDetail {
    /// The error number as text.
    pub text: String,
    /// Logged warnings and errors, oldest first.
    pub log: Vec<String>,
}

impl fmt::Display for FailureDetail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        match self.log.is_empty() {
            true => Ok(()),
            false => write!(f, "; DPDK: {}", self.log.join(" | ")),
        }
    }
}

/// Error of opening a `dpdk` port; its text contains the remedy.
#[derive(Debug)]
#[non_exhaustive]
pub enum DpdkError {
    /// A configuration key has an invalid value.
    BadConfig {
        /// The key.
        key: &'static str,
        /// What it must be.
        reason: &'static str,
    },
    /// EAL initialization failed; it cannot be retried in this process.
    Eal {
        /// Its arguments.
        args: Vec<String>,
        /// Details from DPDK.
        detail: FailureDetail,
        /// Huge pages were configured.
        huge_pages: bool,
    },
    /// EAL is already initialized with another configuration.
    OtherEal {
        /// The configuration that it was initialized with.
        running: EalConfig,
    },
    /// This process was forked from a process with EAL, which a child cannot use.
    Forked,
    /// No driver accepts the device.
    NoDevice {
        /// The device.
        device: String,
        /// Details from DPDK.
        detail: FailureDetail,
    },
    /// Another port of this process uses the device.
    DeviceTaken {
        /// The device.
        device: String,
    },
    /// The interface of a net_tap has a queue already, of another process or another NIC.
    TapInUse {
        /// The device.
        device: String,
        /// The interface.
        interface: String,
    },
    /// The device has fewer receive queues than configured.
    TooFewQueues {
        /// The device.
        device: String,
        /// Its receive queues.
        queues: u32,
    },
    /// The device's MTU is too small.
    MtuTooSmall {
        /// The device.
        device: String,
        /// Its MTU.
        mtu_bytes: u32,
        /// The minimum.
        needed_bytes: u32,
    },
    /// The device does not accept the MTU.
    MtuRefused {
        /// The device.
        device: String,
        /// The MTU.
        mtu_bytes: u32,
        /// Details from DPDK.
        detail: FailureDetail,
    },
    /// The device's filter does not accept an address, and promiscuous mode is not allowed or failed.
    AddressRefused {
        /// The device.
        device: String,
        /// The address.
        mac: MacBytes,
        /// Details from DPDK.
        detail: FailureDetail,
    },
    /// EAL has no memory for the buffers.
    Memory {
        /// Number of buffers.
        buffers: u32,
        /// Bytes of each buffer.
        buffer_bytes: u32,
        /// Details from DPDK.
        detail: FailureDetail,
    },
    /// The network interface behind the device failed.
    Interface(AfPacketError),
    /// The sockets of a memif control channel cannot be created.
    Socket {
        /// The device.
        device: String,
        /// The error.
        error: std::io::Error,
    },
    /// Any other failed DPDK call.
    Dpdk {
        /// The operation.
        call: &'static str,
        /// Details from DPDK.
        detail: FailureDetail,
    },
}

impl From<AfPacketError> for DpdkError {
    fn from(error: AfPacketError) -> Self {
        Self::Interface(error)
    }
}

const NO_HUGE_PAGES: &str = "if no huge pages are free, reserve some \
    (`echo 256 > /proc/sys/vm/nr_hugepages`), or set huge_pages = false, which works with everything but hardware NICs";

impl fmt::Display for DpdkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadConfig { key, reason } => write!(f, "{key} {reason}"),
            Self::Eal {
                args,
                detail,
                huge_pages,
            } => {
                let args = args.join(" ");
                write!(f, "DPDK initialization with {args:?} failed: {detail}. ")?;
                match huge_pages {
                    true => write!(f, "Fix args or memory_mb; {NO_HUGE_PAGES}")?,
                    false => f.write_str("Fix args or memory_mb")?,
                }
                f.write_str(". Then restart the program")
            }
            Self::OtherEal { running } => write!(
                f,
                "DPDK is initialized in this process with huge_pages = {}, memory_mb = {}, args = {:?}: it is \
                 initialized once per process, so all DPDK NICs must have the same values",
                running.huge_pages, running.memory_mb, running.args
            ),
            Self::Forked => f.write_str(
                "this process was forked from a process that uses DPDK, and cannot use it: open the NIC in the parent \
                 only, or execute another program (exec) first",
            ),
            Self::NoDevice { device, detail } => write!(
                f,
                "no DPDK device {device:?} ({detail}): name a hardware NIC by its PCI address and bind it to vfio-pci \
                 (`dpdk-devbind.py --status`); name a virtual device by its driver, a number and its keys \
                 (\"net_af_packet0,iface=eth0\")"
            ),
            Self::DeviceTaken { device } => write!(
                f,
                "device {device:?} is used by another NIC of this process: configure a different device for each NIC"
            ),
            Self::TapInUse { device, interface } => write!(
                f,
                "interface {interface:?} of {device:?} has a queue of another process or NIC, which would get a part of \
                 the frames: end the process that has `iff: {interface}` in /proc/PID/fdinfo, perhaps a child of one \
                 that had this device, or name another interface"
            ),
            Self::TooFewQueues { device, queues } => write!(
                f,
                "device {device:?} has {queues} receive queues: lower queues, or configure more with the device's keys"
            ),
            Self::MtuTooSmall {
                device,
                mtu_bytes,
                needed_bytes,
            } => write!(
                f,
                "device {device:?} has an MTU of {mtu_bytes} bytes, the minimum is {needed_bytes}: raise it with \
                 mtu_bytes, or where its interface is configured; 2500 is recommended"
            ),
            Self::MtuRefused {
                device,
                mtu_bytes,
                detail,
            } => write!(
                f,
                "device {device:?} does not accept an MTU of {mtu_bytes} bytes ({detail}): lower or omit mtu_bytes"
            ),
            Self::AddressRefused {
                device,
                mac,
                detail,
            } => {
                let [a, b, c, d, e, g] = mac;
                write!(
                    f,
                    "device {device:?} does not accept receive address \
                     {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x} ({detail}): allow promiscuous mode"
                )
            }
            Self::Memory {
                buffers,
                buffer_bytes,
                detail,
            } => write!(
                f,
                "DPDK has no memory for {buffers} buffers of {buffer_bytes} bytes ({detail}): raise memory_mb, or \
                 lower rx_frames or tx_frames"
            ),
            Self::Interface(error) => error.fmt(f),
            Self::Socket { device, error } if error.kind() == std::io::ErrorKind::AddrInUse => write!(
                f,
                "the socket of device {device:?} is in use, or its path is a file: set another one with the device's \
                 key socket, or stop the process that uses it (`ss -xlp`)"
            ),
            Self::Socket { device, error } => {
                write!(f, "sockets of device {device:?} failed: {error}: check its key socket, the directory for \
                 temporary files (TMPDIR), and the limits on file descriptors and threads")
            }
            Self::Dpdk { call, detail } => write!(f, "{call} failed: {detail}"),
        }
    }
}

impl std::error::Error for DpdkError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Interface(error) => error.source(),
            Self::Socket { error, .. } => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_invalid_value_names_its_key() {
        let refused_key = |change: fn(&mut DpdkConfig)| {
            let mut config = DpdkConfig::new("net_null0", [0x0e, 0xfd, 0, 0, 0, 1]);
            assert!(config.check().is_ok());
            change(&mut config);
            match config.check() {
                Err(DpdkError::BadConfig { key, .. }) => key,
                other => panic!("expected BadConfig, got {other:?}"),
            }
        };
        assert_eq!(refused_key(|c| c.mac = [1, 0, 0, 0, 0, 1]), "mac");
        assert_eq!(refused_key(|c| c.ethertypes.clear()), "ethertypes");
        assert_eq!(refused_key(|c| c.rx_frames = 0), "rx_frames");
        assert_eq!(refused_key(|c| c.tx_frames = 65_537), "tx_frames");
        assert_eq!(refused_key(|c| c.queues = 65), "queues");
        assert_eq!(refused_key(|c| c.device.clear()), "device");
        assert_eq!(refused_key(|c| c.device = "ring:".into()), "device");
        assert_eq!(refused_key(|c| c.device = "ring:a,b".into()), "device");
        assert_eq!(refused_key(|c| c.eal.args.push("a\0b".into())), "args");
        assert_eq!(refused_key(|c| c.mtu_bytes = Some(301)), "mtu_bytes");
        assert_eq!(refused_key(|c| c.mtu_bytes = Some(2547)), "mtu_bytes");
        assert_eq!(refused_key(|c| c.eal.memory_mb = 0), "memory_mb");
        let without_limit = |c: &mut DpdkConfig| c.eal.memory_mb = MEMORY_MB_MAX + 1;
        assert_eq!(refused_key(without_limit), "memory_mb");
    }
}
