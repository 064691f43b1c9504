//! Connection set-up: what both sides share [FCVI P-12].
//!
//! ```text
//!  originator (client)                       responder (server)
//!   RQST  (exchange opens) ----------------->  match, pending for the consumer
//!         <------------------------- RESP1 accepted / pending / failed
//!   RESP2 (attributes match) --------------->  connected
//!         <--------------------------------- RESP3
//!   connected
//! ```
//! RQST is repeated at the interval `EngineConfig::retry_interval_ns`, on a new exchange with the
//! same connection ID, until the consumer's timeout; RESP1 and RESP2 are repeated on their exchange,
//! until their response times out (RESP2 after four times E_D_TOV at most, RESP3 after
//! FCVI_ULP_TIMEOUT) or a later IU shows that they arrived.
//!
//! Peer to peer both sides are originators until one of them accepts the other's RQST; `peer` decides
//! which. Their first retry intervals are shorter.

mod peer;
mod procedure;
mod request;

pub(crate) use peer::{PeerRequest, Rank};
pub(crate) use request::Attempt;

use fcvi_frame::connect::{ConnectRequest, ConnectResponse};
use fcvi_frame::fc::NPortId;
use fcvi_frame::flags::ConnectMode;
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::reason::{ConnectStatus, connect_parameter};
use vi_types::{CallError, HostAddress, ViIndex, ViState};

use self::procedure::end_exchange;
use self::request::PortReply;
use crate::connection::{ConnectCommand, RemoteVi};
use crate::counters::Counter;
use crate::endpoint::Phase;
use crate::engine::Engine;
use crate::engine_io::EngineIo;
use crate::pending_disconnects::DisconnectInfo;

