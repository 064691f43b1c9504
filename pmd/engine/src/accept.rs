//! The server's half of connection set-up [FCVI P-12].
//!
//! A request that finds a waiting consumer is held until the consumer accepts
//! or rejects it; one that finds none is answered with NO_MATCH at once.
//!
//! ```text
//!   Held --accept--> Accepting --RESP2--> (the VI is Connected)
//!    |  |                |
//!    |  |                +-- no RESP2 in FCVI_ULP_TIMEOUT, client gave up --> forgotten
//!    |  +--reject--> Refused (a repeated request is answered alike) --> forgotten
//!    +-- client gave up, its port went --> Void (kept until the consumer lets go)
//! ```

mod incoming;
mod listen;
mod peer;
mod requester;

pub(crate) use incoming::Incoming;
pub(crate) use listen::Listener;

use fcvi_frame::connect::{Attributes, ConnectResponse, NetAddress};
use fcvi_frame::flags::ConnectMode;
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::iu::Opcode;
use fcvi_frame::profile;
use fcvi_frame::reason::{ConnectReason, ConnectStatus, connect_parameter};

use self::incoming::IncomingState;
use crate::connect::{ConnectError, RemoteVi, compare};
use crate::connection_iu::Sequence;
use crate::counters::Counter;
use crate::endpoint::{EndpointState, Link, Phase};
use crate::engine::{Engine, ViIndex};
use crate::host::{Host, Waiter};

/// A connection request of another port that waits for the consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl ConnId {
    /// The request at this place, of this generation.
    #[must_use]
    pub const fn new(index: u32, generation: u32) -> Self {
        Self { index, generation }
    }

    /// Its place.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.index
    }

    /// Tells it from others at the same place.
    #[must_use]
    pub const fn generation(self) -> u32 {
        self.generation
    }
}

/// A request that was matched, for the consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Indication {
    /// To accept or reject it.
    pub conn: ConnId,
    /// The client's name for the connection.
    pub remote: NetAddress,
    /// Attributes of the client's VI.
    pub attributes: Attributes,
}

impl Engine {
    /// The consumer rejects a request (VIPL 3.3.3).
    ///
    /// # Errors
    /// `Invalid` if there is no such request, or if it is being accepted.
    pub fn reject<H: Host>(
        &mut self,
        now_ns: u64,
        conn: ConnId,
        host: &mut H,
    ) -> Result<(), ConnectError> {
        match self.incoming_mut(conn).map(|i| i.state) {
            Some(IncomingState::Held) => {
                self.refuse_held(conn, ConnectReason::Rejected, host);
                self.remember_refused(now_ns, conn, ConnectReason::Rejected);
                Ok(())
            }
            Some(IncomingState::Void) => {
                self.forget(conn);
                Ok(())
            }
            Some(IncomingState::Accepting(_) | IncomingState::Refused(_)) | None => {
                Err(ConnectError::Invalid)
            }
        }
    }

