//! Steps of the provider: transmission, placement of received data, and breaks of connections.

use vi_types::QueueKind;
use vipl::{ErrorCode, ResourceCode, ViState};

use super::descriptor::{Segment, errors};
use super::state::{AsyncError, Bytes, Completion, Entry, State, Transit};
use super::tables::{Tables, Use};

const UNRELIABLE: u16 = 1;
/// Completed-operation code of a receive that an RDMA write consumed.
const REMOTE_RDMA_WRITE: u32 = 3;

pub(super) fn failed(errors: u32, operation: Option<u32>, kind: QueueKind) -> Completion {
    Completion {
        errors,
        operation,
        immediate: None,
        length_bytes: (kind == QueueKind::Receive).then_some(0),
        placed: None,
        lost: false,
    }
}

/// An asynchronous error about a VI.
pub(super) fn about(vi: u64, code: ErrorCode) -> AsyncError {
    AsyncError {
        vi,
        code: code as u32,
        resource: ResourceCode::Vi as u32,
        descriptor: 0,
    }
}

impl State {
    /// Returns each state that one step of the provider leads to; none at a quiescent point.
    pub(crate) fn provider_steps(&self, tables: &Tables) -> Vec<State> {
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
        next.extend(self.peer_steps(tables));
        next.extend(self.handler_steps());
        for (&connection, found) in &self.connections {
            for to in [0, 1] {
                // A peer request is completed before the first data arrives.
                if found.in_transit[to].is_empty() || self.is_joining(found.vis[to]) {
                    continue;
                }
                next.extend(self.arrive(tables, connection, to));
                if found.is_lossy[to] && found.in_transit[to].len() > 1 {
                    let mut state = self.clone();
                    state.drop_in_transit(tables, connection, to);
                    if let Some(connection) = state.connections.get_mut(&connection) {
                        connection.in_transit[to].push_back(Transit::Disconnect);
                    }
                    next.push(state);
                }
            }
        }
        next
    }

    /// Completes one descriptor. If its memory is deregistered, the VI breaks at once (VIPL 3.8.1, 6.3.1).
    pub(super) fn complete_one(
        &mut self,
        tables: &Tables,
        vi: u64,
        kind: QueueKind,
        completion: Completion,
    ) {
        let (entry, lost) = self.complete(tables, vi, kind, completion);
        self.add_entries(entry);
        if lost {
            self.fail(tables, vi);
        }
    }

    /// Flushes both queues, in the order of each (VIPL 3.3.5).
    pub(super) fn flush(&mut self, tables: &Tables, vi: u64) {
        let mut entries = Vec::new();
        for kind in [QueueKind::Send, QueueKind::Receive] {
            self.flush_into(tables, vi, kind, &mut entries);
        }
        self.add_entries(entries);
    }

    /// Flushes one queue.
    pub(super) fn flush_queue(&mut self, tables: &Tables, vi: u64, kind: QueueKind) {
        let mut entries = Vec::new();
        self.flush_into(tables, vi, kind, &mut entries);
        self.add_entries(entries);
    }

    fn flush_into(
        &mut self,
        tables: &Tables,
        vi: u64,
        kind: QueueKind,
        entries: &mut Vec<(u64, Entry)>,
    ) {
        while let Some(posted) = self.vis[&vi].queue(kind).next().cloned() {
            let operation = posted.completed_operation();
            let completion = failed(errors::FLUSHED, operation, kind);
            entries.extend(self.complete(tables, vi, kind, completion).0);
            self.note_uncertain(tables, &Bytes(posted));
        }
    }

    /// An interrupted RDMA write may be partially placed, unless it is placed as a whole.
    fn note_uncertain(&mut self, tables: &Tables, message: &Bytes) {
        let length = u64::from(message.0.length_bytes);
        if message.0.remote.is_some() && !message.0.is_read() && length > tables.limits.whole_bytes
        {
            self.written.insert(message.0.id, (message.clone(), false));
        }
    }

    /// Drops the items in transit to one VI of a connection.
    fn drop_in_transit(&mut self, tables: &Tables, connection: u64, to: usize) {
        let Some(found) = self.connections.get_mut(&connection) else {
            return;
        };
        for dropped in core::mem::take(&mut found.in_transit[to]) {
            if let Transit::Message(message) = dropped {
                self.note_uncertain(tables, &message);
            }
        }
    }

    /// Removes a VI from its connection; the peer will receive a disconnect.
    pub(super) fn leave_connection(&mut self, tables: &Tables, vi: u64) {
        let Some(connection) = self.vi_mut(vi).connection.take() else {
            return;
        };
        let has_uncopied_send = self.has_uncopied_send(tables, vi);
        let Some(found) = self.connections.get_mut(&connection) else {
            return;
        };
        let to = usize::from(found.vis[0] == vi);
        found.in_transit[to].push_back(Transit::Disconnect);
        found.is_lossy[to] |= has_uncopied_send;
        // Items in transit to this VI are dropped.
        self.drop_in_transit(tables, connection, 1 - to);
        self.vi_mut(vi).pending_reads.clear();
        self.remove_closed_connections();
    }

    fn remove_closed_connections(&mut self) {
        let vis = &self.vis;
        self.connections.retain(|number, connection| {
            connection
                .vis
                .iter()
                .any(|vi| vis.get(vi).is_some_and(|vi| vi.connection == Some(*number)))
        });
    }

