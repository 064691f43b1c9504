//! Configuration of an `af_packet` port, and the errors of opening it.

use core::fmt;
use std::io;

use crate::port::MacBytes;

/// EtherType of FCoE frames.
const ETHERTYPE_FCOE: u16 = 0x8906;
/// EtherType of the FCoE initialization protocol.
const ETHERTYPE_FIP: u16 = 0x8914;
/// EtherTypes below this are lengths.
const ETHERTYPE_MIN: u16 = 0x0600;
/// EtherTypes of VLAN tags.
const TAG_ETHERTYPES: [u16; 2] = [0x8100, 0x88a8];
/// Limits the length of the kernel's filter.
const ETHERTYPES_MAX: usize = 16;
/// Limits the length of the kernel's filter.
const MULTICAST_MAX: usize = 256;
/// Maximum number of slots of a ring, which then takes 150 MB.
const RING_FRAMES_MAX: u32 = 65_536;

/// When the interface is made promiscuous.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Promiscuous {
    /// Only if it refuses to receive for the configured addresses.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never: opening the port fails if the interface refuses an address.
    Never,
}

/// Configuration of an `af_packet` port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AfPacketConfig {
    /// The network interface, as listed by `ip link`; for a VLAN, its own
    /// interface (`eth0.100`).
    pub interface: String,
    /// The station address; may differ from the interface's own.
    pub mac: MacBytes,
    /// EtherTypes that are received.
    pub ethertypes: Vec<u16>,
    /// Slots of the receive ring, rounded up to whole blocks of memory.
    pub rx_frames: u32,
    /// Slots of the send ring, rounded up to whole blocks of memory.
    pub tx_frames: u32,
    /// When the interface is made promiscuous.
    pub promiscuous: Promiscuous,
    /// Addresses that are received besides the station address and
    /// [`SEGMENT_BROADCAST`](super::SEGMENT_BROADCAST).
    pub multicast: Vec<MacBytes>,
    /// Also receives frames to the interface's own address, as do all ports of this host on
    /// the interface that set this.
    pub interface_address: bool,
    /// Sends frames past the interface's queueing discipline. That saves little, and
    /// other programs of this host on the same interface and capture tools do not
    /// see the sent frames then: only useful if no other program uses the
    /// interface.
    pub qdisc_bypass: bool,
}

impl AfPacketConfig {
    /// Creates the default configuration for a station on an interface.
    pub fn new(interface: impl Into<String>, mac: MacBytes) -> Self {
        Self {
            interface: interface.into(),
            mac,
            ethertypes: vec![ETHERTYPE_FCOE, ETHERTYPE_FIP],
            rx_frames: 4096,
            tx_frames: 1024,
            promiscuous: Promiscuous::Auto,
            multicast: Vec::new(),
            interface_address: false,
            qdisc_bypass: false,
        }
    }

    /// Validates the configuration, independently of any interface.
    pub(crate) fn check(&self) -> Result<(), AfPacketError> {
        let refuse = |key, reason| Err(AfPacketError::BadConfig { key, reason });
        if !is_station(self.mac) {
            return refuse("mac", "must be a unicast address");
        }
        if self.ethertypes.is_empty() || self.ethertypes.len() > ETHERTYPES_MAX {
            return refuse("ethertypes", "must name 1 to 16 EtherTypes");
        }
        let is_type = |value: &u16| *value >= ETHERTYPE_MIN && !TAG_ETHERTYPES.contains(value);
        if !self.ethertypes.iter().all(is_type) {
            return refuse("ethertypes", "must not contain lengths or VLAN tags");
        }
        if self.multicast.len() > MULTICAST_MAX {
            return refuse("multicast", "must name at most 256 addresses");
        }
        if !(1..=RING_FRAMES_MAX).contains(&self.rx_frames) {
            return refuse("rx_frames", "must be 1 to 65536");
        }
        if !(1..=RING_FRAMES_MAX).contains(&self.tx_frames) {
            return refuse("tx_frames", "must be 1 to 65536");
        }
        Ok(())
    }
}

/// Returns whether the address can be that of one station.
pub(crate) fn is_station(mac: MacBytes) -> bool {
    mac[0] & 1 == 0 && mac != [0; 6]
}

