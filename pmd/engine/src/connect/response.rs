//! The originator on RESP1 and RESP3.

use fcvi_frame::connect::ConnectResponse;
use fcvi_frame::fc::{FCtl, NPortId};
use fcvi_frame::flags::ConnectMode;
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::iu::Opcode;
use fcvi_frame::profile;
use fcvi_frame::reason::{ConnectReason, ConnectStatus, MessageReason, connect_parameter};

use crate::closing::Farewell;
use crate::connect::request::{Answer, Target};
use crate::connect::{ConnectError, RemoteVi, compare, credible};
use crate::connection_iu::Sequence;
use crate::counters::Counter;
use crate::endpoint::{EndpointState, Link, Phase};
use crate::engine::{Engine, ViIndex};
use crate::host::{Host, Waiter};
use crate::synonym::{Check, skips};

/// The exchange of ours that a RESP1 came on, and its next SEQ_CNT; `None` for an
/// earlier one, which is dead.
type AnsweredExchange = Option<(u16, u16)>;

impl Engine {
    pub(crate) fn handle_response1<H: Host>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        host: &mut H,
    ) {
        let Ok(payload) = ConnectResponse::parse(iu.payload) else {
            self.counters.count(Counter::DropBadIu);
            return;
        };
        let (status, reason) = connect_parameter::unpack(iu.header.parameter);
        let connection_id = iu.header.connection_id();
        let s_id = frame.fc.s_id;
        if let Some(vi) = self.link_of(frame, iu) {
            self.repeated_response1(vi, status, host);
            return;
        }
        let vi = self.place_of(iu.header.handle);
        let asked = self.endpoint(vi).is_some_and(|ep| ep.is_addressed(iu));
        let answered = if asked {
            self.answered_exchange(vi, frame, connection_id)
        } else {
            None
        };
        let Some(exchange) = answered else {
            self.stray_response1(now_ns, s_id, status, &payload, connection_id, host);
            return;
        };
        if status == ConnectStatus::GoOn {
            self.accepted(now_ns, vi, frame, iu, &payload, exchange, host);
            return;
        }
        self.end_request_exchange(now_ns, frame, exchange);
        let peer = self.asks_as_peer(vi);
        let error = match (status, reason) {
            (ConnectStatus::Pending, _) => {
                self.note_answer(now_ns, vi, s_id, Answer::Pending, host);
                return;
            }
            (_, ConnectReason::NoMatch | ConnectReason::NotMyAddress) if !peer => {
                self.note_answer(now_ns, vi, s_id, Answer::NoMatch, host);
                return;
            }
            (_, ConnectReason::ReliabilityLevel) => ConnectError::ReliabilityLevel,
            (_, ConnectReason::MaxTransferSize) => ConnectError::MaxTransferSize,
            (_, ConnectReason::Qos) => ConnectError::Qos,
            // Whatever else a port says: a peer request stays in the pool until its time is over.
            _ if peer => {
                self.note_answer(now_ns, vi, s_id, Answer::Pending, host);
                return;
            }
            (_, ConnectReason::NoResources) => ConnectError::Resources,
            (_, ConnectReason::TimedOut) => ConnectError::Timeout,
            _ => ConnectError::Rejected,
        };
        self.refused(vi, s_id);
        self.fail_request(now_ns, vi, error, host);
    }

    /// RESP1 of the connection that this VI has or is about to have: our RESP2 was lost.
    fn repeated_response1<H: Host>(&mut self, vi: ViIndex, status: ConnectStatus, host: &mut H) {
        let waiting = self
            .endpoint(vi)
            .is_some_and(|ep| matches!(ep.phase, Phase::AwaitResponse3(_)));
        if waiting && status == ConnectStatus::GoOn {
            self.send_response2(vi, host);
        } else {
            self.counters.count(Counter::DropStrayConnect);
        }
    }

    /// RESP1 to a request that is over. If it accepts, the other end must not wait for RESP2.
    fn stray_response1<H: Host>(
        &mut self,
        now_ns: u64,
        s_id: NPortId,
        status: ConnectStatus,
        payload: &ConnectResponse,
        connection_id: u32,
        host: &mut H,
    ) {
        self.counters.count(Counter::DropStrayConnect);
        // Half of the table is kept for connections that are known to have been there.
        if status != ConnectStatus::GoOn || !self.closing_has_room_to_spare() {
            return;
        }
        let farewell = Farewell {
            peer: s_id,
            peer_handle: payload.vi_handle,
            connection_id,
            reason: MessageReason::Disconnected,
            error: false,
            placed: None,
        };
        self.close_connection(now_ns, farewell, host);
    }

    /// Does this RESP1 answer an open request of ours? Then: on which exchange.
    fn answered_exchange(
        &mut self,
        vi: ViIndex,
        frame: &FrameView<'_>,
        connection_id: u32,
    ) -> Option<AnsweredExchange> {
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
            .find(|t| asked(t) && t.answer != Answer::NoMatch)?;
        // The answer to an earlier exchange of the same request counts as well:
        // it may have crossed our retry. That exchange is dead already.
        let ours = target.exchange.is_some_and(|(ox, _)| ox == frame.fc.ox_id);
        Some(if ours { target.exchange.take() } else { None })
    }

    /// A RESP1 that is not followed by RESP2 ended its exchange, or should have.
    fn end_request_exchange(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        exchange: AnsweredExchange,
    ) {
        if let Some((ox_id, seq_cnt)) = exchange {
            if frame.fc.f_ctl.contains(FCtl::LAST_SEQUENCE) {
                self.exchanges.close(ox_id, seq_cnt);
            } else {
                self.exchanges.abandon(now_ns, ox_id, seq_cnt);
            }
        }
    }

    /// This port decided: it need not be told that the request is over.
    fn refused(&mut self, vi: ViIndex, id: NPortId) {
        if let Some(Phase::Requesting(attempt)) = self.endpoint_mut(vi).map(|ep| &mut ep.phase) {
            for target in attempt.targets.iter_mut().filter(|t| t.id == id) {
                target.answer = Answer::NoMatch;
            }
        }
    }

    /// RESP1 said yes: compare, enable receiving, answer with RESP2.
    #[allow(clippy::too_many_arguments, reason = "one frame, parsed")]
    fn accepted<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        payload: &ConnectResponse,
        exchange: AnsweredExchange,
        host: &mut H,
    ) {
        let Some(ep) = self.endpoint(vi) else {
            return;
        };
        let Phase::Requesting(attempt) = &ep.phase else {
            return;
        };
        let (params, first_msg_id) = (ep.params, attempt.first_msg_id);
        let link = Link {
            peer: frame.fc.s_id,
            peer_handle: payload.vi_handle,
            connection_id: iu.header.connection_id(),
            at: Sequence::answering(&frame.fc),
            originator: true,
            mode: attempt.mode,
            exchange_open: exchange.is_some(),
            remote: payload.attributes,
        };
        let checked = if credible(payload.vi_handle, &payload.attributes) {
            compare(&self.attributes_of(&params), &payload.attributes)
        } else {
            self.counters.count(Counter::DropBadIu);
            if link.mode == ConnectMode::PeerToPeer {
                // Not an answer: others may give one.
                self.end_request_exchange(now_ns, frame, exchange);
                self.note_answer(now_ns, vi, link.peer, Answer::Pending, host);
                return;
            }
            Err(ConnectError::Rejected)
        };
        self.cancel_request(now_ns, vi, Some(link.peer), host);
        if let Err(error) = checked {
            if let Some((ox_id, seq_cnt)) = exchange {
                self.exchanges.abandon(now_ns, ox_id, seq_cnt);
            }
            let farewell = link.farewell(MessageReason::Disconnected, false);
            self.close_connection(now_ns, farewell, host);
            self.fail_request(now_ns, vi, error, host);
            return;
        }
        self.bind(now_ns, vi, link, first_msg_id, iu.header.msg_id);
        let sent = self.send_response2(vi, host);
        let wait = self.await_from(now_ns, vi, sent);
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.phase = Phase::AwaitResponse3(wait);
        }
        self.arm_connect_timer(vi);
    }

    /// False if there was no room for it.
    pub(super) fn send_response2<H: Host>(&mut self, vi: ViIndex, host: &mut H) -> bool {
        let Some(link) = self.endpoint(vi).and_then(|ep| ep.link) else {
            return false;
        };
        let f_ctl = profile::F_CTL_CONNECT_RESPONSE2;
        let iu = Self::link_iu(&link, Opcode::ConnectResponse2, f_ctl);
        self.send_link_iu(vi, &iu, &[], host)
    }

    pub(crate) fn handle_response3<H: Host>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        host: &mut H,
    ) {
        let Some(vi) = self.link_of(frame, iu) else {
            self.counters.count(Counter::DropStrayConnect);
            return;
        };
        let Some(ep) = self.endpoint(vi) else {
            return;
        };
        let (peer_index, waiting) = (ep.peer_index, matches!(ep.phase, Phase::AwaitResponse3(_)));
        self.heard(peer_index, now_ns);
        if waiting {
            self.client_connected(vi, host);
        } else {
            self.counters.count(Counter::DropStrayConnect);
        }
    }

    /// RESP3, or a message that implies it: the client may transmit.
    pub(crate) fn client_connected<H: Host>(&mut self, vi: ViIndex, host: &mut H) {
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        let Some(link) = ep.link.as_mut() else {
            return;
        };
        let remote = RemoteVi {
            attributes: link.remote,
            n_port_id: link.peer,
        };
        // The connect exchange ended cleanly: its OX_ID may be used again.
        let exchange_open = core::mem::take(&mut link.exchange_open);
        let at = link.at;
        ep.phase = Phase::Connected;
        ep.conclude(Ok(remote));
        if exchange_open {
            self.exchanges.close(at.ox_id, at.next_seq_cnt());
        }
        self.arm_connect_timer(vi);
        self.counters.count(Counter::Connects);
        host.set_state(vi, EndpointState::Connected);
        host.control_event(Waiter::Outcome(vi));
    }
}
