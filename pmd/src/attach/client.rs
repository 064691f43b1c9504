//! Applications as the poller sees them: what they submit, and what they are told.
//!
//! Nothing that an application writes is believed: a submission is copied once, into a slot of
//! the process's own, and checked there. Who breaks the rules of the rings is heard no more and
//! loses its connection; nobody else notices.

use std::collections::VecDeque;
use std::sync::Arc;

use nix::unistd::geteuid;
use vi_engine::{Claim, EndpointState, Host, ViIndex};

use super::arena::{Arena, Completed, Nonsense, Submission, Taker, Teller, Told, ViName};
use super::socket::Socket;
use crate::completion::Ending;
use crate::datapath::{Datapath, Side, ViPath};
use crate::descriptor::{control, status};
use crate::events::AsyncEvent;
use crate::queue::{Slot, Spills};
use crate::sync::{AtomicU64, Ordering};
use crate::sys;
use crate::vi::{RawHandle, ViShared};

/// Submissions of one application that are taken in one turn, for each unit of its share.
const BUDGET: u32 = 8;
/// Errors that wait for an application that does not listen.
const MAX_ERRORS: usize = 1024;

/// An application on one NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientId(pub(crate) u32);

/// What an application did, for those who look.
#[derive(Debug, Default)]
pub(crate) struct ClientCounters {
    /// Descriptors submitted.
    pub(crate) submitted: AtomicU64,
    /// Descriptors completed.
    pub(crate) completed: AtomicU64,
    /// Submissions for VIs that were gone.
    pub(crate) stale: AtomicU64,
    /// Asynchronous errors that it could not be told.
    pub(crate) errors_dropped: AtomicU64,
}

/// Adds to a counter that only the poller changes.
fn count(counter: &AtomicU64) {
    counter.store(
        counter.load(Ordering::Relaxed).wrapping_add(1),
        Ordering::Relaxed,
    );
}

/// What an application may have of the data path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Segments of a descriptor.
    pub(crate) segments: u32,
    /// Descriptors that are not complete; what is submitted beyond them waits in the ring.
    pub(crate) descriptors: u32,
    /// Its weight against others.
    pub(crate) share: u32,
}

impl Limits {
    /// Submissions that are taken of it in a turn.
    fn in_turn(self) -> u32 {
        BUDGET.saturating_mul(self.share)
    }
}

/// An application that is served.
pub(crate) struct Client {
    /// Its user, as the kernel named it.
    uid: libc::uid_t,
    arena: Arena,
    taker: Taker,
    teller: Teller,
    /// What it wakes the poll thread by.
    _wakeup: sys::ClientWakeup,
    /// The conversation that it lives by.
    socket: Arc<Socket>,
    counters: Arc<ClientCounters>,
    limits: Limits,
    /// Descriptors that were taken and are not complete.
    uncompleted: u32,
    /// What may still be taken in this turn: in its share, and for messages that find nothing.
    left: u32,
    left_to_claims: u32,
    /// Work queues with completions that there was no room for, each once.
    untold: VecDeque<(ViIndex, Side)>,
    /// Room for the segments of its descriptors that are posted.
    spills: Spills,
    errors: VecDeque<(ViName, Told)>,
    /// It was told something since it was last woken.
    told: bool,
    /// The rule that it broke.
    pub(crate) broken: Option<Nonsense>,
}

impl Client {
    pub(crate) fn new(
        uid: libc::uid_t,
        arena: Arena,
        wakeup: sys::ClientWakeup,
        socket: Arc<Socket>,
        counters: Arc<ClientCounters>,
        limits: Limits,
    ) -> Self {
        Self {
            uid,
            arena,
            taker: Taker::default(),
            teller: Teller::default(),
            _wakeup: wakeup,
            socket,
            counters,
            limits,
            uncompleted: 0,
            left: 0,
            left_to_claims: 0,
            untold: VecDeque::new(),
            spills: Spills::new(),
            errors: VecDeque::new(),
            told: false,
            broken: None,
        }
    }

    /// Its weight against others.
    pub(crate) fn share(&self) -> u32 {
        self.limits.share
    }

    /// It wrote what it never writes: its conversation ends, and with it all that it has.
    #[cold]
    fn give_up(&mut self, nonsense: Nonsense) {
        if self.broken.is_none() {
            self.broken = Some(nonsense);
            // The application sees its end only when nothing of it is reached any more, which the
            // thread that waits for the end of this connection sees to.
            self.socket.shut_down_reading();
        }
    }

    fn has_room(&mut self) -> bool {
        if self.broken.is_some() {
            return false;
        }
        match self.teller.has_room(&self.arena) {
            Ok(room) => room,
            Err(nonsense) => {
                self.give_up(nonsense);
                false
            }
        }
    }

