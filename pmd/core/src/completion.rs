//! Completion of descriptors: writes the descriptor's fields, its slot, and the completion queue entry.

use vi_types::status;

use crate::cq::RingEntry;
use crate::descriptor::{CONTROL_BYTES, ControlSegment};
use crate::events::{AsyncEvent, ErrorCode, ResourceCode};
use crate::handle::RawHandle;
use crate::memory::table::RegionTable;
use crate::memory::{Access, TagCheck};
use crate::nic_shared::NicShared;
use crate::queue::{IdleSlot, WorkQueue};
use crate::sync::{AtomicU32, Ordering};
use crate::vi::{CqShared, ViShared};
use crate::waiters::Event;

/// Where the completions of a work queue are reported.
#[derive(Clone, Copy)]
pub struct CompletionTarget {
    /// The completion queue.
    pub cq: Option<&'static CqShared>,
    /// The event of a completion.
    pub event: Event,
}

impl CompletionTarget {
    /// Returns the target for a queue of the VI with this number.
    #[inline]
    pub fn of(cq: Option<&'static CqShared>, vi: u32, receive: bool) -> Self {
        let event = match cq {
            Some(cq) => cq.event(),
            None => Event::on_work_queue(vi, receive),
        };
        Self { cq, event }
    }
}

/// The result of a completed descriptor.
#[derive(Clone, Copy)]
pub struct CompletionStatus {
    /// The status word, with [`status::DONE`].
    pub word: u32,
    /// Transferred bytes.
    pub length_bytes: u32,
    /// Immediate data.
    pub immediate: Option<u32>,
}

/// Completes the head of a queue whose descriptors are in this process. Returns its sequence number,
/// and its address if its memory was deregistered; `None` if nothing is posted.
///
/// # Safety
/// The caller holds the NIC's backend lock and has no reference to a slot of the queue.
#[inline]
pub unsafe fn complete_head(
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

/// Completes the head of a queue, whose descriptor is at `address`, and whose slot has the status already: a reference to
/// the slot must not live until it is completed. Returns its sequence number.
///
/// # Safety
/// The caller holds the NIC's backend lock and has no reference to a slot of the queue. The descriptor is in a
/// registered, writable region of this process, as the epoch of its slot shows under the lock.
#[inline]
pub unsafe fn complete_valid_head(
    queue: &WorkQueue,
    address: u64,
    completion: CompletionStatus,
) -> u32 {
    // SAFETY: guaranteed by our caller; deregistration needs the lock.
    unsafe { write_completion(address, completion) };
    queue.complete_head()
}

/// Completes a descriptor that is on no queue, and puts it on its queue. Returns its sequence number.
///
/// # Safety
/// The caller holds the NIC's backend lock. The descriptor at `address` is in a registered, writable region, as the
/// epoch of the region table shows under the lock.
#[inline]
pub unsafe fn complete_unqueued(
    slot: IdleSlot<'_>,
    address: u64,
    context: usize,
    completion: CompletionStatus,
) -> u32 {
    // SAFETY: guaranteed by our caller; deregistration needs the lock.
    unsafe { write_completion(address, completion) };
    // SAFETY: our caller holds the backend lock.
    unsafe { slot.post_complete((address, completion.word), context) }
}

/// Adds an entry to a completion queue.
///
/// # Safety
/// The caller holds the NIC's backend lock.
#[inline]
pub unsafe fn add_entry(cq: &CqShared, entry: RingEntry) {
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
    let dropped = unsafe { cq.ring.compact(|entry| is_posted(cq.nic, entry)) };
    // SAFETY: likewise.
    let added = unsafe { cq.ring.add(entry) };
    cq.nic
        .count_cq_overruns(u64::from(dropped) + u64::from(!added));
}

/// Returns true if the descriptor of this entry is still on its work queue. Sequence numbers continue
/// when a later VI uses the queue, and all descriptors of a destroyed VI were reaped.
fn is_posted(nic: &NicShared, entry: &RingEntry) -> bool {
    nic.vi_at(RawHandle::unpack(entry.vi)).is_some_and(|vi| {
        let queue = if entry.receive { &vi.recv } else { &vi.send };
        !queue.was_reaped(entry.sequence)
    })
}

/// Returns the error for a completed descriptor whose memory was deregistered (VIPL 3.8.1).
pub fn lost_descriptor(
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
