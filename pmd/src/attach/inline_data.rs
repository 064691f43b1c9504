//! Data of short messages, copied to and from inline buffers by the library
//! ([ADR 0070](../../../docs/adr/0070-short-messages-in-the-shared-queues.md)).

use vi_core::completion::CompletionStatus;
use vi_core::descriptor::DataSegment;
use vi_core::memory::backing::InlineBuffer;
use vi_core::memory::table::RegionTable;
use vi_core::memory::{Access, TagCheck, copy};
use vi_core::posted_descriptor::{Cursor, still_valid};
use vi_core::queue::{Slot, WorkQueue};
use vi_types::status;

use super::shared_queues::{INLINE_BYTES, SendBuffers, SharedQueues, ViId};

/// Copies the data of a short send or RDMA write of private memory into a free buffer, before it is submitted. Returns
/// the number of the buffer, or 0 if the process is to read the data where it is.
///
/// # Safety
/// The caller holds the NIC's backend lock; the descriptor is posted.
pub(super) unsafe fn copy_to_buffer(
    (buffers, queues): (&mut SendBuffers, &SharedQueues),
    vi: ViId,
    (regions, tag): (&RegionTable, TagCheck),
    slot: &mut Slot,
) -> u32 {
    let bytes = slot.length_bytes;
    if bytes == 0
        || bytes > INLINE_BYTES
        || slot.fault != 0
        || slot.access() != Access::Read
        || !still_valid(slot, regions, tag, Access::Read)
    {
        return 0;
    }
    // SAFETY: the caller holds the backend lock, and the segments were found valid.
    let is_private = |s: &DataSegment| unsafe { regions.is_private(s.handle) };
    if !slot.data().iter().any(is_private) {
        return 0;
    }
    let Some(buffer) = buffers.take(queues, vi) else {
        return 0;
    };
    let to = buffer.memory.address;
    Cursor::default().walk(slot.data(), 0, bytes as usize, |from, range| {
        // SAFETY: inside a segment that was found valid under the backend lock, held since, and of a buffer of
        // this program that has the length of the message.
        unsafe { copy::between(from, to + range.start as u64, range.len()) };
    });
    buffer.number
}

/// Copies the data of the receive at the head of a queue from its buffer, before it completes. Returns false if its
/// memory is no longer valid, and the data is lost.
///
/// # Safety
/// The caller holds the NIC's backend lock, and has no reference to a slot of the queue.
pub(super) unsafe fn copy_from_buffer(
    buffer: &InlineBuffer,
    (regions, tag): (&RegionTable, TagCheck),
    queue: &WorkQueue,
    completion: CompletionStatus,
) -> bool {
    if completion.word & status::ERROR_MASK != 0 {
        return true;
    }
    // SAFETY: the caller holds the backend lock; the reference ends with this call.
    let Some(slot) = (unsafe { queue.head() }) else {
        return false;
    };
    if completion.length_bytes > INLINE_BYTES || !still_valid(slot, regions, tag, Access::Write) {
        return false;
    }
    let (from, bytes) = (buffer.memory.address, completion.length_bytes as usize);
    Cursor::default().walk(slot.data(), 0, bytes, |to, range| {
        // SAFETY: inside a segment that was found valid for writing under the backend lock, held since, and of a
        // buffer of this length that the process has passed to this program.
        unsafe { copy::between(from + range.start as u64, to, range.len()) };
    })
}
