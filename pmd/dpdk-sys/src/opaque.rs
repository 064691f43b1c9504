//! Types that only DPDK looks into: others hold pointers to them, and cannot make, copy or move one.

#![allow(non_camel_case_types, reason = "the names of DPDK's headers")]

use core::marker::{PhantomData, PhantomPinned};

/// Not `Send`, `Sync` or `Unpin`, and of no size that anyone could rely on.
type Opaque = PhantomData<(*mut u8, PhantomPinned)>;

/// A buffer of a pool; where its bytes are is told by [`dpdk_sys_frame`](super::dpdk_sys_frame).
#[repr(C)]
#[derive(Debug)]
pub struct rte_mbuf {
    bytes: [u8; 0],
    opaque: Opaque,
}

/// A pool of buffers; made by `rte_pktmbuf_pool_create`, ended by `rte_mempool_free` when all buffers are back and no
/// port uses it.
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

/// A device of a bus; a port's is in its `rte_eth_dev_info`, and goes to `rte_dev_remove`.
#[repr(C)]
#[derive(Debug)]
pub struct rte_device {
    bytes: [u8; 0],
    opaque: Opaque,
}
