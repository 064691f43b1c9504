//! A Fibre Channel N_Port on Ethernet without a switch: its N_Port_ID, its neighbours, logins with
//! them, and their host addresses. Sans-IO.
//!
//! The crate accesses no socket, clock or thread: frames are passed in as bytes, time and randomness
//! are arguments. [`VnPort`](vn_port::VnPort) is what the owner of a port uses; it passes on the
//! frames of the FC-4 protocol above, whose frames and exchanges are not handled here.
//!
//! | module | contents |
//! | --- | --- |
//! | [`vn_port`] | [`VnPort`](vn_port::VnPort): discovery and logins together |
//! | [`vn2vn`] | [`Vn2vn`](vn2vn::Vn2vn): FIP VN2VN, the own N_Port_ID and the neighbours |
//! | [`login`] | [`LoginMachine`](login::LoginMachine): logins with neighbours, FARP |
//! | [`Fc4`] | the FC-4 protocol for which the port logs in |
//! | [`Neighbour`] | another N_Port of the link |
//! | `random`, `rate_limiter`, `time` | delays, limits per second, units |
#![forbid(unsafe_code)]

mod fc4;
mod neighbour;
mod random;
mod rate_limiter;
#[cfg(test)]
mod testkit;
mod time;

pub mod login;
pub mod vn2vn;
pub mod vn_port;

pub use fc4::Fc4;
pub use neighbour::Neighbour;
