//! Responder (server) side of connection set-up [FCVI P-12].
//!
//! A request that matches a listener is pending until the consumer accepts or rejects it; a request
//! that matches none is answered with NO_MATCH at once.
//!
//! ```text
//!   Pending --accept--> Accepting --RESP2--> (the VI is Connected)
//!    |  |                  |
//!    |  |                  +-- no RESP2 within 4 E_D_TOV, client gave up --> removed
//!    |  +--reject--> Refused (repeated requests get the same answer) --> removed
//!    +-- client gave up or its port was lost --> Cancelled (until the consumer accepts or rejects)
//! ```

mod incoming;
mod listen;
mod peer;

pub(crate) use incoming::Incoming;
pub(crate) use listen::Listeners;

use fcvi_frame::connect::ConnectRequest;
use fcvi_frame::fc::NPortId;
use fcvi_frame::flags::{ConnectMode, connect_request};
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::iu::Opcode;
use fcvi_frame::profile;
use fcvi_frame::reason::{ConnectReason, ConnectStatus};
use vi_types::{CallError, ConnId, Discriminator, Indication, ViIndex, ViState, Waiter};

use self::incoming::{FinalResponse, IncomingState};
use crate::connection::{Connection, check_attributes, is_valid_peer, vi_params};
use crate::connection_iu::Sequence;
use crate::counters::Counter;
use crate::endpoint::{Endpoint, Phase};
use crate::engine::Engine;
use crate::engine_io::EngineIo;
use crate::timer::TimerKey;

impl Engine {
    /// Waits for one request with this discriminator (VIPL 3.3.1). Returns the listener number for
    /// [`Engine::take_indication`] and [`Engine::unlisten`].
    pub fn listen(&mut self, discriminator: Discriminator) -> u64 {
        self.listeners.add(discriminator)
    }

    /// Takes the request that this listener matched, once, and removes the listener.
    pub fn take_indication(&mut self, listener: u64) -> Option<Indication> {
        let conn = self.listeners.matched(listener)?;
        let incoming = self.port.incoming_mut(conn)?;
        let indication = Indication {
            conn,
            remote: incoming.local,
            attributes: vi_params(&incoming.attributes),
        };
        self.listeners.remove(listener);
        Some(indication)
    }

    /// Removes a listener. A request that it has matched is given to another listener, or answered
    /// with NO_MATCH.
    pub fn unlisten<I: EngineIo>(&mut self, listener: u64, io: &mut I) {
        let Some((discriminator, Some(conn))) = self.listeners.remove(listener) else {
            return;
        };
        let incoming = self.port.incoming_mut(conn);
        if incoming.is_some_and(|i| i.state == IncomingState::Pending) {
            if let Some(other) = self.listeners.give(&discriminator, conn) {
                io.control_event(Waiter::Request(other));
                return;
            }
            self.port.refuse_pending(conn, ConnectReason::NoMatch, io);
        }
        self.port.remove_request(conn);
    }

    /// Rejects a pending request (VIPL 3.3.3).
    ///
    /// # Errors
    /// `Invalid` if there is no such request, or if it is being accepted.
    pub fn reject<I: EngineIo>(
        &mut self,
        now_ns: u64,
        conn: ConnId,
        io: &mut I,
    ) -> Result<(), CallError> {
        match self.port.incoming_mut(conn).map(|i| i.state) {
            Some(IncomingState::Pending) => {
                self.port.refuse_pending(conn, ConnectReason::Rejected, io);
                self.port
                    .keep_refused(now_ns, conn, ConnectReason::Rejected);
                Ok(())
            }
            Some(IncomingState::Cancelled) => {
                self.port.remove_request(conn);
                Ok(())
            }
            Some(IncomingState::Accepting(_) | IncomingState::Refused(_)) | None => {
                Err(CallError::InvalidParameter)
            }
        }
    }

