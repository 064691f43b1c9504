//! Completion of descriptors: writes the descriptor's fields, its slot, and the completion queue entry.

use vi_types::status;

use crate::cq::RingEntry;
use crate::descriptor::{CONTROL_BYTES, ControlSegment};
use crate::events::{AsyncEvent, ErrorCode, ResourceCode};
use crate::memory::table::RegionTable;
use crate::memory::{Access, TagCheck};
use crate::queue::WorkQueue;
use crate::sync::{AtomicU32, Ordering};
use crate::vi::{CqShared, ViShared, vi_at};
use crate::waiters::Event;

/// Where the completions of a work queue are reported.
#[derive(Clone, Copy)]
pub(crate) struct CompletionTarget {
    pub(crate) cq: Option<&'static CqShared>,
    /// The event of a completion.
    pub(crate) event: Event,
}

impl CompletionTarget {
    /// Returns the target for a queue of the VI with this number.
    pub(crate) fn of(cq: Option<&'static CqShared>, vi: u32, receive: bool) -> Self {
        let event = match cq {
            Some(cq) => cq.event(),
            None => Event::on_work_queue(vi, receive),
        };
        Self { cq, event }
    }
}

/// The result of a completed descriptor.
#[derive(Clone, Copy)]
pub(crate) struct CompletionStatus {
    /// The status word, with [`status::DONE`].
    pub(crate) word: u32,
    pub(crate) length_bytes: u32,
    pub(crate) immediate: Option<u32>,
}

/// Completes the head of a queue whose descriptors are in this process. Returns its sequence number,
/// and its address if its memory was deregistered; `None` if nothing is posted.
///
/// # Safety
/// The caller holds the NIC's backend lock and has no reference to a slot of the queue.
#[inline]
pub(crate) unsafe fn complete_head(
    queue: &WorkQueue,
    regions: &RegionTable,
    tag: TagCheck,
    completion: CompletionStatus,
) -> Option<(u32, Option<u64>)> {
    // SAFETY: our caller holds the backend lock; the reference ends with the completion below.
    let slot = unsafe { queue.head() }?;
    slot.status = completion.word;
    let is_registered = slot.epoch == regions.epoch()
        || regions.check(slot.handle, tag, slot.address, CONTROL_BYTES, Access::Write);
    let lost = (!is_registered).then_some(slot.address);
    // The descriptors of an attached application are written by its library.
    if is_registered && !tag.is_client() {
        // SAFETY: checked under the backend lock, held since; deregistration needs it.
        unsafe { write_completion(slot.address, completion) };
    }
    Some((queue.complete_head(), lost))
}

/// Adds an entry to a completion queue.
///
/// # Safety
/// The caller holds the NIC's backend lock.
#[inline]
pub(crate) unsafe fn add_entry(cq: &CqShared, entry: RingEntry) {
    // SAFETY: our caller holds the backend lock.
    if !unsafe { cq.ring.add(entry) } {
        // SAFETY: likewise.
        unsafe { overrun(cq, entry) };
    }
}

/// Adds an entry to a full completion queue, and drops those of reaped descriptors (VIPL 7.1).
/// There is at least one: entries of posted descriptors alone do not fill it (`needed_entries`).
///
/// # Safety
/// The caller holds the NIC's backend lock.
#[cold]
unsafe fn overrun(cq: &CqShared, entry: RingEntry) {
    // SAFETY: our caller holds the backend lock.
    let dropped = unsafe { cq.ring.compact(is_posted) };
    // SAFETY: likewise.
    let added = unsafe { cq.ring.add(entry) };
    cq.device
        .count_cq_overruns(u64::from(dropped) + u64::from(!added));
}

/// Returns true if the descriptor of this entry is still on its work queue. Sequence numbers continue
/// when a later VI uses the queue, and all descriptors of a destroyed VI were reaped.
fn is_posted(entry: &RingEntry) -> bool {
    vi_at(entry.vi).is_some_and(|vi| {
        let queue = if entry.receive { &vi.recv } else { &vi.send };
        !queue.was_reaped(entry.sequence)
    })
}

/// Returns the error for a completed descriptor whose memory was deregistered (VIPL 3.8.1).
pub(crate) fn lost_descriptor(
    vi: u64,
    shared: &ViShared,
    receive: bool,
    descriptor: u64,
    word: u32,
) -> AsyncEvent {
    AsyncEvent {
        vi,
        nic_handle: shared.nic_handle(),
        cq: shared.cq_handle(receive),
        descriptor,
        op_code: (word & status::OP_MASK) >> status::OP_SHIFT,
        resource: ResourceCode::Descriptor,
        code: ErrorCode::CompProt,
        is_orderly: false,
    }
}

/// Writes the fields of a descriptor that the provider returns, the status last.
///
/// # Safety
/// `address` is that of a descriptor inside a registered, writable region.
#[inline]
unsafe fn write_completion(address: u64, completion: CompletionStatus) {
    let control = address as *mut ControlSegment;
    if let Some(immediate) = completion.immediate {
        // SAFETY: a field of a control segment that is valid by the caller's contract.
        let field = unsafe { &raw mut (*control).immediate_data };
        // SAFETY: as above.
        unsafe { field.write_volatile(immediate) };
    }
    // SAFETY: as above.
    let length = unsafe { &raw mut (*control).length };
    // SAFETY: as above.
    unsafe { length.write_volatile(completion.length_bytes) };
    // SAFETY: as above.
    let field = unsafe { &raw mut (*control).status };
    // SAFETY: an aligned word of the control segment.
    let status = unsafe { AtomicU32::from_ptr(field) };
    // Release: partner of the application's load of the status that it polls.
    status.store(completion.word, Ordering::Release);
}
