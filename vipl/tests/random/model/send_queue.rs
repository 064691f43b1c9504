//! Steps of the provider on a send queue: descriptors in flight, responses, reads (VIPL 2.4, 5.2, 6.1).

use std::rc::Rc;

use vi_types::QueueKind;
use vipl::ErrorCode;

use super::descriptor::{Posted, errors};
use super::state::{Bytes, Completion, State, Transit};
use super::tables::{Tables, Use};
use super::transfer::{about, failed};

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

    fn transmit(&mut self, vi: u64, in_transit: Transit) {
        let connection = self.vis[&vi].connection;
        if let Some(connection) =
            connection.and_then(|connection| self.connections.get_mut(&connection))
        {
            let to = usize::from(connection.vis[0] == vi);
            connection.in_transit[to].push_back(in_transit);
        }
    }

    /// Returns whether the peer may copy a send from memory: then it completes with the response at Reliable Delivery too,
    /// and is not received if its sender leaves the connection before.
    fn may_be_copied(tables: &Tables, vi: u64, posted: &Posted) -> bool {
        let is_long_send = posted.operation == 0
            && u64::from(posted.length_bytes) >= tables.limits.copied_from_bytes;
        is_long_send && Self::reliable(tables, vi)
    }

    /// Returns whether a VI has such a send without a response.
    pub(super) fn has_uncopied_send(&self, tables: &Tables, vi: u64) -> bool {
        let mut in_flight = self.vis[&vi].send.in_flight();
        in_flight
            .any(|item| item.ready.is_none() && Self::may_be_copied(tables, vi, &item.posted.0))
    }

    /// Processes the oldest descriptor that is not in flight, if it may be processed: returns each state that this leads to.
    pub(super) fn send_one(&self, tables: &Tables, vi: u64) -> Vec<State> {
        let queue = &self.vis[&vi].send;
        let Some(posted) = queue.next_unsent().map(Rc::clone) else {
            return Vec::new();
        };
        let reading = queue.in_flight().any(|item| item.posted.0.is_read());
        if posted.fence && reading {
            return Vec::new();
        }
        let mut state = self.clone();
        let alone = queue.in_flight().next().is_none();
        let faults = posted.faults_now(tables, &tables.vis[&vi]);
        if faults != 0 {
            if !alone {
                // It completes after those in flight; nothing behind it is processed.
                return Vec::new();
            }
            let completion = failed(faults, posted.completed_operation(), QueueKind::Send);
            state.complete_one(tables, vi, QueueKind::Send, completion);
            state.break_reliable(tables, vi);
            return vec![state];
        }
        state.transmit(vi, Transit::Message(Bytes(Rc::clone(&posted))));
        let waits = posted.is_read() || Self::reception(tables, vi);
        let mut states = Vec::new();
        if !waits && Self::may_be_copied(tables, vi, &posted) {
            states.push(state.clone().sent(vi, &posted, true));
        }
        if alone && !waits {
            // Completes when all bytes are transmitted, without a response.
            state.complete_one(tables, vi, QueueKind::Send, succeeded(&posted));
            states.push(state);
        } else {
            states.push(state.sent(vi, &posted, waits));
        }
        states
    }

    /// Puts a descriptor in flight, to wait for its response or for those before it.
    fn sent(mut self, vi: u64, posted: &Rc<Posted>, waits: bool) -> State {
        if let Some(item) = self.vi_mut(vi).send.pending_mut(posted.id) {
            item.sent = true;
            item.ready = (!waits).then(|| succeeded(posted));
        }
        self
    }

    /// Sends a response to a message that was received.
    pub(super) fn respond_received(&mut self, tables: &Tables, vi: u64, message: &Posted) {
        if Self::reception(tables, vi) || Self::may_be_copied(tables, vi, message) {
            let (id, errors) = (message.id, 0);
            self.transmit(vi, Transit::Response { id, errors });
        }
    }

    /// Sends a response to a message, at Reliable Reception.
    pub(super) fn respond(&mut self, tables: &Tables, vi: u64, id: u64, errors: u32) {
        if Self::reception(tables, vi) {
            self.transmit(vi, Transit::Response { id, errors });
        }
    }

    /// An RDMA read arrives.
    pub(super) fn receive_read(&mut self, tables: &Tables, vi: u64, message: Bytes) {
        let allowed = tables.vis[&vi].attributes.rdma_read;
        if allowed && Self::is_source_readable(tables, vi, &message) {
            self.vi_mut(vi).pending_reads.push_back(message);
        } else {
            self.refuse_read(tables, vi, message.0.id);
        }
    }

    fn is_source_readable(tables: &Tables, vi: u64, message: &Bytes) -> bool {
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
        self.report_error(about(vi, ErrorCode::RdmarProt));
        let errors = errors::RDMA_PROTECTION;
        self.transmit(vi, Transit::Response { id, errors });
        self.break_connection(tables, vi);
    }

    /// Sends the data of the oldest pending read.
    pub(super) fn serve_read(&self, tables: &Tables, vi: u64) -> Option<State> {
        let mut state = self.clone();
        let message = state.vi_mut(vi).pending_reads.pop_front()?;
        let id = message.0.id;
        if Self::is_source_readable(tables, vi, &message) {
            state.transmit(vi, Transit::Response { id, errors: 0 });
        } else {
            state.refuse_read(tables, vi, id);
        }
        Some(state)
    }

    /// The response to a descriptor in flight arrives, with error bits.
    pub(super) fn response_arrives(&mut self, tables: &Tables, vi: u64, id: u64, reported: u32) {
        let Some(item) = self.vi_mut(vi).send.pending_mut(id) else {
            return;
        };
        let posted = Rc::clone(&item.posted.0);
        let mut errors = reported;
        if errors == 0 && posted.is_read() {
            // Its own memory must still be registered.
            errors = posted.faults_now(tables, &tables.vis[&vi]);
        }
        if errors == 0 {
            item.ready = Some(succeeded(&posted));
            self.complete_ready(tables, vi);
            return;
        }
        // Earlier descriptors complete first: with their own result, or flushed if they have none (VIPL 2.4).
        while let Some(before) = self.vis[&vi]
            .send
            .next()
            .filter(|next| next.id != id)
            .cloned()
        {
            let ready = self.ready(vi);
            let flushed = || {
                failed(
                    errors::FLUSHED,
                    before.completed_operation(),
                    QueueKind::Send,
                )
            };
            let completion = ready.unwrap_or_else(flushed);
            self.complete_one(tables, vi, QueueKind::Send, completion);
        }
        let completion = failed(errors, posted.completed_operation(), QueueKind::Send);
        self.complete_one(tables, vi, QueueKind::Send, completion);
        self.break_connection(tables, vi);
    }

    /// Returns the completion of the oldest pending descriptor, if it is known.
    fn ready(&self, vi: u64) -> Option<Completion> {
        let mut items = self.vis[&vi].send.items.iter();
        items.find(|item| item.done.is_none())?.ready.clone()
    }

    fn complete_ready(&mut self, tables: &Tables, vi: u64) {
        while let Some(completion) = self.ready(vi) {
            self.complete_one(tables, vi, QueueKind::Send, completion);
        }
    }
}
