//! A port on a network interface, through a packet socket with mapped rings.
//!
//! Frames are received and sent in place: an [`Mbuf`](crate::Mbuf) is a slot of a ring that
//! the kernel shares with this process. It works on every Ethernet interface
//! without a special driver and needs the capability `CAP_NET_RAW`, nothing more.
//!
//! # What is received
//! Frames with one of the configured EtherTypes to our station address, to
//! [`SEGMENT_BROADCAST`], to one of the configured multicast addresses or, if
//! configured so, to the interface's own address, from
//! the wire and from other programs of this host on the same interface; all
//! other frames are kept out by a filter in the kernel. Frames to our own
//! address are delivered inside the port.
//!
//! A port lives outside of VLANs, like what it sends: a frame that belongs to
//! a VLAN is dropped and counted, since an answer would leave untagged and
//! reach someone else; to work within a VLAN, open the VLAN's own interface. A
//! priority tag (VLAN identifier 0) is taken out and the frame delivered.
//!
//! # Rings
//! Version 2 of the kernel's rings for both directions: it hands over single
//! frames, while version 3 hands over blocks, the last one by a timer of at
//! least a millisecond. The kernel takes frames to send in the order of
//! [`Port::alloc`](crate::Port::alloc), so that a frame waits for buffers that were lent before it;
//! it fills slots in order too, so that a received buffer that is kept for a
//! whole turn of the ring stops reception. The socket is readable while the
//! *newest* received frame was not freed.
//!
//! # Counters
//! | name | what is counted |
//! | --- | --- |
//! | `drop_rx_ring_full` | frames that found no free slot; as of the last [`Port::upkeep`](crate::Port::upkeep) |
//! | `drop_rx_too_long` | received frames longer than [`Capabilities::max_frame_bytes`](crate::Capabilities::max_frame_bytes) |
//! | `drop_rx_runt` | received frames shorter than an Ethernet header |
//! | `drop_rx_vlan` | received frames of a VLAN |
//! | `drop_tx_runt` | frames to send that are shorter than an Ethernet header |
//! | `drop_tx_too_long` | frames to send that exceed the interface's MTU, which was lowered |
//! | `drop_tx_link_down` | frames to send while the interface was down, gone or without its other end |
//! | `drop_tx_misaddressed` | frames to another station than their buffer was allocated for, one of the two being ourselves |
//! | `drop_tx_not_lent` | buffers given to `tx_burst` that `alloc` did not lend |
//! | `rx_priority_tagged` | received frames with a priority tag |
//! | `tx_self` | frames to our own address, delivered inside the port |
//! | `tx_kicks` | system calls that made the kernel send |
//! | `tx_busy` | those of them after which frames had to wait for the next one |
//! | `foreign_mbufs` | buffers given to `free` that are not of this port |
//! | `link_changes` | how often the link was found up or down when it was not before |
//! | `link_up` | 1 while the link is up as of the last [`Port::upkeep`](crate::Port::upkeep), else 0 |

pub(crate) mod addresses;
mod config;
mod counts;
mod driver;
mod filter;
pub(crate) mod link;
mod open;
mod rx;
mod slots;
pub(crate) mod socket;
mod tx;

#[cfg(feature = "dpdk")]
pub(crate) use config::is_station;
pub use config::{AfPacketConfig, AfPacketError, Promiscuous};
pub use driver::AfPacketPort;
pub(crate) use driver::frame_bytes;
pub(crate) use filter::ETHERTYPE_VLAN;
#[cfg(feature = "dpdk")]
pub(crate) use open::MIN_MTU_BYTES;
pub(crate) use open::{find_interface, open_socket};
pub(crate) use rx::ETHERNET_HEADER_BYTES;

use crate::port::MacBytes;

/// The address of all stations of an FCoE segment without a switch; by its
/// form a unicast address.
pub const SEGMENT_BROADCAST: MacBytes = [0x0e, 0xfd, 0x00, 0xff, 0xff, 0xff];
