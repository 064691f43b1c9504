//! Which driver carries the frames of a NIC, and what it needs on a wire.

use serde::Deserialize;

use super::NicConfig;
use super::mistake::{Mistake, Number, number};

/// The longest name of a network interface, in bytes.
const MAX_INTERFACE_BYTES: usize = 15;
/// The most memory that DPDK is asked for, 1 TiB.
const MAX_MEMORY_MB: u64 = 1 << 20;
/// The least and the greatest MTU that a DPDK device is asked for.
const MTU_BYTES: (u32, u32) = (302, 2546);
/// How the device begins that is a pair of rings in this process, and how long its name is behind that, in bytes.
const RING: &str = "ring:";
const RING_BYTES: core::ops::RangeInclusive<usize> = 1..=32;

/// What is said where a program that was built without DPDK is to open a port of it.
pub const WITHOUT_DPDK: &str =
    "port = \"dpdk\": this program was built without DPDK: build it with --features dpdk";

/// Which driver carries the frames of a NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortKind {
    /// Shared memory between the processes of one user on this host.
    #[default]
    Shm,
    /// A network interface through a packet socket.
    AfPacket,
    /// A network interface past the kernel's network stack, through AF_XDP sockets.
    AfXdp,
    /// A device of DPDK. Every program knows it; those that were built with the feature `dpdk` can open it.
    Dpdk,
}

impl PortKind {
    /// As it stands in the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::AfPacket => "af_packet",
            Self::AfXdp => "af_xdp",
            Self::Dpdk => "dpdk",
        }
    }

    /// Is it a port on a wire, which may lose frames, and whose ports must find each other?
    #[must_use]
    pub fn is_on_wire(self) -> bool {
        match self {
            Self::Shm => false,
            Self::AfPacket | Self::AfXdp | Self::Dpdk => true,
        }
    }

    /// Is it a port on a network interface of the system?
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
    /// Not if the interface's driver can do without.
    #[default]
    Auto,
    /// Never: opening the NIC fails if the driver cannot do without.
    ZeroCopy,
    /// Always.
    Copy,
}

impl NicConfig {
    /// What the port is called on its wire: the network interface, or the name of DPDK's device without its keys.
    /// `None` on `shm`, and if it is not given.
    #[must_use]
    pub fn wire_name(&self) -> Option<&str> {
        let name = match self.port {
            PortKind::Shm => "",
            PortKind::AfPacket | PortKind::AfXdp => &self.interface,
            PortKind::Dpdk => self.device.split(',').next().unwrap_or_default(),
        };
        (!name.is_empty()).then_some(name)
    }

    /// How many NICs may have the same device of DPDK.
    pub(super) fn device_users(&self) -> usize {
        match self.device.starts_with(RING) {
            true => 2,
            false => 1,
        }
    }

    /// The keys of DPDK's ports that are numbers.
    pub(super) fn dpdk_numbers(&self) -> [Number; 2] {
        let (least, most) = MTU_BYTES;
        let mtu_bytes = self.mtu_bytes.unwrap_or(most);
        [
            number("memory_mb", self.memory_mb, 0, MAX_MEMORY_MB),
            number("mtu_bytes", mtu_bytes, least.into(), most.into()),
        ]
    }

    pub(super) fn interface_mistake(&self) -> Option<Mistake> {
        let (port, interface) = (self.port.name(), &self.interface);
        let text = match interface.len() {
            0 => format!("port = {port:?} needs interface = \"...\": `ip link` lists them"),
            1..=MAX_INTERFACE_BYTES => return None,
            _ => format!(
                "interface = {interface:?}: must have at most {MAX_INTERFACE_BYTES} bytes: `ip link` lists them"
            ),
        };
        Some(Mistake::new("interface", text))
    }

    /// What is wrong with the keys of a port of DPDK.
    pub(super) fn dpdk_mistakes(&self) -> Vec<Mistake> {
        let mut found: Vec<Mistake> = self.device_mistake().into_iter().collect();
        let mut add = |key, text: String| found.push(Mistake::new(key, text));
        if !self.args.iter().all(|word| is_line(word)) {
            let text = format!("args = {:?}: must be words, one argument each", self.args);
            add("args", text);
        }
        if self.memory_mb == 0 && !self.huge_pages {
            let text = "memory_mb = 0: needs huge_pages = true: ordinary pages are taken at the start, \
                        so say how many MiB";
            add("memory_mb", text.into());
        }
        found
    }

    fn device_mistake(&self) -> Option<Mistake> {
        let device = &self.device;
        let is_ring = |name: &str| {
            RING_BYTES.contains(&name.len())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        let text = if device.is_empty() {
            "port = \"dpdk\" needs device = \"...\": a PCI address, or a virtual device and its keys, \
             \"net_memif0,role=server\""
                .to_owned()
        } else if let Some(name) = device.strip_prefix(RING)
            && !is_ring(name)
        {
            format!("device = {device:?}: must be {RING} with 1 to 32 letters or digits")
        } else if !is_line(device) || self.wire_name().is_none() {
            format!("device = {device:?}: must be a name, and its keys behind commas")
        } else {
            return None;
        };
        Some(Mistake::new("device", text))
    }
}

fn is_line(text: &str) -> bool {
    !text.is_empty() && !text.contains(['\0', '\n'])
}
