//! The data path of an attached NIC: submits posted descriptors to the process, and takes completions from it.

use pmd_port::WakeSource;
use pmd_port::port::FutexWord;
use vi_core::completion::{
    CompletionStatus, CompletionTarget, add_entry, complete_head, lost_descriptor,
};
use vi_core::cq::RingEntry;
use vi_core::doorbell::Doorbells;
use vi_core::events::{AsyncEvent, ErrorCode, ResourceCode};
use vi_core::handle::RawHandle;
use vi_core::memory::Access;
use vi_core::memory::direct_access::MappedFile;
use vi_core::nic_shared::NicShared;
use vi_core::sync::Ordering;
use vi_core::sys;
use vi_core::vi::{CqShared, ViShared};
use vi_core::waiters::Event;
use vi_types::{ReliabilityLevel, ViIndex, ViState, status};

use super::bounce_buffers;
use super::connection_epoch::ConnectionEpoch;
use super::control_connections::ControlConnections;
use super::descriptor_quota::DescriptorQuota;
use super::inline_data;
use super::shared_queues::{
    Completed, CompletionConsumer, CompletionEntry, OpCode, SendBuffers, SharedQueues,
    SubmissionProducer, ViId,
};
use crate::nic_backend::NicBackend;
use crate::wait_policy::YieldPolicy;

use std::collections::VecDeque;
use std::sync::Arc;

mod loss;
mod vi_local;

use vi_local::ViLocal;

/// Maximum number of completion entries taken in one poll; less than the ring holds.
const BUDGET: u32 = 256;

/// The data path between this program and the datapath process, for one NIC.
pub(crate) struct Attachment {
    nic: &'static NicShared,
    /// The quota of outstanding descriptors of this program.
    descriptor_quota: Option<&'static DescriptorQuota>,
    control: Arc<ControlConnections>,
    queues: Arc<SharedQueues>,
    submissions: SubmissionProducer,
    completions: CompletionConsumer,
    send_buffers: SendBuffers,
    /// Wakes the process.
    waker: sys::Waker,
    vis: Vec<Option<ViLocal>>,
    /// VIs with posted descriptors for which the submission ring had no space.
    run: VecDeque<ViIndex>,
    armed: Option<WakeSource>,
    pending_events: Event,
    /// The process has ended, or has ended the attachment.
    lost: bool,
    /// The process has reported that the NIC failed.
    failed: bool,
    /// Consecutive polls without work since the thread last yielded the core.
    idle_polls: u32,
}

impl Attachment {
    pub(crate) fn new(
        (nic, descriptor_quota): (&'static NicShared, Option<&'static DescriptorQuota>),
        control: Arc<ControlConnections>,
        queues: SharedQueues,
        waker: sys::Waker,
    ) -> Self {
        let max_vi = nic.limits.max_vi as usize;
        Self {
            nic,
            descriptor_quota,
            control,
            send_buffers: SendBuffers::new(&queues),
            queues: Arc::new(queues),
            submissions: SubmissionProducer::default(),
            completions: CompletionConsumer::default(),
            waker,
            vis: (0..max_vi).map(|_| None).collect(),
            run: VecDeque::with_capacity(max_vi),
            armed: None,
            pending_events: Event::NONE,
            lost: false,
            failed: false,
            idle_polls: 0,
        }
    }

