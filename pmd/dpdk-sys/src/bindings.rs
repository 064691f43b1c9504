//! Generated from `c/shim.h` and the DPDK headers that it includes.

#![allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unused_qualifications,
    rustdoc::all,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::missing_safety_doc,
    clippy::multiple_unsafe_ops_per_block,
    reason = "generated: names and comments are those of DPDK's headers"
)]

use super::opaque::{rte_device, rte_mbuf, rte_mempool, rte_ring};

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
