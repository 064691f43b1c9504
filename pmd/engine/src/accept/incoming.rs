//! Connection requests received from other ports.

use fcvi_frame::connect::{Attributes, ConnectRequest, ConnectResponse};
use fcvi_frame::fc::NPortId;
use fcvi_frame::flags::{ConnectMode, connect_request, connect_response};
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::iu::Opcode;
use fcvi_frame::profile;
use fcvi_frame::reason::{ConnectReason, ConnectStatus, connect_parameter};
use vi_types::{NetAddress, ViIndex};

use crate::accept::ConnId;
use crate::connect::is_valid_peer;
use crate::connection_iu::{ConnectionIu, Sequence};
use crate::counters::Counter;
use crate::engine::Engine;
use crate::engine_io::{EngineIo, Waiter};
use crate::synonym::{Check, skips};
use crate::timer::TimerKey;

/// State of a received request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IncomingState {
    /// Pending for the consumer.
    Pending,
    /// RESP1 was sent for this VI.
    Accepting(ViIndex),
    /// Answered with this reason; kept because the client repeats the request if the answer was
    /// lost.
    Refused(ConnectReason),
    /// The client gave up, or its port was lost.
    Cancelled,
}

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct Incoming {
    mode: ConnectMode,
    pub(super) generation: u32,
    pub(super) state: IncomingState,
    pub(crate) s_id: NPortId,
    pub(crate) connection_id: u32,
    pub(super) originator_handle: u32,
    pub(super) first_msg_id: u32,
    /// Sequence of RESP1 on the newest exchange of the request.
    pub(super) response_at: Sequence,
    pub(super) local: NetAddress,
    pub(super) remote: NetAddress,
    pub(super) attributes: Attributes,
}

/// A RESP1 that ends its exchange.
#[derive(Clone, Copy, Debug)]
pub(super) struct FinalResponse {
    pub(super) to: NPortId,
    pub(super) at: Sequence,
    pub(super) mode: ConnectMode,
    pub(super) originator_handle: u32,
    pub(super) connection_id: u32,
    pub(super) status: ConnectStatus,
    pub(super) reason: ConnectReason,
}