    /// True if the process has ended, or has ended the attachment.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost
    }

    /// Adds a VI that the process has created; `remote` is its handle there.
    pub(crate) fn add(
        &mut self,
        shared: &'static ViShared,
        handle: u64,
        remote: u64,
        (send_cq, recv_cq): (Option<&'static CqShared>, Option<&'static CqShared>),
    ) {
        let raw = RawHandle::unpack(remote);
        let index = shared.index.0;
        if let Some(slot) = self.vis.get_mut(index as usize) {
            *slot = Some(ViLocal {
                shared,
                handle,
                remote_id: ViId {
                    index: raw.index as u16,
                    generation: raw.generation,
                },
                send_target: CompletionTarget::of(send_cq, index, false),
                recv_target: CompletionTarget::of(recv_cq, index, true),
                submitted: [0; 2],
                reads: 0,
                queued: false,
                epoch: ConnectionEpoch::default(),
            });
        }
    }

    /// Returns the handle of the VI with this index.
    pub(crate) fn handle_at(&self, index: ViIndex) -> Option<u64> {
        let local = self.vis.get(index.0 as usize)?.as_ref()?;
        Some(local.handle)
    }

    fn submit_rung(&mut self, doorbells: &Doorbells) -> bool {
        if !doorbells.any() {
            return false;
        }
        doorbells.drain(|vi| {
            if self.run.is_empty() {
                self.submit_posted(ViIndex(vi));
            } else {
                self.enqueue(ViIndex(vi));
            }
        });
        self.wake_process();
        true
    }

    /// Submits descriptors that waited for space. True if all descriptors of a VI were submitted.
    #[inline]
    fn submit_waiting(&mut self) -> bool {
        if self.run.is_empty() {
            return false;
        }
        let mut worked = false;
        for _ in 0..self.run.len() {
            let Some(vi) = self.run.pop_front() else {
                break;
            };
            if let Some(local) = self.local_at(vi) {
                local.queued = false;
                if !self.submit_posted(vi) {
                    break;
                }
                worked = true;
            }
        }
        self.wake_process();
        worked
    }

    /// True if the receives of a VI are submitted up to the sequence number `receives`, or the process or the VI no
    /// longer exists.
    pub(crate) fn has_submitted(&self, vi: ViIndex, receives: u32) -> bool {
        let local = self.vis.get(vi.0 as usize).and_then(Option::as_ref);
        let submitted = local.map(|local| local.receives_submitted().wrapping_sub(receives));
        self.lost || submitted.is_none_or(|beyond| beyond.cast_signed() >= 0)
    }

    /// The number of a VI's current connection ([`ConnectionEpoch`]); 0 if the VI no longer exists.
    pub(crate) fn connection(&mut self, vi: ViIndex) -> u16 {
        self.local_at(vi)
            .map_or(0, |local| local.epoch.connection())
    }

    /// Sets the state of a VI from a reply; false if the VI was at another connection when the request was sent.
    pub(crate) fn set_replied_state(
        &mut self,
        vi: ViIndex,
        connection: u16,
        state: ViState,
    ) -> bool {
        if self.lost {
            return true;
        }
        let Some(local) = self.local_at(vi) else {
            return true;
        };
        if local.epoch.connection() != connection {
            return false;
        }
        if !local.epoch.is_broken() {
            local.shared.set_state(state);
        }
        true
    }

    /// Begins to disconnect a VI. Returns the sequence numbers behind the last descriptors of the send and receive
    /// queue that the process has; `None` if the VI no longer exists.
    pub(crate) fn begin_disconnect(&mut self, vi: ViIndex) -> Option<[u32; 2]> {
        let local = self.local_at(vi)?;
        local.epoch.begin_disconnect();
        let [sends, receives] = local.submitted;
        Some([
            local.shared.send.sequence(sends),
            local.shared.recv.sequence(receives),
        ])
    }

    /// Ends a disconnect that [`Self::begin_disconnect`] began; `done`: it succeeded.
    pub(crate) fn end_disconnect(&mut self, vi: ViIndex, done: bool) {
        let Some(local) = self.local_at(vi) else {
            return;
        };
        local.epoch.end_disconnect();
        if done {
            local.epoch.advance();
            let state = if local.epoch.is_broken() {
                ViState::Error
            } else {
                ViState::Idle
            };
            local.shared.set_state(state);
        }
    }

    fn local_at(&mut self, vi: ViIndex) -> Option<&mut ViLocal> {
        self.vis.get_mut(vi.0 as usize)?.as_mut()
    }

    #[inline]
    fn wake_process(&mut self) {
        if self.queues.must_wake_process() {
            self.waker.wake();
        }
    }

    fn enqueue(&mut self, vi: ViIndex) {
        if let Some(local) = self.local_at(vi)
            && !local.queued
        {
            local.queued = true;
            self.run.push_back(vi);
        }
    }

    /// Submits all posted descriptors of a VI: receives first, since a send may cause the peer to reply. False if the
    /// ring has no space for all of them.
    #[inline]
    fn submit_posted(&mut self, vi: ViIndex) -> bool {
        if self.lost {
            self.flush(vi);
            return true;
        }
        let Some(local) = self.vis.get_mut(vi.0 as usize).and_then(Option::as_mut) else {
            return true;
        };
        let (submissions, buffers) = (&mut self.submissions, &mut self.send_buffers);
        let all = local.submit(submissions, buffers, &self.queues);
        if !all && !local.queued {
            local.queued = true;
            self.run.push_back(vi);
        }
        all
    }

    /// Takes completion entries. True if there was any.
    #[inline]
    fn take_completions(&mut self) -> bool {
        let mut taken = 0;
        while taken < BUDGET {
            let Some((id, entry)) = self.completions.pop(&self.queues) else {
                break;
            };
            taken += 1;
            match entry {
                CompletionEntry::Sent(completed) => self.complete(id, false, completed),
                CompletionEntry::Received(completed) => self.complete(id, true, completed),
                CompletionEntry::Error {
                    code,
                    resource,
                    op_code,
                } => self.error(id, code, resource, op_code),
            }
        }
        if taken > 0 {
            self.completions.release(&self.queues);
        }
        if taken == BUDGET {
            // The process may sleep until a full ring has space. After fewer entries it need not be woken: if it found
            // the ring full although they were released, more than a budget is left in it.
            self.wake_process();
        }
        taken > 0
    }

    /// Takes all entries that are in the completion ring now.
    pub(crate) fn take_all_completions(&mut self) {
        let mut polls = self.queues.completions().div_ceil(BUDGET);
        while polls > 0 && self.take_completions() {
            polls -= 1;
        }
    }

    /// The VI with this identifier, unless it was destroyed.
    #[inline]
    fn local(&mut self, id: ViId) -> Option<&mut ViLocal> {
        let local = self.vis.get_mut(usize::from(id.index))?.as_mut()?;
        (local.remote_id == id).then_some(local)
    }

    #[inline]
    fn complete(&mut self, id: ViId, receive: bool, completed: Completed) {
        let nic = self.nic;
        let Some(local) = self.local(id) else {
            return;
        };
        let has_immediate = receive && completed.status & status::IMMEDIATE != 0;
        let mut ending = CompletionStatus {
            word: completed.status,
            length_bytes: completed.length_bytes,
            immediate: has_immediate.then_some(completed.immediate),
        };
        let count = &mut local.submitted[usize::from(receive)];
        *count = count.saturating_sub(1);
        let (queue, target) = if receive {
            (&local.shared.recv, local.recv_target)
        } else {
            (&local.shared.send, local.send_target)
        };
        let tag = local.shared.tag_check();
        let (handle, shared) = (local.handle, local.shared);
        // SAFETY: the caller holds the backend lock; the reference ends here.
        let head = unsafe { queue.head() }.map(|slot| (slot.units(), slot.access()));
        if !receive && head.is_some_and(|(_, access)| access == Access::Write) {
            local.reads = local.reads.saturating_sub(1);
        }
        let units = head.map(|(units, _)| units);
        // Only posted descriptors count, whatever the process reports.
        if let Some((quota, units)) = self.descriptor_quota.zip(units) {
            quota.complete(units);
        }
        let number = completed.inline_buffer;
        if number != 0 && !receive {
            self.send_buffers.give_back(number, id);
        } else if number != 0
            && let Some(buffer) = self.queues.receive_buffer(number)
        {
            // SAFETY: the caller holds the backend lock, and has no reference to a slot.
            let is_copied = unsafe {
                inline_data::copy_from_buffer(&buffer, (&nic.regions, tag), queue, ending)
            };
            if !is_copied {
                ending.word |= status::PROTECTION_ERROR;
                ending.length_bytes = 0;
            }
        } else if nic.regions.has_unmapped() {
            // SAFETY: the caller holds the backend lock, and has no reference to a slot.
            unsafe { bounce_buffers::copy_from_bounce_buffers(&nic.regions, tag, queue, ending) };
        }
        // SAFETY: the caller holds the backend lock, and has no reference to a slot.
        let ended = unsafe { complete_head(queue, &nic.regions, tag, ending) };
        let Some((sequence, lost)) = ended else {
            return;
        };
        self.pending_events |= target.event;
        if let Some(cq) = target.cq {
            let entry = RingEntry {
                vi: handle,
                sequence,
                receive,
            };
            // SAFETY: the caller holds the backend lock.
            unsafe { add_entry(cq, entry) };
        }
        if let Some(descriptor) = lost {
            let event = lost_descriptor(handle, shared, receive, descriptor, ending.word);
            nic.events.push(event);
            // A connection that is being disconnected ends in order.
            if let Some(local) = self.local(id)
                && local.shared.state() == ViState::Connected
                && !local.epoch.is_disconnecting()
            {
                local.shared.broken.store(true, Ordering::Release);
                let vi = local.shared.index;
                self.enqueue(vi);
            }
        }
    }

    #[cold]
    fn error(&mut self, id: ViId, code: u32, resource: u32, op_code: u32) {
        let (Some(code), Some(resource)) = (ErrorCode::of(code), ResourceCode::of(resource)) else {
            return;
        };
        if id.generation == 0 {
            self.report_failure();
            return;
        }
        let Some(local) = self.local(id) else {
            return;
        };
        let OpCode {
            op_code,
            is_orderly,
            connection,
        } = OpCode::of(op_code);
        let event = AsyncEvent {
            vi: local.handle,
            nic_handle: local.shared.nic_handle(),
            cq: 0,
            descriptor: 0,
            op_code,
            resource,
            code,
            is_orderly,
        };
        // Every error takes a reliable VI to the Error state, and a lost connection any VI; later posts are flushed at
        // once. The error may belong to a connection that was disconnected since.
        let breaks = code == ErrorCode::ConnLost
            || local.shared.settings().reliability != ReliabilityLevel::UnreliableDelivery.bit();
        if breaks && local.epoch.set_broken_in(connection) {
            local.shared.set_state(ViState::Error);
        }
        self.pending_events |= Event::CONTROL;
        self.nic.events.push(event);
    }

    /// Flushes the posted descriptors of a VI.
    pub(crate) fn flush(&mut self, vi: ViIndex) {
        for receive in [false, true] {
            loop {
                let Some(local) = self.vis.get(vi.0 as usize).and_then(Option::as_ref) else {
                    return;
                };
                let (id, shared) = (local.remote_id, local.shared);
                let queue = if receive { &shared.recv } else { &shared.send };
                // SAFETY: the caller holds the backend lock; the reference is not kept.
                let Some(slot) = (unsafe { queue.head() }) else {
                    break;
                };
                let op = if receive {
                    status::OP_RECEIVE
                } else {
                    vi_core::descriptor::send_operation(slot.control)
                };
                let flushed = Completed {
                    status: status::DESC_FLUSHED_ERROR | op | status::DONE,
                    ..Completed::default()
                };
                self.complete(id, receive, flushed);
            }
        }
    }
}

