//! The return codes that have no test in the suite, each with the reason.

/// A call, a return code that the guide lists for it but this library never returns, and the reason.
pub(crate) struct NeverReturned(
    pub(crate) &'static str,
    pub(crate) &'static str,
    pub(crate) &'static str,
);

const ONLY_LOCAL: &str = "uses existing objects only and allocates nothing that could run out";
const READS_SUPPORTED: &str =
    "RDMA reads are supported; the reliability level is checked for the VI";
const PEER_RESOURCES_ALLOCATED: &str =
    "both VIs have the needed resources; a request to a port without resources is retried";
const HEAP_RESERVE: &str = "allocates only a little memory, for which there is a reserve";
const NO_QOS: &str = "quality of service is not supported: VIs have none that could differ";

#[rustfmt::skip]
pub(crate) const NEVER_RETURNED: &[NeverReturned] = &[
    NeverReturned("VipDestroyVi", "ERROR_RESOURCE", ONLY_LOCAL),
    NeverReturned("VipConnectAccept", "INVALID_QOS", NO_QOS),
    NeverReturned("VipConnectAccept", "ERROR_RESOURCE", "the request and the VI have allocated what a connection needs; out of memory: tests/limits.rs"),
    NeverReturned("VipConnectAccept", "NOT_REACHABLE", "an unreachable client causes VIP_TIMEOUT"),
    NeverReturned("VipConnectReject", "ERROR_RESOURCE", ONLY_LOCAL),
    NeverReturned("VipConnectReject", "NOT_REACHABLE", "the result does not depend on whether the rejection arrives: there is no connection"),
    NeverReturned("VipDisconnect", "ERROR_RESOURCE", ONLY_LOCAL),
    NeverReturned("VipDisconnect", "NOT_REACHABLE", "the VI is Idle immediately; the peer is notified after the call returns, with retransmission"),
    NeverReturned("VipConnectPeerRequest", "ERROR_RESOURCE", "the VI has allocated what a request needs; out of memory: tests/limits.rs; a name in use by another user of a datapath process: e2e/tests/attached_users.rs"),
    NeverReturned("VipConnectPeerDone", "INVALID_QOS", NO_QOS),
    NeverReturned("VipConnectPeerDone", "ERROR_RESOURCE", PEER_RESOURCES_ALLOCATED),
    NeverReturned("VipConnectPeerWait", "INVALID_QOS", NO_QOS),
    NeverReturned("VipConnectPeerWait", "ERROR_RESOURCE", PEER_RESOURCES_ALLOCATED),
    NeverReturned("VipRegisterMem", "INVALID_RDMAREAD", READS_SUPPORTED),
    NeverReturned("VipDeregisterMem", "ERROR_RESOURCE", ONLY_LOCAL),
    NeverReturned("VipCQWait", "ERROR_RESOURCE", ONLY_LOCAL),
    NeverReturned("VipQueryNic", "ERROR_RESOURCE", ONLY_LOCAL),
    NeverReturned("VipSetViAttributes", "ERROR_RESOURCE", ONLY_LOCAL),
    NeverReturned("VipQueryVi", "ERROR_RESOURCE", ONLY_LOCAL),
    NeverReturned("VipSetMemAttributes", "INVALID_RDMAREAD", READS_SUPPORTED),
    NeverReturned("VipSetMemAttributes", "ERROR_RESOURCE", ONLY_LOCAL),
    NeverReturned("VipQueryMem", "ERROR_RESOURCE", ONLY_LOCAL),
    NeverReturned("VipErrorCallback", "ERROR_RESOURCE", "the thread that calls handlers is started by VipOpenNic"),
    NeverReturned("VipNSInit", "ERROR_RESOURCE", "out of memory or file descriptors: tests/limits.rs; an unusable hosts file causes VIP_INVALID_PARAMETER"),
    NeverReturned("VipNSGetHostByName", "ERROR_RESOURCE", HEAP_RESERVE),
    NeverReturned("VipNSGetHostByAddr", "ERROR_RESOURCE", HEAP_RESERVE),
    NeverReturned("VipNSShutdown", "ERROR_RESOURCE", ONLY_LOCAL),
];
