//! What a provider does with a send queue: descriptors in flight, answers, reads (VIPL 2.4, 5.2, 6.1).

use std::rc::Rc;

use vipl::ErrorCode;

use super::descriptor::{Posted, errors};
use super::state::{Bytes, Completion, Onward, State};
use super::tables::{Tables, Use};
use super::transfer::{about, failed};
use crate::program::Side;

/// The bit of Reliable Reception.
const RECEPTION: u16 = 4;

fn succeeded(posted: &Rc<Posted>) -> Completion {
    Completion {
        errors: 0,
        operation: posted.completed_operation(),
        immediate: None,
        length_bytes: Some(posted.length_bytes),
        placed: posted.is_read().then(|| Bytes(Rc::clone(posted))),
        lost: false,
    }
}

impl State {
    fn reception(tables: &Tables, vi: u64) -> bool {
        tables.vis[&vi].attributes.reliability == RECEPTION
    }

    fn send_onward(&mut self, vi: u64, onward: Onward) {
        let link = self.vis[&vi].link;
        if let Some(link) = link.and_then(|link| self.links.get_mut(&link)) {
            let to = usize::from(link.vis[0] == vi);
            link.onward[to].push_back(onward);
        }
    }

    /// The oldest descriptor that is not in flight is processed, if it may be.
    pub(super) fn send_one(&self, tables: &Tables, vi: u64) -> Option<State> {
        let queue = &self.vis[&vi].send;
        let posted = Rc::clone(queue.next_unsent()?);
        let reading = queue.in_flight().any(|item| item.posted.0.is_read());
        if posted.fence && reading {
            return None;
        }
        let mut state = self.clone();
        let alone = queue.in_flight().next().is_none();
        let faults = posted.faults_now(tables, &tables.vis[&vi]);
        if faults != 0 {
            if !alone {
                // It completes when its turn comes; nothing behind it is processed.
                return None;
            }
            let completion = failed(faults, posted.completed_operation(), Side::Send);
            state.complete_one(tables, vi, Side::Send, completion);
            state.break_reliable(tables, vi);
            return Some(state);
        }
        state.send_onward(vi, Onward::Message(Bytes(Rc::clone(&posted))));
        let waits = posted.is_read() || Self::reception(tables, vi);
        if alone && !waits {
            // Complete when every byte was taken: nobody waits for the other end.
            state.complete_one(tables, vi, Side::Send, succeeded(&posted));
            return Some(state);
        }
        if let Some(item) = state.vi_mut(vi).send.pending_mut(posted.id) {
            item.sent = true;
            item.ready = (!waits).then(|| succeeded(&posted));
        }
        Some(state)
    }

    /// Tells the sender what became of its message, at Reliable Reception.
    pub(super) fn answer(&mut self, tables: &Tables, vi: u64, id: u64, errors: u32) {
        if Self::reception(tables, vi) {
            self.send_onward(vi, Onward::Answer { id, errors });
        }
    }

    /// An RDMA read arrives.
    pub(super) fn receive_read(&mut self, tables: &Tables, vi: u64, message: Bytes) {
        let allowed = tables.vis[&vi].attributes.rdma_read;
        if allowed && Self::source_there(tables, vi, &message) {
            self.vi_mut(vi).owed.push_back(message);
        } else {
            self.refuse_read(tables, vi, message.0.id);
        }
    }

    fn source_there(tables: &Tables, vi: u64, message: &Bytes) -> bool {
        let length = u64::from(message.0.length_bytes);
        message.0.remote.is_some_and(|source| {
            let facts = &tables.vis[&vi];
            tables.allows(
                facts,
                source.handle,
                source.address,
                length,
                Use::RemoteRead,
            )
        })
    }

    fn refuse_read(&mut self, tables: &Tables, vi: u64, id: u64) {
        self.tell(about(vi, ErrorCode::RdmarProt));
        let errors = errors::RDMA_PROTECTION;
        self.send_onward(vi, Onward::Answer { id, errors });
        self.break_here(tables, vi);
    }

    /// The data of the oldest read that is owed goes out.
    pub(super) fn serve_read(&self, tables: &Tables, vi: u64) -> Option<State> {
        let mut state = self.clone();
        let message = state.vi_mut(vi).owed.pop_front()?;
        let id = message.0.id;
        if Self::source_there(tables, vi, &message) {
            state.send_onward(vi, Onward::Answer { id, errors: 0 });
        } else {
            state.refuse_read(tables, vi, id);
        }
        Some(state)
    }

    /// The answer to a descriptor in flight is here.
    pub(super) fn answered(&mut self, tables: &Tables, vi: u64, id: u64, told: u32) {
        let Some(item) = self.vi_mut(vi).send.pending_mut(id) else {
            return;
        };
        let posted = Rc::clone(&item.posted.0);
        let mut errors = told;
        if errors == 0 && posted.is_read() {
            // Its own memory must still be there for the data.
            errors = posted.faults_now(tables, &tables.vis[&vi]);
        }
        if errors == 0 {
            item.ready = Some(succeeded(&posted));
            self.complete_ready(tables, vi);
            return;
        }
        // Those before it complete first: with their own outcome, or flushed if they have none (VIPL 2.4).
        while let Some(before) = self.vis[&vi]
            .send
            .next()
            .filter(|next| next.id != id)
            .cloned()
        {
            let ready = self.ready(vi);
            let flushed = || failed(errors::FLUSHED, before.completed_operation(), Side::Send);
            let completion = ready.unwrap_or_else(flushed);
            self.complete_one(tables, vi, Side::Send, completion);
        }
        let completion = failed(errors, posted.completed_operation(), Side::Send);
        self.complete_one(tables, vi, Side::Send, completion);
        self.break_here(tables, vi);
    }

    /// How the oldest pending descriptor completes, if that is known.
    fn ready(&self, vi: u64) -> Option<Completion> {
        let mut items = self.vis[&vi].send.items.iter();
        items.find(|item| item.done.is_none())?.ready.clone()
    }

    fn complete_ready(&mut self, tables: &Tables, vi: u64) {
        while let Some(completion) = self.ready(vi) {
            self.complete_one(tables, vi, Side::Send, completion);
        }
    }
}
