//! A port on any DPDK device: NICs that bypass the kernel, and DPDK's virtual devices.
//!
//! An [`Mbuf`](crate::Mbuf) is a buffer of a DPDK mempool: frames are received and sent in place. DPDK is the system's,
//! release 22.11 or newer.
//!
//! # Requirements
//! EAL is initialized by the first port of a process, with [`EalConfig`], and runs until the process exits; all ports
//! of the process need the same configuration. Hardware NICs need huge pages and `vfio-pci`. Virtual devices need
//! neither, and `net_memif`, `net_ring` and `net_null` need no privileges.
//!
//! # Received frames
//! Frames with one of the configured EtherTypes to our station address, to
//! [`SEGMENT_BROADCAST`](crate::af_packet::SEGMENT_BROADCAST), to one of the configured multicast addresses or, if
//! configured, to the device's own address. These addresses are added to the device's filter; a device that cannot
//! filter becomes promiscuous. The port drops and counts all other frames. A VLAN frame is dropped; a priority tag
//! (VLAN identifier 0) is removed. Frames to our own address are delivered inside the port.
//!
//! # Driver notes
//! * `net_memif` cannot handle a peer that disconnects at any time, so a thread of the port proxies its control
//!   channel; the keys `socket` and `socket-abstract` apply to that thread. A peer that corrupts or truncates the
//!   shared memory can still make a burst fault. Such a burst is aborted, and only its frames are lost. This needs a
//!   handler of SIGSEGV and SIGBUS, which passes on faults of other code; a program that installs its own handler later
//!   should do so too. A frame must fit into one slot: both sides need the same `bsize`, 2304 by default.
//! * `net_af_packet` blocks in the kernel, in the middle of a burst, while the interface accepts no frame. Its longest
//!   frame is its key `framesz` less 66 bytes.
//! * Drivers on a network interface (`net_af_packet`, `net_af_xdp`, `net_tap`) fail with it, as other ports do.
//! * `net_af_xdp` attaches an XDP program to its interface, which would stay attached after the process is killed and
//!   block other users. The port replaces that by a BPF link (with `CAP_SYS_ADMIN`; otherwise it logs a warning): the
//!   program is detached with the last port that has a queue of the interface, even if that port is killed. If a
//!   process is killed while it opens its port, the program may stay attached until the next port is opened.
//! * `ring:NAME` is not a driver's name: two ports of one process with the same name are connected by DPDK's
//!   `net_ring`.
//!
//! No device wakes a sleeping thread: [`WakeSource::Poll`](crate::WakeSource::Poll).
//!
//! # Counters
//! | name | counts |
//! | --- | --- |
//! | `drop_rx_runt` | received frames shorter than their headers |
//! | `drop_rx_too_long` | received frames longer than [`Capabilities::max_frame_bytes`](crate::Capabilities::max_frame_bytes) |
//! | `drop_rx_in_pieces` | received frames that need several buffers (mbuf segments) |
//! | `drop_rx_vlan` | received VLAN frames |
//! | `drop_rx_other_address` | received frames to other addresses |
//! | `drop_rx_other_ethertype` | received frames with other EtherTypes |
//! | `drop_rx_foreign_buffer` | received frames in buffers that do not belong to the port |
//! | `drop_tx_runt` | frames to send that are shorter than an Ethernet header |
//! | `drop_tx_too_long` | frames to send that exceed the interface's MTU (it was lowered) |
//! | `drop_tx_link_down` | frames to send while the link was down |
//! | `drop_tx_not_lent` | buffers passed to `tx_burst` that were not allocated by `alloc` |
//! | `rx_priority_tagged` | received frames with a priority tag |
//! | `tx_self` | frames to our own address, delivered inside the port |
//! | `tx_busy` | bursts of which the device did not accept every frame |
//! | `foreign_mbufs` | buffers passed to `free` that do not belong to this port |
//! | `bursts_given_up` | bursts that faulted: the peer corrupted or truncated the shared memory |
//! | `buffers_recovered` | buffers that such bursts lost and that were returned to the pool |
//! | `restarts` | restarts of a memif client after a server was found |
//! | `link_changes` | changes of the link state, as seen by upkeep |
//! | `link_up` | 1 while the link is up as of the last [`Port::upkeep`](crate::Port::upkeep), else 0 |
//! | `promiscuous` | 1 if the device is promiscuous, since it cannot filter |
//! | `device_NAME` | DPDK's extended statistic of that name, as of the last upkeep; only those that are not 0 |

mod addresses;
mod config;
mod counts;
mod device;
mod driver;
mod eal;
mod log;
mod memif;
mod open;
mod pool;
mod rings;
mod tap;
mod upkeep;
mod xdp_program;

pub use config::{DpdkConfig, DpdkError, EalConfig, FailureDetail};
pub use driver::DpdkPort;