impl Engine {
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
                self.refuse(frame, iu, request.vi_handle, ConnectReason::Malformed, io);
                return;
            }
            Err(_) => {
                self.port.counters.count(Counter::DropBadIu);
                return;
            }
        };
        if self
            .port
            .is_late_request(now_ns, frame.fc.s_id, iu.header.connection_id())
        {
            return;
        }
        let handle = request.vi_handle;
        let Some(mode) = connect_request::mode(iu.header.flags) else {
            self.port.counters.count(Counter::NoMatch);
            self.refuse(frame, iu, handle, ConnectReason::NoMatch, io);
            return;
        };
        if request.remote.host != self.port.config.host {
            self.port.counters.count(Counter::NoMatch);
            self.refuse(frame, iu, handle, ConnectReason::NotMyAddress, io);
            return;
        }
        let max_bytes = usize::from(self.port.config.max_discriminator_bytes);
        let names =
            [&request.local, &request.remote].map(|address| address.discriminator.as_bytes());
        if names.iter().any(|name| name.len() > max_bytes) {
            self.port.counters.count(Counter::DropLongDiscriminator);
            self.refuse(frame, iu, handle, ConnectReason::NoResources, io);
            return;
        }
        if mode == ConnectMode::PeerToPeer {
            self.handle_peer_request(now_ns, frame, iu, &request, io);
            return;
        }
        if self.repeated_request(frame, &request, iu.header.connection_id(), io) {
            return;
        }
        if !self.has_listener(&request.remote.discriminator) {
            self.port.counters.count(Counter::NoMatch);
            self.refuse(frame, iu, handle, ConnectReason::NoMatch, io);
            return;
        }
        let Some(index) = self.allocate_incoming(now_ns) else {
            self.port.counters.count(Counter::DropIncomingFull);
            self.refuse(frame, iu, handle, ConnectReason::NoResources, io);
            return;
        };
        let conn = self.add_pending(index, frame, iu, &request);
        if request.timeout_ms != u32::MAX {
            let timeout_at_ns = now_ns + u64::from(request.timeout_ms) * 1_000_000;
            self.port
                .timers
                .set(timeout_at_ns, TimerKey::Incoming(index));
        }
        if let Some(listener) = self.match_listener(&request.remote.discriminator, conn) {
            io.control_event(Waiter::Request(listener));
        }
    }

    /// Stores a request in this slot as pending.
    pub(super) fn add_pending(
        &mut self,
        index: u32,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        request: &ConnectRequest,
    ) -> ConnId {
        self.port.next_generation = self.port.next_generation.wrapping_add(1);
        self.port.incoming[index as usize] = Some(Incoming {
            mode: connect_request::mode(iu.header.flags).unwrap_or_default(),
            generation: self.port.next_generation,
            state: IncomingState::Pending,
            s_id: frame.fc.s_id,
            connection_id: iu.header.connection_id(),
            originator_handle: request.vi_handle,
            first_msg_id: iu.header.msg_id,
            response_at: Sequence::reply_to(&frame.fc),
            local: request.local,
            remote: request.remote,
            attributes: request.attributes,
        });
        ConnId {
            index,
            generation: self.port.next_generation,
        }
    }

    /// Returns a free slot for a request. If there is none, evicts a refused request.
    pub(super) fn allocate_incoming(&mut self, now_ns: u64) -> Option<u32> {
        if let Some(at) = self.port.incoming.iter().position(Option::is_none) {
            return Some(at as u32);
        }
        if self.port.incoming.len() < self.port.config.max_incoming as usize {
            self.port.incoming.push(None);
            return Some(self.port.incoming.len() as u32 - 1);
        }
        let refused = |i: &Option<Incoming>| {
            i.as_ref()
                .is_some_and(|i| matches!(i.state, IncomingState::Refused(_)))
        };
        let index = self.port.incoming.iter().position(refused)?;
        if let Some(Some(incoming)) = self.port.incoming.get(index) {
            // Late copies of the evicted request must not be taken for a new one.
            let (s_id, connection_id) = (incoming.s_id, incoming.connection_id);
            self.port.quarantine_request(now_ns, s_id, connection_id);
        }
        self.remove_incoming(index as u32);
        Some(index as u32)
    }

    /// Repeats the previous answer if this request was received before. Returns false for a new
    /// request.
    pub(super) fn repeated_request<I: EngineIo>(
        &mut self,
        frame: &FrameView<'_>,
        request: &ConnectRequest,
        connection_id: u32,
        io: &mut I,
    ) -> bool {
        if skips(Check::KnownRequest) {
            return false;
        }
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
                self.send_final_response(&pending, io);
            }
            IncomingState::Accepting(vi) => {
                if let Some(connection) =
                    self.endpoint_mut(vi).and_then(|ep| ep.connection.as_mut())
                {
                    connection.at = newest;
                }
                self.send_response1_accept(vi, io);
            }
            IncomingState::Refused(reason) => {
                let refused = final_response(newest, ConnectStatus::Failed, reason);
                self.send_final_response(&refused, io);
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

    /// Refuses the request in this frame by RESP1.
    fn refuse<I: EngineIo>(
        &mut self,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        originator_handle: u32,
        reason: ConnectReason,
        io: &mut I,
    ) {
        let refusal = FinalResponse {
            to: frame.fc.s_id,
            at: Sequence::reply_to(&frame.fc),
            mode: connect_request::mode(iu.header.flags).unwrap_or_default(),
            originator_handle,
            connection_id: iu.header.connection_id(),
            status: ConnectStatus::Failed,
            reason,
        };
        self.send_final_response(&refusal, io);
    }

    /// Refuses a pending request by RESP1.
    pub(super) fn refuse_pending<I: EngineIo>(
        &mut self,
        conn: ConnId,
        reason: ConnectReason,
        io: &mut I,
    ) {
        let Some(incoming) = self.incoming_mut(conn) else {
            return;
        };
        let refusal = FinalResponse {
            to: incoming.s_id,
            at: incoming.response_at,
            mode: incoming.mode,
            originator_handle: incoming.originator_handle,
            connection_id: incoming.connection_id,
            status: ConnectStatus::Failed,
            reason,
        };
        self.send_final_response(&refusal, io);
    }

    /// Sends a final RESP1. If the port has no room, the client repeats the request.
    pub(super) fn send_final_response<I: EngineIo>(
        &mut self,
        response: &FinalResponse,
        io: &mut I,
    ) {
        let mut payload = [0u8; ConnectResponse::BYTES];
        ConnectResponse {
            vi_handle: 0,
            responder: NetAddress {
                host: self.port.config.host,
                ..NetAddress::default()
            },
            attributes: Attributes::default(),
        }
        .emit(&mut payload);
        let error = match response.status {
            ConnectStatus::Failed => connect_response::ERROR,
            ConnectStatus::Continue
            | ConnectStatus::Pending
            | ConnectStatus::Superseded
            | ConnectStatus::Unknown(_) => 0,
        };
        let iu = ConnectionIu {
            to: response.to,
            at: response.at,
            opcode: Opcode::ConnectResponse1,
            f_ctl: profile::F_CTL_FINAL_REPLY,
            handle: response.originator_handle,
            flags: response.mode.to_flags() | error,
            msg_id: 0,
            parameter: connect_parameter::pack(response.status, response.reason),
            port_name: 0,
            connection_id: response.connection_id,
        };
        self.port.send_connection_iu(&iu, &payload, io);
    }

    pub(super) fn incoming_mut(&mut self, conn: ConnId) -> Option<&mut Incoming> {
        self.port
            .incoming
            .get_mut(conn.index as usize)
            .and_then(Option::as_mut)
            .filter(|i| i.generation == conn.generation)
    }

    /// Removes a request, which makes its [`ConnId`] invalid.
    pub(super) fn remove_request(&mut self, conn: ConnId) {
        if self.incoming_mut(conn).is_some() {
            self.remove_incoming(conn.index);
        }
    }

    fn remove_incoming(&mut self, index: u32) {
        self.port.incoming[index as usize] = None;
        self.port.timers.clear(TimerKey::Incoming(index));
    }

    /// Keeps a refused request for as long as the client may repeat it.
    pub(super) fn keep_refused(&mut self, now_ns: u64, conn: ConnId, reason: ConnectReason) {
        if let Some(incoming) = self.incoming_mut(conn) {
            incoming.state = IncomingState::Refused(reason);
            let end_ns = now_ns + self.port.config.ulp_timeout_ns;
            self.port.timers.set(end_ns, TimerKey::Incoming(conn.index));
        }
    }

    /// Removes the request that this VI was accepting.
    pub(crate) fn remove_accepting(&mut self, vi: ViIndex) {
        let accepting = |i: &Option<Incoming>| {
            i.as_ref()
                .is_some_and(|i| i.state == IncomingState::Accepting(vi))
        };
        if let Some(index) = self.port.incoming.iter().position(accepting) {
            self.remove_incoming(index as u32);
        }
    }

    /// Cancels a pending request on behalf of its client. Returns false if there is none.
    pub(crate) fn cancel_incoming(&mut self, s_id: NPortId, connection_id: u32) -> bool {
        let found = self.port.incoming.iter_mut().flatten().find(|i| {
            (i.s_id == s_id || skips(Check::ConnectionPeer))
                && (i.connection_id == connection_id || skips(Check::ConnectionId))
                && i.state == IncomingState::Pending
        });
        match found {
            Some(incoming) => {
                incoming.state = IncomingState::Cancelled;
                true
            }
            None => false,
        }
    }

    /// Cancels all pending requests of a lost port.
    pub(crate) fn cancel_incoming_from(&mut self, is_lost: impl Fn(NPortId) -> bool) {
        for incoming in self.port.incoming.iter_mut().flatten() {
            if is_lost(incoming.s_id) && incoming.state == IncomingState::Pending {
                incoming.state = IncomingState::Cancelled;
            }
        }
    }

    /// Handles the timeout of a request: cancels a pending one, removes a refused one.
    pub(crate) fn incoming_timeout(&mut self, index: u32) {
        let Some(Some(incoming)) = self.port.incoming.get_mut(index as usize) else {
            return;
        };
        match incoming.state {
            IncomingState::Pending => incoming.state = IncomingState::Cancelled,
            IncomingState::Refused(_) => self.port.incoming[index as usize] = None,
            IncomingState::Accepting(_) | IncomingState::Cancelled => {}
        }
    }
}
