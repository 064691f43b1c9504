//! libvipl: the C interface of the Virtual Interface Provider Library, as `vipl.h` declares it.
//!
//! Every call is a thin wrapper of [`vipl::provider`]: it checks pointers, converts C values to
//! Rust values and back, and catches panics (`guard`).
//!
//! The obligations of the C caller, to which every `# Safety` section of this crate refers:
//!
//! * a pointer is NULL, or points to an object of its parameter's type that stays valid during the
//!   call (a descriptor and its buffers: until the descriptor is taken off its queue);
//! * a string is NUL-terminated; a `VIP_NET_ADDRESS` is followed by as many bytes as its lengths
//!   state, and as an output has room for the NIC's address and the longest discriminator.
//!
//! Handles are checked: calls with a stale or invalid handle return `VIP_INVALID_PARAMETER`.
//!
//! | module | calls |
//! | --- | --- |
//! | `attributes` | VipSetViAttributes VipSetMemAttributes |
//! | `management` | VipQuerySystemManagementInfo |
//! | `nic` | VipOpenNic VipCloseNic VipQueryNic VipErrorCallback |
//! | `vi` | VipCreateVi VipDestroyVi VipQueryVi VipCreateCQ VipDestroyCQ VipResizeCQ |
//! | `queue` | VipPostSend VipPostRecv, the Done and Wait calls, VipCQDone VipCQWait |
//! | `notify` | VipSendNotify VipRecvNotify VipCQNotify |
//! | `connect` | VipConnectWait VipConnectAccept VipConnectReject VipConnectRequest VipDisconnect |
//! | `peer` | VipConnectPeerRequest VipConnectPeerDone VipConnectPeerWait |
//! | `memory` | VipCreatePtag VipDestroyPtag VipRegisterMem VipDeregisterMem VipQueryMem |
//! | `name_service` | VipNSInit VipNSGetHostByName VipNSGetHostByAddr VipNSShutdown |
//! | `connection_options` | viaduct_get_connection_options viaduct_set_connection_options viaduct_get_negotiated_options viaduct_get_request_security, declared in `viaduct.h` |
//! | `users` | viaduct_get_request_user viaduct_get_peer_user, declared in `viaduct.h` |
//! | `shared_memory` | viaduct_alloc viaduct_free, declared in `viaduct.h` |

/// An allocator with a reserve for small allocations: when memory is exhausted, calls return errors.
#[global_allocator]
static ALLOCATOR: vipl::reserve::ReserveAllocator = vipl::reserve::ReserveAllocator;

mod address;
mod attributes;
mod cancellation;
mod connect;
mod connection_options;
mod guard;
mod management;
mod memory;
mod name_service;
mod nic;
mod notify;
mod peer;
mod pointer;
mod queue;
mod shared_memory;
mod types;
mod users;
mod vi;

pub use attributes::{VipSetMemAttributes, VipSetViAttributes};
pub use connect::{
    VipConnectAccept, VipConnectReject, VipConnectRequest, VipConnectWait, VipDisconnect,
};
pub use connection_options::{
    ViaductConnectionOptions, ViaductNegotiatedOptions, viaduct_get_agreement, viaduct_get_choices,
    viaduct_get_connection_options, viaduct_get_negotiated_options, viaduct_get_request_security,
    viaduct_set_choices, viaduct_set_connection_options,
};
pub use management::VipQuerySystemManagementInfo;
pub use memory::{VipCreatePtag, VipDeregisterMem, VipDestroyPtag, VipQueryMem, VipRegisterMem};
pub use name_service::{VipNSGetHostByAddr, VipNSGetHostByName, VipNSInit, VipNSShutdown};
pub use nic::{VipCloseNic, VipErrorCallback, VipOpenNic, VipQueryNic};
pub use notify::{VipCQNotify, VipRecvNotify, VipSendNotify};
pub use peer::{VipConnectPeerDone, VipConnectPeerRequest, VipConnectPeerWait};
pub use queue::{
    VipCQDone, VipCQWait, VipPostRecv, VipPostSend, VipRecvDone, VipRecvWait, VipSendDone,
    VipSendWait,
};
pub use shared_memory::{viaduct_alloc, viaduct_free};
pub use types::{
    CqHandlerFn, ErrorHandlerFn, QueueHandlerFn, RawHandle, VipAutodiscoveryList, VipBoolean,
    VipErrorDescriptor, VipMemAttributes, VipNetAddress, VipNicAttributes, VipReturn, VipUlong,
    VipViAttributes,
};
pub use users::{viaduct_get_peer_user, viaduct_get_request_user};
pub use vi::{VipCreateCQ, VipCreateVi, VipDestroyCQ, VipDestroyVi, VipQueryVi, VipResizeCQ};
