//! Attached applications on the data path of the process: takes their submissions, and reports completions and errors.
//!
//! Nothing that an application writes is trusted: a submission is copied once, into a slot in private memory of the
//! process, and checked there. An application that violates the ring protocol is cut off; others are not affected.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

use vi_core::completion::CompletionStatus;
use vi_core::error_backlog::{ErrorBacklog, Subject};
use vi_core::events::AsyncEvent;
use vi_core::handle::RawHandle;
use vi_core::memory::Access;
use vi_core::memory::backing::InlineBuffer;
use vi_core::queue::{SegmentPool, Slot, WorkQueue};
use vi_core::sync::{AtomicU64, Ordering};
use vi_core::sys;
use vi_core::vi::ViShared;
use vi_types::{QueueKind, ViIndex, ViState, status};

use super::shared_queues::{
    Completed, CompletionEntry, CompletionProducer, INLINE_BYTES, OpCode, ProtocolViolation,
    SharedQueues, Submission, SubmissionConsumer, Submitted, ViId,
};
use crate::datapath::{ClientId, Datapath, ServedApplications, ServedQueues, ViPath};
use crate::nic_backend::Backend;
use vi_core::control_socket::Socket;

mod check;
mod delivery;
mod limits;

use check::{check, operation_of};
pub(crate) use limits::Limits;

/// Maximum number of pending errors of an application that does not read the completion ring, without losses beyond it.
const MAX_ERRORS: usize = 1024;

/// Counters of an application, read by status queries.
#[derive(Debug, Default)]
pub(crate) struct ClientCounters {
    /// Descriptors submitted.
    pub(crate) submitted: AtomicU64,
    /// Descriptors completed.
    pub(crate) completed: AtomicU64,
    /// Messages of private memory whose data was passed in inline buffers, sent and received.
    pub(crate) inline_messages: AtomicU64,
    /// Submissions for VIs that do not exist.
    pub(crate) stale: AtomicU64,
    /// Asynchronous errors that could not be reported.
    pub(crate) errors_dropped: AtomicU64,
    /// What long descriptors that are not complete count beyond one each.
    pub(crate) extra_units: AtomicU64,
    /// Descriptors that failed since the process had no memory for their data segments.
    pub(crate) out_of_memory: AtomicU64,
}

/// Increments a counter that only the poller changes.
fn count(counter: &AtomicU64) {
    counter.store(
        counter.load(Ordering::Relaxed).wrapping_add(1),
        Ordering::Relaxed,
    );
}

/// An attached application on one NIC.
pub(crate) struct Client {
    /// Its user, as the kernel reported it.
    uid: libc::uid_t,
    queues: SharedQueues,
    submissions: SubmissionConsumer,
    completions: CompletionProducer,
    /// The event by which it wakes the poll thread.
    _wakeup: sys::ClientWakeup,
    /// The attach connection.
    socket: Arc<Socket>,
    counters: Arc<ClientCounters>,
    limits: Limits,
    /// Descriptors that were taken and are not complete.
    uncompleted: u32,
    /// Submissions that may still be taken in this poll: of its share, and for messages that find no receive.
    budget: u32,
    claim_budget: u32,
    /// Completions and errors that may still be reported in this poll.
    report_budget: u32,
    /// Work queues with completions for which the ring had no space or the poll no budget, each once.
    unreported: VecDeque<(ViIndex, QueueKind)>,
    /// Memory for the segments of its posted descriptors.
    segment_pool: SegmentPool,
    errors: ErrorBacklog<(ViId, CompletionEntry)>,
    /// Entries were written since it was last woken.
    has_new_entries: bool,
    /// The violation for which it was cut off.
    pub(crate) violation: Option<ProtocolViolation>,
}

