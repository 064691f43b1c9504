//! The turn of an attached NIC: what was posted is submitted, what completed is taken.

use pmd_port::WakeSource;
use pmd_port::port::FutexWord;
use vi_engine::{EndpointState, ViIndex};

use super::arena::{Arena, Completed, Listener, OpCode, Submission, Submitter, Told, ViName};
use super::bounce_buffers;
use super::link::Link;
use super::standing::Standing;
use crate::completion::{Ending, Reports, add_entry, complete_head, lost_descriptor};
use crate::cq::Entry;
use crate::descriptor::status;
use crate::device::Device;
use crate::doorbell::Doorbells;
use crate::events::{AsyncEvent, ErrorCode, ResourceCode};
use crate::sleepers::Event;
use crate::sync::Ordering;
use crate::sys;
use crate::vi::{CqShared, RawHandle, ViShared};

use std::collections::VecDeque;
use std::sync::Arc;

/// Completions that are taken in one turn, at most; less than the ring holds.
const BUDGET: u32 = 256;

/// A VI as its attachment knows it.
struct ViLocal {
    shared: &'static ViShared,
    /// Its handle here.
    handle: u64,
    /// As the process knows it.
    name: ViName,
    send_reports: Reports,
    recv_reports: Reports,
    /// Descriptors at the heads of the queues that were submitted and are not complete.
    submitted: [u32; 2],
    /// In the run queue.
    queued: bool,
    standing: Standing,
}

impl ViLocal {
    /// Submits what is posted; false if there is no room for all of it.
    #[inline]
    fn submit(&mut self, submitter: &mut Submitter, arena: &Arena) -> bool {
        let shared = self.shared;
        let [sends, receives] = &mut self.submitted;
        for (queue, count, what) in [
            (&shared.recv, receives, Submission::Receive),
            (&shared.send, sends, Submission::Send),
        ] {
            // SAFETY: we run under the turn; the reference ends before the next look.
            while let Some(slot) = unsafe { queue.ahead(*count) } {
                if what == Submission::Send && shared.device.regions.has_bounce_buffers() {
                    if !submitter.has_room_for(arena, slot) {
                        return false;
                    }
                    // SAFETY: likewise.
                    unsafe {
                        bounce_buffers::copy_to_bounce_buffers(
                            &shared.device.regions,
                            shared.tag_check(),
                            slot,
                        )
                    };
                }
                if !submitter.submit(arena, self.name, what, Some(slot)) {
                    return false;
                }
                *count += 1;
            }
        }
        // Acquire: partner of the Release store of whoever failed to post.
        if shared.broken.load(Ordering::Acquire) {
            if !submitter.submit(arena, self.name, Submission::Break, None) {
                return false;
            }
            shared.broken.store(false, Ordering::Relaxed);
            self.standing.breaks();
            shared.set_state(EndpointState::Error);
        }
        true
    }

    /// How many receives were ever submitted.
    fn receives_submitted(&self) -> u32 {
        let [_, receives] = self.submitted;
        self.shared.recv.sequence(receives)
    }
}

/// The way to the datapath process.
pub(crate) struct Attachment {
    device: &'static Device,
    link: Arc<Link>,
    arena: Arc<Arena>,
    submitter: Submitter,
    listener: Listener,
    /// What the process is woken by.
    waker: sys::Waker,
    vis: Vec<Option<ViLocal>>,
    /// VIs with something to submit that there was no room for.
    run: VecDeque<ViIndex>,
    pub(crate) armed: Option<WakeSource>,
    pub(crate) happened: Event,
    /// The process is gone.
    lost: bool,
    /// Turns in a row that found nothing, since others could have the core.
    idle_turns: u32,
}

impl Attachment {
    pub(crate) fn new(
        device: &'static Device,
        link: Arc<Link>,
        arena: Arena,
        waker: sys::Waker,
    ) -> Self {
        let places = device.config.max_vi as usize;
        Self {
            device,
            link,
            arena: Arc::new(arena),
            submitter: Submitter::default(),
            listener: Listener::default(),
            waker,
            vis: (0..places).map(|_| None).collect(),
            run: VecDeque::with_capacity(places),
            armed: None,
            happened: Event::NONE,
            lost: false,
            idle_turns: 0,
        }
    }

