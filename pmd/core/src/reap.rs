//! Taking completions off work queues and completion queues, without polling the NIC.

use vi_types::{CallError, Outcome, QueueKind, ViHandle};

use crate::descriptor::RawDescriptor;
use crate::queue::{ReapEnd, Reaped, WorkQueue};
use crate::vi::{CqShared, ViShared};

/// The result of polling a work queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// The head was complete and is off the queue.
    Completed {
        /// The descriptor.
        descriptor: *mut RawDescriptor,
        /// Its status word.
        status: u32,
        /// The value that it was posted with.
        context: usize,
    },
    /// The head is not complete.
    NotDone,
    /// Nothing is posted.
    Empty,
}

/// Takes the completed head of a work queue, without polling the NIC.
#[inline]
pub fn reap(vi: &ViShared, handle: u64, queue: QueueKind) -> Outcome<Done> {
    reap_by(vi, handle, queue, WorkQueue::reap)
}

/// As [`reap`], and returns true if the queue is then empty. That is determined before the head is
/// taken: a descriptor that is posted after the queue was seen empty does not count.
pub fn reap_and_check_empty(vi: &ViShared, handle: u64, queue: QueueKind) -> Outcome<(Done, bool)> {
    let mut was_last = false;
    let done = reap_by(vi, handle, queue, |queue, end| {
        was_last = queue.holds_one(end);
        queue.reap(end)
    })?;
    Ok((done, was_last || matches!(done, Done::Empty)))
}

#[inline(always)]
fn reap_by(
    vi: &ViShared,
    handle: u64,
    queue: QueueKind,
    reap: impl FnOnce(&WorkQueue, &mut ReapEnd) -> Reaped,
) -> Outcome<Done> {
    let queue = vi.queue(queue);
    if !queue.has_complete() {
        return if !vi.is_live(handle) {
            Err(CallError::InvalidParameter)
        } else if queue.is_empty() {
            Ok(Done::Empty)
        } else {
            Ok(Done::NotDone)
        };
    }
    if !vi.is_live(handle) {
        // In a forked child the lock may be held for good.
        return Err(CallError::InvalidParameter);
    }
    let mut end = queue.reap_end.lock();
    // Under the lock of the reap end, which is taken to destroy the VI.
    if !vi.is_live(handle) {
        return Err(CallError::InvalidParameter);
    }
    Ok(match reap(queue, &mut end) {
        Reaped::Done {
            address,
            status,
            context,
        } => Done::Completed {
            descriptor: address as *mut RawDescriptor,
            status,
            context,
        },
        Reaped::Pending => Done::NotDone,
        Reaped::Empty => Done::Empty,
    })
}

/// An entry of a completion queue. Its descriptor may have been removed already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqEntry {
    /// The VI, which may have been destroyed.
    pub vi: ViHandle,
    /// True for a completion on the receive queue, false for the send queue.
    pub recv_queue: bool,
}

/// Takes the oldest entry, without polling the NIC. Its descriptor may have been reaped already, or
/// its VI destroyed (VIPL 3.5.7, 7.5).
#[inline]
pub fn take(cq: &CqShared, handle: u64) -> Outcome<Option<CqEntry>> {
    if !cq.ring.has_entry() {
        return if cq.is_live(handle) {
            Ok(None)
        } else {
            Err(CallError::InvalidParameter)
        };
    }
    let mut end = cq.ring.take_end.lock();
    if !cq.is_live(handle) {
        return Err(CallError::InvalidParameter);
    }
    Ok(cq.ring.take(&mut end).map(|entry| CqEntry {
        vi: ViHandle::from_raw(entry.vi),
        recv_queue: entry.receive,
    }))
}
