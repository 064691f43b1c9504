//! An Ethernet segment: a bridge in a network namespace, removed on drop.

use crate::process::{require_root, succeed};
use crate::wire::Namespace;

/// The bridge's own interface, at which all frames of the segment can be captured.
pub const BRIDGE: &str = "bridge";

/// Queue length of a multi-queue tap in frames.
const TAP_FRAMES: u32 = 4096;

/// Disables bridge netfilter, in kernels that have it.
const NO_FIREWALL: &str = r#"for switch in /proc/sys/net/bridge/bridge-nf-call-*; do
    [ ! -e "$switch" ] || echo 0 >"$switch"
done"#;

/// An Ethernet segment.
#[derive(Debug)]
pub struct Segment {
    namespace: Namespace,
    mtu_bytes: u32,
}

impl Segment {
    /// Creates a segment that floods multicasts and sends no frames of its own.
    ///
    /// # Panics
    /// If it cannot be created.
    pub fn new(mtu_bytes: u32) -> Self {
        require_root();
        let namespace = Namespace::new();
        // No IGMP snooping, no delay by a spanning tree.
        namespace.ip(&format!(
            "link add {BRIDGE} type bridge stp_state 0 forward_delay 0 mcast_snooping 0"
        ));
        // Without a link-local address, IPv6 sends no frames.
        namespace.ip(&format!(
            "link set {BRIDGE} mtu {mtu_bytes} addrgenmode none"
        ));
        namespace.ip(&format!("link set {BRIDGE} up"));
        Self {
            namespace,
            mtu_bytes,
        }
    }

    /// Returns the namespace of the bridge and its taps.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Returns the MTU.
    pub fn mtu_bytes(&self) -> u32 {
        self.mtu_bytes
    }

    /// Creates a tap interface for a virtual machine; it is not attached to the bridge yet.
    ///
    /// # Panics
    /// If it cannot be created.
    pub fn tap(&self, name: &str) {
        self.namespace.ip(&format!("tuntap add {name} mode tap"));
        self.namespace.ip(&format!(
            "link set {name} mtu {} addrgenmode none",
            self.mtu_bytes
        ));
        self.namespace.ip(&format!("link set {name} up"));
    }

    /// Like [`Self::tap`], with several queues, as DPDK opens it. Its queue is as long as a port's ring, since it also
    /// holds frames to other stations.
    ///
    /// # Panics
    /// If it cannot be created.
    pub fn multi_queue_tap(&self, name: &str) {
        self.namespace
            .ip(&format!("tuntap add {name} mode tap multi_queue"));
        self.namespace.ip(&format!(
            "link set {name} mtu {} addrgenmode none txqueuelen {TAP_FRAMES}",
            self.mtu_bytes
        ));
        self.namespace.ip(&format!("link set {name} up"));
    }

    /// Creates a host that is attached to the segment by an interface of this name.
    ///
    /// # Panics
    /// If it cannot be created.
    pub fn host(&self, interface: &str) -> Namespace {
        let host = Namespace::new();
        let bridge_port = format!("{interface}-bridge");
        self.namespace.ip(&format!(
            "link add {bridge_port} type veth peer name {interface} netns {}",
            host.id()
        ));
        let ends = [(&self.namespace, bridge_port.as_str()), (&host, interface)];
        for (namespace, name) in ends {
            namespace.ip(&format!(
                "link set {name} mtu {} addrgenmode none",
                self.mtu_bytes
            ));
            namespace.ip(&format!("link set {name} up"));
        }
        self.attach(&bridge_port);
        host
    }

    /// Attaches an interface to the bridge.
    ///
    /// # Panics
    /// If it cannot be attached.
    pub fn attach(&self, name: &str) {
        self.namespace
            .ip(&format!("link set {name} master {BRIDGE}"));
    }

    /// Disables MAC learning for an attached interface.
    ///
    /// # Panics
    /// If there is no such interface.
    pub fn disable_learning(&self, name: &str) {
        self.namespace
            .ip(&format!("link set {name} type bridge_slave learning off"));
    }

    /// Disables bridge netfilter, so that the bridge also forwards malformed IP and ARP frames.
    ///
    /// # Panics
    /// If the kernel rejects it.
    pub fn disable_netfilter(&self) {
        succeed(self.namespace.program("sh").args(["-c", NO_FIREWALL]));
    }

    /// Detaches an interface from the bridge; its link stays up.
    ///
    /// # Panics
    /// If it cannot be detached.
    pub fn detach(&self, name: &str) {
        self.namespace.ip(&format!("link set {name} nomaster"));
    }
}
