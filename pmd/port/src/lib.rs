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
//! | `mempool` | a fixed number of equal buffers in one mapping, for ports |
//! | [`ring`] | a ring of values from one thread to another |
//! | [`af_packet`] | the driver for a network interface, through a packet socket with mapped rings |
//! | [`af_xdp`] | the driver for a network interface, past the kernel's network stack |
//! | `dpdk` | the driver for DPDK's ports and devices (feature `dpdk`) |
//! | [`mapping`] | mapped memory, unmapped on drop |
//! | [`shm`] | driver: an Ethernet segment in shared memory, between processes |
//! | [`wake`] | sleeping on a port's [`WakeSource`], and waking the sleeper |
//! | `conformance` | what every port must do, as one suite (for tests, feature `conformance`) |
//! | `fork` | what a child that is forked does not keep of a port |
//! | [`release`] | releases descriptors of other processes, on a thread of its own |
//! | `rng` | a small seeded generator for faults and tests |
//! | `sigbus` | shared mappings outlive a file that is cut short |
//! | [`stderr`] | log lines on standard error, for whose reader no thread waits |
//! | `sync` | the one door to atomics (loom's under its cfg) |

#[cfg(not(all(
    target_os = "linux",
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!(
    "Viaduct is built for Linux on x86-64 and aarch64 only: on other processors nothing was ever run, and it is not \
     known that aligned 8-byte words in shared memory are read and written whole (docs/adr/0039-release-stores-order-rdma-writes.md)"
);

pub mod af_packet;
pub mod af_xdp;
#[cfg(any(test, feature = "conformance"))]
#[doc(hidden)]
pub mod conformance;
pub mod descriptor_number;
#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod environment;
pub mod file_size;
pub mod fork;
pub mod layer;
pub mod loopback;
pub mod mapping;
pub mod mbuf;
mod mempool;
pub mod port;
pub mod release;
pub mod ring;
mod rng;
pub mod shm;
mod sigbus;
pub mod stderr;
mod sync;
pub mod thread;
pub mod wake;

pub use mbuf::{BURST, Mbuf, MbufBatch};
pub use port::{
    Capabilities, Counter, MacBytes, MtuChange, Neighbour, Port, PortEvent, PortFailure, PortStats,
    RingFailure, WakeSource,
};
