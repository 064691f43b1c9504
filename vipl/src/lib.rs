//! VIPL, the Virtual Interface Provider Library, in Rust.
//!
//! Two interfaces: the safe API ([`Nic`], [`Vi`], [`CompletionQueue`], ...), in which
//! ownership makes buffers and descriptors inaccessible while the provider uses
//! them; and [`provider`], the calls of the guide on plain handles and raw
//! descriptors, from which the C library is made.
//!
//! | module | contents |
//! | --- | --- |
//! | [`provider`] | every call of this version, by handle |
//! | [`types`] | parameters and results of the calls |
//! | `nic`, `vi`, `cq`, `connect`, `peer` | the objects of the safe API |
//! | `memory`, `descriptor` | registered buffers, and descriptors that own them |
//! | [`SharedMemory`] | memory that a datapath process can map, for [`provider::register_mem`] |
//! | `name_service` | names to host addresses, from a hosts file |

mod connect;
mod cq;
mod descriptor;
mod memory;
mod name_service;
mod nic;
mod peer;
mod sync;
mod vi;

pub mod provider;
pub mod types;

pub use connect::ConnectionRequest;
pub use cq::CompletionQueue;
pub use descriptor::{Completed, CompletedOperation, Descriptor, Operation, PostError, Status};
pub use memory::{Buffer, MemoryRegion, RdmaAccess, RdmaRegion, RemoteBuffer};
pub use nic::{Nic, Ptag};
pub use pmd::{environment, logger, stderr};
pub use types::*;
pub use vi::{Vi, ViBuilder, ViChange};
pub use vi_core::memory::SharedMemory;
pub use vi_core::reserve;
pub use vi_types::{ConnectionOptions, NegotiatedOptions};
