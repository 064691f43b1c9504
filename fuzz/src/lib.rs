//! What the fuzz targets check: for the crates that read what a wire brings, that they say the
//! same as a second, plain reading of the same bytes.
//!
//! | module | target | what is compared |
//! | --- | --- | --- |
//! | [`stream`] | `vitcp_stream` | the decoder, however the stream is cut, with [`reference`](mod@reference) |
//! | [`headers`] | `vitcp_ce` | headers read and written with [`reference`](mod@reference) |
//! | [`machines`] | `vitcp_machines` | the machines with what they do to the [`world`] around them, and two [`peers`] |
//! | [`sequence`] | `vitcp_sequence` | counts modulo 2^16 and 2^32 with counts that never wrap |
//! | [`frame`] | `fcvi_frame` | frames and the [`payloads`] inside them, read and written |
//!
//! A check takes any bytes and panics where something is wrong. The first bytes steer it,
//! see [`input`]; the same bytes do the same again.

pub mod frame;
pub mod headers;
pub mod input;
pub mod machines;
pub mod payloads;
pub mod peers;
pub mod reference;
pub mod sequence;
pub mod stream;
pub mod world;
