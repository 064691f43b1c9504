//! Descriptors posted and taken back: the calls of the data path.
//!
//! | call | from the program's side |
//! | --- | --- |
//! | [`post`] | a descriptor goes onto a work queue |
//! | [`done`], [`wait_done`] | the head of a work queue comes back |
//! | [`cq_done`], [`cq_wait`] | which work queue completed something |

use std::time::Duration;

use vi_engine::EndpointState;

use crate::attach::calls;
use crate::attach::posting::Posting;
use crate::config::Protection;
use crate::control::{ControlError, Outcome};
use crate::descriptor::{RawDescriptor, control, send_operation, status};
use crate::events::{AsyncEvent, ErrorCode, ResourceCode};
use crate::memory::TagCheck;
use crate::post::{Header, PostRules};
use crate::progress::wait;
use crate::queue::{PostEnd, ReapEnd, Reaped, Slot, WorkQueue};
use crate::resource_error::{Limit, LimitOf, LimitReached, ResourceError};
use crate::sleepers::Event;
use crate::sync::{self, Ordering};
use crate::vi::{CqShared, ViShared, cq_at, cq_of, vi_at, vi_of};

/// Which work queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// The send queue.
    Send,
    /// The receive queue.
    Receive,
}

/// What becomes of a descriptor for which the work queue, or the program's quota, has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// The VI breaks (VIPL 3.5.1, 6.3.1).
    Break,
    /// The call fails with [`ControlError::Resource`] and nothing is posted.
    Refuse,
}

impl ViShared {
    #[inline]
    pub(crate) fn queue(&self, queue: Queue) -> &WorkQueue {
        match queue {
            Queue::Send => &self.send,
            Queue::Receive => &self.recv,
        }
    }

    /// Handle of the completion queue that a work queue reports to, or 0.
    pub(crate) fn cq_handle(&self, receive: bool) -> u64 {
        let cq = if receive {
            &self.recv_cq
        } else {
            &self.send_cq
        };
        cq.load(Ordering::Relaxed)
    }

    /// What those sleep for who wait for completions of a queue that reports to no completion
    /// queue.
    pub(crate) fn event(&self, queue: Queue) -> Event {
        Event::on_work_queue(self.index.0, queue == Queue::Receive)
    }

    /// The tag that its regions must have.
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

    /// Must the poller hear of a receive that was just posted?
    #[inline]
    fn tells_receives(&self) -> bool {
        // Partner: the heavy barrier in `Datapath::tell_receives`. Either the poller sees the
        // receive, or we see that it wants to hear of it.
        sync::light_barrier();
        self.tells_receives.load(Ordering::Relaxed)
    }

