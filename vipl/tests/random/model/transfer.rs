//! What a provider does on its own: sends what is posted, places what arrives, ends what is broken.

use vipl::{ErrorCode, ResourceCode, ViState};

use super::descriptor::{Segment, errors};
use super::state::{Bytes, Completion, Entry, Onward, State, Told};
use super::tables::{Tables, Use};
use crate::program::Side;

const UNRELIABLE: u16 = 1;
/// Completed-operation code of a receive that an RDMA write took.
const REMOTE_RDMA_WRITE: u32 = 3;

pub(super) fn failed(errors: u32, operation: Option<u32>, side: Side) -> Completion {
    Completion {
        errors,
        operation,
        immediate: None,
        length_bytes: (side == Side::Receive).then_some(0),
        placed: None,
        lost: false,
    }
}

/// An asynchronous error about a VI.
pub(super) fn about(vi: u64, code: ErrorCode) -> Told {
    Told {
        vi,
        code: code as u32,
        resource: ResourceCode::Vi as u32,
        descriptor: 0,
    }
}

impl State {
    /// Each state that one act of the provider leads to; none if there is nothing left to do.
    pub(crate) fn acts(&self, tables: &Tables) -> Vec<State> {
        let mut next = Vec::new();
        for (&handle, vi) in &self.vis {
            if vi.broken {
                let mut state = self.clone();
                state.fail(tables, handle);
                next.push(state);
            } else if vi.state == ViState::Connected {
                next.extend(self.send_one(tables, handle));
                next.extend(self.serve_read(tables, handle));
            }
        }
        next.extend(self.peer_acts(tables));
        next.extend(self.calls_of_handlers());
        for (&link, found) in &self.links {
            for to in [0, 1] {
                // Whoever does not know yet that it is connected hears that first.
                if found.onward[to].is_empty() || self.is_joining(found.vis[to]) {
                    continue;
                }
                next.extend(self.arrive(tables, link, to));
                if found.cut[to] && found.onward[to].len() > 1 {
                    let mut state = self.clone();
                    state.drop_onward(tables, link, to);
                    if let Some(link) = state.links.get_mut(&link) {
                        link.onward[to].push_back(Onward::End);
                    }
                    next.push(state);
                }
            }
        }
        next
    }

    /// Completes one descriptor alone. Memory of it that is gone breaks the VI at once (VIPL 3.8.1, 6.3.1).
    pub(super) fn complete_one(
        &mut self,
        tables: &Tables,
        vi: u64,
        side: Side,
        completion: Completion,
    ) {
        let (entry, lost) = self.complete(tables, vi, side, completion);
        self.add_entries(entry);
        if lost {
            self.fail(tables, vi);
        }
    }

    /// Completes all that is pending on both queues, in the order of each (VIPL 3.3.5).
    pub(super) fn flush(&mut self, tables: &Tables, vi: u64) {
        let mut entries = Vec::new();
        for side in [Side::Send, Side::Receive] {
            self.flush_into(tables, vi, side, &mut entries);
        }
        self.add_entries(entries);
    }

    /// Completes all that is pending on one queue.
    pub(super) fn flush_side(&mut self, tables: &Tables, vi: u64, side: Side) {
        let mut entries = Vec::new();
        self.flush_into(tables, vi, side, &mut entries);
        self.add_entries(entries);
    }

    fn flush_into(
        &mut self,
        tables: &Tables,
        vi: u64,
        side: Side,
        entries: &mut Vec<(u64, Entry)>,
    ) {
        while let Some(posted) = self.vis[&vi].queue(side).next().cloned() {
            let operation = posted.completed_operation();
            let completion = failed(errors::FLUSHED, operation, side);
            entries.extend(self.complete(tables, vi, side, completion).0);
            self.note_uncertain(tables, &Bytes(posted));
        }
    }

    /// An RDMA write that may end in the middle, and was not over, may have placed some of its bytes.
    fn note_uncertain(&mut self, tables: &Tables, message: &Bytes) {
        let length = u64::from(message.0.length_bytes);
        if message.0.remote.is_some() && !message.0.is_read() && length > tables.limits.whole_bytes
        {
            self.written.insert(message.0.id, (message.clone(), false));
        }
    }

