//! What the tests of the protocol crates share.
//!
//! | module | contents |
//! | --- | --- |
//! | [`rng`] | random numbers from a seed |
//! | [`time`] | units of a simulated clock |
//! | [`hex`] | frames in hexadecimal |
//! | [`document`] | tables in `docs/spec`, written and compared |
//! | [`disabled_checks`] | checks disabled, to show what they are for |
//! | [`necessity`] | assertions that a check rejects stale frames, and is needed for it |
//! | [`check_table`] | the checks of a crate as a table |
#![forbid(unsafe_code)]

pub mod check_table;
pub mod disabled_checks;
pub mod document;
pub mod hex;
pub mod necessity;
pub mod rng;
pub mod time;
