//! Types that the crates of the VI provider share, each defined once.
//!
//! | module | contents |
//! | --- | --- |
//! | [`ReliabilityLevel`] | the three levels of a VI (VIPL 4.6) |
//! | [`ViState`] | the four states of a VI (VIPL 4.8) |
//! | [`ViIndex`] | index of a VI of a NIC |
//! | [`QueueKind`] | the two work queues of a VI |
//! | [`status`], [`Status`] | the status word of a descriptor, and its error bits (VIPL 5.2) |
//! | [`ViHandle`] and others | handles of the objects of a provider |
//! | [`QueueIo`] | what a protocol calls: queues and memory of the VIs of a NIC |
//! | [`SendWork`], [`Completion`] and others | descriptors and their completions, as far as protocols need them |
//! | [`Indication`], [`ConnectRequest`], [`Pumped`] | what the transports of a NIC share |
//! | [`ViParams`] | attributes of a VI that protocols need |
//! | [`misses`] | limits on guesses of memory handles |
//! | [`ViAttributes`], [`MemAttributes`] | attributes of VIs and memory regions (VIPL 4.6, 4.7) |
//! | [`NetAddress`] | host and discriminator (VIPL 4.1) |
//! | [`BoundedBytes`] | byte strings of a bounded length, such as discriminators |
//! | [`CallError`] | why a call failed (VIPL 4.2) |
//! | [`AsyncError`] | asynchronous errors of the protocol (VIPL 4.4) |
//! | [`ResourceError`] | reasons of VIP_ERROR_RESOURCE |
//! | [`ConnectionOptions`] | options of a VI's connections beyond the guide |
//! | [`fields`] | big-endian fields of headers on the wire |
//! | [`counters!`] | declaration of counters |
//! | [`LockPolicy`] | whether the pages of registered memory are locked |
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(any(feature = "std", test))]
extern crate std;

mod address;
mod async_error;
mod attributes;
mod bounded_bytes;
mod call_error;
mod connection_options;
mod counters;
pub mod fields;
mod handles;
mod lock_policy;
pub mod misses;
mod queue_io;
mod queue_kind;
mod reliability_level;
mod resource_error;
pub mod status;
mod transport;
mod vi_index;
mod vi_params;
mod vi_state;
mod work;

pub use address::{Discriminator, HostAddress, NetAddress};
pub use async_error::AsyncError;
pub use attributes::{MemAttributes, ViAttributes, ViInfo};
pub use bounded_bytes::BoundedBytes;
pub use call_error::{CallError, Outcome};
pub use connection_options::{ConnectionOptions, NegotiatedOptions};
pub use handles::{ConnHandle, CqHandle, NicHandle, PtagHandle, ViHandle};
pub use lock_policy::LockPolicy;
pub use misses::MissLimits;
pub use queue_io::QueueIo;
pub use queue_kind::QueueKind;
pub use reliability_level::{ReliabilityLevel, UnknownLevel};
pub use resource_error::{Limit, LimitOf, LimitReached, ResourceError};
pub use status::Status;
pub use transport::{ConnId, ConnectRequest, Indication, Pumped};
pub use vi_index::ViIndex;
pub use vi_params::ViParams;
pub use vi_state::ViState;
pub use work::{
    Claim, Completion, DIRECT_PART_BYTES, MessageDestination, OneStepLimits, Operation,
    OperationKind, SendWork, Waiter,
};