    /// Drops what is on its way to one end of a connection.
    fn drop_onward(&mut self, tables: &Tables, link: u64, to: usize) {
        let Some(found) = self.links.get_mut(&link) else {
            return;
        };
        for dropped in core::mem::take(&mut found.onward[to]) {
            if let Onward::Message(message) = dropped {
                self.note_uncertain(tables, &message);
            }
        }
    }

    /// Takes a VI out of its connection; the other end will hear of it.
    pub(super) fn leave(&mut self, tables: &Tables, vi: u64) {
        let Some(link) = self.vi_mut(vi).link.take() else {
            return;
        };
        let Some(found) = self.links.get_mut(&link) else {
            return;
        };
        let to = usize::from(found.vis[0] == vi);
        found.onward[to].push_back(Onward::End);
        // Nobody takes what is still on its way to this VI.
        self.drop_onward(tables, link, 1 - to);
        self.vi_mut(vi).owed.clear();
        self.tidy_links();
    }

    fn tidy_links(&mut self) {
        let vis = &self.vis;
        self.links.retain(|number, link| {
            link.vis
                .iter()
                .any(|vi| vis.get(vi).is_some_and(|vi| vi.link == Some(*number)))
        });
    }

    /// The connection breaks here: Error, both queues flushed, the loss told (VIPL 2.4, 6.2).
    pub(super) fn break_here(&mut self, tables: &Tables, vi: u64) {
        if self.vis[&vi].state != ViState::Connected {
            return;
        }
        self.leave(tables, vi);
        self.vi_mut(vi).state = ViState::Error;
        self.flush(tables, vi);
        self.tell(about(vi, ErrorCode::ConnLost));
    }

    /// A fatal error of the program's making: Error at every level and in every state (VIPL 6.3.1).
    fn fail(&mut self, tables: &Tables, vi: u64) {
        self.vi_mut(vi).broken = false;
        match self.vis[&vi].state {
            ViState::Connected => self.break_here(tables, vi),
            ViState::Idle | ViState::ConnectPending => {
                self.leave(tables, vi);
                self.vi_mut(vi).asking = None;
                self.vi_mut(vi).peer = None;
                self.vi_mut(vi).state = ViState::Error;
                self.flush(tables, vi);
            }
            ViState::Error => {}
        }
    }

    /// A host to which there is no way leads a reliable VI to Error (VIPL 3.3.4, 3.3.7).
    pub(crate) fn cannot_reach(&mut self, tables: &Tables, vi: u64) {
        if Self::reliable(tables, vi) {
            self.vi_mut(vi).state = ViState::Error;
            self.flush(tables, vi);
        }
    }

    pub(super) fn reliable(tables: &Tables, vi: u64) -> bool {
        tables.vis[&vi].attributes.reliability != UNRELIABLE
    }

    pub(super) fn break_reliable(&mut self, tables: &Tables, vi: u64) {
        if Self::reliable(tables, vi) {
            self.break_here(tables, vi);
        }
    }

    /// The oldest thing on its way to a VI is there.
    fn arrive(&self, tables: &Tables, link: u64, to: usize) -> Vec<State> {
        let mut state = self.clone();
        let Some(found) = state.links.get_mut(&link) else {
            return Vec::new();
        };
        let vi = found.vis[to];
        let Some(arrived) = found.onward[to].pop_front() else {
            return Vec::new();
        };
        if state.vis.get(&vi).is_none_or(|vi| vi.link != Some(link)) {
            // It left: whatever comes is dropped.
            return vec![state];
        }
        match arrived {
            Onward::End => {
                state.vi_mut(vi).link = None;
                state.vi_mut(vi).owed.clear();
                state.vi_mut(vi).state = ViState::Error;
                state.flush(tables, vi);
                state.tell(about(vi, ErrorCode::ConnLost));
                state.tidy_links();
                vec![state]
            }
            Onward::Answer { id, errors } => {
                state.answered(tables, vi, id, errors);
                vec![state]
            }
            Onward::Message(bytes) if bytes.0.is_read() => {
                state.receive_read(tables, vi, bytes);
                vec![state]
            }
            Onward::Message(bytes) => match bytes.0.remote {
                None => {
                    state.receive(tables, vi, bytes);
                    vec![state]
                }
                Some(target) => state.receive_write(tables, vi, bytes, target),
            },
        }
    }