impl Client {
    pub(crate) fn new(
        uid: libc::uid_t,
        queues: SharedQueues,
        wakeup: sys::ClientWakeup,
        socket: Arc<Socket>,
        counters: Arc<ClientCounters>,
        limits: Limits,
    ) -> Self {
        let completions = CompletionProducer::new(&queues);
        Self {
            uid,
            queues,
            submissions: SubmissionConsumer::default(),
            completions,
            _wakeup: wakeup,
            socket,
            counters,
            limits,
            uncompleted: 0,
            budget: 0,
            claim_budget: 0,
            report_budget: limits.reports_per_poll(),
            unreported: VecDeque::new(),
            segment_pool: SegmentPool::default(),
            errors: ErrorBacklog::new(MAX_ERRORS, 0),
            has_new_entries: false,
            violation: None,
        }
    }

    /// Queues an asynchronous error, which is reported after earlier completions.
    fn queue_error(&mut self, subject: Subject, error: (ViId, CompletionEntry)) {
        if !self.errors.push(subject, error) {
            count(&self.counters.errors_dropped);
        }
    }

    /// Ends the attachment after a protocol violation: ignores further submissions.
    #[cold]
    fn cut_off(&mut self, violation: ProtocolViolation) {
        if self.violation.is_none() {
            self.violation = Some(violation);
            // A thread waits for that, and closes the connection once the application's memory is no longer accessed.
            self.socket.shut_down_reading();
        }
    }

    /// True if another entry may be reported in this poll, and the ring has space for it.
    fn has_space(&mut self) -> bool {
        if self.violation.is_some() || self.report_budget == 0 {
            return false;
        }
        match self.completions.has_space(&self.queues) {
            Ok(space) => space,
            Err(violation) => {
                self.cut_off(violation);
                false
            }
        }
    }

    /// Uncounts the descriptors of a queue that are not complete, and takes their segment buffers back.
    fn forget_left(&mut self, queue: &WorkQueue) {
        let left = queue.depth();
        self.uncompleted = self.uncompleted.saturating_sub(left);
        for distance in 0..left {
            // SAFETY: the caller holds the backend lock; the reference ends with this round.
            if let Some(slot) = unsafe { queue.ahead(distance) } {
                self.segment_pool.take_back(slot);
            }
        }
    }

    #[inline]
    fn push(&mut self, vi: ViId, entry: CompletionEntry) {
        self.completions.push(&self.queues, vi, entry);
        self.report_budget -= 1;
        self.has_new_entries = true;
    }

    /// Reports the completed descriptors of a queue while there is space and budget; true if all were reported.
    fn report_queue(&mut self, vi: &ViShared, id: ViId, kind: QueueKind) -> bool {
        let queue = match kind {
            QueueKind::Send => &vi.send,
            QueueKind::Receive => &vi.recv,
        };
        let mut end = queue.reap_end.lock();
        while queue.has_complete() {
            if !self.has_space() {
                return false;
            }
            let completed = queue.reap_slot(&mut end, |slot| Completed {
                status: slot.status,
                length_bytes: slot.length_bytes,
                immediate: slot.immediate,
                inline_buffer: slot.inline_buffer(),
            });
            let Some(completed) = completed else {
                break;
            };
            self.report_completed(id, kind, completed);
        }
        true
    }

    #[inline]
    fn report_completed(&mut self, vi: ViId, kind: QueueKind, completed: Completed) {
        count(&self.counters.completed);
        let entry = match kind {
            QueueKind::Send => CompletionEntry::Sent(completed),
            QueueKind::Receive => CompletionEntry::Received(completed),
        };
        self.push(vi, entry);
    }
}

/// The identifier of a VI in the rings.
fn vi_id(handle: u64) -> ViId {
    let raw = RawHandle::unpack(handle);
    ViId {
        index: raw.index as u16,
        generation: raw.generation,
    }
}

/// Has the data of a send read from the inline buffer that its submission names.
///
/// # Errors
/// There is no such buffer, or it is not long enough, or the descriptor is none whose data is sent.
fn set_inline_buffer(
    queues: &SharedQueues,
    submitted: &Submitted,
    slot: &mut Slot,
) -> Result<(), ProtocolViolation> {
    let is_allowed = submitted.kind == Submission::Send
        && slot.access() == Access::Read
        && slot.length_bytes <= INLINE_BYTES;
    let buffer = queues
        .send_buffer(submitted.inline_buffer())
        .filter(|_| is_allowed)
        .ok_or(ProtocolViolation(
            "submission with an impossible inline buffer",
        ))?;
    slot.send_from(&buffer);
    Ok(())
}

