//! Connection procedures of an endpoint: its request, its waits for RESP2 and RESP3, their outcome.

use fcvi_frame::connect::{ConnectRequest, ConnectResponse};
use fcvi_frame::fc::{FCtl, NPortId};
use fcvi_frame::flags::{ConnectMode, disconnect};
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::iu::Opcode;
use fcvi_frame::profile;
use fcvi_frame::reason::{ConnectReason, ConnectStatus, MessageReason, connect_parameter};
use vi_types::{AsyncError, CallError, NetAddress, ViState, Waiter};

use super::request::{Attempt, PortReply, RequestExchange};
use crate::connection::{
    ConnectCommand, Connection, check_attributes, is_valid_peer, payload_room,
};
use crate::connection_iu::{ConnectionIu, NO_ROOM_RETRY_NS, Sequence};
use crate::context::Context;
use crate::counters::Counter;
use crate::endpoint::{Endpoint, Phase, ResponseWait};
use crate::engine_io::EngineIo;
use crate::n_port::PeerKey;
use crate::reassembly::{Ahead, Reassembly};
use crate::receive::RxStream;
use crate::recovery::AckState;
use crate::transmit::TxStream;

impl Endpoint {
    /// Starts a request under a new handle and a new connection ID.
    pub(crate) fn start_request<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        mode: ConnectMode,
        command: &ConnectCommand<'_>,
        deadline_ns: Option<u64>,
    ) {
        let Some(handle) = cx.new_handle() else {
            self.fail_request(cx, CallError::NO_RESOURCES);
            return;
        };
        let attempt = Attempt::new(cx, mode, command, deadline_ns);
        self.handle = handle;
        self.phase = Phase::Requesting(Box::new(attempt));
        self.send_requests(cx);
    }

    /// Returns the request that is being made.
    pub(crate) fn attempt(&self) -> Option<&Attempt> {
        match &self.phase {
            Phase::Requesting(attempt) => Some(attempt),
            Phase::Idle
            | Phase::AwaitResponse3(_)
            | Phase::AwaitResponse2(_)
            | Phase::Connected
            | Phase::Error => None,
        }
    }

    pub(crate) fn attempt_mut(&mut self) -> Option<&mut Attempt> {
        match &mut self.phase {
            Phase::Requesting(attempt) => Some(attempt),
            Phase::Idle
            | Phase::AwaitResponse3(_)
            | Phase::AwaitResponse2(_)
            | Phase::Connected
            | Phase::Error => None,
        }
    }

    /// Returns the request if it is in the peer pool.
    pub(crate) fn pooled(&self) -> Option<&Attempt> {
        self.attempt()
            .filter(|attempt| attempt.mode == ConnectMode::PeerToPeer)
    }

    /// Sends the request to every port where it is due, and sets the timer.
    pub(crate) fn send_requests<I: EngineIo>(&mut self, cx: &mut Context<'_, I>) {
        if let Phase::Requesting(attempt) = &mut self.phase {
            attempt.send(cx, self.handle, &self.params);
        }
        self.arm_connect_timer(cx);
    }

    /// Handles RESP1 that does not accept the request.
    pub(super) fn not_accepted<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        s_id: NPortId,
        status: ConnectStatus,
        reason: ConnectReason,
    ) {
        let peer = self.pooled().is_some();
        let reply = match (status, reason) {
            (ConnectStatus::Pending, _) => Ok(PortReply::Pending),
            (_, ConnectReason::NoMatch | ConnectReason::NotMyAddress) if !peer => {
                Ok(PortReply::NoMatch)
            }
            (_, ConnectReason::ReliabilityLevel) => Err(CallError::ReliabilityLevel),
            (_, ConnectReason::MaxTransferSize) => Err(CallError::MaxTransferSize),
            (_, ConnectReason::Qos) => Err(CallError::Qos),
            // After any other reply a peer request stays in the pool until it times out.
            _ if peer => Ok(PortReply::Pending),
            (_, ConnectReason::NoResources) => Err(CallError::NO_RESOURCES),
            (_, ConnectReason::TimedOut) => Err(CallError::Timeout),
            _ => Err(CallError::Rejected),
        };
        match reply {
            Ok(reply) => self.record_reply(cx, |port| port == s_id, reply),
            Err(error) => {
                if let Some(attempt) = self.attempt_mut() {
                    attempt.mark_refused(s_id);
                }
                self.fail_request(cx, error);
            }
        }
    }

    /// Handles RESP1 "accepted": checks the attributes, enables receiving, answers with RESP2.
    pub(super) fn accepted<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        payload: &ConnectResponse,
        exchange: RequestExchange,
    ) {
        let Some(attempt) = self.attempt() else {
            return;
        };
        let first_msg_id = attempt.first_msg_id;
        let connection = Connection {
            peer: frame.fc.s_id,
            peer_handle: payload.vi_handle,
            connection_id: iu.header.connection_id(),
            at: Sequence::reply_to(&frame.fc),
            originator: true,
            mode: attempt.mode,
            exchange_open: exchange.is_some(),
            remote: payload.attributes,
        };
        let checked = if is_valid_peer(payload.vi_handle, &payload.attributes) {
            let ours = cx.port.config.attributes_of(&self.params);
            check_attributes(&ours, &payload.attributes)
        } else {
            cx.count(Counter::DropBadIu);
            if connection.mode == ConnectMode::PeerToPeer {
                // Not a valid reply: other ports may give one.
                end_exchange(cx, frame, exchange);
                self.record_reply(cx, |port| port == connection.peer, PortReply::Pending);
                return;
            }
            Err(CallError::Rejected)
        };
        self.cancel_request(cx, Some(connection.peer));
        if let Err(error) = checked {
            if let Some((ox_id, seq_cnt)) = exchange {
                cx.port.exchanges.abandon(cx.now_ns, ox_id, seq_cnt);
            }
            let info = connection.disconnect_info(MessageReason::Disconnected, false);
            cx.port.start_disconnect(cx.now_ns, info, cx.io);
            self.fail_request(cx, error);
            return;
        }
        self.bind(cx, connection, first_msg_id, iu.header.msg_id);
        self.await_response3(cx);
    }

    /// Records the reply of ports; ends the request if no port is left that could accept it.
    pub(crate) fn record_reply<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        is_from: impl Fn(NPortId) -> bool,
        reply: PortReply,
    ) {
        let Some(attempt) = self.attempt_mut() else {
            return;
        };
        match attempt.record(cx, is_from, reply) {
            Some(error) => self.fail_request(cx, error),
            None => self.arm_connect_timer(cx),
        }
    }

    /// Ends a request without a connection.
    pub(crate) fn fail_request<I: EngineIo>(&mut self, cx: &mut Context<'_, I>, error: CallError) {
        self.cancel_request(cx, None);
        self.handle = 0;
        self.conclude_failed(cx, error);
    }

    /// Cancels the request at every port where it may be pending, except `keep`.
    pub(crate) fn cancel_request<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        keep: Option<NPortId>,
    ) {
        let handle = self.handle;
        if let Some(attempt) = self.attempt_mut() {
            attempt.cancel(cx, handle, keep);
        }
    }

    /// Completes a connection attempt with an error. The VI returns to Idle and keeps its receives,
    /// except that `NotReachable` moves a reliable VI to Error and flushes them (VIPL 3.3.2-3.3.8).
    pub(crate) fn conclude_failed<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        error: CallError,
    ) {
        let breaks = error == CallError::NotReachable && self.params.level.is_reliable();
        self.phase = if breaks { Phase::Error } else { Phase::Idle };
        self.conclude(Err(error));
        self.arm_connect_timer(cx);
        if breaks {
            cx.io.set_state(cx.vi, ViState::Error);
            cx.io.flush_receives(cx.vi);
        } else {
            cx.io.set_state(cx.vi, ViState::Idle);
        }
        cx.io.control_event(Waiter::Outcome(cx.vi));
    }

    /// Gives up a connection that is half made. Its peer request may return to the pool. The peer
    /// is sent `reason_for_peer`, if any.
    pub(crate) fn abort_pending<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        error: CallError,
        reason_for_peer: Option<MessageReason>,
    ) {
        self.end_connection(cx, reason_for_peer);
        cx.port.remove_accepting(cx.vi);
        if !self.return_to_pool(cx) {
            self.conclude_failed(cx, error);
        }
    }

    /// Returns a peer request that has not timed out to the pool, after half a connection ended. It
    /// gets a new connection ID, so that late IUs of this attempt do not match the next one.
    /// Returns false if the VI has none.
    fn return_to_pool<I: EngineIo>(&mut self, cx: &mut Context<'_, I>) -> bool {
        let request = self.peer_request.as_ref();
        let Some(request) = request.filter(|request| !request.is_over(cx.now_ns)) else {
            return false;
        };
        let targets = request.targets.clone();
        let command = ConnectCommand {
            local: request.local,
            remote: request.remote,
            targets: &targets,
            timeout_ns: None,
        };
        let deadline_ns = request.deadline_ns;
        cx.count(Counter::PeerReturned);
        self.start_request(cx, ConnectMode::PeerToPeer, &command, deadline_ns);
        true
    }

    /// Moves the VI from any state to Idle and flushes both queues. Leaves the peer request to the
    /// caller. A pending connection call ends with `InvalidState`.
    pub(crate) fn return_to_idle<I: EngineIo>(&mut self, cx: &mut Context<'_, I>) {
        let waiting = self.state() == ViState::ConnectPending;
        self.cancel_request(cx, None);
        self.end_connection(cx, Some(MessageReason::Disconnected));
        cx.port.remove_accepting(cx.vi);
        self.phase = Phase::Idle;
        if waiting && self.peer_request.is_none() {
            self.outcome = Some(Err(CallError::InvalidState));
        }
        self.arm_connect_timer(cx);
        cx.io.set_state(cx.vi, ViState::Idle);
        cx.io.flush_sends(cx.vi);
        cx.io.flush_receives(cx.vi);
        if waiting {
            cx.io.control_event(Waiter::Outcome(cx.vi));
        }
    }

    /// Handles DISCONNECT_RQST for this connection.
    pub(crate) fn disconnected<I: EngineIo>(&mut self, cx: &mut Context<'_, I>, iu: &IuView<'_>) {
        let is_error = iu.header.flags & disconnect::ERROR != 0;
        if let Some(tx) = &mut self.tx {
            if iu.header.flags & disconnect::ACKNOWLEDGES != 0 {
                // What failed comes after it. An impossible ID has no effect.
                tx.acknowledged_before(cx, iu.header.msg_id.wrapping_add(1));
            }
            if is_error && matches!(self.phase, Phase::Connected) {
                let reason = MessageReason::from_parameter(iu.header.parameter);
                tx.handle_peer_failure(cx, reason);
            }
        }
        let loss = if is_error {
            AsyncError::ConnectionLost
        } else {
            AsyncError::Disconnected
        };
        self.ended_by_peer(cx, loss, CallError::Timeout);
    }

    /// The peer disconnected or was lost: a connection breaks and reports `loss`, a pending request
    /// fails with `error`.
    pub(crate) fn ended_by_peer<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        loss: AsyncError,
        error: CallError,
    ) {
        match self.state() {
            ViState::Connected => self.enter_error(cx, None, loss),
            ViState::ConnectPending => self.abort_pending(cx, error, None),
            ViState::Idle | ViState::Error => {}
        }
    }

    /// Starts both streams for a connection. `first_msg_id` and `expected` are the IDs of the first
    /// message sent and received.
    pub(crate) fn bind<I>(
        &mut self,
        cx: &mut Context<'_, I>,
        mut connection: Connection,
        first_msg_id: u32,
        expected: u32,
    ) {
        let negotiated_bytes = cx.port.data_field_bytes(connection.peer);
        let receive_bytes = &mut connection.remote.receive_data_field_bytes;
        *receive_bytes = negotiated_bytes.min(*receive_bytes);
        self.peer_index = cx.port.add_peer_connection(cx.now_ns, connection.peer);
        self.peer = connection.peer;
        let peer_key = self.peer_key(cx, &connection);
        let config = &cx.port.config;
        let level = self.params.level;
        let recovers = connection.remote.recovery && level.is_reliable();
        let recovery = config.recovery.as_ref().filter(|_| recovers);
        let tx = TxStream::new(config, &connection, level, first_msg_id, recovery);
        let ahead = recovery.map(|recovery| {
            let data_field_bytes = connection.data_field_bytes(config);
            let room = |opcode| payload_room(data_field_bytes, opcode);
            let rooms = (room(Opcode::SendRequest), room(Opcode::WriteRequest));
            Ahead::new(rooms, recovery.max_received_ranges, config.unanswered())
        });
        let window = config.message_window;
        self.tx = Some(Box::new(tx));
        self.rx = RxStream {
            reassembly: Reassembly::new(expected, window, level.is_reliable(), ahead),
            misses: cx.port.misses.connect(peer_key),
            peer_key,
            ack: recovery.map(|recovery| Box::new(AckState::new(recovery))),
            timer_set: self.rx.timer_set,
            ..RxStream::new(self.params)
        };
        self.connection = Some(connection);
        if !connection.originator {
            let request = (connection.peer, connection.connection_id);
            cx.port.accepted.insert(request, cx.vi);
        }
    }

    /// Returns the key of the peer's misses; `None` if it is a VI of this engine and of the same
    /// user.
    fn peer_key<I>(&self, cx: &mut Context<'_, I>, connection: &Connection) -> Option<PeerKey> {
        let port = connection.peer;
        if port != cx.port.config.n_port_id {
            return Some(PeerKey { port, user: None });
        }
        let handle = connection.peer_handle;
        let other = cx.other(cx.port.slot_of(handle));
        let other = other.filter(|(other, _)| other.handle == handle);
        let user = other.map(|(other, _)| other.user);
        (user != Some(self.user)).then_some(PeerKey { port, user })
    }

    /// Withdraws the VI's own peer request and accepts this one.
    pub(crate) fn accept_peer<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        request: &ConnectRequest,
    ) {
        self.cancel_request(cx, None);
        self.handle = 0;
        let Some(handle) = cx.new_handle() else {
            self.fail_request(cx, CallError::NO_RESOURCES);
            return;
        };
        let first_msg_id = cx.io.random();
        let connection = Connection {
            peer: frame.fc.s_id,
            peer_handle: request.vi_handle,
            connection_id: iu.header.connection_id(),
            at: Sequence::reply_to(&frame.fc),
            originator: false,
            mode: ConnectMode::PeerToPeer,
            exchange_open: false,
            remote: request.attributes,
        };
        self.bind(cx, connection, first_msg_id, iu.header.msg_id);
        self.handle = handle;
        self.await_response2(cx);
    }

    /// Sends RESP1 "accepted" and waits for RESP2.
    pub(crate) fn await_response2<I: EngineIo>(&mut self, cx: &mut Context<'_, I>) {
        let sent = self.send_response1(cx);
        let timeout_ns = cx.port.config.response2_timeout_ns();
        self.phase = Phase::AwaitResponse2(self.start_wait(cx, timeout_ns, sent));
        self.arm_connect_timer(cx);
    }

    /// Sends RESP2 and waits for RESP3.
    pub(crate) fn await_response3<I: EngineIo>(&mut self, cx: &mut Context<'_, I>) {
        let sent = self.send_response2(cx);
        let timeout_ns = cx.port.config.ulp_timeout_ns;
        self.phase = Phase::AwaitResponse3(self.start_wait(cx, timeout_ns, sent));
        self.arm_connect_timer(cx);
    }

    /// Starts the wait for a response with this timeout. `sent`: the IU that requests it was sent,
    /// otherwise the port had no room.
    fn start_wait<I>(&self, cx: &Context<'_, I>, timeout_ns: u64, sent: bool) -> ResponseWait {
        let config = &cx.port.config;
        let interval_ns = match self.peer_request {
            Some(_) => config.peer_retry_ns,
            None => config.retry_interval_within_ns(timeout_ns),
        };
        let peer = self.peer_request.as_ref();
        let given_up_ns = peer.and_then(|p| p.deadline_ns).unwrap_or(u64::MAX);
        let wait = ResponseWait {
            sent: false,
            timeout_ns,
            interval_ns,
            next_retry_ns: cx.now_ns,
            deadline_ns: given_up_ns.min(cx.now_ns + timeout_ns),
        };
        note_sent(cx, wait, sent)
    }

    /// Handles the connect timer.
    pub(crate) fn connect_timeout<I: EngineIo>(&mut self, cx: &mut Context<'_, I>) {
        match &mut self.phase {
            Phase::Requesting(attempt) => {
                if let Some(error) = attempt.timeout(cx.now_ns) {
                    self.fail_request(cx, error);
                } else {
                    self.send_requests(cx);
                }
            }
            Phase::AwaitResponse3(wait) | Phase::AwaitResponse2(wait) => {
                let wait = *wait;
                self.response_wait_timeout(cx, wait);
            }
            Phase::Idle | Phase::Connected | Phase::Error => {}
        }
        self.arm_connect_timer(cx);
    }

    /// Retries RESP1 or RESP2, or gives up, if the response to it did not arrive.
    fn response_wait_timeout<I: EngineIo>(&mut self, cx: &mut Context<'_, I>, wait: ResponseWait) {
        if wait.deadline_ns <= cx.now_ns {
            let reason = Some(MessageReason::UlpTimeout);
            self.abort_pending(cx, CallError::Timeout, reason);
            return;
        }
        if wait.next_retry_ns > cx.now_ns {
            return;
        }
        let sent = if matches!(self.phase, Phase::AwaitResponse3(_)) {
            self.send_response2(cx)
        } else {
            self.send_response1(cx)
        };
        if sent && wait.sent {
            cx.count(Counter::Retries);
        }
        if let Phase::AwaitResponse3(next) | Phase::AwaitResponse2(next) = &mut self.phase {
            *next = note_sent(cx, wait, sent);
        }
    }

    /// Sends RESP1 "accepted" on the newest exchange of the request. Returns false if the port had
    /// no room.
    pub(crate) fn send_response1<I: EngineIo>(&mut self, cx: &mut Context<'_, I>) -> bool {
        let (Some(connection), Some(tx)) = (self.connection, &self.tx) else {
            return false;
        };
        let requested = match &self.peer_request {
            Some(request) => request.requested_address(),
            None => {
                let incoming = cx.port.accepted_by(cx.vi);
                incoming.map_or_else(NetAddress::default, |i| i.remote)
            }
        };
        let reason = match connection.mode {
            ConnectMode::ClientServer => ConnectReason::Accepted,
            ConnectMode::PeerToPeer => ConnectReason::YoursWins,
        };
        let mut payload = [0u8; ConnectResponse::BYTES];
        ConnectResponse {
            vi_handle: self.handle,
            responder: requested,
            attributes: cx.port.config.attributes_of(&self.params),
        }
        .emit(&mut payload);
        let f_ctl = profile::F_CTL_CONNECT_RESPONSE1;
        let mut iu = connection.connect_iu(Opcode::ConnectResponse1, f_ctl);
        iu.msg_id = tx.next_msg_id;
        iu.parameter = connect_parameter::pack(ConnectStatus::Continue, reason);
        self.send_connect_iu(cx, &iu, &payload)
    }

    /// Sends RESP2. Returns false if the port had no room.
    pub(crate) fn send_response2<I: EngineIo>(&mut self, cx: &mut Context<'_, I>) -> bool {
        let Some(connection) = self.connection else {
            return false;
        };
        let f_ctl = profile::F_CTL_CONNECT_RESPONSE2;
        let iu = connection.connect_iu(Opcode::ConnectResponse2, f_ctl);
        self.send_connect_iu(cx, &iu, &[])
    }

    /// Sends RESP1 or RESP2. A repetition is a new sequence, so that a frame that is still in the
    /// network keeps its own identity.
    fn send_connect_iu<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        iu: &ConnectionIu,
        payload: &[u8],
    ) -> bool {
        let sent = cx.port.send_connection_iu(iu, payload, cx.io);
        if sent && let Some(connection) = self.connection.as_mut() {
            connection.at = iu.at.next_sequence();
        }
        sent
    }
}

/// Notes that the IU that requests a response was sent, or had no room.
fn note_sent<I>(cx: &Context<'_, I>, mut wait: ResponseWait, sent: bool) -> ResponseWait {
    if sent {
        wait.sent = true;
        wait.next_retry_ns = cx.now_ns + wait.interval_ns;
        let config = &cx.port.config;
        wait.interval_ns = config.next_retry_interval_ns(wait.interval_ns, wait.timeout_ns);
    } else {
        wait.next_retry_ns = cx.now_ns + NO_ROOM_RETRY_NS;
    }
    wait
}

/// Ends the exchange of a request after a RESP1 that is not followed by RESP2.
pub(super) fn end_exchange<I>(
    cx: &mut Context<'_, I>,
    frame: &FrameView<'_>,
    exchange: RequestExchange,
) {
    if let Some((ox_id, seq_cnt)) = exchange {
        if frame.fc.f_ctl.contains(FCtl::LAST_SEQUENCE) {
            cx.port.exchanges.close(ox_id, seq_cnt);
        } else {
            cx.port.exchanges.abandon(cx.now_ns, ox_id, seq_cnt);
        }
    }
}
