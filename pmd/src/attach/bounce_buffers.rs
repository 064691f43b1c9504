//! Memory of this program that the datapath process cannot reach: the library copies it to and from memory that both
//! map ([ADR 0047](../../../docs/adr/0047-memory-that-is-not-reached-is-copied.md)).
//!
//! What is sent is copied when it is submitted, what arrives when it completes. Peers cannot use such memory for RDMA:
//! nobody would notice when to copy.

use crate::completion::Ending;
use crate::descriptor::{DataSegment, status};
use crate::memory::table::RegionTable;
use crate::memory::{Access, TagCheck, copy};
use crate::queue::{Slot, WorkQueue};

/// Copies what a send or an RDMA write sends, before it is submitted.
///
/// # Safety
/// The caller holds the NIC's turn; the descriptor is posted.
#[cold]
pub(super) unsafe fn copy_out(regions: &RegionTable, tag: TagCheck, slot: &Slot) {
    if slot.access() != Access::Read {
        return;
    }
    for segment in slot.data() {
        // SAFETY: the turn, as our caller promises.
        let there = unsafe { regions.copy_of(segment, tag, Access::Read) };
        if let Some(there) = there {
            // SAFETY: both inside a region that was found under this turn, and of its copy.
            unsafe { copy::between(segment.address, there, segment.length as usize) };
        }
    }
}

/// Copies what arrived for the receive or RDMA read at the head of a queue, before it is complete.
///
/// # Safety
/// The caller holds the NIC's turn, and has no reference to a slot of the queue.
#[cold]
pub(super) unsafe fn copy_in(
    regions: &RegionTable,
    tag: TagCheck,
    queue: &WorkQueue,
    ending: Ending,
) {
    let operation = ending.word & status::OP_MASK;
    let arrives = operation == status::OP_RECEIVE || operation == status::OP_RDMA_READ;
    if !arrives || ending.word & status::ERROR_MASK != 0 {
        return;
    }
    // SAFETY: the turn, as our caller promises; the reference ends with this call.
    let Some(slot) = (unsafe { queue.head() }) else {
        return;
    };
    let mut left_bytes = ending.length_bytes;
    for segment in slot.data() {
        let segment = DataSegment {
            length: segment.length.min(left_bytes),
            ..*segment
        };
        left_bytes -= segment.length;
        // SAFETY: the turn, as our caller promises.
        let there = unsafe { regions.copy_of(&segment, tag, Access::Write) };
        if let Some(there) = there {
            // SAFETY: as in `copy_out`; the region may be written.
            unsafe { copy::between(there, segment.address, segment.length as usize) };
        }
    }
}
