//! Ends of connections: by the consumer, by the peer, by an error [FCVI P-13].

use fcvi_frame::fc::NPortId;
use fcvi_frame::flags::disconnect;
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::iu::Opcode;
use fcvi_frame::profile;
use fcvi_frame::reason::MessageReason;
use vi_types::{CallError, ViIndex, ViState};

use crate::connection::{Break, Connection};
use crate::connection_iu::{ConnectionIu, Sequence};
use crate::counters::Counter;
use crate::endpoint::Phase;
use crate::engine::Engine;
use crate::engine_io::{AsyncError, EngineIo, Waiter};
use crate::synonym::{Check, skips};

impl Engine {
    /// Disconnects a VI (VIPL 3.3.5), which is legal in every state: flushes both queues and leaves
    /// the VI Idle. A pending connection call on this VI ends with `InvalidState`.
    pub fn disconnect<I: EngineIo>(&mut self, now_ns: u64, vi: ViIndex, io: &mut I) {
        self.return_to_idle(now_ns, vi, io);
        // The peer request is withdrawn: it gets no outcome.
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.peer_request = None;
        }
    }

    /// Moves a VI from any state to Idle and flushes both queues. Leaves the peer request to the
    /// caller.
    fn return_to_idle<I: EngineIo>(&mut self, now_ns: u64, vi: ViIndex, io: &mut I) {
        let Some(state) = self.state(vi) else {
            return;
        };
        let waiting = state == ViState::ConnectPending;
        self.cancel_request(now_ns, vi, None, io);
        self.end_connection(now_ns, vi, Some(MessageReason::Disconnected), io);
        self.remove_accepting(vi);
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.phase = Phase::Idle;
            if waiting && ep.peer_request.is_none() {
                ep.outcome = Some(Err(CallError::InvalidState));
            }
        }
        self.arm_connect_timer(vi);
        io.set_state(vi, ViState::Idle);
        io.flush_sends(vi);
        io.flush_receives(vi);
        if waiting {
            io.control_event(Waiter::Outcome(vi));
        }
    }

    /// Ends the connection of an endpoint. The peer is sent `reason_for_peer`, if any.
    pub(crate) fn end_connection<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        reason_for_peer: Option<MessageReason>,
        io: &mut I,
    ) {
        if let Some((ep, mut cx)) = self.split(now_ns, vi, io) {
            ep.end_connection(&mut cx, reason_for_peer);
        }
    }

    /// Moves a VI to Error after a fatal error of its consumer (VIPL 6.3.1), at every level and in
    /// every state. A concluded peer request keeps its outcome; any other one is withdrawn.
    pub fn fail_vi<I: EngineIo>(&mut self, now_ns: u64, vi: ViIndex, io: &mut I) {
        match self.state(vi) {
            Some(ViState::Connected) => {
                if let Some((ep, mut cx)) = self.split(now_ns, vi, io) {
                    ep.break_local(&mut cx, Break(MessageReason::ProtocolError));
                }
            }
            Some(ViState::Idle | ViState::ConnectPending) => {
                self.return_to_idle(now_ns, vi, io);
                if let Some(ep) = self.endpoint_mut(vi) {
                    ep.phase = Phase::Error;
                    ep.peer_request.take_if(|request| !request.is_concluded());
                }
                io.set_state(vi, ViState::Error);
            }
            Some(ViState::Error) | None => {}
        }
    }

    /// Handles DISCONNECT_RQST.
    pub(crate) fn handle_disconnect_request<I: EngineIo>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        io: &mut I,
    ) {
        let s_id = frame.fc.s_id;
        let connection_id = iu.header.connection_id();
        let mut known = self.cancel_incoming(s_id, connection_id);
        if iu.header.handle == profile::HANDLE_NONE {
            // Only a requester that cancels its request does not know our handle.
            self.port.quarantine_cancelled(now_ns, s_id, connection_id);
        }
        if let Some(vi) = self.disconnected_vi(s_id, iu) {
            known = true;
            let connection = self.endpoint(vi).and_then(|ep| ep.connection);
            if connection.is_some_and(|connection| !connection.originator) {
                self.port.quarantine_request(now_ns, s_id, connection_id);
            }
            if iu.header.flags & disconnect::ACKNOWLEDGES != 0 {
                // What failed comes after it. An impossible ID has no effect.
                let next = iu.header.msg_id.wrapping_add(1);
                if let Some((ep, mut cx)) = self.split(now_ns, vi, io)
                    && let Some(tx) = &mut ep.tx
                {
                    tx.acknowledged_before(&mut cx, next);
                }
            }
            let loss = if iu.header.flags & disconnect::ERROR != 0 {
                let reason = MessageReason::from_parameter(iu.header.parameter);
                if let Some((ep, mut cx)) = self.split(now_ns, vi, io)
                    && let (Phase::Connected, Some(tx)) = (&ep.phase, &mut ep.tx)
                {
                    tx.handle_peer_failure(&mut cx, reason);
                }
                AsyncError::ConnectionLost
            } else {
                AsyncError::Disconnected
            };
            self.ended_by_peer(now_ns, vi, loss, CallError::Timeout, io);
        }
        let reason = if known {
            MessageReason::None
        } else {
            self.port.counters.count(Counter::UnknownDisconnects);
            MessageReason::UnknownHandle
        };
        let answer = ConnectionIu {
            to: s_id,
            at: Sequence::reply_to(&frame.fc),
            opcode: Opcode::DisconnectResponse,
            f_ctl: profile::F_CTL_FINAL_REPLY,
            handle: iu.header.handle,
            flags: 0,
            msg_id: 0,
            parameter: reason.to_parameter(),
            port_name: 0,
            connection_id,
        };
        // If the port has no room, the peer repeats the request.
        self.port.send_connection_iu(&answer, &[], io);
    }

    /// Returns the VI whose connection a DISCONNECT_RQST ends: by handle, or by connection ID while
    /// the peer does not know our handle yet.
    fn disconnected_vi(&self, s_id: NPortId, iu: &IuView<'_>) -> Option<ViIndex> {
        let connection_id = iu.header.connection_id();
        let fits = |connection: &Connection| {
            (connection.peer == s_id || skips(Check::ConnectionPeer))
                && (connection.connection_id == connection_id || skips(Check::ConnectionId))
        };
        if iu.header.handle != profile::HANDLE_NONE {
            let vi = self.port.slot_of(iu.header.handle);
            let ep = self.endpoint(vi)?;
            return (ep.is_addressed(iu) && ep.connection.as_ref().is_some_and(fits)).then_some(vi);
        }
        let vi = *self.port.accepted.get(&(s_id, connection_id))?;
        let waits = matches!(self.endpoint(vi)?.phase, Phase::AwaitResponse2(_));
        waits.then_some(vi)
    }

    /// The peer disconnected or was lost: a connection breaks and reports `loss`, a pending request
    /// fails with `error`.
    pub(crate) fn ended_by_peer<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        loss: AsyncError,
        error: CallError,
        io: &mut I,
    ) {
        match self.state(vi) {
            Some(ViState::Connected) => {
                if let Some((ep, mut cx)) = self.split(now_ns, vi, io) {
                    ep.enter_error(&mut cx, None, loss);
                }
            }
            Some(ViState::ConnectPending) => {
                self.abort_pending(now_ns, vi, error, None, io);
            }
            Some(ViState::Idle | ViState::Error) | None => {}
        }
    }

    /// Ends all connections and requests with a station that was lost or replaced.
    pub fn peer_lost<I: EngineIo>(&mut self, now_ns: u64, id: NPortId, io: &mut I) {
        self.port.counters.count(Counter::PeersLost);
        self.ports_lost(now_ns, |port| port == id, io);
    }

    /// Ends all connections and requests with all of these ports, in one pass.
    pub(crate) fn ports_lost<I: EngineIo>(
        &mut self,
        now_ns: u64,
        is_lost: impl Fn(NPortId) -> bool + Copy,
        io: &mut I,
    ) {
        self.remove_targets(now_ns, is_lost, io);
        self.cancel_incoming_from(is_lost);
        for slot in 0..self.endpoints.len() {
            let vi = ViIndex(slot as u32);
            let Some(ep) = self.endpoint_mut(vi) else {
                continue;
            };
            if ep
                .connection
                .as_ref()
                .is_some_and(|connection| is_lost(connection.peer))
            {
                let asked = matches!(ep.phase, Phase::AwaitResponse3(_));
                let error = if asked {
                    CallError::NotReachable
                } else {
                    CallError::Timeout
                };
                self.ended_by_peer(now_ns, vi, AsyncError::ConnectionLost, error, io);
            }
        }
        for ep in self.endpoints.iter_mut().flatten() {
            ep.previous = ep.previous.filter(|f| !is_lost(f.peer));
        }
        self.port.remove_disconnects_to(now_ns, is_lost);
        io.control_event(Waiter::All);
    }

    /// Probes idle peers, and ends connections with one that does not reply.
    pub(crate) fn liveness_timeout<I: EngineIo>(&mut self, now_ns: u64, io: &mut I) {
        if let Some(id) = self.port.probe_idle_peers(now_ns, io) {
            self.peer_lost(now_ns, id, io);
        }
        self.port.schedule_probes(now_ns);
    }
}
