//! The guide's calls with their clauses, phases and return codes, in the guide's order.

/// A conformance phase of the guide (2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    EarlyAdopter,
    Functional,
    Full,
}

use Phase::{EarlyAdopter, Full, Functional};

impl Phase {
    /// All phases in order; each includes the previous one.
    pub(crate) const ALL: [Self; 3] = [EarlyAdopter, Functional, Full];

    /// Returns the directory of the phase's programs.
    pub(crate) fn folder(self) -> &'static str {
        match self {
            EarlyAdopter => "early_adopter",
            Functional => "functional",
            Full => "full",
        }
    }
}

/// A call of the guide.
pub(crate) struct Call {
    pub(crate) name: &'static str,
    pub(crate) clause: &'static str,
    pub(crate) phase: Phase,
    /// Return codes without the prefix `VIP_`.
    pub(crate) codes: &'static [&'static str],
}

const fn call(
    name: &'static str,
    clause: &'static str,
    phase: Phase,
    codes: &'static [&'static str],
) -> Call {
    Call {
        name,
        clause,
        phase,
        codes,
    }
}

/// All calls of the guide.
#[rustfmt::skip]
pub(crate) const CALLS: [Call; 41] = [
    call("VipOpenNic", "3.1.1", EarlyAdopter, &["SUCCESS", "ERROR_RESOURCE", "INVALID_PARAMETER"]),
    call("VipCloseNic", "3.1.2", EarlyAdopter, &["SUCCESS", "INVALID_PARAMETER"]),
    call("VipCreateVi", "3.2.1", EarlyAdopter, &["SUCCESS", "ERROR_RESOURCE", "INVALID_PARAMETER", "INVALID_RELIABILITY_LEVEL", "INVALID_MTU", "INVALID_QOS", "INVALID_PTAG", "INVALID_RDMAREAD"]),
    call("VipDestroyVi", "3.2.2", EarlyAdopter, &["SUCCESS", "INVALID_PARAMETER", "INVALID_STATE", "ERROR_RESOURCE"]),
    call("VipConnectWait", "3.3.1", EarlyAdopter, &["SUCCESS", "TIMEOUT", "ERROR_RESOURCE", "INVALID_PARAMETER"]),
    call("VipConnectAccept", "3.3.2", EarlyAdopter, &["SUCCESS", "INVALID_PARAMETER", "INVALID_RELIABILITY_LEVEL", "INVALID_MTU", "INVALID_QOS", "TIMEOUT", "ERROR_RESOURCE", "INVALID_STATE", "NOT_REACHABLE"]),
    call("VipConnectReject", "3.3.3", EarlyAdopter, &["SUCCESS", "INVALID_PARAMETER", "ERROR_RESOURCE", "NOT_REACHABLE"]),
    call("VipConnectRequest", "3.3.4", EarlyAdopter, &["SUCCESS", "TIMEOUT", "ERROR_RESOURCE", "INVALID_PARAMETER", "REJECT", "NO_MATCH", "INVALID_STATE", "NOT_REACHABLE"]),
    call("VipDisconnect", "3.3.5", EarlyAdopter, &["SUCCESS", "INVALID_PARAMETER", "ERROR_RESOURCE", "NOT_REACHABLE"]),
    call("VipConnectPeerRequest", "3.3.6", Functional, &["SUCCESS", "ERROR_RESOURCE", "INVALID_STATE", "INVALID_PARAMETER"]),
    call("VipConnectPeerDone", "3.3.7", Functional, &["SUCCESS", "INVALID_PARAMETER", "INVALID_RELIABILITY_LEVEL", "INVALID_MTU", "INVALID_QOS", "TIMEOUT", "NOT_DONE", "ERROR_RESOURCE", "INVALID_STATE", "NOT_REACHABLE"]),
    call("VipConnectPeerWait", "3.3.8", Functional, &["SUCCESS", "INVALID_PARAMETER", "INVALID_RELIABILITY_LEVEL", "INVALID_MTU", "INVALID_QOS", "TIMEOUT", "ERROR_RESOURCE", "INVALID_STATE", "NOT_REACHABLE"]),
    call("VipCreatePtag", "3.4.1", Functional, &["SUCCESS", "ERROR_RESOURCE", "INVALID_PARAMETER"]),
    call("VipDestroyPtag", "3.4.2", Functional, &["SUCCESS", "ERROR_RESOURCE", "INVALID_PARAMETER"]),
    call("VipRegisterMem", "3.4.3", EarlyAdopter, &["SUCCESS", "ERROR_RESOURCE", "INVALID_PARAMETER", "INVALID_PTAG", "INVALID_RDMAREAD"]),
    call("VipDeregisterMem", "3.4.4", EarlyAdopter, &["SUCCESS", "INVALID_PARAMETER", "ERROR_RESOURCE"]),
    call("VipPostSend", "3.5.1", EarlyAdopter, &["SUCCESS", "INVALID_PARAMETER"]),
    call("VipSendDone", "3.5.2", EarlyAdopter, &["SUCCESS", "DESCRIPTOR_ERROR", "NOT_DONE", "INVALID_PARAMETER"]),
    call("VipSendWait", "3.5.3", EarlyAdopter, &["SUCCESS", "DESCRIPTOR_ERROR", "INVALID_PARAMETER", "TIMEOUT", "ERROR_RESOURCE"]),
    call("VipPostRecv", "3.5.4", EarlyAdopter, &["SUCCESS", "INVALID_PARAMETER"]),
    call("VipRecvDone", "3.5.5", EarlyAdopter, &["SUCCESS", "DESCRIPTOR_ERROR", "NOT_DONE", "INVALID_PARAMETER"]),
    call("VipRecvWait", "3.5.6", EarlyAdopter, &["SUCCESS", "DESCRIPTOR_ERROR", "INVALID_PARAMETER", "TIMEOUT", "ERROR_RESOURCE"]),
    call("VipCQDone", "3.5.7", Functional, &["SUCCESS", "NOT_DONE", "INVALID_PARAMETER"]),
    call("VipCQWait", "3.5.8", Functional, &["SUCCESS", "INVALID_PARAMETER", "TIMEOUT", "ERROR_RESOURCE"]),
    call("VipSendNotify", "3.5.9", Full, &["SUCCESS", "INVALID_PARAMETER", "DESCRIPTOR_ERROR", "ERROR_RESOURCE"]),
    call("VipRecvNotify", "3.5.10", Full, &["SUCCESS", "INVALID_PARAMETER", "DESCRIPTOR_ERROR", "ERROR_RESOURCE"]),
    call("VipCQNotify", "3.5.11", Full, &["SUCCESS", "INVALID_PARAMETER", "ERROR_RESOURCE"]),
    call("VipCreateCQ", "3.6.1", Functional, &["SUCCESS", "INVALID_PARAMETER", "ERROR_RESOURCE"]),
    call("VipDestroyCQ", "3.6.2", Functional, &["SUCCESS", "INVALID_PARAMETER", "ERROR_RESOURCE"]),
    call("VipResizeCQ", "3.6.3", Functional, &["SUCCESS", "INVALID_PARAMETER", "ERROR_RESOURCE"]),
    call("VipQueryNic", "3.7.1", EarlyAdopter, &["SUCCESS", "INVALID_PARAMETER", "ERROR_RESOURCE"]),
    call("VipSetViAttributes", "3.7.2", Full, &["SUCCESS", "INVALID_PARAMETER", "INVALID_STATE", "INVALID_RELIABILITY_LEVEL", "INVALID_MTU", "INVALID_QOS", "INVALID_PTAG", "INVALID_RDMAREAD", "ERROR_RESOURCE"]),
    call("VipQueryVi", "3.7.3", EarlyAdopter, &["SUCCESS", "INVALID_PARAMETER", "ERROR_RESOURCE"]),
    call("VipSetMemAttributes", "3.7.4", Full, &["SUCCESS", "INVALID_PARAMETER", "INVALID_PTAG", "INVALID_RDMAREAD", "ERROR_RESOURCE"]),
    call("VipQueryMem", "3.7.5", EarlyAdopter, &["SUCCESS", "INVALID_PARAMETER", "ERROR_RESOURCE"]),
    call("VipQuerySystemManagementInfo", "3.7.6", Full, &["SUCCESS", "INVALID_PARAMETER", "ERROR_RESOURCE"]),
    call("VipErrorCallback", "3.8.1", Functional, &["SUCCESS", "INVALID_PARAMETER", "ERROR_RESOURCE"]),
    call("VipNSInit", "3.9.1", Functional, &["SUCCESS", "INVALID_PARAMETER", "ERROR_NAMESERVICE", "ERROR_RESOURCE"]),
    call("VipNSGetHostByName", "3.9.2", Functional, &["SUCCESS", "ERROR_NAMESERVICE", "INVALID_PARAMETER", "ERROR_RESOURCE"]),
    call("VipNSGetHostByAddr", "3.9.3", Functional, &["SUCCESS", "ERROR_NAMESERVICE", "INVALID_PARAMETER", "ERROR_RESOURCE"]),
    call("VipNSShutdown", "3.9.4", Functional, &["SUCCESS", "ERROR_NAMESERVICE", "INVALID_PARAMETER", "ERROR_RESOURCE"]),
];
