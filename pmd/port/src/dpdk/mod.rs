//! A port on any device of DPDK's: cards without the kernel, and DPDK's virtual devices.
//!
//! An [`Mbuf`](crate::Mbuf) is a buffer of a pool of DPDK's: frames are received and sent in place. DPDK is the
//! system's, release 22.11 or newer.
//!
//! # What it needs
//! EAL is started by the first port of a process, with [`EalConfig`], and runs until the process ends; all ports of the
//! process want the same. Cards want huge pages and `vfio-pci`. Virtual devices do without both, and `net_memif`,
//! `net_ring` and `net_null` without any privilege.
//!
//! # What is received
//! Frames with one of the configured EtherTypes to our station address, to
//! [`SEGMENT_BROADCAST`](crate::af_packet::SEGMENT_BROADCAST), to one of the configured multicast addresses or, if
//! configured so, to the device's own address. The device is asked for these addresses, and for everything if it cannot
//! filter; the port drops and counts what is not its own. A frame of a VLAN is dropped, a priority tag (VLAN identifier
//! 0) is taken out. Frames to our own address are delivered inside the port.
//!
//! # What drivers are like
//! * `net_memif` does not stand it that its other end goes, so a thread of the port's stands between the two; the keys
//!   `socket` and `socket-abstract` are that thread's. What the other end does to the memory that it shares can still
//!   make a burst fault. Such a burst is given up: its frames are lost, nothing else. This takes a handler of SIGSEGV
//!   and SIGBUS, which passes on what other code causes; a program that installs its own later should do so too. Frames
//!   fit into one of its slots: both ends say the same `bsize`, 2304 unless they say otherwise.
//! * `net_af_packet` waits in the kernel, in the middle of a burst, while the interface takes no frame. It carries
//!   frames up to 66 bytes less than its key `framesz`.
//! * Those on a network interface (`net_af_packet`, `net_af_xdp`, `net_tap`) fail with it, as other ports do.
//! * `net_af_xdp` puts an XDP program on its interface, which would stay there when the process is killed, in the way of
//!   others. The port holds it by a link instead (with `CAP_SYS_ADMIN`; otherwise it warns): it ends with the last port
//!   that has a queue of the interface, however that ends. Of a process that is killed while it opens its port it may
//!   stay until the next one is opened.
//! * `ring:NAME` is not a driver's name: two ports of one process that name it are joined by DPDK's `net_ring`.
//!
//! No device wakes a thread that sleeps: [`WakeSource::Poll`](crate::WakeSource::Poll).
//!
//! # Counters
//! | name | what is counted |
//! | --- | --- |
//! | `drop_rx_runt` | received frames shorter than their headers |
//! | `drop_rx_too_long` | received frames longer than [`Capabilities::max_frame_bytes`](crate::Capabilities::max_frame_bytes) |
//! | `drop_rx_in_pieces` | received frames that one buffer did not hold |
//! | `drop_rx_vlan` | received frames of a VLAN |
//! | `drop_rx_other_address` | received frames to others |
//! | `drop_rx_other_ethertype` | received frames with other EtherTypes |
//! | `drop_rx_foreign_buffer` | received frames in buffers that are not the port's |
//! | `drop_tx_runt` | frames to send that are shorter than an Ethernet header |
//! | `drop_tx_too_long` | frames to send that exceed the interface's MTU, which was lowered |
//! | `drop_tx_link_down` | frames to send while the link was down |
//! | `drop_tx_not_lent` | buffers given to `tx_burst` that `alloc` did not lend |
//! | `rx_priority_tagged` | received frames with a priority tag |
//! | `tx_self` | frames to our own address, delivered inside the port |
//! | `tx_busy` | bursts of which the device did not take every frame at once |
//! | `foreign_mbufs` | buffers given to `free` that are not of this port |
//! | `bursts_given_up` | bursts that faulted: the other end spoilt the memory that it shares |
//! | `buffers_recovered` | buffers that such bursts had, found again |
//! | `restarts` | how often a client was started again, for which there was a server |
//! | `link_changes` | how often the link was found up or down when it was not before |
//! | `link_up` | 1 while the link is up as of the last [`Port::upkeep`](crate::Port::upkeep), else 0 |
//! | `promiscuous` | 1 if the device was asked for every frame, since it cannot filter |
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
mod program;
mod rings;
mod upkeep;

pub use config::{DpdkConfig, DpdkError, EalConfig, Said};
pub use driver::DpdkPort;
