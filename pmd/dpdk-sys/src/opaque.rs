//! Opaque types: this crate's users hold pointers to them, and cannot create, copy or move one.

#![allow(non_camel_case_types, reason = "the names of DPDK's headers")]

use core::marker::{PhantomData, PhantomPinned};

/// Makes a type neither `Send`, `Sync` nor `Unpin`.
type Opaque = PhantomData<(*mut u8, PhantomPinned)>;

/// A buffer of a pool; [`dpdk_sys_frame`](super::dpdk_sys_frame) has the address of its bytes.
#[repr(C)]
#[derive(Debug)]
pub struct rte_mbuf {
    bytes: [u8; 0],
    opaque: Opaque,
}

/// A pool of buffers; created by `rte_pktmbuf_pool_create`, freed by `rte_mempool_free` when all buffers are back and
/// no port uses it.
#[repr(C)]
#[derive(Debug)]
pub struct rte_mempool {
    bytes: [u8; 0],
    opaque: Opaque,
}

/// A ring of frames between two ports of this process.
#[repr(C)]
#[derive(Debug)]
pub struct rte_ring {
    bytes: [u8; 0],
    opaque: Opaque,
}

/// A device of a bus; a port's device is in its `rte_eth_dev_info`, and is removed by `rte_dev_remove`.
#[repr(C)]
#[derive(Debug)]
pub struct rte_device {
    bytes: [u8; 0],
    opaque: Opaque,
}
