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

    /// Processes the oldest descriptor that is not in flight, if it may be processed.
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
                // It completes after those in flight; nothing behind it is processed.
                return None;
            }
            let completion = failed(faults, posted.completed_operation(), QueueKind::Send);
            state.complete_one(tables, vi, QueueKind::Send, completion);
            state.break_reliable(tables, vi);
            return Some(state);
        }
        state.transmit(vi, Transit::Message(Bytes(Rc::clone(&posted))));
        let waits = posted.is_read() || Self::reception(tables, vi);
        if alone && !waits {
            // Completes when all bytes are transmitted, without a response.
            state.complete_one(tables, vi, QueueKind::Send, succeeded(&posted));
            return Some(state);
        }
        if let Some(item) = state.vi_mut(vi).send.pending_mut(posted.id) {
            item.sent = true;
            item.ready = (!waits).then(|| succeeded(&posted));
        }
        Some(state)
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
