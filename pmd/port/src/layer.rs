//! Ports that wrap a port.

mod failed;
pub mod fault;
pub mod pcapng;

pub use failed::FailedPort;
pub use fault::{FaultConfig, FaultInjector, FaultRates};
pub use pcapng::PcapngTee;
