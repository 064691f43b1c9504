//! What a port needs of the system's DPDK, as it is in C.
//!
//! Empty without the feature `system`: then neither DPDK nor a tool for its headers is needed. With it, this crate is
//! DPDK's own interface (release 22.11 or newer), generated from the headers that are installed, and the functions
//! `dpdk_sys_...` of a C shim, which stand for DPDK's inline functions.
//!
//! | room | what is in it |
//! | --- | --- |
//! | `bindings` | DPDK's functions, records and constants for EAL, ports, pools and log, and the shim's |
//! | `opaque` | the types that are only pointed to |
//! | `c/shim.h` | the shim: bursts of frames as flat records, pools, log; ownership and threads are stated there |
//!
//! # What its users owe DPDK
//! - `rte_eal_init` once in a process, before all else but `rte_version`, `rte_strerror` and `dpdk_sys_log_to`. It
//!   changes the calling thread's affinity, and starts threads.
//! - Devices come and go, are configured, started and stopped by one thread at a time.
//! - A queue belongs to one thread at a time.
//! - A thread that EAL did not start has no lcore, and so no pool's cache: it calls `rte_thread_register`, or bursts
//!   as an lcore that `dpdk_sys_lease_lcore` gave out.
//! - What `rte_eth_dev_callback_register` was given is called by EAL's interrupt thread.

#[cfg(feature = "system")]
mod bindings;
#[cfg(feature = "system")]
mod opaque;

#[cfg(feature = "system")]
pub use bindings::*;
#[cfg(feature = "system")]
pub use opaque::{rte_device, rte_mbuf, rte_mempool, rte_ring};