    #[inline]
    fn tell(&mut self, vi: ViName, told: Told) {
        self.teller.tell(&self.arena, vi, told);
        self.told = true;
    }

    /// Tells of what is complete on a queue, as far as there is room; true if that was all.
    fn tell_queue(&mut self, vi: &ViShared, name: ViName, side: Side) -> bool {
        let queue = match side {
            Side::Send => &vi.send,
            Side::Receive => &vi.recv,
        };
        let mut end = queue.reap_end.hold();
        while queue.has_complete() {
            if !self.has_room() {
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
            self.tell_completed(name, side, completed);
        }
        true
    }

    #[inline]
    fn tell_completed(&mut self, vi: ViName, side: Side, completed: Completed) {
        count(&self.counters.completed);
        let told = match side {
            Side::Send => Told::Sent(completed),
            Side::Receive => Told::Received(completed),
        };
        self.tell(vi, told);
    }
}

/// A VI's name as its application has it.
fn name_of(path: &ViPath) -> ViName {
    let raw = RawHandle::unpack(path.handle);
    ViName {
        index: raw.index as u16,
        generation: raw.generation,
    }
}

/// All applications of one NIC.
#[derive(Default)]
pub(crate) struct Clients {
    places: Vec<Option<Box<Client>>>,
}

impl Clients {
    /// Nobody is served: the NIC's own program has it.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Is anybody served?
    #[cfg(test)]
    pub(crate) fn serves_any(&self) -> bool {
        self.places.iter().any(Option::is_some)
    }

    /// Begins to serve an application.
    pub(crate) fn add(&mut self, client: Client) -> ClientId {
        let free = self.places.iter().position(Option::is_none);
        let place = free.unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[place] = Some(Box::new(client));
        ClientId(place as u32)
    }

    /// Serves an application no more; its VIs are ended before.
    pub(crate) fn remove(&mut self, id: ClientId) -> Option<Box<Client>> {
        self.places.get_mut(id.0 as usize).and_then(Option::take)
    }

    #[inline]
    fn get(&mut self, id: ClientId) -> Option<&mut Client> {
        self.places.get_mut(id.0 as usize)?.as_deref_mut()
    }

    /// The head of a queue of an application's VI is complete: it is told at once, or, behind
    /// what there was no room for, when there is room.
    #[inline]
    pub(crate) fn complete(&mut self, id: ClientId, path: &mut ViPath, side: Side, ending: Ending) {
        let queue = match side {
            Side::Send => &path.shared.send,
            Side::Receive => &path.shared.recv,
        };
        if queue.depth() == 0 {
            return;
        }
        if ending.word & status::ERROR_MASK == 0 {
            path.traffic.messages[side as usize] += 1;
            path.traffic.bytes[side as usize] += u64::from(ending.length_bytes);
        }
        let completed = Completed {
            status: ending.word,
            length_bytes: ending.length_bytes,
            immediate: ending.immediate.unwrap_or_default(),
        };
        let untold = &mut path.untold[side as usize];
        let mut client = self.get(id);
        if let Some(client) = &mut client {
            client.uncompleted = client.uncompleted.saturating_sub(1);
            if !*untold && client.untold.is_empty() && client.has_room() {
                queue.retire_head(&mut queue.reap_end.hold(), &mut client.spills);
                client.tell_completed(name_of(path), side, completed);
                return;
            }
            if !*untold {
                *untold = true;
                client.untold.push_back((path.shared.index, side));
            }
        }
        // SAFETY: we run under the turn; the reference ends with the completion below.
        if let Some(slot) = unsafe { queue.head() } {
            slot.status = completed.status;
            slot.length_bytes = completed.length_bytes;
            slot.immediate = completed.immediate;
            // It counts no more among what the application has posted.
            if let Some(client) = client {
                client.spills.take_back(slot);
            }
            queue.complete_head();
        }
    }

    /// A VI of an application's ended: there is nothing more to tell of it.
    pub(crate) fn forget(&mut self, path: &ViPath) {
        let Some(client) = path.client.and_then(|id| self.get(id)) else {
            return;
        };
        // Its end has completed what was on its queues; should anything be left, it ends here.
        let left = path.shared.send.depth() + path.shared.recv.depth();
        client.uncompleted = client.uncompleted.saturating_sub(left);
        if path.untold != [false; 2] {
            client.untold.retain(|(vi, _)| *vi != path.shared.index);
        }
    }

