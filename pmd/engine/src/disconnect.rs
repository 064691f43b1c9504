//! Connections ended: by the consumer, by the other end, by an error [FCVI P-13].

use fcvi_frame::fc::NPortId;
use fcvi_frame::flags::disconnect;
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::iu::Opcode;
use fcvi_frame::profile;
use fcvi_frame::reason::MessageReason;

use crate::closing::Farewell;
use crate::connect::ConnectError;
use crate::connection_iu::{ConnectionIu, Sequence};
use crate::counters::Counter;
use crate::endpoint::{EndpointState, Former, Link, Phase};
use crate::engine::{Engine, ViIndex};
use crate::host::{AsyncError, Host, Waiter};
use crate::synonym::{Check, skips};

impl Engine {
    /// The consumer disconnects (VIPL 3.3.5): legal in every state; both queues are
    /// flushed and the VI is Idle when this returns. A connection call that waits on
    /// this VI ends with `InvalidState`.
    pub fn disconnect<H: Host>(&mut self, now_ns: u64, vi: ViIndex, host: &mut H) {
        self.leave(now_ns, vi, host);
        // A peer request needs no outcome: there is none any more.
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.peer_request = None;
        }
    }

    /// To the Idle state, from any: both queues flushed. The peer request is left to the caller.
    fn leave<H: Host>(&mut self, now_ns: u64, vi: ViIndex, host: &mut H) {
        let Some(state) = self.state(vi) else {
            return;
        };
        let waiting = state == EndpointState::ConnectPending;
        self.cancel_request(now_ns, vi, None, host);
        self.unlink(now_ns, vi, Some(MessageReason::Disconnected), host);
        self.forget_accepting(vi);
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.phase = Phase::Idle;
            if waiting && ep.peer_request.is_none() {
                ep.outcome = Some(Err(ConnectError::InvalidState));
            }
        }
        self.arm_connect_timer(vi);
        host.set_state(vi, EndpointState::Idle);
        host.flush_sends(vi);
        host.flush_receives(vi);
        if waiting {
            host.control_event(Waiter::Outcome(vi));
        }
    }

    /// Takes an endpoint out of its connection and remembers which one it was. `told`: why,
    /// if the other end must hear of it.
    pub(crate) fn unlink<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        told: Option<MessageReason>,
        host: &mut H,
    ) {
        if told.is_some() {
            self.acknowledge_owed(now_ns, vi, host);
        }
        self.abandon_sending(now_ns, vi);
        let handle = self.retire_handle(vi);
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        let placed = ep.rx.last_placed();
        let shortcut = ep.shortcut.take();
        ep.tx = None;
        ep.rx.message = None;
        ep.rx.recovery = None;
        let Some(link) = ep.link.take() else {
            return;
        };
        // Half a connection that only took too long may still be asked for.
        let left = told == Some(MessageReason::Disconnected);
        let asked_no_more = left || !matches!(ep.phase, Phase::AwaitResponse2(_));
        ep.former = Some(Former {
            handle,
            peer: link.peer,
            peer_handle: link.peer_handle,
            connection_id: link.connection_id,
            placed,
        });
        self.release_peer(now_ns, link.peer);
        if !link.originator && asked_no_more {
            self.retire_request(now_ns, link.peer, link.connection_id);
        }
        if link.exchange_open {
            let next = link.at.next_seq_cnt();
            self.exchanges.abandon(now_ns, link.at.ox_id, next);
        }
        if let Some(shortcut) = shortcut {
            self.end_shortcut(now_ns, shortcut.other, told, host);
        } else if let Some(reason) = told {
            let error = reason != MessageReason::Disconnected;
            let farewell = Farewell {
                placed,
                ..link.farewell(reason, error)
            };
            self.close_connection(now_ns, farewell, host);
        }
    }

    /// The connection breaks for a reason found here; the other end is told.
    pub(crate) fn break_local<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        reason: MessageReason,
        host: &mut H,
    ) {
        self.enter_error(now_ns, vi, Some(reason), AsyncError::ConnectionLost, host);
    }

    /// Moves a VI to the Error state: both queues are flushed, `error` is reported, and no
    /// descriptor is processed any more. The peer is sent `reason_for_peer`, if any.
    fn enter_error<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        reason_for_peer: Option<MessageReason>,
        error: AsyncError,
        host: &mut H,
    ) {
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        if !matches!(ep.phase, Phase::Connected) {
            return;
        }
        ep.phase = Phase::Error;
        self.fail_held(now_ns, vi, host);
        self.unlink(now_ns, vi, reason_for_peer, host);
        self.counters.count(Counter::Breaks);
        host.set_state(vi, EndpointState::Error);
        host.flush_sends(vi);
        host.flush_receives(vi);
        host.report(vi, error);
    }

    /// A fatal error of the consumer's own making on this VI (VIPL 6.3.1): the VI goes to
    /// Error at every level and in every state. A peer request that came to something can
    /// still be asked what it was; one that did not is gone.
    pub fn fail_vi<H: Host>(&mut self, now_ns: u64, vi: ViIndex, host: &mut H) {
        match self.state(vi) {
            Some(EndpointState::Connected) => {
                self.break_local(now_ns, vi, MessageReason::ProtocolError, host);
            }
            Some(EndpointState::Idle | EndpointState::ConnectPending) => {
                self.leave(now_ns, vi, host);
                if let Some(ep) = self.endpoint_mut(vi) {
                    ep.phase = Phase::Error;
                    ep.peer_request.take_if(|request| !request.is_concluded());
                }
                host.set_state(vi, EndpointState::Error);
            }
            Some(EndpointState::Error) | None => {}
        }
    }

    pub(crate) fn handle_disconnect_request<H: Host>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        host: &mut H,
    ) {
        let s_id = frame.fc.s_id;
        let connection_id = iu.header.connection_id();
        let mut known = self.cancel_incoming(s_id, connection_id);
        if iu.header.handle == profile::HANDLE_NONE {
            // Only who asked for a connection, and takes that back, does not know our handle.
            self.retire_request(now_ns, s_id, connection_id);
        }
        if let Some(vi) = self.disconnected_vi(s_id, iu) {
            known = true;
            let link = self.endpoint(vi).and_then(|ep| ep.link);
            if link.is_some_and(|link| !link.originator) {
                self.retire_request(now_ns, s_id, connection_id);
            }
            if iu.header.flags & disconnect::ACKNOWLEDGES != 0 {
                // What failed is behind it. One that cannot be says nothing.
                let next = iu.header.msg_id.wrapping_add(1);
                self.acknowledged_before(now_ns, vi, next, host);
            }
            let loss = if iu.header.flags & disconnect::ERROR != 0 {
                let reason = MessageReason::from_parameter(iu.header.parameter);
                self.told_failure(now_ns, vi, reason, host);
                AsyncError::ConnectionLost
            } else {
                AsyncError::Disconnected
            };
            self.ended_by_peer(now_ns, vi, loss, ConnectError::Timeout, host);
        }
        let reason = if known {
            MessageReason::None
        } else {
            self.counters.count(Counter::UnknownDisconnects);
            MessageReason::UnknownHandle
        };
        let answer = ConnectionIu {
            to: s_id,
            at: Sequence::answering(&frame.fc),
            opcode: Opcode::DisconnectResponse,
            f_ctl: profile::F_CTL_FINAL_REPLY,
            handle: iu.header.handle,
            flags: 0,
            msg_id: 0,
            parameter: reason.to_parameter(),
            port_name: 0,
            connection_id,
        };
        // Without room the request is repeated.
        self.send_connection_iu(&answer, &[], host);
    }

    /// The VI whose connection a DISCONNECT_RQST ends: by handle, or by connection ID
    /// while the other end does not know our handle yet.
    fn disconnected_vi(&self, s_id: NPortId, iu: &IuView<'_>) -> Option<ViIndex> {
        let connection_id = iu.header.connection_id();
        let fits = |link: &Link| {
            (link.peer == s_id || skips(Check::ConnectionPeer))
                && (link.connection_id == connection_id || skips(Check::ConnectionId))
        };
        if iu.header.handle != profile::HANDLE_NONE {
            let vi = self.place_of(iu.header.handle);
            let ep = self.endpoint(vi)?;
            return (ep.is_addressed(iu) && ep.link.as_ref().is_some_and(fits)).then_some(vi);
        }
        let at = self.endpoints.iter().position(|ep| {
            ep.as_ref().is_some_and(|ep| {
                matches!(ep.phase, Phase::AwaitResponse2(_)) && ep.link.as_ref().is_some_and(fits)
            })
        })?;
        Some(ViIndex(at as u32))
    }

    /// The peer disconnected or was lost: a connection breaks and reports `loss`, a pending request
    /// fails with `error`.
    pub(crate) fn ended_by_peer<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        loss: AsyncError,
        error: ConnectError,
        host: &mut H,
    ) {
        match self.state(vi) {
            Some(EndpointState::Connected) => self.enter_error(now_ns, vi, None, loss, host),
            Some(EndpointState::ConnectPending) => {
                self.end_pending(now_ns, vi, error, None, host);
            }
            Some(EndpointState::Idle | EndpointState::Error) | None => {}
        }
    }

    /// A message came for a connection that this end left: the DISCONNECT_RQST was lost
    /// again and again, so the other end is told once more.
    #[cold]
    pub(crate) fn tell_again<H: Host>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        host: &mut H,
    ) {
        let vi = self.place_of(iu.header.handle);
        let former = self.endpoint(vi).and_then(|ep| ep.former);
        let Some(former) =
            former.filter(|f| f.handle == iu.header.handle && f.peer == frame.fc.s_id)
        else {
            return;
        };
        let farewell = Farewell {
            peer: former.peer,
            peer_handle: former.peer_handle,
            connection_id: former.connection_id,
            reason: MessageReason::UnknownHandle,
            error: true,
            placed: former.placed,
        };
        self.close_connection(now_ns, farewell, host);
    }

    /// A station went, or was replaced: everything with it ends here and now.
    pub fn peer_lost<H: Host>(&mut self, now_ns: u64, id: NPortId, host: &mut H) {
        self.counters.count(Counter::PeersLost);
        self.targets_gone(now_ns, id, host);
        self.incoming_gone(id);
        for slot in 0..self.endpoints.len() {
            let vi = ViIndex(slot as u32);
            let Some(ep) = self.endpoint_mut(vi) else {
                continue;
            };
            if ep.link.as_ref().is_some_and(|link| link.peer == id) {
                let asked = matches!(ep.phase, Phase::AwaitResponse3(_));
                let error = if asked {
                    ConnectError::NotReachable
                } else {
                    ConnectError::Timeout
                };
                self.ended_by_peer(now_ns, vi, AsyncError::ConnectionLost, error, host);
            }
        }
        for ep in self.endpoints.iter_mut().flatten() {
            ep.former = ep.former.filter(|f| f.peer != id);
        }
        self.closing_gone(now_ns, id);
        host.control_event(Waiter::All);
    }
}
