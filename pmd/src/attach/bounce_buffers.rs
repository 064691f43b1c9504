//! Bounce buffers: shared memory in place of registered memory that the datapath process cannot access
//! ([ADR 0047](../../../docs/adr/0047-bounce-buffers-for-unreachable-memory.md)).
//!
//! Sent data is copied in when its descriptor is submitted, received data is copied out before its descriptor
//! completes. Peers cannot use such memory for RDMA, since the library cannot detect their accesses.

use vi_core::completion::CompletionStatus;
use vi_core::descriptor::DataSegment;
use vi_core::memory::table::RegionTable;
use vi_core::memory::{Access, TagCheck, copy};
use vi_core::queue::{Slot, WorkQueue};
use vi_types::status;

/// Copies the data of a send or an RDMA write to the bounce buffers, before it is submitted.
///
/// # Safety
/// The caller holds the NIC's backend lock; the descriptor is posted.
#[cold]
pub(super) unsafe fn copy_to_bounce_buffers(regions: &RegionTable, tag: TagCheck, slot: &Slot) {
    if slot.access() != Access::Read {
        return;
    }
    for segment in slot.data() {
        // SAFETY: the caller holds the backend lock.
        let bounce = unsafe { regions.bounce_buffer_of(segment, tag, Access::Read) };
        if let Some(bounce) = bounce {
            // SAFETY: both inside a region that was found under the backend lock, held since, and of its bounce buffer.
            unsafe { copy::between(segment.address, bounce, segment.length as usize) };
        }
    }
}

/// Copies the data of the receive or RDMA read at the head of a queue from the bounce buffers, before it completes.
///
/// # Safety
/// The caller holds the NIC's backend lock, and has no reference to a slot of the queue.
#[cold]
pub(super) unsafe fn copy_from_bounce_buffers(
    regions: &RegionTable,
    tag: TagCheck,
    queue: &WorkQueue,
    completion: CompletionStatus,
) {
    let operation = completion.word & status::OP_MASK;
    let receives = operation == status::OP_RECEIVE || operation == status::OP_RDMA_READ;
    if !receives || completion.word & status::ERROR_MASK != 0 {
        return;
    }
    // SAFETY: the caller holds the backend lock; the reference ends with this call.
    let Some(slot) = (unsafe { queue.head() }) else {
        return;
    };
    let mut left_bytes = completion.length_bytes;
    for segment in slot.data() {
        let segment = DataSegment {
            length: segment.length.min(left_bytes),
            ..*segment
        };
        left_bytes -= segment.length;
        // SAFETY: the caller holds the backend lock.
        let bounce = unsafe { regions.bounce_buffer_of(&segment, tag, Access::Write) };
        if let Some(bounce) = bounce {
            // SAFETY: as in `copy_to_bounce_buffers`; the region may be written.
            unsafe { copy::between(bounce, segment.address, segment.length as usize) };
        }
    }
}
