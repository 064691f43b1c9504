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
//! Each module has the calls on one kind of object; `viaduct.h` declares those whose names begin with `viaduct_`.

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

pub use attributes::*;
pub use connect::*;
pub use connection_options::*;
pub use management::*;
pub use memory::*;
pub use name_service::*;
pub use nic::*;
pub use notify::*;
pub use peer::*;
pub use queue::*;
pub use shared_memory::*;
pub use types::*;
pub use users::*;
pub use vi::*;
