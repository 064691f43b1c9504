//! Simultaneous open of peers [VI/TCP 4]: of two requests that cross one remains.
//!
//! Requests with the same discriminators are equivalent, and any of them may match ours. So a request
//! that ours yields to is not accepted while the response to ours is pending: another VI may just have
//! accepted ours. The peer with the higher address, whose request remains, refuses ours at once. There is
//! no deadlock, since each peer waits only for one with a higher address.

use std::net::SocketAddr;

use vi_engine::ConnId;
use vi_types::{CallError, ViIndex};
use vitcp_lite::machine::peer::{
    PeerAction, PeerEvent, PeerName, PeerState, Precedence, precedence,
};
use vitcp_lite::machine::responder::ResponderEvent;
use vitcp_lite::{CeHeader, IsCode, RemoteError, SegmentHeader, SegmentType};

use super::challenge::refusal;
use super::connection::{Machine, Phase, ReceivedRequest, Request, Stage};
use super::connection_options::{Advertised, compare};
use super::counters::Counter;
use super::establish::from_wire;
use super::socket::host_of;
use super::{MAX_ACCEPTS, ViTcp};
use crate::datapath::Datapath;

/// Resolution of a peer's request that matches one of ours.
enum Resolution {
    /// This VI accepts it.
    Accept(ViIndex),
    /// This VI yields to it, but the response to its own request is pending.
    Defer(ViIndex),
    /// It is refused; ours remains.
    Refuse,
}

impl ViTcp {
    /// Processes a peer's request.
    pub(super) fn on_peer_request(
        &mut self,
        now_ns: u64,
        conn: ConnId,
        received: &ReceivedRequest,
        (request, tried): ((&SegmentHeader, &CeHeader), &[u32]),
        path: &mut Datapath,
    ) {
        let remote = self.connection_of(conn).map(|connection| connection.remote);
        match remote.and_then(|remote| self.match_peer(remote, &received.ce)) {
            None => self.hand_off_or_refuse(now_ns, conn, request, tried),
            Some(resolution) => self.resolve(now_ns, conn, received, resolution, path),
        }
    }

    /// Checks that the certificate of the sender of a peer request is valid for its address, as that of the host that our
    /// own request connects to must be: either request may make the connection. True without TLS.
    pub(super) fn is_certified_peer(&self, number: u32) -> bool {
        self.connection(number)
            .is_some_and(|connection| connection.stream.is_certified_for(connection.remote.ip()))
    }

    /// Resolves the peer requests that were deferred until the response to one of ours. Returns true if there
    /// were any.
    pub(super) fn retry_deferred_peers(&mut self, now_ns: u64, path: &mut Datapath) -> bool {
        let mut some = false;
        for _ in 0..MAX_ACCEPTS {
            let Some(conn) = self.deferred_peers.pop() else {
                break;
            };
            let Some(connection) = self.connection_of(conn) else {
                continue;
            };
            some = true;
            let remote = connection.remote;
            let Stage::RequestReceived(received) = &connection.stage else {
                self.remove(conn.index());
                continue;
            };
            let received = **received;
            match self.match_peer(remote, &received.ce) {
                Some(resolution) => self.resolve(now_ns, conn, &received, resolution, path),
                None => {
                    self.counters.count(Counter::NoMatch);
                    self.refuse_peer(now_ns, conn);
                }
            }
        }
        some
    }

    /// Accepts the deferred peer request of a VI without a response to the VI's own request.
    pub(super) fn yield_to_peer(&mut self, now_ns: u64, vi: ViIndex, path: &mut Datapath) {
        let request = self.endpoint_mut(vi).and_then(|ep| ep.request());
        let Some(conn) = request.and_then(|request| request.deferred_peer.take()) else {
            return;
        };
        match self.connection_of(conn).map(|connection| &connection.stage) {
            Some(Stage::RequestReceived(received)) => {
                let received = **received;
                self.resolve_precedence(vi, Precedence::YieldToPeer);
                self.accept_peer(now_ns, conn, vi, &received, path);
            }
            Some(_) => self.remove(conn.index()),
            None => {}
        }
    }

