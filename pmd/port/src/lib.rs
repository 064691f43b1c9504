//! Ports: drivers that send and receive Ethernet frames in bursts.
//!
//! This crate treats Ethernet frames as bytes and does not interpret their contents.
//!
//! | module | contents |
//! | --- | --- |
//! | [`port`] | the [`Port`] trait: burst semantics and buffer ownership |
//! | [`mbuf`] | [`Mbuf`], the buffer of a port, and [`MbufBatch`], a bounded burst of them |
//! | [`loopback`] | driver: an in-memory hub for stations of one process |
//! | [`layer`] | ports that wrap a port: fault injection, capture files |
//! | `mempool` | a pool of equally sized buffers in one mapping |
//! | [`ring`] | a single-producer, single-consumer ring between two threads |
//! | [`af_packet`] | driver: a network interface, through a packet socket with mapped rings |
//! | [`af_xdp`] | driver: a network interface, through AF_XDP sockets that bypass the network stack |
//! | `dpdk` | driver: DPDK's ports and devices (feature `dpdk`) |
//! | [`mapping`] | memory mappings, unmapped on drop |
//! | [`shm`] | driver: an Ethernet segment in shared memory, between processes |
//! | [`wake`] | sleeping on a port's [`WakeSource`], and waking the sleeper |
//! | `conformance` | the test suite that every port must pass (for tests, feature `conformance`) |
//! | [`fork`] | releases a port's kernel resources in forked children |
//! | [`deferred_close`] | closes descriptors of other processes on a thread of its own |
//! | [`descriptor_number`] | keeps descriptors off the numbers of the standard streams |
//! | [`environment`] | environment variables, ignored in privileged programs |
//! | [`file_size`] | sets file lengths within RLIMIT_FSIZE |
//! | `rng` | a small seeded random number generator for faults and tests |
//! | `sigbus` | keeps the process alive when a mapped file is truncated |
//! | [`stderr`] | non-blocking log lines on standard error |
//! | `sync` | atomics (loom's under `cfg(loom)`) |
//! | [`thread`] | starts threads when memory may be short |

#[cfg(not(all(
    target_os = "linux",
    target_pointer_width = "64",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!(
    "Viaduct supports Linux on x86-64 and aarch64 only: other processors are untested, and aligned 8-byte accesses to \
     shared memory may not be atomic there (docs/adr/0039-release-stores-order-rdma-writes.md)"
);

pub mod af_packet;
pub mod af_xdp;
#[cfg(any(test, feature = "conformance"))]
#[doc(hidden)]
pub mod conformance;
pub mod deferred_close;
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
