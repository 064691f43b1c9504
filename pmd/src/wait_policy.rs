//! When threads poll, yield their core, and sleep.
//!
//! | policy | decides |
//! | --- | --- |
//! | [`SpinPolicy`] | how long a thread polls before it sleeps |
//! | [`TakeoverPolicy`] | how long the program makes no call before the NIC's thread polls |
//! | [`YieldPolicy`] | how often a thread that polls without finding work yields its core |
//!
//! Each adapts to what it observes; the configuration sets limits.

mod spin;
mod takeover;
mod yielding;

pub(crate) use spin::SpinPolicy;
pub(crate) use takeover::TakeoverPolicy;
pub(crate) use yielding::YieldPolicy;