    fn resolve(
        &mut self,
        now_ns: u64,
        conn: ConnId,
        received: &ReceivedRequest,
        resolution: Resolution,
        path: &mut Datapath,
    ) {
        match resolution {
            Resolution::Refuse => self.refuse_peer(now_ns, conn),
            Resolution::Accept(vi) => self.accept_peer(now_ns, conn, vi, received, path),
            Resolution::Defer(vi) => {
                let at_ns = now_ns + self.settings.response_timeout_ns;
                if let Some(request) = self.endpoint_mut(vi).and_then(|ep| ep.request()) {
                    request.deferred_peer = Some(conn);
                    request.yield_at_ns = at_ns;
                }
                self.arm_request_timer(vi);
            }
        }
    }

    fn refuse_peer(&mut self, now_ns: u64, conn: ConnId) {
        let none = RemoteError::NONE;
        self.refuse_request(now_ns, conn, SegmentType::ConnectNoMatch, none);
    }

    /// Accepts a peer's request with a VI, or rejects it if the attributes conflict.
    fn accept_peer(
        &mut self,
        now_ns: u64,
        conn: ConnId,
        vi: ViIndex,
        received: &ReceivedRequest,
        path: &mut Datapath,
    ) {
        self.advance_request(conn, ResponderEvent::Match);
        let ep = self.endpoint(vi);
        let differs = ep.and_then(|ep| compare(ep, &received.ce, Advertised::InRequest).err());
        if let Some(error) = differs {
            let is_code = match error {
                CallError::ReliabilityLevel => IsCode::ReliabilityLevel,
                _ => IsCode::MaxTransferSize,
            };
            let error_code = refusal(is_code);
            self.refuse_request(now_ns, conn, SegmentType::ConnectReject, error_code);
            self.complete_request(vi, error, path);
            return;
        }
        self.accept_with(conn, vi, received, path);
    }

    /// Finds the VI whose peer request matches this one of a remote VI, and resolves the two.
    fn match_peer(&mut self, remote: SocketAddr, request: &CeHeader) -> Option<Resolution> {
        let called = from_wire(&request.called);
        let mut found: Option<(u64, ViIndex)> = None;
        for (slot, ep) in self.endpoints.iter().enumerate() {
            let Some(ep) = ep else {
                continue;
            };
            let (Phase::Requesting(ours), Some(peer)) = (&ep.phase, &ep.peer_request) else {
                continue;
            };
            let matches = ours.remote.host.0 == host_of(remote)
                && ours.remote.discriminator == called
                && matches!(ours.machine, Machine::Peer(_))
                && ours.deferred_peer.is_none();
            let is_itself = self.local_address_of(ours) == Some(remote);
            if matches && !is_itself && found.is_none_or(|(number, _)| peer.number < number) {
                found = Some((peer.number, ViIndex(slot as u32)));
            }
        }
        let (_, vi) = found?;
        let Phase::Requesting(ours) = &self.endpoint(vi)?.phase else {
            return None;
        };
        let theirs = PeerName {
            host: host_of(remote),
            port: remote.port(),
            discriminator: request.calling,
        };
        let precedence = self
            .local_address_of(ours)
            .map_or(Precedence::YieldToPeer, |local| {
                let ours = PeerName {
                    host: host_of(local),
                    port: local.port(),
                    discriminator: request.called,
                };
                precedence(ours, theirs)
            });
        let is_pending = ours.machine == Machine::Peer(PeerState::PendingAccept);
        if is_pending && precedence == Precedence::YieldToPeer {
            return Some(Resolution::Defer(vi));
        }
        self.resolve_precedence(vi, precedence)
    }

    /// Passes a simultaneous open to the state machine of a VI's request.
    fn resolve_precedence(&mut self, vi: ViIndex, precedence: Precedence) -> Option<Resolution> {
        let request = self.endpoint_mut(vi).and_then(|ep| ep.request())?;
        let Machine::Peer(state) = request.machine else {
            return None;
        };
        let (state, action) = state.on(PeerEvent::SimultaneousOpen(precedence));
        match action {
            PeerAction::AcceptTheirs => {
                request.machine = Machine::Peer(state);
                let own = request.connection.take();
                if let Some(number) = own {
                    self.remove(number);
                }
                Some(Resolution::Accept(vi))
            }
            PeerAction::RefuseTheirs => {
                request.machine = Machine::Peer(state);
                self.counters.count(Counter::PeerCrossed);
                Some(Resolution::Refuse)
            }
            _ => None,
        }
    }

    /// Returns the local address of a request's TCP connection, if it has one.
    fn local_address_of(&self, request: &Request) -> Option<SocketAddr> {
        let number = request.connection?;
        self.connection(number).map(|own| own.local)
    }
}
