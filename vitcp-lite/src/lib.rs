//! VI/TCP, the Internet-Draft draft-dicecco-vitcp-00 ("the draft"): bytes to values and back,
//! and the rules between them. Clauses are cited as `[VI/TCP 3.1]`.
//!
//! A segment, outermost first, and the module of each part:
//!
//! ```text
//!   0  segment header      24          segment, kind, remote_error
//!  24  RDMA header         16, or      rdma
//!      CE header           44          ce, attributes, discriminator
//!      Security            0..=256     security
//!      payload             0..
//! ```
//!
//! | room | what is in it |
//! | --- | --- |
//! | [`profile`] | the numbers that the draft leaves open, in one table |
//! | [`decoder`] | segments out of a stream of bytes, however it is cut |
//! | [`keyed`] | Security Information of ends that share a key |
//! | [`error`] | what can be wrong with a segment |
//! | [`sequence`] | order of message numbers, and descriptor flow control |
//! | [`machine`] | connection establishment: active, passive, peer to peer |
//!
//! Headers are read by `parse` and written by `emit`. No input can make anything here
//! panic, nothing allocates, and nothing knows a socket or a clock.

#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic
    )
)]

#[cfg(test)]
extern crate std;

pub mod attributes;
pub mod ce;
pub mod decoder;
pub mod discriminator;
pub mod error;
pub mod keyed;
pub mod kind;
pub mod machine;
pub mod profile;
pub mod rdma;
pub mod remote_error;
#[cfg(test)]
mod samples;
pub mod security;
#[cfg(test)]
mod seeded;
pub mod segment;
pub mod sequence;
mod wire;

pub use attributes::{Attributes, ExactLevel};
pub use ce::CeHeader;
pub use decoder::{Decoder, Headers, Item, Segment};
pub use discriminator::Discriminator;
pub use error::SegmentError;
pub use keyed::{Acceptance, Answer, Challenge, Says, Statement};
pub use kind::{Flags, SegmentType};
pub use rdma::RdmaHeader;
pub use remote_error::{IsCode, RemoteError, ViErrorType};
pub use security::Security;
pub use segment::SegmentHeader;
pub use sequence::{Credits, Posted, is_after};