    /// An asynchronous error of an application's, told after what completed before.
    pub(crate) fn report(&mut self, id: ClientId, event: &AsyncEvent) {
        let Some(client) = self.get(id) else {
            return;
        };
        let raw = RawHandle::unpack(event.vi);
        let name = ViName {
            index: raw.index as u16,
            generation: raw.generation,
        };
        if client.errors.len() >= MAX_ERRORS {
            count(&client.counters.errors_dropped);
            return;
        }
        let told = Told::Error {
            code: event.code as u32,
            resource: event.resource as u32,
            op_code: event.op_code,
        };
        client.errors.push_back((name, told));
    }

    /// Before the poller sleeps: from now on whoever submits something wakes it.
    pub(crate) fn lie_down(&self) {
        for client in self.places.iter().flatten() {
            client.arena.process_lies_down();
        }
    }

    /// Turns in which all is taken that an application's ring holds.
    pub(crate) fn turns_of_ring(&mut self, id: ClientId) -> u32 {
        self.get(id).map_or(0, |client| {
            let lines = client.arena.submissions();
            lines.div_ceil(client.limits.in_turn().max(1))
        })
    }

    /// Was all taken of an application in the last turn that could be taken?
    pub(crate) fn is_taken(&mut self, id: ClientId) -> bool {
        self.get(id).is_none_or(|client| client.left > 0)
    }

    /// Does an application that was told something have to make room for more?
    pub(crate) fn has_untold(&self) -> bool {
        let mut all = self.places.iter().flatten();
        all.any(|client| !client.untold.is_empty() || !client.errors.is_empty())
    }

    /// The poller is awake.
    pub(crate) fn get_up(&self) {
        for client in self.places.iter().flatten() {
            client.arena.process_is_up();
        }
    }
}

impl Datapath {
    /// Returns the user of the application whose VI this is, or of this program if it serves none.
    pub(crate) fn user_of(&mut self, vi: ViIndex) -> Option<libc::uid_t> {
        match self.vi(vi)?.client {
            Some(id) => self.clients.get(id).map(|client| client.uid),
            None => Some(geteuid().as_raw()),
        }
    }

    /// Takes what applications submitted, of each no more than its share. True if there was any.
    /// Begins a turn for each.
    #[inline(never)]
    pub(crate) fn take_submissions(&mut self) -> bool {
        let mut worked = false;
        for place in 0..self.clients.places.len() {
            let id = ClientId(place as u32);
            let Some(client) = self.clients.get(id) else {
                continue;
            };
            let share = client.limits.in_turn();
            client.left_to_claims = client.arena.submissions();
            let taken = self.take_of(id, share);
            if let Some(client) = self.clients.get(id) {
                client.left = share - taken;
            }
            worked |= taken > 0;
        }
        worked
    }

    /// A message finds nothing posted: what its receiver submitted before the sender sent it, and
    /// was not looked at since, counts. Once round the ring in a turn, for all messages together:
    /// who submits that much while others wait for their turns has lost the message.
    #[inline(never)]
    pub(crate) fn claim_submitted(&mut self, vi: ViIndex) -> Claim {
        let Some(id) = self.vi(vi).and_then(|path| path.client) else {
            return Claim::Empty;
        };
        let budget = self
            .clients
            .get(id)
            .map_or(0, |client| client.left_to_claims);
        let taken = self.take_of(id, budget);
        if taken == 0 {
            return Claim::Empty;
        }
        if let Some(client) = self.clients.get(id) {
            client.left_to_claims -= taken;
        }
        match self.vi(vi) {
            Some(path) if path.has_unclaimed() => self.claim_receive(vi),
            _ => Claim::Empty,
        }
    }

    /// Takes up to so many submissions of an application; how many there were.
    fn take_of(&mut self, id: ClientId, budget: u32) -> u32 {
        let Some(mut client) = self
            .clients
            .places
            .get_mut(id.0 as usize)
            .and_then(Option::take)
        else {
            return 0;
        };
        // Out of its place, so that the rest of the data path can be used beside it.
        let mut flush = Vec::new();
        let mut taken = 0;
        // What is written while it is taken comes next time: it could go on for ever.
        let end = client.taker.end_of_ring(&client.arena);
        while taken < budget && client.broken.is_none() && !client.taker.is_at(end) {
            match self.take_one(&mut client, id) {
                Ok(Some(unconnected)) => {
                    taken += 1;
                    flush.extend(unconnected);
                }
                Ok(None) => break,
                Err(nonsense) => client.give_up(nonsense),
            }
        }
        client.taker.give_back(&client.arena);
        self.clients.places[id.0 as usize] = Some(client);
        for (vi, side) in flush {
            self.flush_queue(vi, side);
        }
        taken
    }

