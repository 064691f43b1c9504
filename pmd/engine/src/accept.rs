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
mod requester;

pub(crate) use incoming::Incoming;
pub(crate) use listen::Listener;

use fcvi_frame::connect::{Attributes, ConnectResponse};
use fcvi_frame::flags::ConnectMode;
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::iu::Opcode;
use fcvi_frame::profile;
use fcvi_frame::reason::{ConnectReason, ConnectStatus, connect_parameter};
use vi_types::{CallError, NetAddress, ViIndex, ViState};

use self::incoming::IncomingState;
use crate::connect::{RemoteVi, check_attributes};
use crate::connection::Connection;
use crate::connection_iu::Sequence;
use crate::counters::Counter;
use crate::endpoint::Phase;
use crate::engine::Engine;
use crate::engine_io::{EngineIo, Waiter};

/// Identifies a connection request of another port that is pending for the consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl ConnId {
    /// Returns the ID of the request in this slot, of this generation.
    #[must_use]
    pub const fn new(index: u32, generation: u32) -> Self {
        Self { index, generation }
    }

    /// Returns its slot.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.index
    }

    /// Returns its generation, which distinguishes requests that used the same slot.
    #[must_use]
    pub const fn generation(self) -> u32 {
        self.generation
    }
}

/// A matched request, as reported to the consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Indication {
    /// ID to accept or reject it with.
    pub conn: ConnId,
    /// Local address of the client for the connection.
    pub remote: NetAddress,
    /// Attributes of the client's VI.
    pub attributes: Attributes,
}

impl Engine {
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
        match self.incoming_mut(conn).map(|i| i.state) {
            Some(IncomingState::Pending) => {
                self.refuse_pending(conn, ConnectReason::Rejected, io);
                self.keep_refused(now_ns, conn, ConnectReason::Rejected);
                Ok(())
            }
            Some(IncomingState::Cancelled) => {
                self.remove_request(conn);
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
        let incoming = self
            .incoming_mut(conn)
            .ok_or(CallError::InvalidParameter)?
            .clone();
        match incoming.state {
            IncomingState::Pending => {}
            IncomingState::Accepting(_) | IncomingState::Refused(_) => {
                return Err(CallError::InvalidParameter);
            }
            IncomingState::Cancelled => {
                self.remove_request(conn);
                return Err(CallError::Timeout);
            }
        }
        let ep = self.endpoint(vi).ok_or(CallError::InvalidParameter)?;
        if !matches!(ep.phase, Phase::Idle) {
            return Err(CallError::InvalidState);
        }
        check_attributes(&self.attributes_of(&ep.params), &incoming.attributes)?;
        let handle = self.port.new_handle(now_ns, vi, io);
        let handle = handle.ok_or(CallError::NO_RESOURCES)?;
        let first_msg_id = io.random();
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
        self.bind(now_ns, vi, connection, first_msg_id, incoming.first_msg_id);
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.handle = handle;
            ep.clear_outcomes();
        }
        if let Some(incoming) = self.incoming_mut(conn) {
            incoming.state = IncomingState::Accepting(vi);
        }
        io.set_state(vi, ViState::ConnectPending);
        self.await_response2(now_ns, vi, io);
        Ok(())
    }

    /// Sends RESP1 "accepted" and waits for RESP2.
    fn await_response2<I: EngineIo>(&mut self, now_ns: u64, vi: ViIndex, io: &mut I) {
        let sent = self.send_response1_accept(vi, io);
        let wait = self.start_wait(now_ns, vi, self.port.config.response2_timeout_ns(), sent);
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.phase = Phase::AwaitResponse2(wait);
        }
        self.arm_connect_timer(vi);
    }

    /// Sends RESP1 "accepted" on the newest exchange of the request. Returns false if the port had
    /// no room.
    pub(crate) fn send_response1_accept<I: EngineIo>(&mut self, vi: ViIndex, io: &mut I) -> bool {
        let Some(ep) = self.endpoint(vi) else {
            return false;
        };
        let (Some(connection), Some(tx)) = (ep.connection, ep.tx.as_ref()) else {
            return false;
        };
        let first_msg_id = tx.next_msg_id;
        let requested = match &ep.peer_request {
            Some(request) => request.requested_address(),
            None => self
                .port
                .incoming
                .iter()
                .flatten()
                .find(|i| i.state == IncomingState::Accepting(vi))
                .map_or_else(NetAddress::default, |i| i.remote),
        };
        let reason = match connection.mode {
            ConnectMode::ClientServer => ConnectReason::Accepted,
            ConnectMode::PeerToPeer => ConnectReason::YoursWins,
        };
        let mut payload = [0u8; ConnectResponse::BYTES];
        ConnectResponse {
            vi_handle: ep.handle,
            responder: requested,
            attributes: self.attributes_of(&ep.params),
        }
        .emit(&mut payload);
        let f_ctl = profile::F_CTL_CONNECT_RESPONSE1;
        let mut iu = Self::connect_iu(&connection, Opcode::ConnectResponse1, f_ctl);
        iu.msg_id = first_msg_id;
        iu.parameter = connect_parameter::pack(ConnectStatus::Continue, reason);
        self.send_connect_iu(vi, &iu, &payload, io)
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
            self.server_connected(vi, &connection, io);
        }
        let f_ctl = profile::F_CTL_FINAL_REPLY;
        let mut answer = Self::connect_iu(&connection, Opcode::ConnectResponse3, f_ctl);
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
            self.port.quarantine_request(now_ns, s_id, connection_id);
        }
    }

    fn server_connected<I: EngineIo>(&mut self, vi: ViIndex, connection: &Connection, io: &mut I) {
        let remote = RemoteVi {
            attributes: connection.remote,
            n_port_id: connection.peer,
        };
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.phase = Phase::Connected;
            ep.conclude(Ok(remote));
        }
        self.enable_shortcut(vi);
        self.remove_accepting(vi);
        self.arm_connect_timer(vi);
        self.port.counters.count(Counter::Connects);
        io.set_state(vi, ViState::Connected);
        io.control_event(Waiter::Outcome(vi));
    }
}
