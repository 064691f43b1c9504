//! Frames in and out of a port, in bursts.
//!
//! This crate knows Ethernet frames as bytes and nothing of what is in them.
//!
//! | room | what is in it |
//! | --- | --- |
//! | [`port`] | the [`Port`] trait: burst semantics and buffer ownership, stated once |
//! | [`mbuf`] | [`Mbuf`], the buffer of a port, and [`MbufBatch`], a bounded burst of them |
//! | [`loopback`] | the driver for stations of one process, joined in memory |
//! | [`layer`] | ports that wrap a port: faults, capture files |
//! | [`mempool`] | a fixed number of equal buffers in one mapping |
//! | [`ring`] | a ring of values from one thread to another |
//! | [`af_packet`] | the driver for a network interface, through a packet socket with mapped rings |
//! | [`af_xdp`] | the driver for a network interface, past the kernel's network stack |
//! | `dpdk` | the driver for DPDK's ports and devices (feature `dpdk`) |
//! | [`mapping`] | mapped memory, unmapped on drop |
//! | [`shm`] | driver: an Ethernet segment in shared memory, between processes |
//! | [`wake`] | sleeping on a port's [`WakeSource`], and waking the sleeper |
//! | `conformance` | what every port must do, as one suite (for tests, feature `conformance`) |
//! | `fork` | what a child that is forked does not keep of a port |
//! | `rng` | a small seeded generator for faults and tests |
//! | `sigbus` | shared mappings outlive a file that is cut short |
//! | `sync` | the one door to atomics (loom's under its cfg) |

pub mod af_packet;
pub mod af_xdp;
#[cfg(any(test, feature = "conformance"))]
#[doc(hidden)]
pub mod conformance;
#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod fork;
pub mod layer;
pub mod loopback;
pub mod mapping;
pub mod mbuf;
pub mod mempool;
pub mod port;
pub mod ring;
mod rng;
pub mod shm;
mod sigbus;
mod sync;
pub mod wake;

pub use mbuf::{BURST, Mbuf, MbufBatch};
pub use port::{
    Capabilities, Counter, MacBytes, Neighbour, Port, PortEvent, PortFailure, PortStats, WakeSource,
};
