//! What has no test of the suite, and why: the only place where that can be said.

use super::rows::Level;

/// A return code that the guide lists for a call and that this library never gives it.
pub(crate) struct Never(
    pub(crate) &'static str,
    pub(crate) &'static str,
    pub(crate) &'static str,
);

const NO_PARTITIONS: &str =
    "a partition of the network is not told from silence: the VI learns of it by CONN_LOST";
const ONLY_LOCAL: &str = "works on what exists already and takes no resource that could run out";
const ONLY_HEAP: &str = "takes nothing but heap memory; without any the process ends";
const NO_QOS: &str = "no quality of service is offered, so that none can differ: VIs have none";

#[rustfmt::skip]
pub(crate) const NEVER: &[Never] = &[
    Never("VipDestroyVi", "ERROR_RESOURCE", ONLY_LOCAL),
    Never("VipConnectWait", "ERROR_RESOURCE", "any number of threads may wait; the requests have the limit, and their clients are told"),
    Never("VipConnectAccept", "INVALID_QOS", NO_QOS),
    Never("VipConnectAccept", "ERROR_RESOURCE", "the request and the VI hold all that a connection needs"),
    Never("VipConnectAccept", "NOT_REACHABLE", "a client that cannot be reached any more is VIP_TIMEOUT"),
    Never("VipConnectReject", "ERROR_RESOURCE", ONLY_LOCAL),
    Never("VipConnectReject", "NOT_REACHABLE", "whether the answer arrives makes no difference here: there is no connection"),
    Never("VipDisconnect", "ERROR_RESOURCE", ONLY_LOCAL),
    Never("VipDisconnect", "NOT_REACHABLE", NO_PARTITIONS),
    Never("VipDeregisterMem", "ERROR_RESOURCE", ONLY_LOCAL),
    Never("VipCQWait", "ERROR_RESOURCE", ONLY_LOCAL),
    Never("VipQueryNic", "ERROR_RESOURCE", ONLY_LOCAL),
    Never("VipQueryVi", "ERROR_RESOURCE", ONLY_LOCAL),
    Never("VipQueryMem", "ERROR_RESOURCE", ONLY_LOCAL),
    Never("VipErrorCallback", "ERROR_RESOURCE", "the thread that calls handlers runs since the NIC was opened"),
    Never("VipNSInit", "ERROR_RESOURCE", "a hosts file that cannot be used is VIP_INVALID_PARAMETER; beside it only heap memory is needed"),
    Never("VipNSGetHostByName", "ERROR_RESOURCE", ONLY_HEAP),
    Never("VipNSGetHostByAddr", "ERROR_RESOURCE", ONLY_HEAP),
    Never("VipNSShutdown", "ERROR_RESOURCE", ONLY_LOCAL),
];

/// Calls that the library does not have yet. As soon as it exports one, its entry here is an error.
pub(crate) const PENDING_CALLS: &[&str] = &[
    "VipConnectPeerRequest",
    "VipConnectPeerDone",
    "VipConnectPeerWait",
    "VipSendNotify",
    "VipRecvNotify",
    "VipCQNotify",
    "VipResizeCQ",
    "VipSetViAttributes",
    "VipSetMemAttributes",
    "VipQuerySystemManagementInfo",
];

/// Levels that no NIC offers yet. As soon as one does, its entry here is an error.
pub(crate) const PENDING_LEVELS: &[Level] = &[Level::Rr];

/// Rows that wait for RDMA reads. As soon as a NIC offers reads at that level, the entry is an error.
pub(crate) const PENDING_READS: &[(&str, Level)] =
    &[("read_refused", Level::Rd), ("read_refused", Level::Rr)];