/// All attached applications of one NIC.
#[derive(Default)]
pub(crate) struct Clients {
    slots: Vec<Option<Box<Client>>>,
}

impl Clients {
    /// Attaches an application to a NIC, which serves applications from then on.
    pub(crate) fn attach(path: &mut Datapath, client: Client) -> ClientId {
        let share = client.limits.share;
        let served = path.served.take().map(|served| served as Box<dyn Any>);
        let clients = served.and_then(|served| served.downcast::<Self>().ok());
        let mut clients = clients.unwrap_or_default();
        let id = clients.add(client);
        path.served = Some(clients);
        path.run.open(id.lane(), share);
        id
    }

    /// The applications of a NIC, if there ever was one.
    pub(crate) fn of(path: &mut Datapath) -> Option<&mut Self> {
        let served: &mut dyn Any = path.served.as_deref_mut()?;
        served.downcast_mut()
    }

    /// As [`Self::of`], of the NIC with this backend.
    pub(super) fn of_backend(backend: &mut Backend) -> Option<&mut Self> {
        Self::of(&mut backend.state_mut()?.path)
    }

    /// True if an application is attached.
    #[cfg(test)]
    pub(crate) fn has_any(&self) -> bool {
        self.slots.iter().any(Option::is_some)
    }

    fn add(&mut self, client: Client) -> ClientId {
        let free = self.slots.iter().position(Option::is_none);
        let slot_index = free.unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot_index] = Some(Box::new(client));
        ClientId(slot_index as u32)
    }

    /// Removes an application, whose VIs are destroyed before.
    pub(crate) fn remove(&mut self, id: ClientId) -> Option<Box<Client>> {
        self.slots.get_mut(id.0 as usize).and_then(Option::take)
    }

    #[inline]
    fn get(&mut self, id: ClientId) -> Option<&mut Client> {
        self.slots.get_mut(id.0 as usize)?.as_deref_mut()
    }

    /// Queues an asynchronous error of an application, which is reported after earlier completions.
    pub(crate) fn report(&mut self, id: ClientId, event: &AsyncEvent) {
        let Some(client) = self.get(id) else {
            return;
        };
        let entry = CompletionEntry::Error {
            code: event.code as u32,
            resource: event.resource as u32,
            op_code: event.op_code,
        };
        client.queue_error(event.subject(), (vi_id(event.vi), entry));
    }

    /// Requests wake-ups from all applications, before the poll thread sleeps.
    pub(crate) fn prepare_sleep(&self) {
        for client in self.slots.iter().flatten() {
            client.queues.prepare_process_sleep();
        }
    }

    /// Returns the number of polls in which a full submission ring of an application is taken.
    pub(crate) fn polls_per_ring(&mut self, id: ClientId) -> u32 {
        self.get(id).map_or(0, |client| {
            let lines = client.queues.submissions();
            lines.div_ceil(client.limits.submissions_per_poll().max(1))
        })
    }

    /// True if the last poll took all submissions of an application that could be taken.
    pub(crate) fn is_drained(&mut self, id: ClientId) -> bool {
        self.get(id).is_none_or(|client| client.budget > 0)
    }

    /// True if completions or errors wait for space in the ring of an application.
    pub(crate) fn has_pending_entries(&self) -> bool {
        let mut all = self.slots.iter().flatten();
        all.any(|client| !client.unreported.is_empty() || !client.errors.is_empty())
    }

    /// Cancels the requests of [`Self::prepare_sleep`].
    pub(crate) fn finish_sleep(&self) {
        for client in self.slots.iter().flatten() {
            client.queues.finish_process_sleep();
        }
    }
}

impl ServedApplications for Clients {
    fn take_submissions(&mut self, queues: &mut ServedQueues<'_>) -> bool {
        let mut worked = false;
        for (slot_index, slot) in self.slots.iter_mut().enumerate() {
            let Some(client) = slot else {
                continue;
            };
            let share = client.limits.submissions_per_poll();
            client.claim_budget = client.queues.submissions();
            let taken = client.take(ClientId(slot_index as u32), share, queues);
            client.budget = share - taken;
            worked |= taken > 0;
        }
        worked
    }

