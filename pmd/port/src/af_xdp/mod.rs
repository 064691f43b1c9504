//! Driver for a network interface, through AF_XDP sockets.
//!
//! Frames are received and sent in place: an [`Mbuf`](crate::Mbuf) is a chunk of memory that
//! the kernel shares with this process or, with zero copy, the interface itself. An XDP program
//! on the interface redirects the port's frames to its sockets before the kernel's network stack
//! sees them, and passes all others to the stack.
//!
//! It needs Linux 5.11 or later and the capabilities `CAP_NET_RAW`, `CAP_NET_ADMIN` and
//! `CAP_BPF` of the host, and `CAP_IPC_LOCK` or a limit of locked memory as large as its
//! chunks. An interface carries one such port at a time, since it carries one program;
//! [`af_packet`](crate::af_packet) is for interfaces that programs share.
//!
//! # Received frames
//! Frames with one of the configured EtherTypes to the station address, to
//! [`SEGMENT_BROADCAST`](crate::af_packet::SEGMENT_BROADCAST), to one of the configured
//! multicast addresses or, if configured, to the interface's own address, that arrive
//! from the wire on one of the port's queues. On another queue they are passed to the kernel, and
//! counted. Frames that other programs of this host send on the interface are not received. Frames
//! to the station's own address are delivered inside the port.
//!
//! A frame that belongs to a VLAN is passed to the kernel; a priority tag (VLAN identifier 0)
//! is removed. If the interface itself removes tags from frames, a VLAN cannot be detected:
//! disable that (`ethtool -K NAME rxvlan off`) if there are VLANs on the wire.
//!
//! # Attachment to the interface
//! The program, the sockets and the memberships are held by descriptors alone, which no forked
//! child keeps: nothing remains on the interface, however the process ends. The program runs in the
//! interface's driver if that supports it ([`AfXdpPort::is_native`]), else in the kernel; frames are
//! not copied if the driver supports that ([`AfXdpPort::is_zero_copy`]) and [`CopyMode`] allows it.
//!
//! # Counters
//! Counters of the kernel are as of the last [`Port::upkeep`](crate::Port::upkeep).
//!
//! | name | what is counted |
//! | --- | --- |
//! | `drop_rx_no_buffer` | by the kernel: frames for which no chunk was free, or that do not fit into one |
//! | `drop_rx_ring_full` | by the kernel: frames that found the receive ring full, which has more slots than there are chunks |
//! | `drop_rx_too_long` | received frames longer than [`Capabilities::max_frame_bytes`](crate::Capabilities::max_frame_bytes) |
//! | `drop_rx_vlan` | received frames of a VLAN, which the program should have passed to the kernel |
//! | `drop_rx_misplaced` | received frames outside of the chunks that the kernel was given |
//! | `drop_tx_runt` | frames to send that are shorter than an Ethernet header |
//! | `drop_tx_too_long` | frames to send that exceed the interface's MTU, which was lowered |
//! | `drop_tx_link_down` | frames to send while the interface was down, removed or without carrier, or after the port failed |
//! | `drop_tx_refused` | copied frames that the interface's driver dropped although the link was up |
//! | `drop_tx_not_lent` | buffers given to `tx_burst` that `alloc` did not lend |
//! | `drop_tx_invalid` | by the kernel: malformed frames to send |
//! | `rx_priority_tagged` | received frames with a priority tag |
//! | `rx_other_queue` | by the program: the port's frames on a queue that is not the port's |
//! | `rx_fill_ring_empty` | by the kernel: how often it needed a chunk and found none |
//! | `rx_kicks` | system calls that made the driver take chunks |
//! | `tx_self` | frames to the station's own address, delivered inside the port |
//! | `tx_kicks` | system calls that made the kernel send |
//! | `tx_busy` | checks of the send ring that found frames the kernel had not taken yet |
//! | `tx_refusals` | system calls to send that failed while the link was up, for another reason than lack of buffers |
//! | `tx_under_way` | frames to send that the kernel has now |
//! | `foreign_mbufs` | buffers given to `free` that do not belong to this port |
//! | `link_changes` | how often the link was found up or down when it was not before |
//! | `link_up` | 1 while the link is up as of the last [`Port::upkeep`](crate::Port::upkeep), else 0 |
//! | `native` | 1 if the interface's driver runs the program, else 0 |
//! | `zero_copy` | 1 if the interface reads and writes the chunks itself, else 0 |
//!
//! # Frames that cannot be sent
//! While the interface has no carrier, frames to send are dropped and counted. In copy mode that
//! includes frames that are in the send ring by then. With zero copy those belong to the driver: they
//! stay, and are sent when the carrier is back; if the driver takes none of them for
//! [`AfXdpConfig::standstill_limit`], the port fails
//! ([`PortFailure::SendStalled`](crate::PortFailure::SendStalled)), since older frames must not
//! reach the wire. An interface that is taken down fails the port at once; the contents
//! of the send ring are discarded when the port is closed.

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
