//! Checks of the fuzz targets: the crates that parse wire formats are compared with a simple
//! reference implementation.
//!
//! | module | target | comparison |
//! | --- | --- | --- |
//! | [`stream`] | `vitcp_stream` | the decoder, with the stream split in any way, with [`reference`](mod@reference) |
//! | [`headers`] | `vitcp_ce` | parsed and emitted headers with [`reference`](mod@reference) |
//! | [`machines`] | `vitcp_machines` | the state machines with a model of their [`environment`], and two [`peers`] |
//! | [`sequence`] | `vitcp_sequence` | counters modulo 2^16 and 2^32 with counters that never wrap |
//! | [`frame`] | `fcvi_frame` | frames and their [`payloads`], parsed and emitted |
//!
//! A check accepts any bytes and panics if it fails. The first bytes select the variant, see
//! [`input`]; the same bytes repeat the same check.

pub mod environment;
pub mod frame;
pub mod headers;
pub mod input;
pub mod machines;
pub mod payloads;
pub mod peers;
pub mod reference;
pub mod sequence;
pub mod stream;
