//! Every port of a wire, and what the wire of each is like.

use std::path::Path;
use std::process::Command;

use crate::nics::{End, NicText};
use crate::process::require_root;
use crate::segment::{BRIDGE, Segment};
use crate::wire::{Namespace, Wire};

/// What joins the two ends of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Join {
    /// Veth pairs, through a namespace between the two.
    Veth,
    /// A tap of each end, on a bridge.
    Taps,
    /// A socket's name in the network namespace of both.
    Name,
    /// Memory of one process.
    OneProcess,
}

/// A port: a row of [`PORTS`].
#[derive(Debug)]
pub struct Port {
    /// What the row is called.
    pub name: &'static str,
    join: Join,
    mtu_bytes: u32,
    /// DPDK's driver; none for a port of our own.
    driver: Option<&'static str>,
    /// What follows the driver's number and, of most, the interface.
    keys: &'static str,
    /// DPDK takes its memory in huge pages.
    pub huge_pages: bool,
}

/// The port that goes past the kernel itself.
const AF_XDP: Port = Port {
    name: "af_xdp",
    join: Join::Veth,
    mtu_bytes: 2500,
    driver: None,
    keys: "",
    huge_pages: false,
};
/// DPDK's shared memory between two processes.
const MEMIF: Port = Port {
    name: "net_memif",
    join: Join::Name,
    driver: Some("net_memif"),
    ..AF_XDP
};
/// DPDK's rings within one process.
const RING: Port = Port {
    name: "ring",
    join: Join::OneProcess,
    driver: Some("ring"),
    ..AF_XDP
};

/// All of them.
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
        join: Join::Taps,
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
    /// The row of this name.
    ///
    /// # Panics
    /// If there is none.
    pub fn named(name: &str) -> &'static Self {
        let found = PORTS.iter().find(|port| port.name == name);
        found.unwrap_or_else(|| panic!("no port {name:?}"))
    }

    /// The largest payload of its frames.
    pub fn mtu_bytes(&self) -> u32 {
        self.mtu_bytes
    }

    /// Do its two ends have to be in one process?
    pub fn is_of_one_process(&self) -> bool {
        self.join == Join::OneProcess
    }

    /// As `port` of a NIC names it.
    pub fn kind(&self) -> &'static str {
        match self.driver {
            None => "af_xdp",
            Some(_) => "dpdk",
        }
    }

    /// Is it our own port whose program the interface's driver runs?
    pub fn is_native(&self) -> bool {
        self.driver.is_none()
    }
}

/// What is between the two ends while this lives: a number of wires, or lanes, of which each joins two NICs.
#[derive(Debug)]
pub struct Ground {
    port: &'static Port,
    between: Between,
}

#[derive(Debug)]
enum Between {
    Wire(Wire),
    Taps(Segment),
    /// Names and memory only, of nobody else.
    Namespace(Namespace),
}

impl Ground {
    /// So many lanes, on which nothing is but what the test's own programs send.
    ///
    /// # Panics
    /// If they cannot be made.
    pub fn new(port: &'static Port, lanes: usize) -> Self {
        let between = match port.join {
            Join::Veth => Between::Wire(Wire::lanes(port.mtu_bytes, lanes)),
            Join::Taps => Between::Taps(taps(port.mtu_bytes, lanes)),
            Join::Name | Join::OneProcess => {
                require_root();
                Between::Namespace(Namespace::new())
            }
        };
        Self { port, between }
    }

    /// The port.
    pub fn port(&self) -> &'static Port {
        self.port
    }

    /// What the names of an end's NICs end with: that which tells them from those of the other end, where one process
    /// has both.
    pub fn name_end(&self, end: End) -> &'static str {
        match (self.port.join, end) {
            (Join::OneProcess, End::Right) => "1",
            _ => "",
        }
    }

    /// The first NIC of an end.
    pub fn first_nic(&self, end: End) -> &'static str {
        match self.name_end(end) {
            "" => "VINIC0",
            _ => "VINIC1",
        }
    }

    /// An end of a lane as the NIC of this name.
    pub fn nic(&self, end: End, lane: usize, name: &str) -> NicText {
        let number = u8::try_from(lane).expect("few lanes");
        NicText::on_port(end, name, number, &self.keys(end, lane))
    }

    /// The keys of a NIC that say which port it has.
    fn keys(&self, end: End, lane: usize) -> String {
        let interface = end.lane_interface(lane);
        let kind = self.port.kind();
        let Some(driver) = self.port.driver else {
            return format!("port = {kind:?}\ninterface = {interface:?}\n");
        };
        let keys = self.port.keys;
        let device = match self.port.join {
            Join::Veth | Join::Taps => format!("{driver}{lane},iface={interface}{keys}"),
            Join::Name => {
                let role = match end {
                    End::Left => "server",
                    End::Right => "client",
                };
                format!("{driver}{lane},role={role},socket=viaduct-{lane}{keys}")
            }
            Join::OneProcess => format!("{driver}:lane{lane}"),
        };
        let memory = match self.port.huge_pages {
            true => "huge_pages = true\nmemory_mb = 0",
            false => "huge_pages = false\nmemory_mb = 512",
        };
        format!("port = {kind:?}\ndevice = {device:?}\n{memory}\n")
    }

    /// A program where the interfaces of an end are.
    pub fn program(&self, end: End, name: &Path) -> Command {
        match &self.between {
            Between::Wire(wire) => wire.end(end).program(name),
            Between::Taps(segment) => segment.namespace().program(name),
            Between::Namespace(namespace) => namespace.program(name),
        }
    }

    /// An interface at which every frame of the first lane passes, if frames are of any interface.
    pub fn watch(&self) -> Option<(&Namespace, &'static str)> {
        match &self.between {
            Between::Wire(wire) => Some(wire.middle()),
            Between::Taps(segment) => Some((segment.namespace(), BRIDGE)),
            Between::Namespace(_) => None,
        }
    }

    /// What `ip` tells in detail of the interface of an end.
    ///
    /// # Panics
    /// If it has none.
    pub fn interface_details(&self, end: End) -> String {
        let Between::Wire(wire) = &self.between else {
            panic!("{} has no interface of its own", self.port.name);
        };
        wire.end(end)
            .ip(&format!("-details link show {}", end.interface()))
    }
}

/// Taps for both ends on a bridge. They are there before the processes that open them, and stay.
fn taps(mtu_bytes: u32, lanes: usize) -> Segment {
    let segment = Segment::new(mtu_bytes);
    for lane in 0..lanes {
        for end in [End::Left, End::Right] {
            let name = end.lane_interface(lane);
            segment.tap_of_queues(&name);
            segment.join(&name);
        }
    }
    segment
}