/// Why an `af_packet` port could not be opened; the text includes the remedy.
#[derive(Debug)]
#[non_exhaustive]
pub enum AfPacketError {
    /// The process has no permission to open packet sockets.
    NotPermitted,
    /// A key of the configuration has an invalid value.
    BadConfig {
        /// The key.
        key: &'static str,
        /// The allowed values.
        reason: &'static str,
    },
    /// The interface name exceeds the maximum length.
    NameTooLong {
        /// The name.
        interface: String,
    },
    /// There is no such interface in this network namespace.
    NoSuchInterface {
        /// The name.
        interface: String,
    },
    /// The interface is not an Ethernet interface, or is the loopback interface.
    NotEthernet {
        /// The name.
        interface: String,
    },
    /// The interface is down.
    InterfaceDown {
        /// The name.
        interface: String,
    },
    /// The MTU is too small for the smallest useful frame.
    MtuTooSmall {
        /// The name.
        interface: String,
        /// Its MTU.
        mtu_bytes: u32,
        /// The minimum MTU.
        needed_bytes: u32,
    },
    /// The kernel could not allocate the rings.
    RingMemory {
        /// The requested size.
        ring_bytes: usize,
        /// The error of the system call.
        source: io::Error,
    },
    /// The interface refused to receive for an address, and must not be made promiscuous.
    AddressRefused {
        /// The interface.
        interface: String,
        /// The address.
        mac: MacBytes,
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

impl fmt::Display for AfPacketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPermitted => f.write_str(
                "no permission to open a packet socket: give the program the capability \
                 (setcap cap_net_raw+ep PROGRAM) or run it as root",
            ),
            Self::BadConfig { key, reason } => write!(f, "{key} {reason}"),
            Self::NameTooLong { interface } => write!(
                f,
                "interface name {interface:?} is too long: names have at most 15 bytes"
            ),
            Self::NoSuchInterface { interface } => write!(
                f,
                "no interface {interface:?} in this network namespace: `ip link` lists them"
            ),
            Self::NotEthernet { interface } => write!(
                f,
                "interface {interface:?} is not an Ethernet interface: choose another one"
            ),
            Self::InterfaceDown { interface } => write!(
                f,
                "interface {interface:?} is down: bring it up with `ip link set {interface} up`"
            ),
            Self::MtuTooSmall {
                interface,
                mtu_bytes,
                needed_bytes,
            } => write!(
                f,
                "interface {interface:?} has an MTU of {mtu_bytes} bytes, at least {needed_bytes} \
                 are needed: raise it with `ip link set {interface} mtu 1500`, or better 2500"
            ),
            Self::RingMemory { ring_bytes, source } => write!(
                f,
                "allocating {ring_bytes} bytes for the rings failed ({source}): lower \
                 rx_frames or tx_frames"
            ),
            Self::AddressRefused {
                interface,
                mac,
                source,
            } => {
                let [a, b, c, d, e, g] = mac;
                write!(
                    f,
                    "interface {interface:?} does not receive for \
                     {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x} ({source}): allow \
                     promiscuous mode, or give the interface this address"
                )
            }
            Self::Os { call, source } => write!(f, "{call}: {source}"),
        }
    }
}

impl std::error::Error for AfPacketError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::RingMemory { source, .. }
            | Self::AddressRefused { source, .. }
            | Self::Os { source, .. } => Some(source),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused_key(change: impl FnOnce(&mut AfPacketConfig)) -> &'static str {
        let mut config = AfPacketConfig::new("eth0", [0x0e, 0xfd, 0, 0, 0, 1]);
        assert!(config.check().is_ok());
        change(&mut config);
        match config.check() {
            Err(AfPacketError::BadConfig { key, .. }) => key,
            other => panic!("expected BadConfig, got {other:?}"),
        }
    }

    #[test]
    fn invalid_values_are_rejected_by_key() {
        assert_eq!(refused_key(|c| c.mac = [0; 6]), "mac");
        assert_eq!(refused_key(|c| c.mac = [1, 0, 0, 0, 0, 1]), "mac");
        assert_eq!(refused_key(|c| c.ethertypes.clear()), "ethertypes");
        assert_eq!(
            refused_key(|c| c.ethertypes = vec![0x8906; 17]),
            "ethertypes"
        );
        assert_eq!(refused_key(|c| c.ethertypes = vec![0x05ff]), "ethertypes");
        assert_eq!(refused_key(|c| c.ethertypes = vec![0x8100]), "ethertypes");
        assert_eq!(
            refused_key(|c| c.multicast = vec![[1; 6]; 257]),
            "multicast"
        );
        assert_eq!(refused_key(|c| c.rx_frames = 0), "rx_frames");
        assert_eq!(refused_key(|c| c.tx_frames = 65_537), "tx_frames");
    }
}