    /// Breaks the connection of a VI: Error, both queues flushed, ConnLost (VIPL 2.4, 6.2).
    pub(super) fn break_connection(&mut self, tables: &Tables, vi: u64) {
        if self.vis[&vi].state != ViState::Connected {
            return;
        }
        self.leave_connection(tables, vi);
        self.vi_mut(vi).state = ViState::Error;
        self.flush(tables, vi);
        self.report_error(about(vi, ErrorCode::ConnLost));
    }

    /// A fatal error of the program: Error at each level and in each state (VIPL 6.3.1).
    fn fail(&mut self, tables: &Tables, vi: u64) {
        self.vi_mut(vi).broken = false;
        match self.vis[&vi].state {
            ViState::Connected => self.break_connection(tables, vi),
            ViState::Idle | ViState::ConnectPending => {
                self.leave_connection(tables, vi);
                self.vi_mut(vi).connecting = None;
                self.vi_mut(vi).peer = None;
                self.vi_mut(vi).state = ViState::Error;
                self.flush(tables, vi);
            }
            ViState::Error => {}
        }
    }

    /// An unreachable host moves a reliable VI to Error (VIPL 3.3.4, 3.3.7).
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
            self.break_connection(tables, vi);
        }
    }

    /// The oldest item in transit to a VI arrives.
    fn arrive(&self, tables: &Tables, connection: u64, to: usize) -> Vec<State> {
        let mut state = self.clone();
        let Some(found) = state.connections.get_mut(&connection) else {
            return Vec::new();
        };
        let vi = found.vis[to];
        let Some(arrived) = found.in_transit[to].pop_front() else {
            return Vec::new();
        };
        if state
            .vis
            .get(&vi)
            .is_none_or(|vi| vi.connection != Some(connection))
        {
            // The VI has left the connection: the item is dropped.
            return vec![state];
        }
        match arrived {
            Transit::Disconnect => {
                state.vi_mut(vi).connection = None;
                state.vi_mut(vi).pending_reads.clear();
                state.vi_mut(vi).state = ViState::Error;
                state.flush(tables, vi);
                state.report_error(about(vi, ErrorCode::ConnLost));
                state.remove_closed_connections();
                vec![state]
            }
            Transit::Response { id, errors } => {
                state.response_arrives(tables, vi, id, errors);
                vec![state]
            }
            Transit::Message(bytes) if bytes.0.is_read() => {
                state.receive_read(tables, vi, bytes);
                vec![state]
            }
            Transit::Message(bytes) => match bytes.0.remote {
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
            self.report_error(about(vi, ErrorCode::RecvqEmpty));
            self.respond(tables, vi, id, errors::REMOTE_DESCRIPTOR);
            self.break_reliable(tables, vi);
            return;
        };
        let mut faults = posted.faults_now(tables, &tables.vis[&vi]);
        if posted.capacity() < u64::from(message.0.length_bytes) {
            faults |= errors::LENGTH;
        }
        if faults != 0 {
            let operation = posted.completed_operation();
            let completion = failed(faults, operation, QueueKind::Receive);
            self.respond(tables, vi, id, errors::REMOTE_DESCRIPTOR);
            self.complete_one(tables, vi, QueueKind::Receive, completion);
            self.break_reliable(tables, vi);
            return;
        }
        let completion = Completion {
            errors: 0,
            operation: posted.completed_operation(),
            immediate: message.0.immediate,
            length_bytes: Some(message.0.length_bytes),
            placed: Some(message.clone()),
            lost: false,
        };
        self.respond_received(tables, vi, &message.0);
        self.complete_one(tables, vi, QueueKind::Receive, completion);
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
                self.respond(tables, vi, id, 0);
            } else {
                self.report_error(about(vi, ErrorCode::RdmawProt));
                self.respond(tables, vi, id, errors::RDMA_PROTECTION);
                self.break_reliable(tables, vi);
            }
            return vec![self];
        };
        let Some(posted) = self.vis[&vi].recv.next().cloned() else {
            // If the write is refused as well, the guide does not specify which of the two errors is reported.
            let mut states = Vec::new();
            for (code, response, fits) in [
                (ErrorCode::RecvqEmpty, errors::REMOTE_DESCRIPTOR, true),
                (ErrorCode::RdmawProt, errors::RDMA_PROTECTION, !allowed),
            ] {
                if fits {
                    let mut state = self.clone();
                    state.report_error(about(vi, code));
                    state.respond(tables, vi, id, response);
                    state.break_reliable(tables, vi);
                    states.push(state);
                }
            }
            return states;
        };
        let mut faults = posted.faults_now(tables, facts);
        let mut response = if faults == 0 {
            0
        } else {
            errors::REMOTE_DESCRIPTOR
        };
        if !allowed {
            faults |= errors::PROTECTION;
            response |= errors::RDMA_PROTECTION;
        }
        self.respond(tables, vi, id, response);
        let operation = Some(REMOTE_RDMA_WRITE);
        if faults != 0 {
            let completion = failed(faults, operation, QueueKind::Receive);
            self.complete_one(tables, vi, QueueKind::Receive, completion);
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
        self.complete_one(tables, vi, QueueKind::Receive, completion);
        vec![self]
    }
}
