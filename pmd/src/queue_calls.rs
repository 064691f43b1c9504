//! The calls of the data path: posting descriptors, and polling or waiting for completions.
//!
//! | call | effect |
//! | --- | --- |
//! | [`post`] | puts a descriptor on a work queue |
//! | [`done`], [`wait_done`] | take the completed head off a work queue |
//! | [`cq_done`], [`cq_wait`] | take an entry off a completion queue |

use std::time::Duration;

use vi_types::{
    CallError, Limit, LimitOf, LimitReached, Outcome, QueueKind, ResourceError, ViState, status,
};

use crate::attach::calls;
use crate::attach::descriptor_quota::DescriptorQuota;
use crate::config::Protection;
use crate::descriptor::{RawDescriptor, control, send_operation};
use crate::events::{AsyncEvent, ErrorCode, ResourceCode};
use crate::memory::TagCheck;
use crate::posted_descriptor::{Header, PostRules};
use crate::progress::wait;
use crate::queue::{PostEnd, ReapEnd, Reaped, Slot, WorkQueue};
use crate::sync::{self, Ordering};
use crate::vi::{CqShared, ViShared, cq_at, cq_of, vi_at, vi_of};
use crate::waiters::Event;

/// The effect of a post for which the work queue, or the program's quota, has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// The VI breaks (VIPL 3.5.1, 6.3.1).
    Break,
    /// The call fails with [`CallError::Resource`] and nothing is posted.
    Refuse,
}

impl ViShared {
    #[inline]
    pub(crate) fn queue(&self, queue: QueueKind) -> &WorkQueue {
        match queue {
            QueueKind::Send => &self.send,
            QueueKind::Receive => &self.recv,
        }
    }

    /// Returns the handle of the completion queue to which a work queue reports, or 0.
    pub(crate) fn cq_handle(&self, receive: bool) -> u64 {
        let cq = if receive {
            &self.recv_cq
        } else {
            &self.send_cq
        };
        cq.load(Ordering::Relaxed)
    }

    /// Returns the event of a completion on a queue that reports to no completion queue.
    pub(crate) fn event(&self, queue: QueueKind) -> Event {
        Event::on_work_queue(self.index.0, queue == QueueKind::Receive)
    }

    /// Returns the check for the protection tag of the VI.
    #[inline]
    pub(crate) fn tag_check(&self) -> TagCheck {
        TagCheck::tag(self.tag.load(Ordering::Relaxed))
    }

    #[inline]
    fn rules(&self) -> PostRules<'_> {
        PostRules {
            regions: &self.device.regions,
            tag: self.tag_check(),
            max_segments: self.device.config.max_segments_per_descriptor,
            max_transfer_bytes: self.max_transfer_bytes.load(Ordering::Relaxed),
            clips_receives: self.device.config.protection == Protection::Lenient,
            reads: &self.reads,
        }
    }

    /// Returns true if the poller is to be notified of a receive that was just posted.
    #[inline]
    fn notifies_receives(&self) -> bool {
        // Partner: the heavy barrier in `Datapath::set_notify_receives`. Either the poller sees the
        // receive, or we see that it requires a notification.
        sync::light_barrier();
        self.notify_receives.load(Ordering::Relaxed)
    }

    /// Marks the VI as broken by a post (VIPL 6.3.1); returns the error to report.
    #[cold]
    fn mark_broken(&'static self, failure: &PostFailure, descriptor: u64) -> AsyncEvent {
        self.broken.store(true, Ordering::Release);
        AsyncEvent {
            vi: self.live_handle(),
            nic_handle: self.nic_handle(),
            cq: 0,
            descriptor,
            op_code: failure.operation >> status::OP_SHIFT,
            resource: match failure.code {
                ErrorCode::ViOverrun => ResourceCode::Vi,
                _ => ResourceCode::Descriptor,
            },
            code: failure.code,
            is_orderly: false,
        }
    }

    /// Parses a descriptor and posts it, if the program's quota has room for it.
    ///
    /// # Safety
    /// As for [`post`].
    #[inline]
    unsafe fn post(
        &'static self,
        queue: QueueKind,
        end: &mut PostEnd,
        (address, region): (u64, u32),
        context: usize,
        in_quota: bool,
    ) -> Result<(), PostFailure> {
        let rules = self.rules();
        let failed = |code, control| PostFailure {
            code,
            operation: match queue {
                QueueKind::Send => send_operation(control),
                QueueKind::Receive => status::OP_RECEIVE,
            },
        };
        // SAFETY: found registered, and mapped while this call runs, as our caller promises.
        let header = unsafe { Header::read(&rules, address, region) };
        let Ok(header) = header else {
            // The operation cannot be read.
            return Err(failed(ErrorCode::PostDesc, control::OP_SEND_RECV));
        };
        let fill = |slot: &mut Slot| match queue {
            // SAFETY: as above.
            QueueKind::Send => unsafe { header.fill_send(&rules, slot) },
            // SAFETY: as above.
            QueueKind::Receive => unsafe { header.fill_receive(&rules, slot) },
        };
        if in_quota && self.queue(queue).post_with(end, context, fill) {
            Ok(())
        } else {
            Err(failed(ErrorCode::ViOverrun, header.control()))
        }
    }
}

