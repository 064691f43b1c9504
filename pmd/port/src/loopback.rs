//! Ports of one process connected by an in-memory hub: for examples, tests and several stations of one program.
//!
//! Each pair of stations is connected by two rings: one carries buffers with
//! frames to the receiver, one returns the empty buffers to the pool that they
//! came from. No frame is copied, except for the receivers of a group address.

mod config;
mod hub;
mod station;
#[cfg(test)]
mod tests;

pub use config::{LoopbackConfig, LoopbackError, STATIONS_MAX};
pub use station::LoopbackPort;