impl Engine {
    /// Starts a connection request (VIPL 3.3.4); its outcome is reported by
    /// [`Engine::take_outcome`]. If no port of the host is known, the request waits for one with
    /// discovery, and is `NotReachable` without.
    ///
    /// # Errors
    /// `Invalid`, `InvalidState`.
    pub fn connect<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        command: &ConnectCommand<'_>,
        io: &mut I,
    ) -> Result<(), CallError> {
        self.request(now_ns, vi, ConnectMode::ClientServer, command, io)
    }

    /// Adds a request to the peer pool (VIPL 3.3.6). Its outcome is reported by
    /// [`Engine::take_peer_outcome`]; `NotReachable` if no port of the host is known and none can
    /// be discovered.
    ///
    /// # Errors
    /// `Invalid`, `InvalidState`.
    pub fn connect_peer<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        command: &ConnectCommand<'_>,
        io: &mut I,
    ) -> Result<(), CallError> {
        self.request(now_ns, vi, ConnectMode::PeerToPeer, command, io)
    }

    fn request<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        mode: ConnectMode,
        command: &ConnectCommand<'_>,
        io: &mut I,
    ) -> Result<(), CallError> {
        let (ep, mut cx) = self
            .split(now_ns, vi, io)
            .ok_or(CallError::InvalidParameter)?;
        if !matches!(ep.phase, Phase::Idle) {
            return Err(CallError::InvalidState);
        }
        ep.clear_outcomes();
        if mode == ConnectMode::PeerToPeer {
            let port = &mut *cx.port;
            port.next_peer_request += 1;
            let request = PeerRequest::new(port.next_peer_request, command, now_ns);
            ep.peer_request = Some(Box::new(request));
            if !port.peer_requesters.contains(&vi) {
                port.peer_requesters.push(vi);
            }
        }
        // No port of the host is known, and ports are not discovered.
        if command.targets.is_empty() && cx.port.logged_in_ports.is_none() {
            ep.conclude_failed(&mut cx, CallError::NotReachable);
            return Ok(());
        }
        cx.io.set_state(vi, ViState::ConnectPending);
        ep.start_request(&mut cx, mode, command, command.deadline_ns(now_ns));
        Ok(())
    }

    /// Takes the outcome of a connection call on this VI, once.
    pub fn take_outcome(&mut self, vi: ViIndex) -> Option<Result<RemoteVi, CallError>> {
        self.endpoint_mut(vi)?.outcome.take()
    }

    /// Returns the number of the VI's peer request, from the call until its outcome was taken.
    pub fn peer_request(&self, vi: ViIndex) -> Option<u64> {
        let request = self.endpoint(vi)?.peer_request.as_ref()?;
        Some(request.number)
    }

    /// Takes the outcome of the peer request with this number, once; `None` while it is pending.
    /// `InvalidState` if the VI has no such request any more.
    pub fn take_peer_outcome(
        &mut self,
        vi: ViIndex,
        number: u64,
    ) -> Option<Result<RemoteVi, CallError>> {
        let own = |request: &&mut Box<PeerRequest>| request.number == number;
        let slot = self.endpoint_mut(vi).map(|ep| &mut ep.peer_request);
        let Some(slot) = slot else {
            return Some(Err(CallError::InvalidParameter));
        };
        let Some(request) = slot.as_mut().filter(own) else {
            return Some(Err(CallError::InvalidState));
        };
        let outcome = request.outcome?;
        *slot = None;
        Some(outcome)
    }

    /// Adds a port of this host: pending requests for the host are sent to it too, until
    /// [`Engine::peer_lost`] removes it.
    pub fn port_joined<I: EngineIo>(
        &mut self,
        now_ns: u64,
        address: HostAddress,
        id: NPortId,
        io: &mut I,
    ) {
        let interval_ns = self.port.config.peer_retry_ns;
        for slot in 0..self.endpoints.len() {
            let Some((ep, mut cx)) = self.split(now_ns, ViIndex(slot as u32), io) else {
                continue;
            };
            if let Some(request) = ep.peer_request.as_mut()
                && request.is_pending_for(address, now_ns)
            {
                request.add_port(id);
            }
            if let Some(attempt) = ep.attempt_mut()
                && attempt.is_pending_for(address, now_ns)
            {
                attempt.add_target(id, now_ns, interval_ns);
                ep.send_requests(&mut cx);
            }
        }
    }

    /// Ends all requests to lost ports.
    pub(crate) fn remove_targets<I: EngineIo>(
        &mut self,
        now_ns: u64,
        is_lost: impl Fn(NPortId) -> bool + Copy,
        io: &mut I,
    ) {
        for slot in 0..self.endpoints.len() {
            let Some((ep, mut cx)) = self.split(now_ns, ViIndex(slot as u32), io) else {
                continue;
            };
            if let Some(request) = ep.peer_request.as_mut() {
                request.remove_ports(is_lost);
            }
            if ep.attempt().is_some_and(|a| a.ports().any(is_lost)) {
                ep.record_reply(&mut cx, is_lost, PortReply::Gone);
            }
        }
    }

    /// Returns the VI whose request in the pool matches this one of another VI; the oldest, if
    /// several.
    pub(crate) fn pooled_match(
        &mut self,
        now_ns: u64,
        from: &Rank,
        request: &ConnectRequest,
    ) -> Option<ViIndex> {
        let endpoints = &self.endpoints;
        self.port.peer_requesters.retain(|vi| {
            let ep = endpoints.get(vi.slot()).and_then(Option::as_ref);
            ep.is_some_and(|ep| ep.peer_request.is_some())
        });
        let candidate = |vi: &ViIndex| {
            let vi = *vi;
            let ep = self.endpoint(vi)?;
            let attempt = ep.pooled()?;
            let ours = ep.peer_request.as_ref()?;
            let itself = from.n_port_id == self.port.config.n_port_id
                && from.connection_id == attempt.connection_id;
            (!itself && !ours.is_over(now_ns) && ours.matches(request)).then_some((ours.number, vi))
        };
        let found = self.port.peer_requesters.iter().filter_map(candidate);
        found.min_by_key(|(number, _)| *number).map(|(_, vi)| vi)
    }

    /// Returns the endpoint whose connection a RESP2 or RESP3 names.
    pub(crate) fn connection_of(&self, frame: &FrameView<'_>, iu: &IuView<'_>) -> Option<ViIndex> {
        let vi = self.port.slot_of(iu.header.handle);
        let ep = self.endpoint(vi)?;
        let connection = ep.connection.as_ref()?;
        let fits = ep.is_addressed(iu)
            && connection.peer == frame.fc.s_id
            && connection.connection_id == iu.header.connection_id();
        fits.then_some(vi)
    }

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
        let connected = self.connection_of(frame, iu).is_some();
        let vi = self.port.slot_of(iu.header.handle);
        let Some((ep, mut cx)) = self.split(now_ns, vi, io) else {
            let ended = DisconnectInfo::of_acceptance(frame, iu, &payload);
            self.port.stray_response1(now_ns, iu, status, ended, io);
            return;
        };
        if connected {
            // Our RESP2 was lost.
            if matches!(ep.phase, Phase::AwaitResponse3(_)) && status == ConnectStatus::Continue {
                ep.send_response2(&mut cx);
            } else {
                cx.count(Counter::DropStrayConnect);
            }
            return;
        }
        let (s_id, ox_id) = (frame.fc.s_id, frame.fc.ox_id);
        let connection_id = iu.header.connection_id();
        let is_addressed = ep.is_addressed(iu);
        let attempt = ep.attempt_mut().filter(|_| is_addressed);
        match attempt.and_then(|a| a.answered_exchange(s_id, ox_id, connection_id)) {
            None => {
                let ended = DisconnectInfo::of_acceptance(frame, iu, &payload);
                cx.port.stray_response1(now_ns, iu, status, ended, cx.io);
            }
            Some(exchange) if status == ConnectStatus::Continue => {
                ep.accepted(&mut cx, frame, iu, &payload, exchange);
            }
            Some(exchange) => {
                end_exchange(&mut cx, frame, exchange);
                ep.not_accepted(&mut cx, s_id, status, reason);
            }
        }
    }

    /// Handles RESP3.
    pub(crate) fn handle_response3<I: EngineIo>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        io: &mut I,
    ) {
        let vi = self.connection_of(frame, iu);
        let Some((ep, mut cx)) = vi.and_then(|vi| self.split(now_ns, vi, io)) else {
            self.port.counters.count(Counter::DropStrayConnect);
            return;
        };
        cx.port.note_received(ep.peer_index, now_ns);
        if matches!(ep.phase, Phase::AwaitResponse3(_)) {
            ep.client_connected(&mut cx);
        } else {
            cx.count(Counter::DropStrayConnect);
        }
    }
}
