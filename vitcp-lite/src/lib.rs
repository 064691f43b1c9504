//! VI/TCP, the Internet-Draft draft-dicecco-vitcp-00 ("the draft"): parsing and encoding of segments,
//! descriptor flow control, the connection state machines and the transfer of data. Sans-IO. Clauses are cited as
//! `[VI/TCP 3.1]`.
//!
//! A segment, outermost first, and the module of each part:
//!
//! ```text
//!   0  segment header      24          segment, segment_type, remote_error
//!  24  RDMA header         16, or      rdma
//!      CE header           44          ce, attributes
//!      Security            0..=256     security
//!      payload             0..
//! ```
//!
//! | module | contents |
//! | --- | --- |
//! | [`profile`] | the numbers that the draft leaves open, in one table |
//! | [`decoder`] | incremental decoder of segments from a byte stream |
//! | [`keyed`] | Security Information of hosts that share a key: challenge and proofs |
//! | [`error`] | errors of malformed segments |
//! | [`sequence`] | order of message numbers, and descriptor flow control |
//! | [`machine`] | connection state machines: initiator, responder, peer to peer |
//! | [`transfer`] | data transfer of a connection: messages to segments and back |
//! | [`source`] | sources of connections, to which limits apply |
//!
//! `parse` reads a header, `emit` writes it. No input causes a panic; nothing uses a socket or a clock, and only
//! [`transfer`] allocates: when a connection is established, and when it ends.

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

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod attributes;
pub mod ce;
pub mod decoder;
pub mod error;
pub mod keyed;
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
pub mod segment_type;
pub mod sequence;
pub mod source;
#[cfg(any(test, feature = "testkit"))]
#[allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    reason = "a mistake of a test may panic"
)]
pub mod testkit;
#[allow(
    clippy::arithmetic_side_effects,
    reason = "its sums are of lengths that the checks of segments and descriptors bound"
)]
pub mod transfer;

pub use attributes::{Attributes, ExactLevel};
pub use ce::{CeHeader, Discriminator};
pub use decoder::{Decoder, Headers, Item, Segment};
pub use error::SegmentError;
pub use keyed::{Acceptance, Challenge, ChallengeResponse, ProofKind, Statement};
pub use rdma::RdmaHeader;
pub use remote_error::{IsCode, RemoteError, ViErrorType};
pub use security::Security;
pub use segment::SegmentHeader;
pub use segment_type::{Flags, SegmentType};
pub use sequence::{Credits, Posted, is_after};
pub use source::Source;
pub use transfer::{StreamIo, Transfer};
