//! An Ethernet segment in shared memory, for the processes of one user on one host.
//!
//! Processes find each other by the segment's name alone. They join and leave,
//! or die, at any time; the others are told, and what a dead process leaves
//! behind is reclaimed by whoever notices first.
//!
//! # In memory
//!
//! ```text
//! <directory>/viaduct-<uid>-<segment>/      mode 0700
//!     lock                                  flock(2) while joining and cleaning up
//!     segment                               header, epoch, one entry per station slot;
//!                                           byte n is locked while station n lives
//!     station-<slot>.<generation>           the receive rings of a station, one per
//!                                           sending slot, given memory at first contact
//! ring:  | head (128) | slot | slot | ...
//! slot:  | flag: position + 1, length (8) | (8) | frame (2176) | to a multiple of 128
//! ```
//!
//! A frame is written and read in place: `alloc` lends the next slot of the ring to
//! its destination, `rx_burst` lends the slot in which the frame arrived. Flag and
//! the first 112 bytes of a frame share two adjacent cache lines. The
//! consumer publishes its head every quarter of a ring and when it finds the ring
//! empty; the producer reads it only when the ring seems full.
//!
//! A sender that takes a slot over from a dead one goes on where that one
//! stopped: it looks for the first slot that is not marked as published.
//!
//! # What it promises
//!
//! * Lossless, in order for each pair of stations, and fair among senders. A full
//!   ring is back-pressure: `alloc` gives `None`.
//! * At most 64 buffers to one destination may be lent and unsent. They are published
//!   in the order of `alloc`: one that is kept holds back those lent after it, and
//!   one that is freed unsent becomes a void slot, which the receiver skips.
//! * A station's address is the prefix, a zero byte, and 16 bits made of its
//!   slot and generation, so that it differs from its predecessors' in the slot. The first
//!   `events` of a port tells of all stations that are there already, never of itself.
//! * `Left` is told after the last frame of that station was handed out.
//! * A frame to a group address is copied to every other station, best effort.
//! * `alloc`, `tx_burst`, `rx_burst` and `free` enter the kernel to wake a station
//!   that sleeps, at the first frame to or from a station (`rings_mapped`),
//!   and to unmap the ring of one that left (`membership_changes`).
//! * Memory is reserved before it is touched: a full file system is an error or
//!   a counted drop, never SIGBUS. Whatever another process writes into a ring
//!   can cost frames, never memory safety beyond the frame's own bytes; only
//!   processes of the same user can.
//!
//! # When it fails
//!
//! `upkeep` looks whether the segment's files are there, whole, and say of this station what
//! they should. If not, the port fails ([`PortFailure`](crate::PortFailure)), and the other
//! stations see it leave. A file that is cut short costs the mappings of it, not the process.
//! Of a ring whose contents are nonsense only the two stations at its ends are concerned: each
//! sees the other leave.
//!
//! # What it counts
//!
//! | counter | counts |
//! | --- | --- |
//! | `drop_unknown_destination` | frames to an address that no station has |
//! | `drop_station_left` | frames whose station left between `alloc` and `tx_burst` |
//! | `drop_no_ring` | frames to a station whose ring cannot be mapped (no memory) |
//! | `drop_group_ring_full` | copies of group frames that found a ring full |
//! | `drop_empty_frame` | sent buffers without a frame |
//! | `drop_bad_length` | received slots with an impossible length |
//! | `foreign_buffers` | buffers given back that are not lent by this port |
//! | `ring_full` | refusals of `alloc` |
//! | `void_slots_sent` | buffers freed unsent that became void slots |
//! | `void_slots_received` | void slots skipped |
//! | `rings_mapped` | first contacts, in either direction |
//! | `ring_failures` | rings that could not be mapped; `upkeep` tries again |
//! | `wakes_sent` | sleeping stations woken |
//! | `arms` | wishes to be woken |
//! | `membership_changes` | stations that joined or left since the port was opened |
//! | `stations_reaped` | dead stations that this port noticed |
//! | `stations_cut_off` | living stations that count as gone, since a ring between us is damaged |
//! | `upkeep_failures` | calls of `upkeep` that could not test for life |

mod config;
mod cookie;
mod counters;
pub mod directory;
mod error;
mod layout;
mod membership;
mod port;
#[cfg(test)]
mod ring_tests;
mod rx;
mod rx_ring;
mod segment;
mod slots;
mod sys;
mod tx;
mod tx_ring;
mod watch;

pub use config::ShmConfig;
pub use error::ShmError;
pub use port::ShmPort;