    /// The receive may have been submitted before the message was sent. In one poll at most as many as the ring holds,
    /// for all messages together: an application that submits more than that ahead of the receive loses the message.
    fn take_for_message(&mut self, id: ClientId, queues: &mut ServedQueues<'_>) -> bool {
        let Some(client) = self.get(id) else {
            return false;
        };
        let taken = client.take(id, client.claim_budget, queues);
        client.claim_budget -= taken;
        taken > 0
    }

    fn complete(
        &mut self,
        id: ClientId,
        path: &mut ViPath,
        kind: QueueKind,
        completion: CompletionStatus,
    ) {
        let queue = match kind {
            QueueKind::Send => &path.shared.send,
            QueueKind::Receive => &path.shared.recv,
        };
        // SAFETY: the caller holds the backend lock; the reference is not kept.
        let Some(slot) = (unsafe { queue.head() }) else {
            return;
        };
        let inline_buffer = slot.inline_buffer();
        if completion.word & status::ERROR_MASK == 0 {
            path.traffic.messages[kind as usize] += 1;
            path.traffic.bytes[kind as usize] += u64::from(completion.length_bytes);
        }
        let completed = Completed {
            status: completion.word,
            length_bytes: completion.length_bytes,
            immediate: completion.immediate.unwrap_or_default(),
            inline_buffer,
        };
        let is_pending = &mut path.pending_completions[kind as usize];
        let mut client = self.get(id);
        if let Some(client) = &mut client {
            client.uncompleted = client.uncompleted.saturating_sub(1);
            if !*is_pending && client.unreported.is_empty() && client.has_space() {
                queue.retire_head(&mut queue.reap_end.lock(), &mut client.segment_pool);
                client.report_completed(vi_id(path.handle), kind, completed);
                return;
            }
            if !*is_pending {
                *is_pending = true;
                client.unreported.push_back((path.shared.index, kind));
            }
        }
        // SAFETY: the caller holds the backend lock; the reference ends with the completion below.
        if let Some(slot) = unsafe { queue.head() } {
            slot.status = completed.status;
            slot.length_bytes = completed.length_bytes;
            slot.immediate = completed.immediate;
            // The descriptor no longer counts as posted.
            if let Some(client) = client {
                client.segment_pool.take_back(slot);
            }
            queue.complete_head();
        }
    }

    fn inline_buffer(&mut self, id: ClientId, bytes: u32) -> Option<InlineBuffer> {
        let client = self.get(id).filter(|_| bytes <= INLINE_BYTES)?;
        if !client.unreported.is_empty() || !client.has_space() {
            return None;
        }
        match client.completions.take_buffer(&client.queues) {
            Ok(buffer) => {
                if buffer.is_some() {
                    count(&client.counters.inline_messages);
                }
                buffer
            }
            Err(violation) => {
                client.cut_off(violation);
                None
            }
        }
    }

    fn report_of_vi(&mut self, id: ClientId, path: &ViPath, mut event: AsyncEvent) {
        let in_connection = OpCode {
            op_code: event.op_code,
            is_orderly: event.is_orderly,
            connection: path.shared.disconnects.load(Ordering::Relaxed) as u16,
        };
        event.op_code = in_connection.word();
        self.report(id, &event);
    }

    fn deliver(&mut self, vis: &mut [Option<ViPath>]) -> bool {
        let mut is_left = false;
        for (slot_index, slot) in self.slots.iter_mut().enumerate() {
            if let Some(client) = slot {
                is_left |= client.deliver(ClientId(slot_index as u32), vis);
            }
        }
        is_left
    }

    fn remove_vi(&mut self, id: ClientId, path: &ViPath) {
        let Some(client) = self.get(id) else {
            return;
        };
        // Its queues were flushed; a descriptor that should be left no longer counts.
        for queue in [&path.shared.send, &path.shared.recv] {
            client.forget_left(queue);
        }
        if path.pending_completions != [false; 2] {
            client.unreported.retain(|(vi, _)| *vi != path.shared.index);
        }
    }

