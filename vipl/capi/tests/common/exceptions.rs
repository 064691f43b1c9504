//! What has no test of the suite, and why: the only place where that can be said.

/// A return code that the guide lists for a call and that this library never gives it.
pub(crate) struct Never(
    pub(crate) &'static str,
    pub(crate) &'static str,
    pub(crate) &'static str,
);

const ONLY_LOCAL: &str = "works on what exists already and takes no resource that could run out";
const READS_ARE_OFFERED: &str =
    "RDMA reads are supported; at which reliability level is a matter of the VI";
const PEERS_HAVE_ROOM: &str =
    "both VIs hold all that a connection needs; a port that has no room is asked again";
const ONLY_HEAP: &str = "takes nothing but a little memory, of which there is a reserve";
const NO_QOS: &str = "no quality of service is offered, so that none can differ: VIs have none";

#[rustfmt::skip]
pub(crate) const NEVER: &[Never] = &[
    Never("VipDestroyVi", "ERROR_RESOURCE", ONLY_LOCAL),
    Never("VipConnectAccept", "INVALID_QOS", NO_QOS),
    Never("VipConnectAccept", "ERROR_RESOURCE", "the request and the VI hold what a connection needs; without memory: tests/limits.rs"),
    Never("VipConnectAccept", "NOT_REACHABLE", "a client that cannot be reached any more is VIP_TIMEOUT"),
    Never("VipConnectReject", "ERROR_RESOURCE", ONLY_LOCAL),
    Never("VipConnectReject", "NOT_REACHABLE", "whether the answer arrives makes no difference here: there is no connection"),
    Never("VipDisconnect", "ERROR_RESOURCE", ONLY_LOCAL),
    Never("VipDisconnect", "NOT_REACHABLE", "the VI is Idle at once; the peer is notified after the call returns, with retransmission"),
    Never("VipConnectPeerRequest", "ERROR_RESOURCE", "the VI holds what a request needs; without memory: tests/limits.rs; a name that another user of a datapath process has: e2e/tests/attached_users.rs"),
    Never("VipConnectPeerDone", "INVALID_QOS", NO_QOS),
    Never("VipConnectPeerDone", "ERROR_RESOURCE", PEERS_HAVE_ROOM),
    Never("VipConnectPeerWait", "INVALID_QOS", NO_QOS),
    Never("VipConnectPeerWait", "ERROR_RESOURCE", PEERS_HAVE_ROOM),
    Never("VipRegisterMem", "INVALID_RDMAREAD", READS_ARE_OFFERED),
    Never("VipDeregisterMem", "ERROR_RESOURCE", ONLY_LOCAL),
    Never("VipCQWait", "ERROR_RESOURCE", ONLY_LOCAL),
    Never("VipQueryNic", "ERROR_RESOURCE", ONLY_LOCAL),
    Never("VipSetViAttributes", "ERROR_RESOURCE", ONLY_LOCAL),
    Never("VipQueryVi", "ERROR_RESOURCE", ONLY_LOCAL),
    Never("VipSetMemAttributes", "INVALID_RDMAREAD", READS_ARE_OFFERED),
    Never("VipSetMemAttributes", "ERROR_RESOURCE", ONLY_LOCAL),
    Never("VipQueryMem", "ERROR_RESOURCE", ONLY_LOCAL),
    Never("VipErrorCallback", "ERROR_RESOURCE", "the thread that calls handlers runs since the NIC was opened"),
    Never("VipNSInit", "ERROR_RESOURCE", "without memory or a descriptor: tests/limits.rs; a hosts file that cannot be used is VIP_INVALID_PARAMETER"),
    Never("VipNSGetHostByName", "ERROR_RESOURCE", ONLY_HEAP),
    Never("VipNSGetHostByAddr", "ERROR_RESOURCE", ONLY_HEAP),
    Never("VipNSShutdown", "ERROR_RESOURCE", ONLY_LOCAL),
];
