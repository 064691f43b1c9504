//! An Ethernet segment: a bridge in a network namespace of its own, gone with its last user.

use crate::process::{require_root, succeed};
use crate::wire::Namespace;

/// The bridge's own interface, which sees every frame of the segment.
pub const BRIDGE: &str = "bridge";

/// Frames that wait in a tap of queues.
const TAP_FRAMES: u32 = 4096;

/// A kernel that has a firewall for bridges has these switches.
const NO_FIREWALL: &str = r#"for switch in /proc/sys/net/bridge/bridge-nf-call-*; do
    [ ! -e "$switch" ] || echo 0 >"$switch"
done"#;

/// A segment.
#[derive(Debug)]
pub struct Segment {
    namespace: Namespace,
    mtu_bytes: u32,
}

impl Segment {
    /// Makes a segment that forwards every frame to whom it is for, multicasts to all, and sends nothing of its own.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn new(mtu_bytes: u32) -> Self {
        require_root();
        let namespace = Namespace::new();
        // Multicasts go to everybody without being asked for, and nothing waits for a spanning tree.
        namespace.ip(&format!(
            "link add {BRIDGE} type bridge stp_state 0 forward_delay 0 mcast_snooping 0"
        ));
        // Without an address of its own IPv6 is silent.
        namespace.ip(&format!(
            "link set {BRIDGE} mtu {mtu_bytes} addrgenmode none"
        ));
        namespace.ip(&format!("link set {BRIDGE} up"));
        Self {
            namespace,
            mtu_bytes,
        }
    }

    /// Where the bridge and its taps are.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The largest payload of a frame.
    pub fn mtu_bytes(&self) -> u32 {
        self.mtu_bytes
    }

    /// Makes a tap interface for a machine to open; it is not joined yet.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn tap(&self, name: &str) {
        self.namespace.ip(&format!("tuntap add {name} mode tap"));
        self.namespace.ip(&format!(
            "link set {name} mtu {} addrgenmode none",
            self.mtu_bytes
        ));
        self.namespace.ip(&format!("link set {name} up"));
    }

    /// Makes a tap interface as [`Self::tap`] does, for a process that opens it as one of several queues, as DPDK does.
    /// As many frames as a port's ring wait in it, since those to others stand there, too.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn tap_of_queues(&self, name: &str) {
        self.namespace
            .ip(&format!("tuntap add {name} mode tap multi_queue"));
        self.namespace.ip(&format!(
            "link set {name} mtu {} addrgenmode none txqueuelen {TAP_FRAMES}",
            self.mtu_bytes
        ));
        self.namespace.ip(&format!("link set {name} up"));
    }

    /// Makes a host that is joined to the segment by its interface of this name.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn host(&self, interface: &str) -> Namespace {
        let host = Namespace::new();
        let near = format!("{interface}-near");
        self.namespace.ip(&format!(
            "link add {near} type veth peer name {interface} netns {}",
            host.id()
        ));
        let ends = [(&self.namespace, near.as_str()), (&host, interface)];
        for (namespace, name) in ends {
            namespace.ip(&format!(
                "link set {name} mtu {} addrgenmode none",
                self.mtu_bytes
            ));
            namespace.ip(&format!("link set {name} up"));
        }
        self.join(&near);
        host
    }

    /// Joins an interface to the segment.
    ///
    /// # Panics
    /// If it cannot be joined.
    pub fn join(&self, name: &str) {
        self.namespace
            .ip(&format!("link set {name} master {BRIDGE}"));
    }

    /// From now on whatever comes from a joined interface does not change where the bridge believes stations to be.
    ///
    /// # Panics
    /// If there is no such interface.
    pub fn distrust(&self, name: &str) {
        self.namespace
            .ip(&format!("link set {name} type bridge_slave learning off"));
    }

    /// From now on the bridge forwards frames of IP and ARP that are not what they say, too.
    ///
    /// # Panics
    /// If the kernel does not let it.
    pub fn without_firewall(&self) {
        succeed(self.namespace.program("sh").args(["-c", NO_FIREWALL]));
    }

    /// Parts an interface from the segment; its link stays up.
    ///
    /// # Panics
    /// If it cannot be parted.
    pub fn part(&self, name: &str) {
        self.namespace.ip(&format!("link set {name} nomaster"));
    }
}
