//! The calls of the data path: posting descriptors, and polling or waiting for completions.
//!
//! | call | effect |
//! | --- | --- |
//! | [`post`] | puts a descriptor on a work queue |
//! | [`done`], [`wait_done`] | take the completed head off a work queue |
//! | [`cq_done`], [`cq_wait`] | take an entry off a completion queue |

use std::time::Duration;

use vi_core::descriptor::RawDescriptor;
use vi_core::events::{AsyncEvent, ErrorCode};
use vi_core::reap::{CqEntry, Done, reap, take};
use vi_types::{CallError, Limit, LimitOf, LimitReached, Outcome, QueueKind, ResourceError};

use crate::lookup::{Vi, cq_at, cq_of, vi_at, vi_of};
use crate::progress::wait;

/// The effect of a post for which the work queue, or the program's quota, has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// The VI breaks (VIPL 3.5.1, 6.3.1).
    Break,
    /// The call fails with [`CallError::Resource`] and nothing is posted.
    Refuse,
}

/// Posts a descriptor (VIPL 3.5.1, 3.5.4). An error in it is reported by its status, or by an
/// asynchronous error if it cannot be read.
///
/// `context` is a value of the caller that is returned with the descriptor. It is stored in memory of
/// the library that is not registered, so no peer can change it.
///
/// # Errors
/// [`CallError::InvalidParameter`]: no such VI. [`CallError::Resource`]: the queue is full, or the
/// datapath process allows this program no more descriptors (`max_descriptors` of its quota), and
/// `when_full` is [`WhenFull::Refuse`]; nothing is posted, and the VI is unchanged.
///
/// # Safety
/// Until it is reaped, the descriptor and its buffers belong to the provider. The memory of the
/// descriptor stays mapped while this call runs, also if another thread deregisters its region.
#[inline]
pub unsafe fn post(
    handle: u64,
    queue: QueueKind,
    descriptor: *mut RawDescriptor,
    region: u32,
    when_full: WhenFull,
    context: usize,
) -> Outcome<()> {
    let vi = vi_at(handle).ok_or(CallError::InvalidParameter)?;
    let address = descriptor as u64;
    if !vi.is_live(handle) {
        // In a forked child the lock may be held for good.
        return Err(CallError::InvalidParameter);
    }
    let posted = {
        let mut end = vi.queue(queue).post_end.lock();
        // Under the lock of the post end, which is taken to destroy the VI.
        if !vi.is_live(handle) {
            return Err(CallError::InvalidParameter);
        }
        if when_full == WhenFull::Refuse && vi.queue(queue).is_full(&end) {
            return Err(limit_of_post(vi, true));
        }
        // SAFETY: passed on from our caller.
        let read = unsafe { vi.read_descriptor(queue, (address, region)) };
        if queue == QueueKind::Send
            && let Ok(descriptor) = &read
            && (vi.device).send_in_one_step(descriptor, &mut end, context)
        {
            return Ok(());
        }
        let mut in_quota = true;
        let admit = |units| {
            let quota = vi.device.descriptor_quota();
            in_quota = quota.is_none_or(|quota| quota.try_acquire(units));
            in_quota
        };
        let posted = read.and_then(|descriptor| descriptor.post(&mut end, context, admit));
        if !in_quota && when_full == WhenFull::Refuse {
            return Err(limit_of_post(vi, in_quota));
        }
        // Still under the lock: so this VI breaks, not its successor.
        posted.map_err(|failure| (vi.mark_broken(&failure, address), in_quota))
    };
    if let Err((error, in_quota)) = posted {
        break_by_post(vi, error, in_quota);
        return Ok(());
    }
    vi.device.calls.posted(vi, handle, queue);
    Ok(())
}

/// Returns the limit that a post exceeded: that of its queue if it is within the program's quota.
#[cold]
fn limit_of_post(vi: Vi, in_quota: bool) -> CallError {
    match vi.device.descriptor_quota().filter(|_| !in_quota) {
        Some(quota) => quota.limit_reached().into(),
        None => {
            let limit = vi.device.config.limits.max_descriptors_per_queue;
            LimitReached::all_in_use(Limit::MaxDescriptorsPerQueue, limit, LimitOf::Queue).into()
        }
    }
}

/// Moves a VI to the Error state after a failed post, and reports the error.
#[cold]
fn break_by_post(vi: Vi, error: AsyncEvent, in_quota: bool) {
    if error.code == ErrorCode::ViOverrun {
        let (nic, limit) = (&vi.device.config.name, limit_of_post(vi, in_quota));
        log::warn!("NIC {nic}: VI {:#x} breaks at a post: {limit}", error.vi);
    }
    vi.device.fail_broken(vi.index, error);
}

/// Takes the head of a work queue if it is complete (VIPL 3.5.2, 3.5.5).
#[inline]
pub fn done(handle: u64, queue: QueueKind) -> Outcome<Done> {
    let vi = vi_at(handle).ok_or(CallError::InvalidParameter)?;
    // Also for an empty queue: a target of RDMA writes makes progress this way.
    if vi.queue(queue).has_complete() {
        vi.device.finish_burst();
    } else {
        vi.device.poll();
    }
    reap(&vi, handle, queue)
}

/// Waits for the head of a work queue (VIPL 3.5.3, 3.5.6); a limit of `None` waits without a timeout.
pub fn wait_done(handle: u64, queue: QueueKind, limit: Option<Duration>) -> Outcome<Done> {
    let vi = vi_of(handle).ok_or(CallError::InvalidParameter)?;
    if vi.cq_handle(queue == QueueKind::Receive) != 0 {
        return Err(ResourceError::ReportsToCq.into());
    }
    wait(vi.device, vi.event(queue), limit, || {
        match reap(&vi, handle, queue) {
            Ok(Done::NotDone) => None,
            found => Some(found),
        }
    })?
}

/// Takes the oldest entry of a completion queue, if there is one (VIPL 3.5.7).
#[inline]
pub fn cq_done(handle: u64) -> Outcome<Option<CqEntry>> {
    let cq = cq_at(handle).ok_or(CallError::InvalidParameter)?;
    if cq.ring.has_entry() {
        cq.device.finish_burst();
    } else {
        cq.device.poll();
    }
    take(&cq, handle)
}

/// Waits for an entry of a completion queue (VIPL 3.5.8); a limit of `None` waits without a timeout.
pub fn cq_wait(handle: u64, limit: Option<Duration>) -> Outcome<CqEntry> {
    let cq = cq_of(handle).ok_or(CallError::InvalidParameter)?;
    wait(cq.device, cq.event(), limit, || {
        take(&cq, handle).transpose()
    })?
}
