//! A port on a network interface, through AF_XDP sockets.
//!
//! Frames are received and sent in place: an [`Mbuf`](crate::Mbuf) is a chunk of memory that
//! the kernel shares with this process or, with zero copy, the interface itself. A small
//! program on the interface steers our frames to the port before the kernel's network stack
//! sees them, and leaves all others to it.
//!
//! It needs Linux 5.11 or later and the capabilities `CAP_NET_RAW`, `CAP_NET_ADMIN` and
//! `CAP_BPF` of the host, and `CAP_IPC_LOCK` or a limit of locked memory as large as its
//! chunks. An interface carries one such port at a time, since it carries one program;
//! [`af_packet`](crate::af_packet) is for interfaces that programs share.
//!
//! # What is received
//! Frames with one of the configured EtherTypes to our station address, to
//! [`SEGMENT_BROADCAST`](crate::af_packet::SEGMENT_BROADCAST), to one of the configured
//! multicast addresses or, if configured so, to the interface's own address, that come in
//! from the wire on one of the port's queues. On another queue they go on to the kernel, and
//! are counted. What other programs of this host send on the interface is not seen. Frames
//! to our own address are delivered inside the port.
//!
//! A frame that belongs to a VLAN goes on to the kernel, a priority tag (VLAN identifier 0)
//! is taken out. Where the interface itself takes tags out of frames, nothing is left to
//! see: switch that off (`ethtool -K NAME rxvlan off`) if there are VLANs on the wire.
//!
//! # How it is on the interface
//! The program, the sockets and the memberships are held by descriptors alone, which no child
//! that is forked keeps: nothing stays behind, however the process ends. The program runs in the interface's driver if that can
//! do so ([`AfXdpPort::is_native`]), else in the kernel; frames are not copied if the driver
//! can do without ([`AfXdpPort::is_zero_copy`]) and [`CopyMode`] allows it.
//!
//! # Counters
//! Those that the kernel counts are as of the last [`Port::upkeep`](crate::Port::upkeep).
//!
//! | name | what is counted |
//! | --- | --- |
//! | `drop_rx_no_buffer` | by the kernel: frames that found no free chunk, or fit into none |
//! | `drop_rx_ring_full` | by the kernel: frames that found the receive ring full, which is longer than there are chunks |
//! | `drop_rx_too_long` | received frames longer than [`Capabilities::max_frame_bytes`](crate::Capabilities::max_frame_bytes) |
//! | `drop_rx_vlan` | received frames of a VLAN, which the program should have left to the kernel |
//! | `drop_rx_misplaced` | received frames outside of the chunks that the kernel was given |
//! | `drop_tx_runt` | frames to send that are shorter than an Ethernet header |
//! | `drop_tx_too_long` | frames to send that exceed the interface's MTU, which was lowered |
//! | `drop_tx_link_down` | frames to send while the interface was down, gone or without its other end, or after the port failed |
//! | `drop_tx_refused` | copied frames that the interface's driver dropped although the link was up |
//! | `drop_tx_not_lent` | buffers given to `tx_burst` that `alloc` did not lend |
//! | `drop_tx_invalid` | by the kernel: frames to send that it found to be malformed |
//! | `rx_priority_tagged` | received frames with a priority tag |
//! | `rx_other_queue` | by the program: our frames on a queue that is not the port's |
//! | `rx_fill_ring_empty` | by the kernel: how often it wanted a chunk and found none |
//! | `rx_kicks` | system calls that made the driver take chunks |
//! | `tx_self` | frames to our own address, delivered inside the port |
//! | `tx_kicks` | system calls that made the kernel send |
//! | `tx_busy` | looks at the send ring that found frames the kernel had not taken yet |
//! | `tx_refusals` | system calls to send that the kernel refused for another reason than want of room, while the link was up |
//! | `tx_under_way` | frames to send that the kernel has, now |
//! | `foreign_mbufs` | buffers given to `free` that are not of this port |
//! | `link_changes` | how often the link was found up or down when it was not before |
//! | `link_up` | 1 while the link is up as of the last [`Port::upkeep`](crate::Port::upkeep), else 0 |
//! | `native` | 1 if the interface's driver steers the frames, else 0 |
//! | `zero_copy` | 1 if the interface reads and writes the chunks itself, else 0 |
//!
//! # Frames that cannot be sent
//! While the interface is without its other end, frames to send are dropped and counted. Where
//! frames are copied, that includes those that stand in the send ring by then. With zero copy
//! those are the driver's: they stay, and are sent when the link is back; if the driver takes none
//! of them for [`AfXdpConfig::standstill_limit`], the port fails
//! ([`PortFailure::SendStalled`](crate::PortFailure::SendStalled)), since frames that are older
//! must not reach the wire. An interface that is taken down fails the port at once; what stands
//! in the send ring is gone when the port is closed.

pub(crate) mod bpf;
mod config;
mod counts;
mod driver;
mod open;
mod program;
mod queue;
mod ring;
mod send;
mod socket;
mod steering;
mod umem;

pub use config::{AfXdpConfig, AfXdpError, CopyMode};
pub use driver::AfXdpPort;