    /// Accepts a pending request with an Idle VI (VIPL 3.3.2). After `Ok` the outcome is reported
    /// by [`Engine::take_outcome`]. On an attribute conflict nothing is sent to the client, and the
    /// request stays pending.
    ///
    /// # Errors
    /// `Invalid`: no such request or VI. `Timeout`: the client gave up. `InvalidState`: the VI is
    /// not Idle. `Resources`: the VI has no handle whose quarantine is over; the request stays
    /// pending. `ReliabilityLevel`, `MaxTransferSize`, `Qos`: the attributes conflict.
    pub fn accept<I: EngineIo>(
        &mut self,
        now_ns: u64,
        conn: ConnId,
        vi: ViIndex,
        io: &mut I,
    ) -> Result<(), CallError> {
        let incoming = self.port.incoming_mut(conn);
        let incoming = incoming.ok_or(CallError::InvalidParameter)?.clone();
        match incoming.state {
            IncomingState::Pending => {}
            IncomingState::Accepting(_) | IncomingState::Refused(_) => {
                return Err(CallError::InvalidParameter);
            }
            IncomingState::Cancelled => {
                self.port.remove_request(conn);
                return Err(CallError::Timeout);
            }
        }
        let (ep, mut cx) = self
            .split(now_ns, vi, io)
            .ok_or(CallError::InvalidParameter)?;
        if !matches!(ep.phase, Phase::Idle) {
            return Err(CallError::InvalidState);
        }
        let ours = cx.port.config.attributes_of(&ep.params);
        check_attributes(&ours, &incoming.attributes)?;
        let handle = cx.new_handle().ok_or(CallError::NO_RESOURCES)?;
        let first_msg_id = cx.io.random();
        let connection = Connection {
            peer: incoming.s_id,
            peer_handle: incoming.originator_handle,
            connection_id: incoming.connection_id,
            at: incoming.response_at,
            originator: false,
            mode: ConnectMode::ClientServer,
            exchange_open: false,
            remote: incoming.attributes,
        };
        ep.bind(&mut cx, connection, first_msg_id, incoming.first_msg_id);
        ep.handle = handle;
        ep.clear_outcomes();
        if let Some(incoming) = cx.port.incoming_mut(conn) {
            incoming.state = IncomingState::Accepting(vi);
        }
        cx.io.set_state(vi, ViState::ConnectPending);
        ep.await_response2(&mut cx);
        Ok(())
    }

