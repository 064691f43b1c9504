//! All ports for physical links, and the network that connects the two ends of each.

use std::path::Path;
use std::process::Command;

use crate::nics::{End, NicText};
use crate::process::require_root;
use crate::segment::{BRIDGE, Segment};
use crate::wire::{Namespace, Wire};

/// How the two ends of a port are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Topology {
    /// Veth pairs through a namespace between the ends.
    Veth,
    /// One tap per end, on a bridge.
    Taps,
    /// An abstract socket address in a common network namespace.
    SocketName,
    /// Memory of one process.
    OneProcess,
}

/// A port to test: a row of [`PORTS`].
#[derive(Debug)]
pub struct Port {
    /// Name of the row.
    pub name: &'static str,
    topology: Topology,
    mtu_bytes: u32,
    /// DPDK's driver; `None` for `af_xdp`.
    driver: Option<&'static str>,
    /// Further device arguments, after the number of the device and its interface, if any.
    keys: &'static str,
    /// Whether DPDK allocates its memory in huge pages.
    pub huge_pages: bool,
}

/// Viaduct's own port over AF_XDP.
const AF_XDP: Port = Port {
    name: "af_xdp",
    topology: Topology::Veth,
    mtu_bytes: 2500,
    driver: None,
    keys: "",
    huge_pages: false,
};
/// DPDK's shared memory interface between two processes.
const MEMIF: Port = Port {
    name: "net_memif",
    topology: Topology::SocketName,
    driver: Some("net_memif"),
    ..AF_XDP
};
/// DPDK's rings within one process.
const RING: Port = Port {
    name: "ring",
    topology: Topology::OneProcess,
    driver: Some("ring"),
    ..AF_XDP
};

/// All ports to test.
pub const PORTS: [Port; 8] = [
    AF_XDP,
    MEMIF,
    Port {
        name: "net_memif, huge pages",
        huge_pages: true,
        ..MEMIF
    },
    Port {
        name: "net_af_packet",
        driver: Some("net_af_packet"),
        keys: ",framesz=2560,blocksz=20480,framecnt=2048",
        ..AF_XDP
    },
    Port {
        name: "net_af_xdp",
        mtu_bytes: 1500,
        driver: Some("net_af_xdp"),
        ..AF_XDP
    },
    Port {
        name: "net_tap",
        topology: Topology::Taps,
        mtu_bytes: 1500,
        driver: Some("net_tap"),
        ..AF_XDP
    },
    RING,
    Port {
        name: "ring, huge pages",
        huge_pages: true,
        ..RING
    },
];

impl Port {
    /// Returns the row of this name.
    ///
    /// # Panics
    /// If there is none.
    pub fn named(name: &str) -> &'static Self {
        let found = PORTS.iter().find(|port| port.name == name);
        found.unwrap_or_else(|| panic!("no port {name:?}"))
    }

    /// Returns the MTU.
    pub fn mtu_bytes(&self) -> u32 {
        self.mtu_bytes
    }

    /// Whether both ends must be in one process.
    pub fn needs_one_process(&self) -> bool {
        self.topology == Topology::OneProcess
    }

    /// Returns the value of the key `port` of a NIC.
    pub fn kind(&self) -> &'static str {
        match self.driver {
            None => "af_xdp",
            Some(_) => "dpdk",
        }
    }

    /// Whether this is Viaduct's own AF_XDP port, whose XDP program runs in native mode.
    pub fn is_native(&self) -> bool {
        self.driver.is_none()
    }
}

/// The network between the two ends of a port: a number of wires ("lanes"), each between two NICs.
#[derive(Debug)]
pub struct PortNetwork {
    port: &'static Port,
    medium: Medium,
}

#[derive(Debug)]
enum Medium {
    Wire(Wire),
    Taps(Segment),
    /// A namespace for socket addresses; no interfaces.
    Namespace(Namespace),
}