    /// The process is gone.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost
    }

    /// Begins to serve a VI that the process made.
    pub(crate) fn add(
        &mut self,
        shared: &'static ViShared,
        handle: u64,
        remote: u64,
        (send_cq, recv_cq): (Option<&'static CqShared>, Option<&'static CqShared>),
    ) {
        let raw = RawHandle::unpack(remote);
        let index = shared.index.0;
        if let Some(place) = self.vis.get_mut(index as usize) {
            *place = Some(ViLocal {
                shared,
                handle,
                name: ViName {
                    index: raw.index as u16,
                    generation: raw.generation,
                },
                send_reports: Reports::of(send_cq, index, false),
                recv_reports: Reports::of(recv_cq, index, true),
                submitted: [0; 2],
                queued: false,
                standing: Standing::default(),
            });
        }
    }

    /// Which VI is served in a place, by its handle here.
    pub(crate) fn served_at(&self, place: ViIndex) -> Option<u64> {
        let local = self.vis.get(place.0 as usize)?.as_ref()?;
        Some(local.handle)
    }

    /// Serves a VI no more; gives the completion queues that it reported to.
    pub(crate) fn remove(&mut self, vi: ViIndex) -> [Option<&'static CqShared>; 2] {
        match self.vis.get_mut(vi.0 as usize).and_then(Option::take) {
            Some(local) => [local.send_reports.cq, local.recv_reports.cq],
            None => [None, None],
        }
    }

    pub(crate) fn has_unsent(&self) -> bool {
        !self.run.is_empty()
    }

    /// One turn of bounded work. True if anything was done.
    #[inline(never)]
    pub(crate) fn turn(&mut self, doorbells: &Doorbells) -> bool {
        let rung = self.submit_rung(doorbells);
        let waited = self.submit_waiting();
        let worked = self.listen() || rung || waited;
        self.idle_turns = if worked {
            0
        } else {
            self.idle_turns.wrapping_add(1)
        };
        worked
    }

    /// After some turns that find nothing, and again after as many.
    #[inline]
    pub(crate) fn gives_way(&mut self) -> bool {
        let is_time = self.idle_turns >= self.device.patience.turns();
        if is_time {
            self.idle_turns = 0;
        }
        is_time
    }

    /// Submits what was just posted on a VI, behind all that was posted before.
    #[inline]
    pub(crate) fn kick(&mut self, vi: ViIndex, doorbells: &Doorbells) {
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

    /// Submits what there was no room for before, as far as there is now. True if one VI has
    /// nothing left.
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

    /// Is so much submitted of what was posted on a VI's receive queue, or will nobody take it?
    pub(crate) fn has_submitted(&self, vi: ViIndex, receives: u32) -> bool {
        let local = self.vis.get(vi.0 as usize).and_then(Option::as_ref);
        let submitted = local.map(|local| local.receives_submitted().wrapping_sub(receives));
        self.lost || submitted.is_none_or(|beyond| beyond.cast_signed() >= 0)
    }

    /// The connection that a VI is at; 0 if it ended.
    pub(crate) fn connection(&mut self, vi: ViIndex) -> u16 {
        self.local_at(vi)
            .map_or(0, |local| local.standing.connection())
    }

    /// The state of a VI in an answer to what was asked in this connection; false if it is at
    /// another one now.
    pub(crate) fn hear(&mut self, vi: ViIndex, connection: u16, state: EndpointState) -> bool {
        if self.lost {
            return true;
        }
        let Some(local) = self.local_at(vi) else {
            return true;
        };
        if local.standing.connection() != connection {
            return false;
        }
        if !local.standing.is_broken() {
            local.shared.set_state(state);
        }
        true
    }

    /// The connection of a VI is about to be ended: the descriptors of both queues that the
    /// process has by then, as numbers on the queues.
    pub(crate) fn begin_leaving(&mut self, vi: ViIndex) -> Option<[u32; 2]> {
        let local = self.local_at(vi)?;
        local.standing.begin_leaving();
        let [sends, receives] = local.submitted;
        Some([
            local.shared.send.sequence(sends),
            local.shared.recv.sequence(receives),
        ])
    }

    /// What [`Self::begin_leaving`] began was done, or refused.
    pub(crate) fn end_leaving(&mut self, vi: ViIndex, done: bool) {
        let Some(local) = self.local_at(vi) else {
            return;
        };
        local.standing.end_leaving();
        if done {
            local.standing.leave();
            let state = if local.standing.is_broken() {
                EndpointState::Error
            } else {
                EndpointState::Idle
            };
            local.shared.set_state(state);
        }
    }

    fn local_at(&mut self, vi: ViIndex) -> Option<&mut ViLocal> {
        self.vis.get_mut(vi.0 as usize)?.as_mut()
    }

    #[inline]
    fn wake_process(&mut self) {
        if self.arena.must_wake_process() {
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

    /// Submits what is posted on a VI: receives first, since what is sent may bring answers.
    /// False if there is no room for all of it.
    #[inline]
    fn submit_posted(&mut self, vi: ViIndex) -> bool {
        if self.lost {
            self.flush(vi);
            return true;
        }
        let Some(local) = self.vis.get_mut(vi.0 as usize).and_then(Option::as_mut) else {
            return true;
        };
        let all = local.submit(&mut self.submitter, &self.arena);
        if !all && !local.queued {
            local.queued = true;
            self.run.push_back(vi);
        }
        all
    }

    /// Takes what the process tells. True if there was anything.
    #[inline]
    fn listen(&mut self) -> bool {
        let mut taken = 0;
        while taken < BUDGET {
            let Some((name, told)) = self.listener.take(&self.arena) else {
                break;
            };
            taken += 1;
            match told {
                Told::Sent(completed) => self.complete(name, false, completed),
                Told::Received(completed) => self.complete(name, true, completed),
                Told::Error {
                    code,
                    resource,
                    op_code,
                } => self.error(name, code, resource, op_code),
            }
        }
        if taken > 0 {
            self.listener.give_back(&self.arena);
        }
        if taken == BUDGET {
            // The process may sleep until a full ring has room. Fewer need not be told: one that
            // found the ring full although they were given back left more than a budget in it.
            self.wake_process();
        }
        taken > 0
    }

    /// The VI of this name, unless it ended.
    #[inline]
    fn local(&mut self, name: ViName) -> Option<&mut ViLocal> {
        let local = self.vis.get_mut(usize::from(name.index))?.as_mut()?;
        (local.name == name).then_some(local)
    }

    #[inline]
    fn complete(&mut self, name: ViName, receive: bool, completed: Completed) {
        let device = self.device;
        let Some(local) = self.local(name) else {
            return;
        };
        let has_immediate = receive && completed.status & status::IMMEDIATE != 0;
        let ending = Ending {
            word: completed.status,
            length_bytes: completed.length_bytes,
            immediate: has_immediate.then_some(completed.immediate),
        };
        let count = &mut local.submitted[usize::from(receive)];
        *count = count.saturating_sub(1);
        let (queue, reports) = if receive {
            (&local.shared.recv, local.recv_reports)
        } else {
            (&local.shared.send, local.send_reports)
        };
        let tag = local.shared.tag_check();
        let (handle, shared) = (local.handle, local.shared);
        // The process completes what was posted.
        if let Some(posting) = device.posting().filter(|_| queue.depth() > 0) {
            posting.complete();
        }
        if device.regions.has_bounce_buffers() {
            // SAFETY: we run under the turn, and have no reference to a slot.
            unsafe {
                bounce_buffers::copy_from_bounce_buffers(&device.regions, tag, queue, ending)
            };
        }
        // SAFETY: we run under the turn, and have no reference to a slot.
        let ended = unsafe { complete_head(queue, &device.regions, tag, ending) };
        let Some((sequence, lost)) = ended else {
            return;
        };
        self.happened |= reports.event;
        if let Some(cq) = reports.cq {
            let entry = Entry {
                vi: handle,
                sequence,
                receive,
            };
            // SAFETY: we run under the turn.
            unsafe { add_entry(cq, entry) };
        }
        if let Some(descriptor) = lost {
            let event = lost_descriptor(handle, shared, receive, descriptor, ending.word);
            device.events.push(event);
            // A connection that is being ended ends in order.
            if let Some(local) = self.local(name)
                && local.shared.state() == EndpointState::Connected
                && !local.standing.is_leaving()
            {
                local.shared.broken.store(true, Ordering::Release);
                let vi = local.shared.index;
                self.enqueue(vi);
            }
        }
    }

    #[cold]
    fn error(&mut self, name: ViName, code: u32, resource: u32, op_code: u32) {
        let (Some(code), Some(resource)) = (ErrorCode::of(code), ResourceCode::of(resource)) else {
            return;
        };
        if name.generation == 0 {
            self.device.events.push(AsyncEvent::of_nic());
            self.happened = Event::ALL;
            return;
        }
        let Some(local) = self.local(name) else {
            return;
        };
        let OpCode {
            op_code,
            is_orderly,
            connection,
        } = OpCode::of(op_code);
        let event = AsyncEvent {
            vi: local.handle,
            instance: local.shared.instance(),
            cq: 0,
            descriptor: 0,
            op_code,
            resource,
            code,
            is_orderly,
        };
        // Every error of a reliable VI breaks it, and the loss of its connection any; what is
        // posted from now on comes back at once. It may be of a connection that was ended since.
        let breaks = code == ErrorCode::ConnLost || local.shared.settings().reliability != 1;
        if breaks && local.standing.broke_in(connection) {
            local.shared.set_state(EndpointState::Error);
        }
        self.happened |= Event::CONTROL;
        self.device.events.push(event);
    }

    /// Periodic check for the end of the process. Its end while this program closes the NIC is no loss.
    pub(crate) fn upkeep(&mut self) {
        if !self.lost && !self.link.is_ending() && self.link.is_over() {
            self.lose();
        }
    }

    /// The process is gone: every VI is in Error, what is posted comes back, and everybody is
    /// told (VIPL 3.8.1, 6.3.1).
    #[cold]
    fn lose(&mut self) {
        // What it completed before its end counts.
        while self.listen() {}
        self.lost = true;
        self.link.shut_down();
        log::error!(
            "NIC {}: the datapath process is gone: close the NIC, and open it again when it is back",
            self.device.config.name
        );
        for index in 0..self.vis.len() {
            let Some(local) = &self.vis[index] else {
                continue;
            };
            let shared = local.shared;
            if shared.state() == EndpointState::Connected && !local.standing.is_leaving() {
                self.device.events.push(AsyncEvent::of_vi(
                    local.handle,
                    shared.instance(),
                    vi_engine::AsyncError::ConnectionLost,
                ));
            }
            shared.set_state(EndpointState::Error);
            self.flush(shared.index);
        }
        self.device.events.push(AsyncEvent::of_nic());
        self.happened = Event::ALL;
    }

    /// Gives back what is posted on a VI.
    pub(crate) fn flush(&mut self, vi: ViIndex) {
        for receive in [false, true] {
            loop {
                let Some(local) = self.vis.get(vi.0 as usize).and_then(Option::as_ref) else {
                    return;
                };
                let (name, shared) = (local.name, local.shared);
                let queue = if receive { &shared.recv } else { &shared.send };
                // SAFETY: we run under the turn; the reference is not kept.
                let Some(slot) = (unsafe { queue.head() }) else {
                    break;
                };
                let op = if receive {
                    status::OP_RECEIVE
                } else {
                    crate::descriptor::send_operation(slot.control)
                };
                let flushed = Completed {
                    status: status::DESC_FLUSHED_ERROR | op | status::DONE,
                    ..Completed::default()
                };
                self.complete(name, receive, flushed);
            }
        }
    }

    /// From now on the process wakes who sleeps on this.
    pub(crate) fn arm(&mut self) -> WakeSource {
        let expected = self.arena.application_lies_down();
        if self.lost {
            return WakeSource::Poll;
        }
        WakeSource::Futex {
            word: FutexWord::new(Arc::clone(&self.arena) as _),
            expected,
        }
    }

    /// Nobody sleeps any more.
    pub(crate) fn disarm(&mut self) {
        self.arena.application_is_up();
    }
}
