//! What a `dpdk` port is opened with, and why opening it may fail.

use core::fmt;

use crate::af_packet::{AfPacketConfig, AfPacketError, Promiscuous};
use crate::port::MacBytes;

/// The most receive queues of one port.
const QUEUES_MAX: u32 = 64;
/// The least and the greatest MTU that can be asked of a device: from the shortest useful frame to what one buffer
/// holds.
const MTU_BYTES: core::ops::RangeInclusive<u32> = 302..=2546;
/// The most memory that EAL is asked for, 1 TiB.
const MEMORY_MB_MAX: u32 = 1 << 20;

/// What names a pair of rings of ours begins with, and how long the rest is.
pub(super) const RINGS: &str = "ring:";
const RINGS_NAME_BYTES: core::ops::RangeInclusive<usize> = 1..=32;

/// What DPDK's environment abstraction layer is started with, once in a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EalConfig {
    /// Take memory in huge pages, which cards need; else ordinary pages.
    pub huge_pages: bool,
    /// MiB to reserve at the start. With huge pages 0 means: what is needed, when it is needed.
    pub memory_mb: u32,
    /// Further arguments of EAL. One that says the same as an argument of ours takes its place.
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

/// What a `dpdk` port is opened with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DpdkConfig {
    /// For EAL; the same in all ports of a process.
    pub eal: EalConfig,
    /// The device, as DPDK names it: a PCI address, a virtual device, either with its own keys behind commas, or a
    /// port that exists; or `ring:NAME`, one of the two ends of a pair of rings in this process.
    pub device: String,
    /// Our station address; may differ from the device's own.
    pub mac: MacBytes,
    /// EtherTypes that are received.
    pub ethertypes: Vec<u16>,
    /// At how many queues frames are received, 1 to 64. They are sent at the first one.
    pub queues: u32,
    /// Frames that a receive queue holds, and received frames that the caller can hold beside them.
    pub rx_frames: u32,
    /// Frames that the send queue holds, and frames to send that the caller can hold beside them.
    pub tx_frames: u32,
    /// The MTU that the device is given, 302 to 2546; otherwise that which it has.
    pub mtu_bytes: Option<u32>,
    /// When the device is asked for every frame on the wire.
    pub promiscuous: Promiscuous,
    /// Addresses that are received besides our own and
    /// [`SEGMENT_BROADCAST`](crate::af_packet::SEGMENT_BROADCAST).
    pub multicast: Vec<MacBytes>,
    /// Receive frames to the device's own address too.
    pub interface_address: bool,
}

impl DpdkConfig {
    /// The configuration for a station on a device, with defaults for the rest.
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

    /// The part of it that any port with addresses has.
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

    /// Refuses what no device could be opened with.
    pub fn check(&self) -> Result<(), DpdkError> {
        let refuse = |key, reason| Err(DpdkError::BadConfig { key, reason });
        if let Err(AfPacketError::BadConfig { key, reason }) = self.common("").check() {
            return refuse(key, reason);
        }
        let is_name = |text: &str| !text.is_empty() && !text.contains(['\0', '\n']);
        if !is_name(&self.device) {
            return refuse("device", "must name a device: \"net_memif0,role=server\"");
        }
        if let Some(name) = self.device.strip_prefix(RINGS)
            && !(RINGS_NAME_BYTES.contains(&name.len())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric()))
        {
            return refuse("device", "must be ring: with 1 to 32 letters and digits");
        }
        if !self.eal.args.iter().all(|word| is_name(word)) {
            return refuse("args", "must be words");
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

/// What DPDK said of a failure: the number that a call returned, and its log since the call began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// What the number means.
    pub text: String,
    /// Warnings and errors of the log, oldest first.
    pub log: Vec<String>,
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        match self.log.is_empty() {
            true => Ok(()),
            false => write!(f, "; DPDK: {}", self.log.join(" | ")),
        }
    }
}

/// Why a `dpdk` port could not be opened; the text says what to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum DpdkError {
    /// A key of the configuration has an impossible value.
    BadConfig {
        /// The key.
        key: &'static str,
        /// What it must be.
        reason: &'static str,
    },
    /// EAL did not start, which this process cannot try again.
    Eal {
        /// What it was started with.
        args: Vec<String>,
        /// What it said.
        said: Said,
        /// Were huge pages asked for?
        huge_pages: bool,
    },
    /// EAL runs, and was started with something else.
    OtherEal {
        /// What it was started with.
        running: EalConfig,
    },
    /// This process was forked from one with EAL, of which nothing can be used here.
    Forked,
    /// No driver takes the device.
    NoDevice {
        /// The device.
        device: String,
        /// What DPDK said.
        said: Said,
    },
    /// Another port of this process has the device.
    DeviceTaken {
        /// The device.
        device: String,
    },
    /// The device has fewer queues.
    TooFewQueues {
        /// The device.
        device: String,
        /// How many it has.
        queues: u32,
    },
    /// Frames of the device are too short for anything useful.
    MtuTooSmall {
        /// The device.
        device: String,
        /// Its MTU.
        mtu_bytes: u32,
        /// The MTU that is needed at least.
        needed_bytes: u32,
    },
    /// The device does not take the MTU.
    MtuRefused {
        /// The device.
        device: String,
        /// The MTU.
        mtu_bytes: u32,
        /// What DPDK said.
        said: Said,
    },
    /// The device does not receive for an address, and may not be made promiscuous.
    AddressRefused {
        /// The device.
        device: String,
        /// The address.
        mac: MacBytes,
        /// What DPDK said.
        said: Said,
    },
    /// EAL has no room for the buffers.
    Memory {
        /// How many there are to be.
        buffers: u32,
        /// Bytes of each.
        buffer_bytes: u32,
        /// What DPDK said.
        said: Said,
    },
    /// Something about the interface behind the device.
    Interface(AfPacketError),
    /// The socket by which memif's ends find each other cannot be had.
    Socket {
        /// The device.
        device: String,
        /// Why not.
        error: std::io::Error,
    },
    /// Any other refusal.
    Dpdk {
        /// What was asked.
        call: &'static str,
        /// What DPDK said.
        said: Said,
    },
}