impl PortNetwork {
    /// Creates `lanes` wires without other traffic.
    ///
    /// # Panics
    /// If they cannot be created.
    pub fn new(port: &'static Port, lanes: usize) -> Self {
        let medium = match port.topology {
            Topology::Veth => Medium::Wire(Wire::lanes(port.mtu_bytes, lanes)),
            Topology::Taps => Medium::Taps(taps(port.mtu_bytes, lanes)),
            Topology::SocketName | Topology::OneProcess => {
                require_root();
                Medium::Namespace(Namespace::new())
            }
        };
        Self { port, medium }
    }

    /// Returns the port.
    pub fn port(&self) -> &'static Port {
        self.port
    }

    /// Returns the suffix of the NIC names of an end, which makes them unique if one process has both ends.
    pub fn name_suffix(&self, end: End) -> &'static str {
        match (self.port.topology, end) {
            (Topology::OneProcess, End::Right) => "1",
            _ => "",
        }
    }

    /// Returns the name of the first NIC of an end.
    pub fn first_nic(&self, end: End) -> &'static str {
        match self.name_suffix(end) {
            "" => "VINIC0",
            _ => "VINIC1",
        }
    }

    /// Returns the configuration of a NIC on an end of a lane.
    pub fn nic(&self, end: End, lane: usize, name: &str) -> NicText {
        let number = u8::try_from(lane).expect("few lanes");
        NicText::on_port(end, name, number, &self.keys(end, lane))
    }

    /// Returns the keys of the port of a NIC.
    fn keys(&self, end: End, lane: usize) -> String {
        let interface = end.lane_interface(lane);
        let kind = self.port.kind();
        let Some(driver) = self.port.driver else {
            return format!("{kind}.interface = {interface:?}\n");
        };
        let keys = self.port.keys;
        let device = match self.port.topology {
            Topology::Veth | Topology::Taps => format!("{driver}{lane},iface={interface}{keys}"),
            Topology::SocketName => {
                let role = match end {
                    End::Left => "server",
                    End::Right => "client",
                };
                format!("{driver}{lane},role={role},socket=viaduct-{lane}{keys}")
            }
            Topology::OneProcess => format!("{driver}:lane{lane}"),
        };
        let memory = match self.port.huge_pages {
            true => "dpdk.huge_pages = true\ndpdk.memory_mb = 0",
            false => "dpdk.huge_pages = false\ndpdk.memory_mb = 512",
        };
        format!("{kind}.device = {device:?}\n{memory}\n")
    }

    /// Returns the command of a program in the namespace of an end.
    pub fn program(&self, end: End, name: &Path) -> Command {
        match &self.medium {
            Medium::Wire(wire) => wire.end(end).program(name),
            Medium::Taps(segment) => segment.namespace().program(name),
            Medium::Namespace(namespace) => namespace.program(name),
        }
    }

    /// Returns an interface that carries all frames of the first lane; `None` if the port uses no interface.
    pub fn capture_point(&self) -> Option<(&Namespace, &'static str)> {
        match &self.medium {
            Medium::Wire(wire) => Some(wire.middle()),
            Medium::Taps(segment) => Some((segment.namespace(), BRIDGE)),
            Medium::Namespace(_) => None,
        }
    }

    /// Returns the output of `ip -details link show` for the interface of an end.
    ///
    /// # Panics
    /// If it has none.
    pub fn interface_details(&self, end: End) -> String {
        let Medium::Wire(wire) = &self.medium else {
            panic!("{} has no interface per end", self.port.name);
        };
        wire.end(end)
            .ip(&format!("-details link show {}", end.interface()))
    }
}

/// Creates taps for both ends on a bridge. They exist before the processes that open them, and persist.
fn taps(mtu_bytes: u32, lanes: usize) -> Segment {
    let segment = Segment::new(mtu_bytes);
    for lane in 0..lanes {
        for end in [End::Left, End::Right] {
            let name = end.lane_interface(lane);
            segment.multi_queue_tap(&name);
            segment.attach(&name);
        }
    }
    segment
}
