//! Driver for an Ethernet segment in shared memory, for the processes of one user on one host.
//!
//! Processes find each other by the segment's name alone. They join, leave or
//! crash at any time; the others are notified, and the first station that detects
//! a dead process reclaims its files and slot.
//!
//! # Memory layout
//!
//! ```text
//! <directory>/viaduct-<uid>-<segment>/      mode 0700
//!     lock                                  flock(2) while joining and cleaning up
//!     segment                               header, epoch, one entry per station slot;
//!                                           byte n is locked while station n exists
//!     station-<slot>.<generation>           the receive rings of a station, one per
//!                                           sending slot, allocated at first contact
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
//! A sender that takes a slot over from a dead one resumes where that one
//! stopped: at the first slot that is not marked as published.
//!
//! # Guarantees
//!
//! * Lossless, in order for each pair of stations, and fair among senders. A full
//!   ring is back-pressure: `alloc` returns `None`.
//! * At most 64 buffers to one destination may be lent and unsent. They are published
//!   in the order of `alloc`: a buffer that is kept delays those lent after it, and
//!   one that is freed unsent becomes a void slot, which the receiver skips.
//! * A station's address is the prefix, a zero byte, and 16 bits made of its
//!   slot and generation, so that it differs from its predecessors' in the slot. The first
//!   `events` of a port reports all stations already present, never the port itself.
//! * `Left` is reported after the last frame of that station was received.
//! * A frame to a group address is copied to every other station, best effort.
//! * `alloc`, `tx_burst`, `rx_burst` and `free` enter the kernel to wake a sleeping
//!   station, at the first frame to or from a station (`rings_mapped`), and to
//!   unmap the ring of a station that left (`membership_changes`).
//! * Memory is reserved before it is accessed: a full file system is an error or
//!   a counted drop, never SIGBUS. Other processes' writes into a ring can lose or
//!   corrupt frames, but never violate memory safety beyond the frame's own bytes;
//!   only processes of the same user can write there.
//!
//! # Failures
//!
//! `upkeep` checks that the segment's files exist and have their full length, and that their contents
//! match this station's state. If not, the port fails ([`PortFailure`](crate::PortFailure)), and the other
//! stations see it leave. A truncated file loses its mappings and does not end the process.
//! A ring with invalid contents affects only its two stations: each sees the other leave.
//!
//! # Counters
//!
//! | counter | counts |
//! | --- | --- |
//! | `drop_unknown_destination` | frames to an address that no station has |
//! | `drop_station_left` | frames whose station left between `alloc` and `tx_burst` |
//! | `drop_no_ring` | frames to a station whose ring cannot be mapped (no memory) |
//! | `drop_group_ring_full` | copies of group frames for stations whose ring was full |
//! | `drop_empty_frame` | sent buffers without a frame |
//! | `drop_bad_length` | received slots with an invalid length |
//! | `foreign_buffers` | returned buffers that are not lent by this port |
//! | `ring_full` | calls of `alloc` that found no free slot |
//! | `void_slots_sent` | buffers freed unsent that became void slots |
//! | `void_slots_received` | void slots skipped |
//! | `rings_mapped` | first contacts, in either direction |
//! | `ring_failures` | rings that could not be mapped; `upkeep` tries again |
//! | `wakes_sent` | sleeping stations woken |
//! | `arms` | calls of `arm` |
//! | `membership_changes` | stations that joined or left since the port was opened |
//! | `stations_reaped` | dead stations that this port detected |
//! | `stations_cut_off` | running stations treated as departed, since a ring to or from them is damaged |
//! | `upkeep_failures` | calls of `upkeep` that could not check the other stations' liveness |

mod buffer_origin;
mod config;
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
mod segment_station;
mod slots;
mod station_events;
mod sys;
mod tx;
mod tx_ring;

pub use config::ShmConfig;
pub use error::ShmError;
pub use port::ShmPort;
pub use segment_station::{SegmentStation, StationMemory};
