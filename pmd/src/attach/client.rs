//! Attached applications on the data path of the process: takes their submissions, and reports completions and errors.
//!
//! Nothing that an application writes is trusted: a submission is copied once, into a slot in private memory of the
//! process, and checked there. An application that violates the ring protocol is cut off; others are not affected.

use std::collections::VecDeque;
use std::sync::Arc;

use vi_core::completion::CompletionStatus;
use vi_core::error_backlog::{ErrorBacklog, Subject};
use vi_core::events::AsyncEvent;
use vi_core::handle::RawHandle;
use vi_core::queue::{SegmentPool, WorkQueue};
use vi_core::sync::{AtomicU64, Ordering};
use vi_core::sys;
use vi_core::vi::ViShared;
use vi_types::QueueIo;
use vi_types::{Claim, QueueKind, ViIndex, ViState, status};

use super::shared_queues::{
    Completed, CompletionEntry, CompletionProducer, ProtocolViolation, SharedQueues, Submission,
    SubmissionConsumer, ViId,
};
use super::socket::Socket;
use crate::datapath::{Datapath, ViPath};

mod check;
mod delivery;
mod limits;

use check::{check, operation_of};
pub(crate) use limits::Limits;

/// Maximum number of pending errors of an application that does not read the completion ring, without losses beyond it.
const MAX_ERRORS: usize = 1024;

/// Identifies an attached application on one NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientId(pub(crate) u32);

