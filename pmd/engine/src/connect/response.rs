//! RESP1 and RESP3, handled by the originator.

use fcvi_frame::connect::ConnectResponse;
use fcvi_frame::fc::{FCtl, NPortId};
use fcvi_frame::flags::ConnectMode;
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::iu::Opcode;
use fcvi_frame::profile;
use fcvi_frame::reason::{ConnectReason, ConnectStatus, MessageReason, connect_parameter};
use vi_types::{CallError, ViIndex};

use crate::connect::request::{PortReply, Target};
use crate::connect::{check_attributes, is_valid_peer};
use crate::connection::Connection;
use crate::connection_iu::Sequence;
use crate::counters::Counter;
use crate::endpoint::Phase;
use crate::engine::Engine;
use crate::engine_io::EngineIo;
use crate::pending_disconnects::DisconnectInfo;
use crate::synonym::{Check, skips};

/// OX_ID and next SEQ_CNT of the exchange that a RESP1 arrived on; `None` for an earlier one, which
/// is in quarantine.
type RequestExchange = Option<(u16, u16)>;

impl Engine {
    /// Handles RESP1.
    pub(crate) fn handle_response1<I: EngineIo>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        io: &mut I,
    ) {
        let Ok(payload) = ConnectResponse::parse(iu.payload) else {
            self.port.counters.count(Counter::DropBadIu);
            return;
        };
        let (status, reason) = connect_parameter::unpack(iu.header.parameter);
        let connection_id = iu.header.connection_id();
        let s_id = frame.fc.s_id;
        if let Some(vi) = self.connection_of(frame, iu) {
            self.handle_repeated_response1(vi, status, io);
            return;
        }
        let vi = self.port.slot_of(iu.header.handle);
        let is_addressed = self.endpoint(vi).is_some_and(|ep| ep.is_addressed(iu));
        let request = if is_addressed {
            self.request_exchange(vi, frame, connection_id)
        } else {
            None
        };
        let Some(exchange) = request else {
            self.handle_stray_response1(now_ns, frame, iu, status, &payload, io);
            return;
        };
        if status == ConnectStatus::Continue {
            self.handle_accept(now_ns, vi, frame, iu, &payload, exchange, io);
            return;
        }
        self.end_request_exchange(now_ns, frame, exchange);
        let peer = self.is_pooled(vi);
        let error = match (status, reason) {
            (ConnectStatus::Pending, _) => {
                self.record_reply(now_ns, vi, s_id, PortReply::Pending, io);
                return;
            }
            (_, ConnectReason::NoMatch | ConnectReason::NotMyAddress) if !peer => {
                self.record_reply(now_ns, vi, s_id, PortReply::NoMatch, io);
                return;
            }
            (_, ConnectReason::ReliabilityLevel) => CallError::ReliabilityLevel,
            (_, ConnectReason::MaxTransferSize) => CallError::MaxTransferSize,
            (_, ConnectReason::Qos) => CallError::Qos,
            // After any other reply a peer request stays in the pool until it times out.
            _ if peer => {
                self.record_reply(now_ns, vi, s_id, PortReply::Pending, io);
                return;
            }
            (_, ConnectReason::NoResources) => CallError::NO_RESOURCES,
            (_, ConnectReason::TimedOut) => CallError::Timeout,
            _ => CallError::Rejected,
        };
        self.mark_refused(vi, s_id);
        self.fail_request(now_ns, vi, error, io);
    }

    /// Handles a repeated RESP1 of this VI's connection: our RESP2 was lost.
    fn handle_repeated_response1<I: EngineIo>(
        &mut self,
        vi: ViIndex,
        status: ConnectStatus,
        io: &mut I,
    ) {
        let waiting = self
            .endpoint(vi)
            .is_some_and(|ep| matches!(ep.phase, Phase::AwaitResponse3(_)));
        if waiting && status == ConnectStatus::Continue {
            self.send_response2(vi, io);
        } else {
            self.port.counters.count(Counter::DropStrayConnect);
        }
    }

    /// Handles RESP1 that answers no pending request. If it accepts one that is over, the peer is
    /// sent a disconnect, so that it does not wait for RESP2. Acceptances of requests that this port
    /// did not make have no effect: each would use a disconnect and an OX_ID.
    fn handle_stray_response1<I: EngineIo>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        status: ConnectStatus,
        payload: &ConnectResponse,
        io: &mut I,
    ) {
        self.port.counters.count(Counter::DropStrayConnect);
        let connection_id = iu.header.connection_id();
        // Half of the table is reserved for connections that existed.
        if status != ConnectStatus::Continue
            || !self.port.has_spare_disconnect_slots()
            || !self
                .port
                .is_ended_request(now_ns, iu.header.handle, connection_id)
        {
            return;
        }
        let info = DisconnectInfo {
            peer: frame.fc.s_id,
            peer_handle: payload.vi_handle,
            connection_id,
            reason: MessageReason::Disconnected,
            error: false,
            placed: None,
        };
        self.port.start_disconnect(now_ns, info, io);
    }

    /// Returns the exchange of the open request that this RESP1 answers; `None` if it answers none.
    fn request_exchange(
        &mut self,
        vi: ViIndex,
        frame: &FrameView<'_>,
        connection_id: u32,
    ) -> Option<RequestExchange> {
        let Phase::Requesting(attempt) = &mut self.endpoint_mut(vi)?.phase else {
            return None;
        };
        if attempt.connection_id != connection_id && !skips(Check::ConnectionId) {
            return None;
        }
        let asked = |t: &Target| t.id == frame.fc.s_id || skips(Check::ConnectionPeer);
        let target = attempt
            .targets
            .iter_mut()
            .find(|t| asked(t) && t.reply != PortReply::NoMatch)?;
        // A reply to an earlier exchange of the same request counts as well: it may have crossed
        // our retry. That exchange is in quarantine already.
        let ours = target.exchange.is_some_and(|(ox, _)| ox == frame.fc.ox_id);
        Some(if ours { target.exchange.take() } else { None })
    }

    /// Ends the exchange of a request after a RESP1 that is not followed by RESP2.
    fn end_request_exchange(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        exchange: RequestExchange,
    ) {
        if let Some((ox_id, seq_cnt)) = exchange {
            if frame.fc.f_ctl.contains(FCtl::LAST_SEQUENCE) {
                self.port.exchanges.close(ox_id, seq_cnt);
            } else {
                self.port.exchanges.abandon(now_ns, ox_id, seq_cnt);
            }
        }
    }

    /// Marks a port that refused, so that the request is not cancelled there.
    fn mark_refused(&mut self, vi: ViIndex, id: NPortId) {
        if let Some(Phase::Requesting(attempt)) = self.endpoint_mut(vi).map(|ep| &mut ep.phase) {
            for target in attempt.targets.iter_mut().filter(|t| t.id == id) {
                target.reply = PortReply::NoMatch;
            }
        }
    }

    /// Handles RESP1 "accepted": checks the attributes, enables receiving, answers with RESP2.
    #[allow(clippy::too_many_arguments, reason = "one frame, parsed")]
    fn handle_accept<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        payload: &ConnectResponse,
        exchange: RequestExchange,
        io: &mut I,
    ) {
        let Some(ep) = self.endpoint(vi) else {
            return;
        };
        let Phase::Requesting(attempt) = &ep.phase else {
            return;
        };
        let (params, first_msg_id) = (ep.params, attempt.first_msg_id);
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
            check_attributes(&self.attributes_of(&params), &payload.attributes)
        } else {
            self.port.counters.count(Counter::DropBadIu);
            if connection.mode == ConnectMode::PeerToPeer {
                // Not a valid reply: other ports may give one.
                self.end_request_exchange(now_ns, frame, exchange);
                self.record_reply(now_ns, vi, connection.peer, PortReply::Pending, io);
                return;
            }
            Err(CallError::Rejected)
        };
        self.cancel_request(now_ns, vi, Some(connection.peer), io);
        if let Err(error) = checked {
            if let Some((ox_id, seq_cnt)) = exchange {
                self.port.exchanges.abandon(now_ns, ox_id, seq_cnt);
            }
            let info = connection.disconnect_info(MessageReason::Disconnected, false);
            self.port.start_disconnect(now_ns, info, io);
            self.fail_request(now_ns, vi, error, io);
            return;
        }
        self.bind(now_ns, vi, connection, first_msg_id, iu.header.msg_id);
        let sent = self.send_response2(vi, io);
        let wait = self.start_wait(now_ns, vi, self.port.config.ulp_timeout_ns, sent);
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.phase = Phase::AwaitResponse3(wait);
        }
        self.arm_connect_timer(vi);
    }

    /// Sends RESP2. Returns false if the port had no room.
    pub(super) fn send_response2<I: EngineIo>(&mut self, vi: ViIndex, io: &mut I) -> bool {
        let Some(connection) = self.endpoint(vi).and_then(|ep| ep.connection) else {
            return false;
        };
        let f_ctl = profile::F_CTL_CONNECT_RESPONSE2;
        let iu = Self::connect_iu(&connection, Opcode::ConnectResponse2, f_ctl);
        self.send_connect_iu(vi, &iu, &[], io)
    }

    /// Handles RESP3.
    pub(crate) fn handle_response3<I: EngineIo>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        io: &mut I,
    ) {
        let Some(vi) = self.connection_of(frame, iu) else {
            self.port.counters.count(Counter::DropStrayConnect);
            return;
        };
        let Some(ep) = self.endpoint(vi) else {
            return;
        };
        let (peer_index, waiting) = (ep.peer_index, matches!(ep.phase, Phase::AwaitResponse3(_)));
        self.port.note_received(peer_index, now_ns);
        if waiting {
            if let Some((ep, mut cx)) = self.split(now_ns, vi, io) {
                ep.client_connected(&mut cx);
            }
        } else {
            self.port.counters.count(Counter::DropStrayConnect);
        }
    }
}