/// The reason for which a post breaks its VI.
struct PostFailure {
    code: ErrorCode,
    /// The operation of the descriptor, an `OP_*` of the status word.
    operation: u32,
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
        let quota = vi.device.descriptor_quota();
        let in_quota = quota.is_none_or(DescriptorQuota::try_acquire);
        if !in_quota && when_full == WhenFull::Refuse {
            return Err(limit_of_post(vi, in_quota));
        }
        // SAFETY: passed on from our caller.
        let posted = unsafe { vi.post(queue, &mut end, (address, region), context, in_quota) };
        if posted.is_err()
            && in_quota
            && let Some(quota) = quota
        {
            quota.cancel();
        }
        // Still under the lock: so this VI breaks, not its successor.
        posted.map_err(|failure| (vi.mark_broken(&failure, address), in_quota))
    };
    if let Err((error, in_quota)) = posted {
        break_by_post(vi, error, in_quota);
        return Ok(());
    }
    match queue {
        _ if vi.device.is_attached() => submit(vi, handle, queue),
        QueueKind::Send => vi.device.kick(vi),
        QueueKind::Receive if vi.state() == ViState::Error => vi.device.flush_unconnected(vi),
        QueueKind::Receive if vi.notifies_receives() => vi.device.kick(vi),
        QueueKind::Receive => {}
    }
    Ok(())
}

/// Submits what was posted to the datapath process, which does not see it before.
#[inline]
fn submit(vi: &'static ViShared, handle: u64, queue: QueueKind) {
    match queue {
        QueueKind::Send => vi.device.kick(vi),
        // Before this call returns: the caller may then have the peer send a message.
        QueueKind::Receive => vi.device.submit(vi),
    }
    let state = vi.state();
    let is_flushed = match queue {
        QueueKind::Send => state != ViState::Connected,
        QueueKind::Receive => state == ViState::Error,
    };
    if is_flushed {
        calls::await_flush(vi, handle, queue == QueueKind::Receive);
    }
}

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
pub(crate) fn reap(vi: &ViShared, handle: u64, queue: QueueKind) -> Outcome<Done> {
    reap_by(vi, handle, queue, WorkQueue::reap)
}

/// As [`reap`], and returns true if the queue is then empty. That is determined before the head is
/// taken: a descriptor that is posted after the queue was seen empty does not count.
pub(crate) fn reap_and_check_empty(
    vi: &ViShared,
    handle: u64,
    queue: QueueKind,
) -> Outcome<(Done, bool)> {
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

/// Returns the limit that a post exceeded: that of its queue if it is within the program's quota.
#[cold]
fn limit_of_post(vi: &ViShared, in_quota: bool) -> CallError {
    match vi.device.descriptor_quota().filter(|_| !in_quota) {
        Some(quota) => quota.limit_reached().into(),
        None => {
            let limit = vi.device.config.max_descriptors_per_queue;
            LimitReached::all_in_use(Limit::MaxDescriptorsPerQueue, limit, LimitOf::Queue).into()
        }
    }
}

/// Moves a VI to the Error state after a failed post, and reports the error.
#[cold]
fn break_by_post(vi: &'static ViShared, error: AsyncEvent, in_quota: bool) {
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
    reap(vi, handle, queue)
}

/// Waits for the head of a work queue (VIPL 3.5.3, 3.5.6); a limit of `None` waits without a timeout.
pub fn wait_done(handle: u64, queue: QueueKind, limit: Option<Duration>) -> Outcome<Done> {
    let vi = vi_of(handle).ok_or(CallError::InvalidParameter)?;
    if vi.cq_handle(queue == QueueKind::Receive) != 0 {
        return Err(ResourceError::ReportsToCq.into());
    }
    wait(vi.device, vi.event(queue), limit, || {
        match reap(vi, handle, queue) {
            Ok(Done::NotDone) => None,
            found => Some(found),
        }
    })?
}

/// An entry of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqEntry {
    /// The handle of the VI.
    pub vi: u64,
    /// The entry is of its receive queue, else of its send queue.
    pub receive: bool,
}

/// Takes the oldest entry, without polling the NIC. Its descriptor may have been reaped already, or
/// its VI destroyed (VIPL 3.5.7, 7.5).
#[inline]
pub(crate) fn take(cq: &CqShared, handle: u64) -> Outcome<Option<CqEntry>> {
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
        vi: entry.vi,
        receive: entry.receive,
    }))
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
    take(cq, handle)
}

/// Waits for an entry of a completion queue (VIPL 3.5.8); a limit of `None` waits without a timeout.
pub fn cq_wait(handle: u64, limit: Option<Duration>) -> Outcome<CqEntry> {
    let cq = cq_of(handle).ok_or(CallError::InvalidParameter)?;
    wait(cq.device, cq.event(), limit, || {
        take(cq, handle).transpose()
    })?
}