    /// Takes one submission, if there is one; gives the queue that has to be flushed, since its
    /// VI is in no state to process anything.
    #[inline]
    fn take_one(
        &mut self,
        client: &mut Client,
        id: ClientId,
    ) -> Result<Option<Option<(ViIndex, Side)>>, Nonsense> {
        let Some(submitted) = client.taker.peek(&client.arena, client.limits.segments)? else {
            return Ok(None);
        };
        let vi = ViIndex(submitted.vi.index.into());
        let path = self
            .vi(vi)
            .filter(|path| path.client == Some(id) && name_of(path) == submitted.vi);
        let Some(path) = path else {
            count(&client.counters.stale);
            client.taker.advance(&submitted);
            return Ok(Some(None));
        };
        let shared = path.shared;
        let (queue, side) = match submitted.what {
            Submission::Send => (&shared.send, Side::Send),
            Submission::Receive => (&shared.recv, Side::Receive),
            Submission::Break => {
                shared.broken.store(true, Ordering::Release);
                self.enqueue(vi);
                client.taker.advance(&submitted);
                return Ok(Some(None));
            }
        };
        // The library refuses such a post; one that does not has it wait.
        if client.uncompleted >= client.limits.descriptors {
            return Ok(None);
        }
        let max_bytes = shared.max_transfer_bytes.load(Ordering::Relaxed);
        let reads = shared.reads.load(Ordering::Relaxed);
        let epoch = self.regions.epoch();
        let mut copied = Ok(());
        let posted = queue.post(&mut queue.post_end.hold(), |slot| {
            client.spills.lend(slot, submitted.segments);
            copied = client.taker.copy(&client.arena, &submitted, slot);
            if copied.is_err() {
                slot.forget_segments();
            }
            slot.epoch = epoch.wrapping_sub(1);
            check(slot, side, reads, max_bytes);
        });
        copied?;
        if !posted {
            return Err(Nonsense("more descriptors than a queue holds"));
        }
        client.taker.advance(&submitted);
        client.uncompleted += 1;
        count(&client.counters.submitted);
        let state = shared.state();
        if side == Side::Send {
            self.enqueue(vi);
        }
        let flushes = match side {
            Side::Send => state != EndpointState::Connected,
            Side::Receive => {
                if shared.tells_receives.load(Ordering::Relaxed) {
                    self.enqueue(shared.index);
                }
                state == EndpointState::Error
            }
        };
        Ok(Some(flushes.then_some((vi, side))))
    }

    /// Ends a turn for the applications: tells them what there was no room for before, and wakes
    /// those who sleep.
    #[inline(never)]
    pub(crate) fn settle_clients(&mut self) {
        for place in 0..self.clients.places.len() {
            let Some(client) = self.clients.places[place].as_deref_mut() else {
                continue;
            };
            while let Some((vi, side)) = client.untold.front().copied() {
                let path = self.vis.get_mut(vi.0 as usize).and_then(Option::as_mut);
                let path = path.filter(|path| path.client == Some(ClientId(place as u32)));
                if let Some(path) = path {
                    if !client.tell_queue(path.shared, name_of(path), side) {
                        break;
                    }
                    path.untold[side as usize] = false;
                }
                client.untold.pop_front();
            }
            while !client.errors.is_empty() && client.untold.is_empty() && client.has_room() {
                if let Some((name, told)) = client.errors.pop_front() {
                    client.tell(name, told);
                }
            }
            if client.told {
                client.told = false;
                client.arena.wake_application();
            }
        }
    }
}

/// Checks what the library should have seen to, and has the descriptor fail if it did not.
fn check(slot: &mut Slot, side: Side, reads: bool, max_bytes: u32) {
    slot.fault &= status::ERROR_MASK;
    if slot.fault != 0 {
        slot.forget_segments();
        slot.length_bytes = 0;
        return;
    }
    let sum: u64 = match slot.data() {
        [only] => only.length.into(),
        segments => segments.iter().map(|s| u64::from(s.length)).sum(),
    };
    let op = slot.control & control::OP_MASK;
    let (known, fits) = match side {
        Side::Receive => {
            slot.length_bytes = u32::try_from(sum).unwrap_or(u32::MAX);
            (op == control::OP_SEND_RECV, true)
        }
        Side::Send => (
            match op {
                control::OP_SEND_RECV | control::OP_RDMA_WRITE => true,
                control::OP_RDMA_READ => reads && slot.control & control::IMMEDIATE == 0,
                _ => false,
            },
            sum == u64::from(slot.length_bytes) && sum <= u64::from(max_bytes),
        ),
    };
    if !known || slot.control & control::RESERVED != 0 {
        slot.fault = status::FORMAT_ERROR;
    } else if !fits {
        slot.fault = status::LENGTH_ERROR;
    }
    if slot.fault != 0 {
        slot.length_bytes = 0;
    }
}

#[cfg(test)]
mod tests;