    /// Marks the VI as broken by a post (VIPL 6.3.1); gives the error to report.
    #[cold]
    fn mark_broken(&'static self, failure: &PostFailure, descriptor: u64) -> AsyncEvent {
        self.broken.store(true, Ordering::Release);
        AsyncEvent {
            vi: self.live_handle(),
            instance: self.instance(),
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
        queue: Queue,
        end: &mut PostEnd,
        (address, region): (u64, u32),
        context: usize,
        in_quota: bool,
    ) -> Result<(), PostFailure> {
        let rules = self.rules();
        let failed = |code, control| PostFailure {
            code,
            operation: match queue {
                Queue::Send => send_operation(control),
                Queue::Receive => status::OP_RECEIVE,
            },
        };
        // SAFETY: found registered, and mapped while this call runs, as our caller promises.
        let header = unsafe { Header::read(&rules, address, region) };
        let Ok(header) = header else {
            // What it was for cannot be read.
            return Err(failed(ErrorCode::PostDesc, control::OP_SEND_RECV));
        };
        let fill = |slot: &mut Slot| match queue {
            // SAFETY: as above.
            Queue::Send => unsafe { header.fill_send(&rules, slot) },
            // SAFETY: as above.
            Queue::Receive => unsafe { header.fill_receive(&rules, slot) },
        };
        if in_quota && self.queue(queue).post_with(end, context, fill) {
            Ok(())
        } else {
            Err(failed(ErrorCode::ViOverrun, header.control()))
        }
    }
}

/// The reason why a post breaks its VI.
struct PostFailure {
    code: ErrorCode,
    /// `OP_*` of a status word: what the descriptor was for.
    operation: u32,
}

/// Posts a descriptor (VIPL 3.5.1, 3.5.4). What is wrong with it is told by its status,
/// or by an asynchronous error if it cannot even be read.
///
/// `context` is the caller's own: it comes back with the descriptor. It is kept in memory of the
/// library's, which no registration covers, so no peer can change it.
///
/// # Errors
/// [`ControlError::InvalidParameter`]: no such VI. [`ControlError::Resource`]: the queue is full, or the
/// datapath process allows this program no more descriptors (`max_descriptors` of its quota), and
/// `when_full` says so; nothing is posted, and the VI stays what it is.
///
/// # Safety
/// Until it is reaped, the descriptor and its buffers belong to the provider. The memory of the
/// descriptor stays mapped while this call runs, also if another thread deregisters its region.
#[inline]
pub unsafe fn post(
    handle: u64,
    queue: Queue,
    descriptor: *mut RawDescriptor,
    region: u32,
    when_full: WhenFull,
    context: usize,
) -> Outcome<()> {
    let vi = vi_at(handle).ok_or(ControlError::InvalidParameter)?;
    let address = descriptor as u64;
    if !vi.is_live(handle) {
        // In a child of this process the end may be held for ever.
        return Err(ControlError::InvalidParameter);
    }
    let posted = {
        let mut end = vi.queue(queue).post_end.hold();
        // Under the post end, which whoever ends the VI takes.
        if !vi.is_live(handle) {
            return Err(ControlError::InvalidParameter);
        }
        if when_full == WhenFull::Refuse && vi.queue(queue).is_full(&end) {
            return Err(limit_of_post(vi, true));
        }
        let counted = vi.device.posting();
        let in_quota = counted.is_none_or(Posting::begin);
        if !in_quota && when_full == WhenFull::Refuse {
            return Err(limit_of_post(vi, in_quota));
        }
        // SAFETY: passed on from our caller.
        let posted = unsafe { vi.post(queue, &mut end, (address, region), context, in_quota) };
        if posted.is_err()
            && in_quota
            && let Some(counted) = counted
        {
            counted.take_back();
        }
        // Still under the post end: it is this VI that breaks, not its successor.
        posted.map_err(|failure| (vi.mark_broken(&failure, address), in_quota))
    };
    if let Err((error, in_quota)) = posted {
        break_by_post(vi, error, in_quota);
        return Ok(());
    }
    match queue {
        _ if vi.device.is_attached() => submit(vi, handle, queue),
        Queue::Send => vi.device.kick(vi),
        Queue::Receive if vi.state() == EndpointState::Error => vi.device.flush_unconnected(vi),
        Queue::Receive if vi.tells_receives() => vi.device.kick(vi),
        Queue::Receive => {}
    }
    Ok(())
}

/// Has what was posted submitted to the datapath process, whose engine does not see it before.
#[inline]
fn submit(vi: &'static ViShared, handle: u64, queue: Queue) {
    match queue {
        Queue::Send => vi.device.kick(vi),
        // Whoever learns that this call has returned may have a message sent.
        Queue::Receive => vi.device.submit(vi),
    }
    let state = vi.state();
    let comes_back = match queue {
        Queue::Send => state != EndpointState::Connected,
        Queue::Receive => state == EndpointState::Error,
    };
    if comes_back {
        calls::await_flush(vi, handle, queue == Queue::Receive);
    }
}

/// What a look at a work queue found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// The head was complete; it is off the queue.
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

/// Takes the head of a work queue without a turn.
#[inline]
pub(crate) fn reap(vi: &ViShared, handle: u64, queue: Queue) -> Outcome<Done> {
    reap_by(vi, handle, queue, WorkQueue::reap)
}

/// As [`reap`], and true if the queue holds nothing more. That is asked before the head is taken:
/// a descriptor that somebody posts who has seen the queue empty after it is none of these.
pub(crate) fn reap_and_tell(vi: &ViShared, handle: u64, queue: Queue) -> Outcome<(Done, bool)> {
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
    queue: Queue,
    reap: impl FnOnce(&WorkQueue, &mut ReapEnd) -> Reaped,
) -> Outcome<Done> {
    let queue = vi.queue(queue);
    if !queue.has_complete() {
        return if !vi.is_live(handle) {
            Err(ControlError::InvalidParameter)
        } else if queue.is_empty() {
            Ok(Done::Empty)
        } else {
            Ok(Done::NotDone)
        };
    }
    if !vi.is_live(handle) {
        // In a child of this process the end may be held for ever.
        return Err(ControlError::InvalidParameter);
    }
    let mut end = queue.reap_end.hold();
    // Under the reap end, which whoever ends the VI takes.
    if !vi.is_live(handle) {
        return Err(ControlError::InvalidParameter);
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

/// The limit that a post exceeded: that of its queue if it is within the program's quota.
#[cold]
fn limit_of_post(vi: &ViShared, in_quota: bool) -> ControlError {
    match vi.device.posting().filter(|_| !in_quota) {
        Some(posting) => posting.limit_reached().into(),
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
pub fn done(handle: u64, queue: Queue) -> Outcome<Done> {
    let vi = vi_at(handle).ok_or(ControlError::InvalidParameter)?;
    // An empty queue is looked at too: a program that is written to polls this way.
    if vi.queue(queue).has_complete() {
        vi.device.finish_burst();
    } else {
        vi.device.poll();
    }
    reap(vi, handle, queue)
}

/// Waits for the head of a work queue (VIPL 3.5.3, 3.5.6); `None` waits for ever.
pub fn wait_done(handle: u64, queue: Queue, limit: Option<Duration>) -> Outcome<Done> {
    let vi = vi_of(handle).ok_or(ControlError::InvalidParameter)?;
    if vi.cq_handle(queue == Queue::Receive) != 0 {
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
    /// The VI.
    pub vi: u64,
    /// Its receive queue, else its send queue.
    pub receive: bool,
}

/// Takes the oldest entry, without a turn. Its descriptor may have been reaped already, or its
/// VI destroyed (VIPL 3.5.7, 7.5).
#[inline]
pub(crate) fn take(cq: &CqShared, handle: u64) -> Outcome<Option<CqEntry>> {
    if !cq.ring.has_entry() {
        return if cq.is_live(handle) {
            Ok(None)
        } else {
            Err(ControlError::InvalidParameter)
        };
    }
    let mut end = cq.ring.take_end.hold();
    if !cq.is_live(handle) {
        return Err(ControlError::InvalidParameter);
    }
    Ok(cq.ring.take(&mut end).map(|entry| CqEntry {
        vi: entry.vi,
        receive: entry.receive,
    }))
}

/// Takes the oldest entry of a completion queue, if there is one (VIPL 3.5.7).
#[inline]
pub fn cq_done(handle: u64) -> Outcome<Option<CqEntry>> {
    let cq = cq_at(handle).ok_or(ControlError::InvalidParameter)?;
    if cq.ring.has_entry() {
        cq.device.finish_burst();
    } else {
        cq.device.poll();
    }
    take(cq, handle)
}

/// Waits for an entry of a completion queue (VIPL 3.5.8); `None` waits for ever.
pub fn cq_wait(handle: u64, limit: Option<Duration>) -> Outcome<CqEntry> {
    let cq = cq_of(handle).ok_or(ControlError::InvalidParameter)?;
    wait(cq.device, cq.event(), limit, || {
        take(cq, handle).transpose()
    })?
}
