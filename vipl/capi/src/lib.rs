//! libvipl: the C interface of the Virtual Interface Provider Library, as `vipl.h` declares it.
//!
//! Every call is a thin shell around [`vipl::provider`]: it checks pointers, turns C values into
//! Rust ones and back, and keeps panics on this side (`guard`).
//!
//! What the C caller vouches for, and every `# Safety` section here refers to:
//!
//! * a pointer is NULL, or points to an object of its parameter's type that stays valid during the
//!   call (a descriptor and its buffers: until the descriptor has come back from its queue);
//! * a string ends in a NUL; a `VIP_NET_ADDRESS` has behind it as many bytes as its lengths say, and
//!   one that is written to has room for the NIC's address and the longest discriminator.
//!
//! Handles need no such promise: stale, foreign and made-up ones are answered with
//! `VIP_INVALID_PARAMETER`.
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
//! | `name` | VipNSInit VipNSGetHostByName VipNSGetHostByAddr VipNSShutdown |
//! | `choices` | viaduct_get_choices viaduct_set_choices viaduct_get_agreement viaduct_get_request_security, of `viaduct.h`, too |
//! | `users` | viaduct_get_request_user viaduct_get_peer_user, of `viaduct.h`, too |
//! | `shared` | viaduct_alloc viaduct_free, which `viaduct.h` declares: not of the guide |

/// Small allocations have a reserve: a program without memory gets errors and goes on.
#[global_allocator]
static ALLOCATOR: vipl::reserve::ReserveAllocator = vipl::reserve::ReserveAllocator;

mod address;
mod attributes;
mod cancellation;
mod choices;
mod connect;
mod guard;
mod management;
mod memory;
mod name;
mod nic;
mod notify;
mod peer;
mod pointer;
mod queue;
mod shared;
mod types;
mod users;
mod vi;

pub use attributes::{VipSetMemAttributes, VipSetViAttributes};
pub use choices::{
    ViaductAgreement, ViaductChoices, viaduct_get_agreement, viaduct_get_choices,
    viaduct_get_request_security, viaduct_set_choices,
};
pub use connect::{
    VipConnectAccept, VipConnectReject, VipConnectRequest, VipConnectWait, VipDisconnect,
};
pub use management::VipQuerySystemManagementInfo;
pub use memory::{VipCreatePtag, VipDeregisterMem, VipDestroyPtag, VipQueryMem, VipRegisterMem};
pub use name::{VipNSGetHostByAddr, VipNSGetHostByName, VipNSInit, VipNSShutdown};
pub use nic::{VipCloseNic, VipErrorCallback, VipOpenNic, VipQueryNic};
pub use notify::{VipCQNotify, VipRecvNotify, VipSendNotify};
pub use peer::{VipConnectPeerDone, VipConnectPeerRequest, VipConnectPeerWait};
pub use queue::{
    VipCQDone, VipCQWait, VipPostRecv, VipPostSend, VipRecvDone, VipRecvWait, VipSendDone,
    VipSendWait,
};
pub use shared::{viaduct_alloc, viaduct_free};
pub use types::{
    CqHandlerFn, ErrorHandlerFn, QueueHandlerFn, RawHandle, VipAutodiscoveryList, VipBoolean,
    VipErrorDescriptor, VipMemAttributes, VipNetAddress, VipNicAttributes, VipReturn, VipUlong,
    VipViAttributes,
};
pub use users::{viaduct_get_peer_user, viaduct_get_request_user};
pub use vi::{VipCreateCQ, VipCreateVi, VipDestroyCQ, VipDestroyVi, VipQueryVi, VipResizeCQ};
