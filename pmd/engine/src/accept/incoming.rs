//! Connection requests received from other ports.

use fcvi_frame::connect::{Attributes, ConnectRequest, ConnectResponse};
use fcvi_frame::fc::NPortId;
use fcvi_frame::flags::{ConnectMode, connect_request, connect_response};
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::iu::Opcode;
use fcvi_frame::profile;
use fcvi_frame::reason::{ConnectReason, ConnectStatus, connect_parameter};
use vi_types::{ConnId, NetAddress, ViIndex};

use crate::connection_iu::{ConnectionIu, Sequence};
use crate::engine_io::EngineIo;
use crate::n_port::NPort;
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
    pub(super) mode: ConnectMode,
    pub(super) generation: u32,
    pub(super) state: IncomingState,
    pub(crate) s_id: NPortId,
    pub(crate) connection_id: u32,
    pub(super) originator_handle: u32,
    pub(super) first_msg_id: u32,
    /// Sequence of RESP1 on the newest exchange of the request.
    pub(super) response_at: Sequence,
    pub(super) local: NetAddress,
    pub(crate) remote: NetAddress,
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

impl NPort {
    /// Stores a request in this slot as pending.
    pub(super) fn add_pending(
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
        ConnId::new(index, self.next_generation)
    }

    /// Returns a free slot for a request. If there is none, evicts a refused request.
    pub(super) fn allocate_incoming(&mut self, now_ns: u64) -> Option<u32> {
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
            // Late copies of the evicted request must not be taken for a new one.
            let request = (incoming.s_id, incoming.connection_id);
            self.quarantine.add_received(now_ns, request);
        }
        self.remove_incoming(index as u32);
        Some(index as u32)
    }

    /// Refuses the request in this frame by RESP1.
    pub(super) fn refuse<I: EngineIo>(
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
                host: self.config.host,
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
        self.send_connection_iu(&iu, &payload, io);
    }

    pub(super) fn incoming_mut(&mut self, conn: ConnId) -> Option<&mut Incoming> {
        self.incoming
            .get_mut(conn.index() as usize)
            .and_then(Option::as_mut)
            .filter(|i| i.generation == conn.generation())
    }

    /// Removes a request, which makes its [`ConnId`] invalid.
    pub(super) fn remove_request(&mut self, conn: ConnId) {
        if self.incoming_mut(conn).is_some() {
            self.remove_incoming(conn.index());
        }
    }

    fn remove_incoming(&mut self, index: u32) {
        self.incoming[index as usize] = None;
        self.timers.clear(TimerKey::Incoming(index));
    }

    /// Keeps a refused request for as long as the client may repeat it.
    pub(super) fn keep_refused(&mut self, now_ns: u64, conn: ConnId, reason: ConnectReason) {
        if let Some(incoming) = self.incoming_mut(conn) {
            incoming.state = IncomingState::Refused(reason);
            let end_ns = now_ns + self.config.ulp_timeout_ns;
            self.timers.set(end_ns, TimerKey::Incoming(conn.index()));
        }
    }

    /// Returns the request that this VI is accepting.
    pub(crate) fn accepted_by(&self, vi: ViIndex) -> Option<&Incoming> {
        let mut incoming = self.incoming.iter().flatten();
        incoming.find(|i| i.state == IncomingState::Accepting(vi))
    }

    /// Removes the request that this VI was accepting.
    pub(crate) fn remove_accepting(&mut self, vi: ViIndex) {
        let accepting = |i: &Option<Incoming>| {
            i.as_ref()
                .is_some_and(|i| i.state == IncomingState::Accepting(vi))
        };
        if let Some(index) = self.incoming.iter().position(accepting) {
            self.remove_incoming(index as u32);
        }
    }

    /// Cancels a pending request on behalf of its client. Returns false if there is none.
    pub(crate) fn cancel_incoming(&mut self, s_id: NPortId, connection_id: u32) -> bool {
        let found = self.incoming.iter_mut().flatten().find(|i| {
            (i.s_id, i.connection_id) == (s_id, connection_id) && i.state == IncomingState::Pending
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
        for incoming in self.incoming.iter_mut().flatten() {
            if is_lost(incoming.s_id) && incoming.state == IncomingState::Pending {
                incoming.state = IncomingState::Cancelled;
            }
        }
    }

    /// Handles the timeout of a request: cancels a pending one, removes a refused one.
    pub(crate) fn incoming_timeout(&mut self, index: u32) {
        let Some(Some(incoming)) = self.incoming.get_mut(index as usize) else {
            return;
        };
        match incoming.state {
            IncomingState::Pending => incoming.state = IncomingState::Cancelled,
            IncomingState::Refused(_) => self.incoming[index as usize] = None,
            IncomingState::Accepting(_) | IncomingState::Cancelled => {}
        }
    }
}
