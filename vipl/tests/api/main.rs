//! The calls of the library on NICs of this process, on shared memory and with `VIPL_TEST_TRANSPORT=vi-tcp` over VI/TCP.
//!
//! Tests that need a process of their own are other programs: those that fork, count allocations, or change limits,
//! the environment or the logger.

#[path = "../common/mod.rs"]
mod common;

mod attributes;
mod connect;
mod cq_resize;
mod handlers;
mod in_flight;
mod lifetime;
mod limits;
mod notify;
mod port_failure;
mod progress;
mod queues;
mod soundness;
mod teardown;
