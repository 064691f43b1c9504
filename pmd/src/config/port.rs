//! Port drivers and their keys.

use serde::Deserialize;

use super::NicConfig;
use super::error::{Number, ValueError, number};

/// Maximum length of the name of a network interface, in bytes.
const MAX_INTERFACE_BYTES: usize = 15;
/// Maximum memory of DPDK, 1 TiB.
const MAX_MEMORY_MB: u64 = 1 << 20;
/// Minimum and maximum MTU of a DPDK device.
const MTU_BYTES: (u32, u32) = (302, 2546);
/// Prefix of a device that is one end of a pair of rings in this process, and the length of the name after it, in
/// bytes.
const RING: &str = "ring:";
const RING_BYTES: core::ops::RangeInclusive<usize> = 1..=32;

/// Error text where a program that was built without DPDK is to open a DPDK port.
pub const WITHOUT_DPDK: &str =
    "port = \"dpdk\": this program was built without DPDK: build it with --features dpdk";

/// Port driver of a NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortKind {
    /// Shared memory between the processes of one user on this host.
    #[default]
    Shm,
    /// A network interface, through a packet socket.
    AfPacket,
    /// A network interface, through AF_XDP sockets, which bypass the kernel's network stack.
    AfXdp,
    /// A DPDK device. Programs need the feature `dpdk` to open it.
    Dpdk,
}

impl PortKind {
    /// Returns the value in the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::AfPacket => "af_packet",
            Self::AfXdp => "af_xdp",
            Self::Dpdk => "dpdk",
        }
    }

    /// Returns whether the port is on a wire, which may lose frames, and needs discovery or configured N_Port_IDs.
    #[must_use]
    pub fn is_on_wire(self) -> bool {
        match self {
            Self::Shm => false,
            Self::AfPacket | Self::AfXdp | Self::Dpdk => true,
        }
    }

    /// Returns whether the port uses a network interface of the system.
    #[must_use]
    pub fn is_on_interface(self) -> bool {
        match self {
            Self::Shm | Self::Dpdk => false,
            Self::AfPacket | Self::AfXdp => true,
        }
    }
}

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

impl NicConfig {
    /// Returns the name of the port on its wire: the network interface, or the name of the DPDK device without its
    /// keys. `None` on `shm`, and if it is not set.
    #[must_use]
    pub fn wire_name(&self) -> Option<&str> {
        let name = match self.port {
            PortKind::Shm => "",
            PortKind::AfPacket | PortKind::AfXdp => &self.interface,
            PortKind::Dpdk => self.device.split(',').next().unwrap_or_default(),
        };
        (!name.is_empty()).then_some(name)
    }

    /// Returns the number of NICs that may use the same DPDK device.
    pub(super) fn device_users(&self) -> usize {
        match self.device.starts_with(RING) {
            true => 2,
            false => 1,
        }
    }

    /// Returns the numeric keys of DPDK ports.
    pub(super) fn dpdk_numbers(&self) -> [Number; 2] {
        let (min, max) = MTU_BYTES;
        let mtu_bytes = self.mtu_bytes.unwrap_or(max);
        [
            number("memory_mb", self.memory_mb, 0, MAX_MEMORY_MB),
            number("mtu_bytes", mtu_bytes, min.into(), max.into()),
        ]
    }

    pub(super) fn interface_error(&self) -> Option<ValueError> {
        let (port, interface) = (self.port.name(), &self.interface);
        let text = match interface.len() {
            0 => {
                format!("port = {port:?} requires interface = \"...\": `ip link` lists interfaces")
            }
            1..=MAX_INTERFACE_BYTES => return None,
            _ => format!(
                "interface = {interface:?}: must have at most {MAX_INTERFACE_BYTES} bytes: `ip link` lists interfaces"
            ),
        };
        Some(ValueError::new("interface", text))
    }

    /// Validates the keys of a DPDK port.
    pub(super) fn dpdk_errors(&self) -> Vec<ValueError> {
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
            "port = \"dpdk\" requires device = \"...\": a PCI address, or a virtual device and its keys, \
             \"net_memif0,role=server\""
                .to_owned()
        } else if let Some(name) = device.strip_prefix(RING)
            && !is_ring(name)
        {
            format!("device = {device:?}: must be {RING} with 1 to 32 letters or digits")
        } else if !is_line(device) || self.wire_name().is_none() {
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
