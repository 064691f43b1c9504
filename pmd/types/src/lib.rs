//! Types that the crates of the VI provider share, each defined once.
//!
//! | module | contents |
//! | --- | --- |
//! | [`ReliabilityLevel`] | the three levels of a VI (VIPL 4.6) |
//! | [`ViState`] | the four states of a VI (VIPL 4.8) |
//! | [`QueueKind`] | the two work queues of a VI |
//! | [`status`] | the status word of a descriptor (VIPL 5.2) |
//! | [`LockPolicy`] | whether the pages of registered memory are locked |
#![no_std]
#![forbid(unsafe_code)]

mod lock_policy;
mod queue_kind;
mod reliability_level;
pub mod status;
mod vi_state;

pub use lock_policy::LockPolicy;
pub use queue_kind::QueueKind;
pub use reliability_level::{ReliabilityLevel, UnknownLevel};
pub use vi_state::ViState;
