//! Driver for a network interface, through a packet socket with mapped rings.
//!
//! Frames are received and sent in place: an [`Mbuf`](crate::Mbuf) is a slot of a ring that
//! the kernel shares with this process. It works on every Ethernet interface
//! without a special driver and needs the capability `CAP_NET_RAW`, nothing more.
//!
//! # Received frames
//! Frames with one of the configured EtherTypes to the station address, to
//! [`SEGMENT_BROADCAST`], to one of the configured multicast addresses or, if
//! configured, to the interface's own address, from the wire and from other
//! programs of this host on the same interface; a filter in the kernel drops all
//! other frames. Frames to the station's own address are delivered inside the port.
//!
//! A port is outside of VLANs: a frame of a VLAN is dropped and counted, since a
//! response would be sent untagged and reach another station; to work within a VLAN,
//! open the VLAN's own interface. A priority tag (VLAN identifier 0) is removed and
//! the frame delivered.
//!
//! # Rings
//! Version 2 of the kernel's rings for both directions: it delivers single
//! frames, while version 3 delivers blocks, the last one by a timer of at least a
//! millisecond. The kernel sends frames in the order of
//! [`Port::alloc`](crate::Port::alloc), so that a frame waits for buffers that were lent before it;
//! it fills slots in order too, so that a received buffer that is held until the
//! ring wraps around stops reception. The socket is readable while the *newest*
//! received frame was not freed.
//!
//! # Counters
//! | name | what is counted |
//! | --- | --- |
//! | `drop_rx_ring_full` | frames for which no slot was free; as of the last [`Port::upkeep`](crate::Port::upkeep) |
//! | `drop_rx_too_long` | received frames longer than [`Capabilities::max_frame_bytes`](crate::Capabilities::max_frame_bytes) |
//! | `drop_rx_runt` | received frames shorter than an Ethernet header |
//! | `drop_rx_vlan` | received frames of a VLAN |
//! | `drop_tx_runt` | frames to send that are shorter than an Ethernet header |
//! | `drop_tx_too_long` | frames to send that exceed the interface's MTU, which was lowered |
//! | `drop_tx_link_down` | frames to send while the interface was down, removed or without carrier |
//! | `drop_tx_misaddressed` | frames to another station than their buffer was allocated for, one of the two being this station |
//! | `drop_tx_not_lent` | buffers given to `tx_burst` that `alloc` did not lend |
//! | `rx_priority_tagged` | received frames with a priority tag |
//! | `tx_self` | frames to the station's own address, delivered inside the port |
//! | `tx_kicks` | system calls that made the kernel send |
//! | `tx_busy` | those after which frames were still waiting to be sent |
//! | `foreign_mbufs` | buffers given to `free` that do not belong to this port |
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

/// The broadcast address of an FCoE segment without a switch; in form a unicast
/// address.
pub const SEGMENT_BROADCAST: MacBytes = [0x0e, 0xfd, 0x00, 0xff, 0xff, 0xff];
