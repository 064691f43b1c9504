//! Ports of one process, joined in memory: for examples, tests and stations of one program.
//!
//! Between each two stations lie two rings: one carries buffers full of frames
//! there, one carries them empty back to the pool that they came from. No
//! frame is copied, except to the many receivers of a group address.

mod config;
mod hub;
mod station;
#[cfg(test)]
mod tests;

pub use config::{LoopbackConfig, LoopbackError, STATIONS_MAX};
pub use station::LoopbackPort;
