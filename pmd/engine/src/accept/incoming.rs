//! Requests of other ports.

use fcvi_frame::connect::{Attributes, ConnectRequest, ConnectResponse, NetAddress};
use fcvi_frame::fc::NPortId;
use fcvi_frame::flags::{ConnectMode, connect_request, connect_response};
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::iu::Opcode;
use fcvi_frame::profile;
use fcvi_frame::reason::{ConnectReason, ConnectStatus, connect_parameter};

use crate::accept::ConnId;
use crate::connect::credible;
use crate::connection_iu::{ConnectionIu, Sequence};
use crate::counters::Counter;
use crate::engine::{Engine, ViIndex};
use crate::host::{Host, Waiter};
use crate::synonym::{Check, skips};
use crate::timer::TimerKey;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IncomingState {
    /// It waits for the consumer.
    Held,
    /// RESP1 was sent for this VI.
    Accepting(ViIndex),
    /// It was answered with this; the client may ask again because the answer was lost.
    Refused(ConnectReason),
    /// The client gave up or went.
    Void,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Incoming {
    mode: ConnectMode,
    pub(super) generation: u32,
    pub(super) state: IncomingState,
    pub(crate) s_id: NPortId,
    pub(crate) connection_id: u32,
    pub(super) originator_handle: u32,
    pub(super) first_msg_id: u32,
    /// RESP1's place on the newest exchange of the request.
    pub(super) answer_at: Sequence,
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
    pub(crate) fn handle_connect_request<H: Host>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        host: &mut H,
    ) {
        let request = match ConnectRequest::parse(iu.payload) {
            Ok(request) if credible(request.vi_handle, &request.attributes) => request,
            Ok(request) => {
                self.counters.count(Counter::DropBadIu);
                self.refuse(frame, iu, request.vi_handle, ConnectReason::Malformed, host);
                return;
            }
            Err(_) => {
                self.counters.count(Counter::DropBadIu);
                return;
            }
        };
        if self.is_late_request(now_ns, frame.fc.s_id, iu.header.connection_id()) {
            return;
        }
        let handle = request.vi_handle;
        let Some(mode) = connect_request::mode(iu.header.flags) else {
            self.counters.count(Counter::NoMatch);
            self.refuse(frame, iu, handle, ConnectReason::NoMatch, host);
            return;
        };
        if request.remote.host != self.config.host {
            self.counters.count(Counter::NoMatch);
            self.refuse(frame, iu, handle, ConnectReason::NotMyAddress, host);
            return;
        }
        let max_bytes = usize::from(self.config.max_discriminator_bytes);
        let names = [&request.local, &request.remote].map(|of| of.discriminator.as_bytes());
        if names.iter().any(|name| name.len() > max_bytes) {
            self.counters.count(Counter::DropLongDiscriminator);
            self.refuse(frame, iu, handle, ConnectReason::NoResources, host);
            return;
        }
        if mode == ConnectMode::PeerToPeer {
            self.handle_peer_request(now_ns, frame, iu, &request, host);
            return;
        }
        if self.repeated_request(frame, &request, iu.header.connection_id(), host) {
            return;
        }
        if !self.has_listener(&request.remote.discriminator) {
            self.counters.count(Counter::NoMatch);
            self.refuse(frame, iu, handle, ConnectReason::NoMatch, host);
            return;
        }
        let Some(index) = self.free_incoming(now_ns) else {
            self.counters.count(Counter::DropIncomingFull);
            self.refuse(frame, iu, handle, ConnectReason::NoResources, host);
            return;
        };
        let conn = self.hold(index, frame, iu, &request);
        if request.timeout_ms != u32::MAX {
            let void_at_ns = now_ns + u64::from(request.timeout_ms) * 1_000_000;
            self.timers.set(void_at_ns, TimerKey::Incoming(index));
        }
        if let Some(listener) = self.match_listener(&request.remote.discriminator, conn) {
            host.control_event(Waiter::Request(listener));
        }
    }

    /// Keeps a request in this place for its consumer.
    pub(super) fn hold(
        &mut self,
        index: u32,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        request: &ConnectRequest,
    ) -> ConnId {
        self.next_generation = self.next_generation.wrapping_add(1);
        self.incoming[index as usize] = Some(Incoming {
            mode: connect_request::mode(iu.header.flags).unwrap_or_default(),
            generation: self.next_generation,
            state: IncomingState::Held,
            s_id: frame.fc.s_id,
            connection_id: iu.header.connection_id(),
            originator_handle: request.vi_handle,
            first_msg_id: iu.header.msg_id,
            answer_at: Sequence::answering(&frame.fc),
            local: request.local,
            remote: request.remote,
            attributes: request.attributes,
        });
        ConnId {
            index,
            generation: self.next_generation,
        }
    }

    /// A place for a request. Those that are only kept to be refused again make room first.
    pub(super) fn free_incoming(&mut self, now_ns: u64) -> Option<u32> {
        if let Some(at) = self.incoming.iter().position(Option::is_none) {
            return Some(at as u32);
        }
        if self.incoming.len() < self.config.max_incoming as usize {
            self.incoming.push(None);
            return Some(self.incoming.len() as u32 - 1);
        }
        let refused = |i: &Option<Incoming>| {
            i.as_ref()
                .is_some_and(|i| matches!(i.state, IncomingState::Refused(_)))
        };
        let index = self.incoming.iter().position(refused)?;
        if let Some(Some(incoming)) = self.incoming.get(index) {
            // What is on its way of it still is no new request.
            let (s_id, connection_id) = (incoming.s_id, incoming.connection_id);
            self.retire_request(now_ns, s_id, connection_id);
        }
        self.drop_incoming(index as u32);
        Some(index as u32)
    }

    /// A request that we know already: said again what was said before.
    pub(super) fn repeated_request<H: Host>(
        &mut self,
        frame: &FrameView<'_>,
        request: &ConnectRequest,
        connection_id: u32,
        host: &mut H,
    ) -> bool {
        if skips(Check::KnownRequest) {
            return false;
        }
        let s_id = frame.fc.s_id;
        let known = self.incoming.iter_mut().flatten().find(|i| {
            i.s_id == s_id
                && i.connection_id == connection_id
                && i.originator_handle == request.vi_handle
        });
        let Some(incoming) = known else {
            // Established already: this retry crossed our RESP1, or was delayed.
            let established = self.endpoints.iter().flatten().any(|ep| {
                ep.link.as_ref().is_some_and(|link| {
                    !link.originator
                        && link.peer == s_id
                        && link.connection_id == connection_id
                        && link.peer_handle == request.vi_handle
                })
            });
            if established {
                self.counters.count(Counter::KnownRequests);
            }
            return established;
        };
        self.counters.count(Counter::KnownRequests);
        let superseded =
            core::mem::replace(&mut incoming.answer_at, Sequence::answering(&frame.fc));
        let (newest, mode) = (incoming.answer_at, incoming.mode);
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
            IncomingState::Held if superseded != newest => {
                let held = ConnectReason::WaitingForConsumer;
                let pending = final_response(superseded, ConnectStatus::Pending, held);
                self.respond(&pending, host);
            }
            IncomingState::Accepting(vi) => {
                if let Some(link) = self.endpoint_mut(vi).and_then(|ep| ep.link.as_mut()) {
                    link.at = newest;
                }
                self.send_response1_accept(vi, host);
            }
            IncomingState::Refused(reason) => {
                let refused = final_response(newest, ConnectStatus::Failed, reason);
                self.respond(&refused, host);
            }
            IncomingState::Held | IncomingState::Void => {}
        }
        true
    }

    /// A RESP1 that refuses the request in this frame.
    fn refuse<H: Host>(
        &mut self,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        originator_handle: u32,
        reason: ConnectReason,
        host: &mut H,
    ) {
        let refusal = FinalResponse {
            to: frame.fc.s_id,
            at: Sequence::answering(&frame.fc),
            mode: connect_request::mode(iu.header.flags).unwrap_or_default(),
            originator_handle,
            connection_id: iu.header.connection_id(),
            status: ConnectStatus::Failed,
            reason,
        };
        self.respond(&refusal, host);
    }

    /// A RESP1 that refuses a request that was held.
    pub(super) fn refuse_held<H: Host>(
        &mut self,
        conn: ConnId,
        reason: ConnectReason,
        host: &mut H,
    ) {
        let Some(incoming) = self.incoming_mut(conn) else {
            return;
        };
        let refusal = FinalResponse {
            to: incoming.s_id,
            at: incoming.answer_at,
            mode: incoming.mode,
            originator_handle: incoming.originator_handle,
            connection_id: incoming.connection_id,
            status: ConnectStatus::Failed,
            reason,
        };
        self.respond(&refusal, host);
    }

    /// Without room the request is repeated.
    pub(super) fn respond<H: Host>(&mut self, response: &FinalResponse, host: &mut H) {
        let mut payload = [0u8; ConnectResponse::BYTES];
        ConnectResponse {
            vi_handle: 0,
            responder: NetAddress {
                host: self.config.host,
                ..NetAddress::default()
            },
            attributes: Attributes::default(),
        }
        .emit(&mut payload);
        let error = match response.status {
            ConnectStatus::Failed => connect_response::ERROR,
            ConnectStatus::GoOn
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
        self.send_connection_iu(&iu, &payload, host);
    }

    pub(super) fn incoming_mut(&mut self, conn: ConnId) -> Option<&mut Incoming> {
        self.incoming
            .get_mut(conn.index as usize)
            .and_then(Option::as_mut)
            .filter(|i| i.generation == conn.generation)
    }

    /// Forgets a request. The consumer's handle of it is invalid from now on.
    pub(super) fn forget(&mut self, conn: ConnId) {
        if self.incoming_mut(conn).is_some() {
            self.drop_incoming(conn.index);
        }
    }

    fn drop_incoming(&mut self, index: u32) {
        self.incoming[index as usize] = None;
        self.timers.clear(TimerKey::Incoming(index));
    }

    /// Keeps a refused request for as long as the client may repeat it unanswered.
    pub(super) fn remember_refused(&mut self, now_ns: u64, conn: ConnId, reason: ConnectReason) {
        if let Some(incoming) = self.incoming_mut(conn) {
            incoming.state = IncomingState::Refused(reason);
            let end_ns = now_ns + self.config.ulp_timeout_ns;
            self.timers.set(end_ns, TimerKey::Incoming(conn.index));
        }
    }

    /// The request that this VI was accepting is decided.
    pub(crate) fn forget_accepting(&mut self, vi: ViIndex) {
        let accepting = |i: &Option<Incoming>| {
            i.as_ref()
                .is_some_and(|i| i.state == IncomingState::Accepting(vi))
        };
        if let Some(index) = self.incoming.iter().position(accepting) {
            self.drop_incoming(index as u32);
        }
    }

    /// The client takes its request back. True if there was one.
    pub(crate) fn cancel_incoming(&mut self, s_id: NPortId, connection_id: u32) -> bool {
        let found = self.incoming.iter_mut().flatten().find(|i| {
            (i.s_id == s_id || skips(Check::ConnectionPeer))
                && (i.connection_id == connection_id || skips(Check::ConnectionId))
                && i.state == IncomingState::Held
        });
        match found {
            Some(incoming) => {
                incoming.state = IncomingState::Void;
                true
            }
            None => false,
        }
    }

    /// Requests of a port that went are void.
    pub(crate) fn incoming_gone(&mut self, s_id: NPortId) {
        for incoming in self.incoming.iter_mut().flatten() {
            if incoming.s_id == s_id && incoming.state == IncomingState::Held {
                incoming.state = IncomingState::Void;
            }
        }
    }

    /// The time of a request is over: the client's, or ours to remember it.
    pub(crate) fn incoming_timeout(&mut self, index: u32) {
        let Some(Some(incoming)) = self.incoming.get_mut(index as usize) else {
            return;
        };
        match incoming.state {
            IncomingState::Held => incoming.state = IncomingState::Void,
            IncomingState::Refused(_) => self.incoming[index as usize] = None,
            IncomingState::Accepting(_) | IncomingState::Void => {}
        }
    }
}