impl NicBackend for Attachment {
    fn has_unsent(&self) -> bool {
        !self.run.is_empty()
    }

    #[inline(never)]
    fn poll(&mut self, doorbells: &Doorbells) -> bool {
        let rung = self.submit_rung(doorbells);
        let waited = self.submit_waiting();
        let worked = self.take_completions() || rung || waited;
        self.idle_polls = if worked {
            0
        } else {
            self.idle_polls.wrapping_add(1)
        };
        worked
    }

    #[inline]
    fn should_yield(&mut self, policy: &YieldPolicy) -> bool {
        let is_time = self.idle_polls >= policy.idle_polls();
        if is_time {
            self.idle_polls = 0;
        }
        is_time
    }

    #[inline]
    fn kick(&mut self, vi: ViIndex, doorbells: &Doorbells) {
        if doorbells.any() {
            self.submit_rung(doorbells);
        }
        self.submit_waiting();
        if self.run.is_empty() {
            self.submit_posted(vi);
        } else {
            self.enqueue(vi);
        }
        self.wake_process();
    }

    fn upkeep(&mut self) -> Vec<MappedFile> {
        self.check_for_loss();
        Vec::new()
    }

    fn arm(&mut self) -> WakeSource {
        let expected = self.queues.prepare_application_sleep();
        if self.lost {
            return WakeSource::Poll;
        }
        WakeSource::Futex {
            word: FutexWord::new(Arc::clone(&self.queues) as _),
            expected,
        }
    }

    fn disarm(&mut self) {
        self.queues.finish_application_sleep();
    }

    #[inline]
    fn fail_broken(&mut self, vi: ViIndex, doorbells: &Doorbells) {
        self.kick(vi, doorbells);
    }

    #[inline]
    fn take_pending_events(&mut self) -> Event {
        core::mem::take(&mut self.pending_events)
    }

    #[inline]
    fn armed(&mut self) -> &mut Option<WakeSource> {
        &mut self.armed
    }

    fn attachment(&mut self) -> Option<&mut Attachment> {
        Some(self)
    }

    /// The process ends the connection.
    fn end_connection(&mut self, vi: &ViShared) {
        self.flush(vi.index);
    }

    /// The process destroys the VI.
    fn destroy_vi(&mut self, _vi: ViIndex) -> bool {
        true
    }

    fn remove_vi(&mut self, vi: ViIndex) -> [Option<&'static CqShared>; 2] {
        match self.vis.get_mut(vi.0 as usize).and_then(Option::take) {
            Some(local) => {
                self.send_buffers.give_back_all(local.remote_id);
                [local.send_target.cq, local.recv_target.cq]
            }
            None => [None, None],
        }
    }
}