impl From<AfPacketError> for DpdkError {
    fn from(error: AfPacketError) -> Self {
        Self::Interface(error)
    }
}

const NO_HUGE_PAGES: &str = "without free huge pages set some aside \
    (`echo 256 > /proc/sys/vm/nr_hugepages`), or set huge_pages = false, with which everything but real cards works";

impl fmt::Display for DpdkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadConfig { key, reason } => write!(f, "{key} {reason}"),
            Self::Eal {
                args,
                said,
                huge_pages,
            } => {
                let args = args.join(" ");
                write!(f, "DPDK did not start with {args:?}: {said}. ")?;
                match huge_pages {
                    true => write!(f, "Mend args or memory_mb; {NO_HUGE_PAGES}")?,
                    false => f.write_str("Mend args or memory_mb")?,
                }
                f.write_str(". Then start the program again")
            }
            Self::OtherEal { running } => write!(
                f,
                "DPDK runs in this process with huge_pages = {}, memory_mb = {}, args = {:?}: it is started once in a \
                 process, so all NICs on it must say the same",
                running.huge_pages, running.memory_mb, running.args
            ),
            Self::Forked => f.write_str(
                "this process was forked from one that uses DPDK, and cannot use it: open the NIC before the fork in \
                 the parent only, or run another program (exec) first",
            ),
            Self::NoDevice { device, said } => write!(
                f,
                "no DPDK device {device:?} ({said}): a card is named by its PCI address and must be bound to vfio-pci \
                 (`dpdk-devbind.py --status`), a virtual device by its driver, a number and its keys \
                 (\"net_af_packet0,iface=eth0\")"
            ),
            Self::DeviceTaken { device } => write!(
                f,
                "device {device:?} is another NIC's of this process: give each NIC its own"
            ),
            Self::TooFewQueues { device, queues } => write!(
                f,
                "device {device:?} has {queues} receive queues: lower queues, or give the device more with its keys"
            ),
            Self::MtuTooSmall {
                device,
                mtu_bytes,
                needed_bytes,
            } => write!(
                f,
                "device {device:?} has an MTU of {mtu_bytes} bytes, {needed_bytes} are needed: raise it with \
                 mtu_bytes, or where its interface is configured; 2500 is best"
            ),
            Self::MtuRefused {
                device,
                mtu_bytes,
                said,
            } => write!(
                f,
                "device {device:?} does not take an MTU of {mtu_bytes} bytes ({said}): lower mtu_bytes or leave it out"
            ),
            Self::AddressRefused { device, mac, said } => {
                let [a, b, c, d, e, g] = mac;
                write!(
                    f,
                    "device {device:?} does not receive for {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x} ({said}): \
                     allow promiscuous mode"
                )
            }
            Self::Memory {
                buffers,
                buffer_bytes,
                said,
            } => write!(
                f,
                "DPDK has no memory for {buffers} buffers of {buffer_bytes} bytes ({said}): raise memory_mb, or lower \
                 rx_frames or tx_frames"
            ),
            Self::Interface(error) => error.fmt(f),
            Self::Socket { device, error } if error.kind() == std::io::ErrorKind::AddrInUse => write!(
                f,
                "the socket of device {device:?} is another's, or a file is there: name another one with its key socket, \
                 or end whoever has it (`ss -xlp`)"
            ),
            Self::Socket { device, error } => {
                write!(f, "the sockets of device {device:?}: {error}: see to its key socket, to the directory for \
                 temporary files (TMPDIR), and to the limits of descriptors and threads")
            }
            Self::Dpdk { call, said } => write!(f, "{call}: {said}"),
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
    fn impossible_values_are_refused_by_key() {
        let refused_key = |change: fn(&mut DpdkConfig)| {
            let mut config = DpdkConfig::new("net_null0", [0x0e, 0xfd, 0, 0, 0, 1]);
            assert!(config.check().is_ok());
            change(&mut config);
            match config.check() {
                Err(DpdkError::BadConfig { key, .. }) => key,
                other => panic!("expected a refusal, got {other:?}"),
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