    fn user(&self, id: ClientId) -> Option<libc::uid_t> {
        let client = self.slots.get(id.0 as usize)?.as_ref();
        client.map(|client| client.uid)
    }
}

impl Client {
    /// Takes up to `budget` submissions, and returns their number.
    fn take(&mut self, id: ClientId, budget: u32, queues: &mut ServedQueues<'_>) -> u32 {
        let mut taken = 0;
        // Submissions that are written meanwhile are taken next time, or this loop might not end.
        let end = self.submissions.end_of_ring(&self.queues);
        while taken < budget && self.violation.is_none() && !self.submissions.has_reached(end) {
            match self.take_one(id, queues) {
                Ok(true) => taken += 1,
                Ok(false) => break,
                Err(violation) => self.cut_off(violation),
            }
        }
        self.submissions.release(&self.queues);
        taken
    }

    /// Takes a submission; false if there is none that may be taken.
    ///
    /// # Errors
    /// The application violated the protocol.
    #[inline]
    fn take_one(
        &mut self,
        id: ClientId,
        queues: &mut ServedQueues<'_>,
    ) -> Result<bool, ProtocolViolation> {
        let Some(submitted) = self.submissions.peek(&self.queues, self.limits.segments)? else {
            return Ok(false);
        };
        let vi = ViIndex(submitted.vi.index.into());
        let path = queues
            .vi(vi)
            .filter(|path| path.client == Some(id) && vi_id(path.handle) == submitted.vi);
        let Some(path) = path else {
            count(&self.counters.stale);
            self.submissions.advance(&submitted);
            return Ok(true);
        };
        let shared = path.shared;
        let (queue, kind) = match submitted.kind {
            Submission::Send => (&shared.send, QueueKind::Send),
            Submission::Receive => (&shared.recv, QueueKind::Receive),
            Submission::Break => {
                shared.broken.store(true, Ordering::Release);
                queues.enqueue(vi);
                self.submissions.advance(&submitted);
                return Ok(true);
            }
        };
        if self.must_wait(submitted.segments) {
            return Ok(false);
        }
        let max_bytes = shared.max_transfer_bytes.load(Ordering::Relaxed);
        let reads = shared.reads.load(Ordering::Relaxed);
        let epoch = queues.regions.epoch();
        let (mut copied, mut without_memory) = (Ok(()), None);
        let posted = queue.post(&mut queue.post_end.lock(), |slot| {
            if self.segment_pool.lend(slot, submitted.segments) {
                copied = self.submissions.copy(&self.queues, &submitted, slot);
            } else {
                let header = submitted.without_segments();
                copied = self.submissions.copy(&self.queues, &header, slot);
                slot.fault = status::DESC_FLUSHED_ERROR;
                without_memory = Some(operation_of(slot, kind));
            }
            slot.epoch = epoch.wrapping_sub(1);
            check(slot, kind, reads, max_bytes);
            if submitted.inline_buffer() != 0 {
                copied = copied.and_then(|()| set_inline_buffer(&self.queues, &submitted, slot));
                if copied.is_ok() {
                    count(&self.counters.inline_messages);
                }
            }
            if copied.is_err() || slot.fault != 0 {
                self.segment_pool.take_back(slot);
                slot.forget_segments();
            }
        });
        copied?;
        if !posted {
            return Err(ProtocolViolation("work queue overflow"));
        }
        self.submissions.advance(&submitted);
        self.uncompleted += 1;
        count(&self.counters.submitted);
        if let Some(operation) = without_memory {
            self.fail_without_memory(shared, submitted.vi, operation);
            queues.enqueue(vi);
        }
        let flushes = match kind {
            QueueKind::Send => {
                queues.enqueue(vi);
                shared.state() != ViState::Connected
            }
            QueueKind::Receive => {
                if shared.notify_receives.load(Ordering::Relaxed) {
                    queues.enqueue(vi);
                }
                shared.state() == ViState::Error
            }
        };
        if flushes {
            queues.flush(vi, kind);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