/// Counters of an application, read by status queries.
#[derive(Debug, Default)]
pub(crate) struct ClientCounters {
    /// Descriptors submitted.
    pub(crate) submitted: AtomicU64,
    /// Descriptors completed.
    pub(crate) completed: AtomicU64,
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
        Self {
            uid,
            queues,
            submissions: SubmissionConsumer::default(),
            completions: CompletionProducer::default(),
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

    /// Scheduling weight.
    pub(crate) fn share(&self) -> u32 {
        self.limits.share
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
fn vi_id(path: &ViPath) -> ViId {
    let raw = RawHandle::unpack(path.handle);
    ViId {
        index: raw.index as u16,
        generation: raw.generation,
    }
}

/// All attached applications of one NIC.
#[derive(Default)]
pub(crate) struct Clients {
    slots: Vec<Option<Box<Client>>>,
}

impl Clients {
    /// True if no application was ever attached: the NIC serves this program.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// True if an application is attached.
    #[cfg(test)]
    pub(crate) fn has_any(&self) -> bool {
        self.slots.iter().any(Option::is_some)
    }

    /// Adds an application.
    pub(crate) fn add(&mut self, client: Client) -> ClientId {
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

    /// Completes the head of a queue. The completion is reported at once, or after earlier ones that wait for space.
    #[inline]
    pub(crate) fn complete(
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
        if queue.depth() == 0 {
            return;
        }
        if completion.word & status::ERROR_MASK == 0 {
            path.traffic.messages[kind as usize] += 1;
            path.traffic.bytes[kind as usize] += u64::from(completion.length_bytes);
        }
        let completed = Completed {
            status: completion.word,
            length_bytes: completion.length_bytes,
            immediate: completion.immediate.unwrap_or_default(),
        };
        let is_pending = &mut path.pending_completions[kind as usize];
        let mut client = self.get(id);
        if let Some(client) = &mut client {
            client.uncompleted = client.uncompleted.saturating_sub(1);
            if !*is_pending && client.unreported.is_empty() && client.has_space() {
                queue.retire_head(&mut queue.reap_end.lock(), &mut client.segment_pool);
                client.report_completed(vi_id(path), kind, completed);
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

    /// Drops the pending completions of a VI that is destroyed.
    pub(crate) fn remove_vi(&mut self, path: &ViPath) {
        let Some(client) = path.client.and_then(|id| self.get(id)) else {
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

    /// Queues an asynchronous error of an application, which is reported after earlier completions.
    pub(crate) fn report(&mut self, id: ClientId, event: &AsyncEvent) {
        let Some(client) = self.get(id) else {
            return;
        };
        let raw = RawHandle::unpack(event.vi);
        let vi = ViId {
            index: raw.index as u16,
            generation: raw.generation,
        };
        let entry = CompletionEntry::Error {
            code: event.code as u32,
            resource: event.resource as u32,
            op_code: event.op_code,
        };
        client.queue_error(event.subject(), (vi, entry));
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

impl Datapath {
    /// Returns the user of the application that owns a VI, or of this program if no application does.
    pub(crate) fn user_of(&mut self, vi: ViIndex) -> Option<libc::uid_t> {
        match self.vi(vi)?.client {
            Some(id) => self.clients.get(id).map(|client| client.uid),
            None => Some(nix::unistd::geteuid().as_raw()),
        }
    }

    /// Takes submissions of all applications, of each up to its share, and resets the budgets. True if there was any.
    #[inline(never)]
    pub(crate) fn take_submissions(&mut self) -> bool {
        let mut worked = false;
        for slot_index in 0..self.clients.slots.len() {
            let id = ClientId(slot_index as u32);
            let Some(client) = self.clients.get(id) else {
                continue;
            };
            let share = client.limits.submissions_per_poll();
            client.claim_budget = client.queues.submissions();
            let taken = self.take_from(id, share);
            if let Some(client) = self.clients.get(id) {
                client.budget = share - taken;
            }
            worked |= taken > 0;
        }
        worked
    }

    /// Takes submissions for a message that finds no receive posted: the receive may have been submitted before the
    /// message was sent. In one poll at most as many as the ring holds, for all messages together: an application that
    /// submits more than that ahead of the receive loses the message.
    #[inline(never)]
    pub(crate) fn claim_submitted(&mut self, vi: ViIndex) -> Claim {
        let Some(id) = self.vi(vi).and_then(|path| path.client) else {
            return Claim::Empty;
        };
        let budget = self.clients.get(id).map_or(0, |client| client.claim_budget);
        let taken = self.take_from(id, budget);
        if taken == 0 {
            return Claim::Empty;
        }
        if let Some(client) = self.clients.get(id) {
            client.claim_budget -= taken;
        }
        match self.vi(vi) {
            Some(path) if path.has_unclaimed() => self.claim_receive(vi),
            _ => Claim::Empty,
        }
    }

    /// Takes up to `budget` submissions of an application, and returns their number.
    fn take_from(&mut self, id: ClientId, budget: u32) -> u32 {
        let Some(mut client) = self
            .clients
            .slots
            .get_mut(id.0 as usize)
            .and_then(Option::take)
        else {
            return 0;
        };
        // Taken out of its slot, so that the rest of the data path can be borrowed, too.
        let mut flush = Vec::new();
        let mut taken = 0;
        // Submissions that are written meanwhile are taken next time, or this loop might not end.
        let end = client.submissions.end_of_ring(&client.queues);
        while taken < budget && client.violation.is_none() && !client.submissions.has_reached(end) {
            match self.take_one(&mut client, id) {
                Ok(Some(unconnected)) => {
                    taken += 1;
                    flush.extend(unconnected);
                }
                Ok(None) => break,
                Err(violation) => client.cut_off(violation),
            }
        }
        client.submissions.release(&client.queues);
        self.clients.slots[id.0 as usize] = Some(client);
        for (vi, kind) in flush {
            self.flush_queue(vi, kind);
        }
        taken
    }

    /// Takes a submission if there is one. Returns its queue if the VI's state requires to flush the descriptor.
    ///
    /// # Errors
    /// The application violated the protocol.
    #[inline]
    fn take_one(
        &mut self,
        client: &mut Client,
        id: ClientId,
    ) -> Result<Option<Option<(ViIndex, QueueKind)>>, ProtocolViolation> {
        let Some(submitted) = client
            .submissions
            .peek(&client.queues, client.limits.segments)?
        else {
            return Ok(None);
        };
        let vi = ViIndex(submitted.vi.index.into());
        let path = self
            .vi(vi)
            .filter(|path| path.client == Some(id) && vi_id(path) == submitted.vi);
        let Some(path) = path else {
            count(&client.counters.stale);
            client.submissions.advance(&submitted);
            return Ok(Some(None));
        };
        let shared = path.shared;
        let (queue, kind) = match submitted.kind {
            Submission::Send => (&shared.send, QueueKind::Send),
            Submission::Receive => (&shared.recv, QueueKind::Receive),
            Submission::Break => {
                shared.broken.store(true, Ordering::Release);
                self.enqueue(vi);
                client.submissions.advance(&submitted);
                return Ok(Some(None));
            }
        };
        if client.must_wait(submitted.segments) {
            return Ok(None);
        }
        let max_bytes = shared.max_transfer_bytes.load(Ordering::Relaxed);
        let reads = shared.reads.load(Ordering::Relaxed);
        let epoch = self.regions.epoch();
        let (mut copied, mut without_memory) = (Ok(()), None);
        let posted = queue.post(&mut queue.post_end.lock(), |slot| {
            if client.segment_pool.lend(slot, submitted.segments) {
                copied = client.submissions.copy(&client.queues, &submitted, slot);
            } else {
                let header = submitted.without_segments();
                copied = client.submissions.copy(&client.queues, &header, slot);
                slot.fault = status::DESC_FLUSHED_ERROR;
                without_memory = Some(operation_of(slot, kind));
            }
            slot.epoch = epoch.wrapping_sub(1);
            check(slot, kind, reads, max_bytes);
            if copied.is_err() || slot.fault != 0 {
                client.segment_pool.take_back(slot);
                slot.forget_segments();
            }
        });
        copied?;
        if !posted {
            return Err(ProtocolViolation("work queue overflow"));
        }
        client.submissions.advance(&submitted);
        client.uncompleted += 1;
        count(&client.counters.submitted);
        if let Some(operation) = without_memory {
            client.fail_without_memory(shared, submitted.vi, operation);
            self.enqueue(vi);
        }
        let flushes = match kind {
            QueueKind::Send => {
                self.enqueue(vi);
                shared.state() != ViState::Connected
            }
            QueueKind::Receive => {
                if shared.notify_receives.load(Ordering::Relaxed) {
                    self.enqueue(shared.index);
                }
                shared.state() == ViState::Error
            }
        };
        Ok(Some(flushes.then_some((vi, kind))))
    }
}

#[cfg(test)]
mod tests;
