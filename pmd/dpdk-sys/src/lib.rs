//! Bindings to the system's DPDK, for a port.
//!
//! Empty without the feature `system`: then neither DPDK nor a tool for its headers is needed. With it, this crate is
//! DPDK's C interface (release 22.11 or newer), generated from the installed headers, and the functions `dpdk_sys_...`
//! of a C shim, which wrap DPDK's inline functions.
//!
//! | module or file | contents |
//! | --- | --- |
//! | `bindings` | functions, records and constants of DPDK for EAL, ports, pools and log, and of the shim |
//! | `opaque` | opaque types |
//! | `c/shim.h` | the shim: bursts of frames as flat records, pools, log; documents ownership and threads |
//!
//! # Requirements of DPDK
//! - `rte_eal_init` is called once per process, before all other functions but `rte_version`, `rte_strerror` and
//!   `dpdk_sys_log_to`. It changes the calling thread's affinity, and starts threads.
//! - Devices are added, configured, started, stopped and removed by one thread at a time.
//! - A queue is used by one thread at a time.
//! - A thread that EAL did not start has no lcore, and so no mempool cache: it calls `rte_thread_register`, or bursts
//!   as an lcore from `dpdk_sys_lease_lcore`.
//! - Callbacks of `rte_eth_dev_callback_register` run on EAL's interrupt thread.

#[cfg(feature = "system")]
mod bindings;
#[cfg(feature = "system")]
mod opaque;

#[cfg(feature = "system")]
pub use bindings::*;
#[cfg(feature = "system")]
pub use opaque::{rte_device, rte_mbuf, rte_mempool, rte_ring};
