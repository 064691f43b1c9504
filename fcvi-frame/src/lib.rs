//! FC-VI over FCoE: parsers and emitters of frames.
//!
//! A frame, outermost first, and the module of each part:
//!
//! ```text
//!   0  Ethernet header          14 (18 tagged)   ethernet
//!  14  FCoE header, SOF         14               fcoe
//!  28  FC header                24               fc
//!  52  device_header            16 or 32         device_header, iu, flags, reason
//!      payload and fill         0..              connect, gaps, els, bls
//!      FC CRC                    4               crc
//!      EOF, reserved             4               fcoe
//! ```
//!
//! [`frame`] parses and emits whole frames, [`fip`] those of FCoE's control
//! protocol; [`profile`] is the table of all values that we chose and that are
//! not taken from a standard. Every type is read by `parse` and written by
//! `emit`. Neither panics on any input, and neither allocates.

#![no_std]
#![deny(unsafe_code)]
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

#[cfg(any(test, feature = "std"))]
extern crate std;

pub mod bls;
pub mod connect;
#[expect(
    unsafe_code,
    reason = "reads memory that others change, with the processor's instructions"
)]
pub mod crc;
pub mod device_header;
pub mod els;
pub mod error;
pub mod ethernet;
pub mod fc;
pub mod fcoe;
pub mod fip;
pub mod flags;
pub mod frame;
pub mod gaps;
pub mod iu;
pub mod profile;
pub mod reason;
#[cfg(test)]
mod test_seed;

pub use error::{EmitError, ParseError};
pub use ethernet::MacAddress;
pub use fc::NPortId;
