//! Ports that wrap a port.

pub mod fault;
pub mod pcapng;

pub use fault::{FaultConfig, FaultInjector, FaultRates};
pub use pcapng::PcapngTee;