    /// The consumer accepts a request with an Idle VI (VIPL 3.3.2). `Ok`: the outcome
    /// comes by [`Engine::take_outcome`]. An attribute conflict tells the client nothing
    /// and leaves the request for another try.
    ///
    /// # Errors
    /// `Invalid`: no such request or VI. `Timeout`: the client gave up. `InvalidState`:
    /// the VI is not Idle. `Resources`: its place has no handle that is over for long enough;
    /// the request is left. `ReliabilityLevel`, `MaxTransferSize`, `Qos`: the attributes
    /// conflict.
    pub fn accept<H: Host>(
        &mut self,
        now_ns: u64,
        conn: ConnId,
        vi: ViIndex,
        host: &mut H,
    ) -> Result<(), ConnectError> {
        let incoming = self
            .incoming_mut(conn)
            .ok_or(ConnectError::Invalid)?
            .clone();
        match incoming.state {
            IncomingState::Held => {}
            IncomingState::Accepting(_) | IncomingState::Refused(_) => {
                return Err(ConnectError::Invalid);
            }
            IncomingState::Void => {
                self.forget(conn);
                return Err(ConnectError::Timeout);
            }
        }
        let ep = self.endpoint(vi).ok_or(ConnectError::Invalid)?;
        if !matches!(ep.phase, Phase::Idle) {
            return Err(ConnectError::InvalidState);
        }
        compare(&self.attributes_of(&ep.params), &incoming.attributes)?;
        let handle = self.new_handle(now_ns, vi, host);
        let handle = handle.ok_or(ConnectError::Resources)?;
        let first_msg_id = host.random();
        let link = Link {
            peer: incoming.s_id,
            peer_handle: incoming.originator_handle,
            connection_id: incoming.connection_id,
            at: incoming.answer_at,
            originator: false,
            mode: ConnectMode::ClientServer,
            exchange_open: false,
            remote: incoming.attributes,
        };
        self.bind(now_ns, vi, link, first_msg_id, incoming.first_msg_id);
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.handle = handle;
            ep.forget_outcomes();
        }
        if let Some(incoming) = self.incoming_mut(conn) {
            incoming.state = IncomingState::Accepting(vi);
        }
        host.set_state(vi, EndpointState::ConnectPending);
        self.await_response2(now_ns, vi, host);
        Ok(())
    }

    /// RESP1 accepts, and RESP2 is waited for.
    fn await_response2<H: Host>(&mut self, now_ns: u64, vi: ViIndex, host: &mut H) {
        let sent = self.send_response1_accept(vi, host);
        let wait = self.await_from(now_ns, vi, sent);
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.phase = Phase::AwaitResponse2(wait);
        }
        self.arm_connect_timer(vi);
    }

    /// RESP1 "accepted" on the newest exchange of the request. False if there was no room.
    pub(crate) fn send_response1_accept<H: Host>(&mut self, vi: ViIndex, host: &mut H) -> bool {
        let Some(ep) = self.endpoint(vi) else {
            return false;
        };
        let (Some(link), Some(tx)) = (ep.link, ep.tx.as_ref()) else {
            return false;
        };
        let first_msg_id = tx.next_msg_id;
        let asked_for = match &ep.peer_request {
            Some(request) => request.found_at(),
            None => self
                .incoming
                .iter()
                .flatten()
                .find(|i| i.state == IncomingState::Accepting(vi))
                .map_or_else(NetAddress::default, |i| i.remote),
        };
        let reason = match link.mode {
            ConnectMode::ClientServer => ConnectReason::Accepted,
            ConnectMode::PeerToPeer => ConnectReason::YoursWins,
        };
        let mut payload = [0u8; ConnectResponse::BYTES];
        ConnectResponse {
            vi_handle: ep.handle,
            responder: asked_for,
            attributes: self.attributes_of(&ep.params),
        }
        .emit(&mut payload);
        let f_ctl = profile::F_CTL_CONNECT_RESPONSE1;
        let mut iu = Self::link_iu(&link, Opcode::ConnectResponse1, f_ctl);
        iu.msg_id = first_msg_id;
        iu.parameter = connect_parameter::pack(ConnectStatus::GoOn, reason);
        self.send_link_iu(vi, &iu, &payload, host)
    }

    pub(crate) fn handle_response2<H: Host>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        host: &mut H,
    ) {
        let found = self.link_of(frame, iu).and_then(|vi| {
            let ep = self.endpoint(vi)?;
            let link = ep.link.filter(|link| !link.originator)?;
            Some((vi, link, ep.peer_index))
        });
        let Some((vi, link, peer_index)) = found else {
            self.counters.count(Counter::DropStrayConnect);
            // Who has seen RESP1 does not ask again.
            self.retire_request(now_ns, frame.fc.s_id, iu.header.connection_id());
            return;
        };
        self.heard(peer_index, now_ns);
        if self.state(vi) == Some(EndpointState::ConnectPending) {
            self.server_connected(vi, &link, host);
        }
        let f_ctl = profile::F_CTL_FINAL_REPLY;
        let mut answer = Self::link_iu(&link, Opcode::ConnectResponse3, f_ctl);
        answer.at = Sequence::answering(&frame.fc);
        // Without room RESP2 is repeated.
        self.send_connection_iu(&answer, &[], host);
    }

    fn server_connected<H: Host>(&mut self, vi: ViIndex, link: &Link, host: &mut H) {
        let remote = RemoteVi {
            attributes: link.remote,
            n_port_id: link.peer,
        };
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.phase = Phase::Connected;
            ep.conclude(Ok(remote));
        }
        self.take_shortcut(vi);
        self.forget_accepting(vi);
        self.arm_connect_timer(vi);
        self.counters.count(Counter::Connects);
        host.set_state(vi, EndpointState::Connected);
        host.control_event(Waiter::Outcome(vi));
    }
}