    /// A message arrives.
    fn receive(&mut self, tables: &Tables, vi: u64, message: Bytes) {
        let id = message.0.id;
        let Some(posted) = self.vis[&vi].recv.next().cloned() else {
            self.tell(about(vi, ErrorCode::RecvqEmpty));
            self.answer(tables, vi, id, errors::REMOTE_DESCRIPTOR);
            self.break_reliable(tables, vi);
            return;
        };
        let mut faults = posted.faults_now(tables, &tables.vis[&vi]);
        if posted.capacity() < u64::from(message.0.length_bytes) {
            faults |= errors::LENGTH;
        }
        if faults != 0 {
            let operation = posted.completed_operation();
            let completion = failed(faults, operation, Side::Receive);
            self.answer(tables, vi, id, errors::REMOTE_DESCRIPTOR);
            self.complete_one(tables, vi, Side::Receive, completion);
            self.break_reliable(tables, vi);
            return;
        }
        let completion = Completion {
            errors: 0,
            operation: posted.completed_operation(),
            immediate: message.0.immediate,
            length_bytes: Some(message.0.length_bytes),
            placed: Some(message),
            lost: false,
        };
        self.answer(tables, vi, id, 0);
        self.complete_one(tables, vi, Side::Receive, completion);
    }

    /// An RDMA write arrives.
    fn receive_write(
        mut self,
        tables: &Tables,
        vi: u64,
        message: Bytes,
        target: Segment,
    ) -> Vec<State> {
        let facts = &tables.vis[&vi];
        let length = u64::from(message.0.length_bytes);
        let (handle, address, id) = (target.handle, target.address, message.0.id);
        let allowed = facts.attributes.rdma_write
            && tables.allows(facts, handle, address, length, Use::RemoteWrite);
        let Some(immediate) = message.0.immediate else {
            if allowed {
                self.written.insert(message.0.id, (message, true));
                self.answer(tables, vi, id, 0);
            } else {
                self.tell(about(vi, ErrorCode::RdmawProt));
                self.answer(tables, vi, id, errors::RDMA_PROTECTION);
                self.break_reliable(tables, vi);
            }
            return vec![self];
        };
        let Some(posted) = self.vis[&vi].recv.next().cloned() else {
            // If it was refused as well, the guide does not say which of the two errors is told.
            let mut states = Vec::new();
            for (code, answer, fits) in [
                (ErrorCode::RecvqEmpty, errors::REMOTE_DESCRIPTOR, true),
                (ErrorCode::RdmawProt, errors::RDMA_PROTECTION, !allowed),
            ] {
                if fits {
                    let mut state = self.clone();
                    state.tell(about(vi, code));
                    state.answer(tables, vi, id, answer);
                    state.break_reliable(tables, vi);
                    states.push(state);
                }
            }
            return states;
        };
        let mut faults = posted.faults_now(tables, facts);
        let mut answer = if faults == 0 {
            0
        } else {
            errors::REMOTE_DESCRIPTOR
        };
        if !allowed {
            faults |= errors::PROTECTION;
            answer |= errors::RDMA_PROTECTION;
        }
        self.answer(tables, vi, id, answer);
        let operation = Some(REMOTE_RDMA_WRITE);
        if faults != 0 {
            let completion = failed(faults, operation, Side::Receive);
            self.complete_one(tables, vi, Side::Receive, completion);
            self.break_reliable(tables, vi);
            return vec![self];
        }
        let completion = Completion {
            errors: 0,
            operation,
            immediate: Some(immediate),
            length_bytes: Some(message.0.length_bytes),
            placed: None,
            lost: false,
        };
        self.written.insert(message.0.id, (message, true));
        self.complete_one(tables, vi, Side::Receive, completion);
        vec![self]
    }
}