    /// Handles RQST: answers it, or makes it pending for a listener.
    pub(crate) fn handle_connect_request<I: EngineIo>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        io: &mut I,
    ) {
        let request = match ConnectRequest::parse(iu.payload) {
            Ok(request) if is_valid_peer(request.vi_handle, &request.attributes) => request,
            Ok(request) => {
                self.port.counters.count(Counter::DropBadIu);
                self.port
                    .refuse(frame, iu, request.vi_handle, ConnectReason::Malformed, io);
                return;
            }
            Err(_) => {
                self.port.counters.count(Counter::DropBadIu);
                return;
            }
        };
        let key = (frame.fc.s_id, iu.header.connection_id());
        if self.port.quarantine.is_late(now_ns, key) {
            self.port.counters.count(Counter::DropLateRequest);
            return;
        }
        let handle = request.vi_handle;
        let Some(mode) = connect_request::mode(iu.header.flags) else {
            self.port.counters.count(Counter::NoMatch);
            self.port
                .refuse(frame, iu, handle, ConnectReason::NoMatch, io);
            return;
        };
        if request.remote.host != self.port.config.host {
            self.port.counters.count(Counter::NoMatch);
            self.port
                .refuse(frame, iu, handle, ConnectReason::NotMyAddress, io);
            return;
        }
        let max_bytes = usize::from(self.port.config.max_discriminator_bytes);
        let names =
            [&request.local, &request.remote].map(|address| address.discriminator.as_bytes());
        if names.iter().any(|name| name.len() > max_bytes) {
            self.port.counters.count(Counter::DropLongDiscriminator);
            self.port
                .refuse(frame, iu, handle, ConnectReason::NoResources, io);
            return;
        }
        if mode == ConnectMode::PeerToPeer {
            self.handle_peer_request(now_ns, frame, iu, &request, io);
            return;
        }
        if self.repeated_request(now_ns, frame, &request, iu.header.connection_id(), io) {
            return;
        }
        if !self.listeners.has(&request.remote.discriminator) {
            self.port.counters.count(Counter::NoMatch);
            self.port
                .refuse(frame, iu, handle, ConnectReason::NoMatch, io);
            return;
        }
        let Some(index) = self.port.allocate_incoming(now_ns) else {
            self.port.counters.count(Counter::DropIncomingFull);
            self.port
                .refuse(frame, iu, handle, ConnectReason::NoResources, io);
            return;
        };
        let conn = self.port.add_pending(index, frame, iu, &request);
        if request.timeout_ms != u32::MAX {
            let timeout_at_ns = now_ns + u64::from(request.timeout_ms) * 1_000_000;
            self.port
                .timers
                .set(timeout_at_ns, TimerKey::Incoming(index));
        }
        if let Some(listener) = self.listeners.give(&request.remote.discriminator, conn) {
            io.control_event(Waiter::Request(listener));
        }
    }

    /// Repeats the previous answer if this request was received before. Returns false for a new
    /// request.
    fn repeated_request<I: EngineIo>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        request: &ConnectRequest,
        connection_id: u32,
        io: &mut I,
    ) -> bool {
        let s_id = frame.fc.s_id;
        let known = self.port.incoming.iter_mut().flatten().find(|i| {
            i.s_id == s_id
                && i.connection_id == connection_id
                && i.originator_handle == request.vi_handle
        });
        let Some(incoming) = known else {
            // Connected already: this retry crossed our RESP1, or was delayed.
            let vi = self.vi_that_accepted(s_id, connection_id, request.vi_handle);
            let established = vi.is_some();
            if established {
                self.port.counters.count(Counter::KnownRequests);
            }
            return established;
        };
        self.port.counters.count(Counter::KnownRequests);
        let superseded =
            core::mem::replace(&mut incoming.response_at, Sequence::reply_to(&frame.fc));
        let (newest, mode) = (incoming.response_at, incoming.mode);
        let final_response = |at, status, reason| FinalResponse {
            to: s_id,
            at,
            mode,
            originator_handle: request.vi_handle,
            connection_id,
            status,
            reason,
        };
        match incoming.state {
            IncomingState::Pending if superseded != newest => {
                let waiting = ConnectReason::WaitingForConsumer;
                let pending = final_response(superseded, ConnectStatus::Pending, waiting);
                self.port.send_final_response(&pending, io);
            }
            IncomingState::Accepting(vi) => self.repeat_response1(now_ns, vi, newest, io),
            IncomingState::Refused(reason) => {
                let refused = final_response(newest, ConnectStatus::Failed, reason);
                self.port.send_final_response(&refused, io);
            }
            IncomingState::Pending | IncomingState::Cancelled => {}
        }
        true
    }

    /// Returns the VI that has accepted this request already.
    pub(super) fn vi_that_accepted(
        &self,
        s_id: NPortId,
        connection_id: u32,
        originator_handle: u32,
    ) -> Option<ViIndex> {
        let vi = *self.port.accepted.get(&(s_id, connection_id))?;
        let connection = self.endpoint(vi)?.connection?;
        (connection.peer_handle == originator_handle).then_some(vi)
    }

    /// Sends RESP1 "accepted" again, on this newer exchange of the request.
    pub(super) fn repeat_response1<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        at: Sequence,
        io: &mut I,
    ) {
        if let Some((ep, mut cx)) = self.split(now_ns, vi, io) {
            if let Some(connection) = ep.connection.as_mut() {
                connection.at = at;
            }
            ep.send_response1(&mut cx);
        }
    }

    /// Handles RESP2: connects the VI, and answers with RESP3.
    pub(crate) fn handle_response2<I: EngineIo>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        io: &mut I,
    ) {
        let found = self.connection_of(frame, iu).and_then(|vi| {
            let ep = self.endpoint(vi)?;
            let connection = ep.connection.filter(|connection| !connection.originator)?;
            Some((vi, connection, ep.peer_index))
        });
        let Some((vi, connection, peer_index)) = found else {
            self.port.counters.count(Counter::DropStrayConnect);
            self.quarantine_answered(now_ns, frame, iu);
            return;
        };
        self.port.note_received(peer_index, now_ns);
        if self.state(vi) == Some(ViState::ConnectPending) {
            self.server_connected(now_ns, vi, &connection, io);
        }
        let f_ctl = profile::F_CTL_FINAL_REPLY;
        let mut answer = connection.connect_iu(Opcode::ConnectResponse3, f_ctl);
        answer.at = Sequence::reply_to(&frame.fc);
        // If the port had no room, the client repeats RESP2.
        self.port.send_connection_iu(&answer, &[], io);
    }

    /// Puts the request of a RESP2 that is too late into quarantine, if this VI had accepted it: a
    /// client that received RESP1 does not repeat its request.
    fn quarantine_answered(&mut self, now_ns: u64, frame: &FrameView<'_>, iu: &IuView<'_>) {
        let (s_id, connection_id) = (frame.fc.s_id, iu.header.connection_id());
        let vi = self.port.slot_of(iu.header.handle);
        let previous = self.endpoint(vi).and_then(|ep| ep.previous);
        if previous.is_some_and(|previous| {
            previous.handle == iu.header.handle
                && (previous.peer, previous.connection_id) == (s_id, connection_id)
        }) {
            self.port
                .quarantine
                .add_received(now_ns, (s_id, connection_id));
        }
    }

    fn server_connected<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        connection: &Connection,
        io: &mut I,
    ) {
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.phase = Phase::Connected;
            ep.conclude(Ok(connection.remote_vi()));
        }
        self.enable_shortcut(vi);
        let Some((ep, mut cx)) = self.split(now_ns, vi, io) else {
            return;
        };
        cx.port.remove_accepting(vi);
        ep.arm_connect_timer(&mut cx);
        cx.count(Counter::Connects);
        ep.allow_direct_access(&mut cx);
        cx.io.set_state(vi, ViState::Connected);
        cx.io.control_event(Waiter::Outcome(vi));
    }

    /// Returns the VI of this engine that made a request, or `None` if another port made it.
    ///
    /// # Errors
    /// `Timeout`: the request is not pending any more.
    pub fn requester(&self, conn: ConnId) -> Result<Option<ViIndex>, CallError> {
        let incoming = self.port.incoming.get(conn.index() as usize);
        let incoming = incoming
            .and_then(Option::as_ref)
            .filter(|i| i.generation == conn.generation() && i.state == IncomingState::Pending)
            .ok_or(CallError::Timeout)?;
        if incoming.s_id != self.port.config.n_port_id {
            return Ok(None);
        }
        let vi = self.port.slot_of(incoming.originator_handle);
        let is_requester = self.endpoint(vi).is_some_and(|ep| {
            ep.handle == incoming.originator_handle
                && ep.attempt().is_some_and(|attempt| {
                    attempt.matches(incoming.connection_id, &incoming.local, &incoming.remote)
                })
        });
        Ok(is_requester.then_some(vi))
    }

    /// Returns the VI of this engine that a connected VI is connected to, or `None` if the peer is
    /// a VI of another port.
    ///
    /// # Errors
    /// `InvalidState`: the VI is not connected.
    pub fn connected_to(&self, vi: ViIndex) -> Result<Option<ViIndex>, CallError> {
        match self.state(vi) {
            Some(ViState::Connected) => Ok(self.local_peer(vi)),
            _ => Err(CallError::InvalidState),
        }
    }

    /// Returns the VI of this engine that is the peer of `vi`.
    pub(crate) fn local_peer(&self, vi: ViIndex) -> Option<ViIndex> {
        let own = self.port.config.n_port_id;
        let ep = self.endpoint(vi)?;
        let connection = ep
            .connection
            .as_ref()
            .filter(|connection| connection.peer == own)?;
        let other = self.port.slot_of(connection.peer_handle);
        let theirs = self.endpoint(other)?;
        let back = theirs.connection.as_ref().filter(|back| back.peer == own)?;
        let fits = (theirs.handle, ep.handle) == (connection.peer_handle, back.peer_handle)
            && connection.connection_id == back.connection_id;
        fits.then_some(other)
    }

    /// Enables the shortcut after the server's half of a connection was made, if the client is a VI
    /// of this engine. Both sides must name each other, because another port can claim our address.
    pub(crate) fn enable_shortcut(&mut self, server: ViIndex) {
        let client = self
            .local_peer(server)
            .filter(|_| self.port.config.shortcut);
        let Some(client) = client else {
            return;
        };
        let waits = |ep: &Endpoint| matches!(ep.phase, Phase::AwaitResponse3(_));
        if !self.endpoint(client).is_some_and(waits) {
            return;
        }
        for (vi, other) in [(server, client), (client, server)] {
            if let Some(ep) = self.endpoint_mut(vi) {
                ep.start_shortcut(other);
            }
        }
    }
}
