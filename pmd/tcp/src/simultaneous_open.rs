//! Simultaneous open of peers [VI/TCP 4]: of two requests that cross one remains.
//!
//! Requests with the same discriminators are equivalent, and any of them may match ours. So a request
//! that ours yields to is not accepted while the response to ours is pending: another VI may just have
//! accepted ours. The peer with the higher address, whose request remains, refuses ours at once. There is
//! no deadlock, since each peer waits only for one with a higher address.

use std::net::SocketAddr;

use vi_types::{CallError, ConnId, ViIndex};
use vitcp_lite::machine::peer::{PeerName, Precedence, precedence};
use vitcp_lite::machine::responder::ResponderEvent;
use vitcp_lite::{CeHeader, IsCode, RemoteError, SegmentHeader, SegmentType};

use super::MAX_ACCEPTS;
use super::ce_header::{Advertised, from_wire};
use super::challenge::refusal;
use super::connection::ReceivedRequest;
use super::connector::Connector;
use super::counters::Counter;
use super::request::{Remaining, Request};
use vitcp_lite::source::host_of;
use vitcp_lite::transfer::StreamIo;

/// Resolution of a peer's request that matches one of ours.
enum Resolution {
    /// This VI accepts it.
    Accept(ViIndex),
    /// This VI yields to it, but the response to its own request is pending.
    Defer(ViIndex),
    /// It is refused; ours remains.
    Refuse,
}

impl Connector {
    /// Processes a peer's request.
    pub(super) fn on_peer_request(
        &mut self,
        now_ns: u64,
        conn: ConnId,
        received: &ReceivedRequest,
        (request, tried): ((&SegmentHeader, &CeHeader), &[u32]),
        path: &mut impl StreamIo,
    ) {
        let remote = self
            .connections
            .of(conn)
            .map(|connection| connection.remote);
        match remote.and_then(|remote| self.match_peer(remote, &received.ce)) {
            None => self.hand_off_or_refuse(now_ns, conn, request, tried),
            Some(resolution) => self.resolve(now_ns, conn, received, resolution, path),
        }
    }

    /// Resolves the peer requests that were deferred until the response to one of ours. Returns true if there
    /// were any.
    pub(super) fn retry_deferred_peers(&mut self, now_ns: u64, path: &mut impl StreamIo) -> bool {
        let mut some = false;
        for _ in 0..MAX_ACCEPTS {
            let Some(conn) = self.deferred_peers.pop() else {
                break;
            };
            let Some(connection) = self.connections.of(conn) else {
                continue;
            };
            some = true;
            let remote = connection.remote;
            let Some(received) = connection.received_request().copied() else {
                self.connections.remove(conn.index(), &mut self.context);
                continue;
            };
            match self.match_peer(remote, &received.ce) {
                Some(resolution) => self.resolve(now_ns, conn, &received, resolution, path),
                None => {
                    self.context.count(Counter::NoMatch);
                    self.refuse_peer(now_ns, conn);
                }
            }
        }
        some
    }

    /// Accepts the deferred peer request of a VI without a response to the VI's own request.
    pub(super) fn yield_to_peer(&mut self, now_ns: u64, vi: ViIndex, path: &mut impl StreamIo) {
        let request = self.endpoints.request(vi);
        let Some(conn) = request.and_then(|request| request.deferred_peer.take()) else {
            return;
        };
        let Some(connection) = self.connections.of(conn) else {
            return;
        };
        match connection.received_request().copied() {
            Some(received) => {
                self.resolve_precedence(vi, Precedence::YieldToPeer);
                self.accept_peer(now_ns, conn, vi, &received, path);
            }
            None => self.connections.remove(conn.index(), &mut self.context),
        }
    }

    fn resolve(
        &mut self,
        now_ns: u64,
        conn: ConnId,
        received: &ReceivedRequest,
        resolution: Resolution,
        path: &mut impl StreamIo,
    ) {
        match resolution {
            Resolution::Refuse => self.refuse_peer(now_ns, conn),
            Resolution::Accept(vi) => self.accept_peer(now_ns, conn, vi, received, path),
            Resolution::Defer(vi) => {
                let at_ns = now_ns + self.context.settings.response_timeout_ns;
                if let Some(request) = self.endpoints.request(vi) {
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
        path: &mut impl StreamIo,
    ) {
        self.advance_request(conn, ResponderEvent::Match);
        let endpoint = self.endpoints.get(vi);
        let differs = endpoint
            .and_then(|endpoint| endpoint.compare(&received.ce, Advertised::InRequest).err());
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
        let matches = |ours: &Request| {
            ours.is_peer()
                && ours.remote.host.0 == host_of(remote)
                && ours.remote.discriminator == called
                && ours.deferred_peer.is_none()
                && self.local_address_of(ours) != Some(remote)
        };
        let requests = self.endpoints.requests();
        let numbered = requests.filter_map(|(vi, endpoint, ours)| {
            Some((endpoint.peer_request.as_ref()?.number, vi, ours))
        });
        let (_, vi, ours) = numbered
            .filter(|(.., ours)| matches(ours))
            .min_by_key(|(number, ..)| *number)?;
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
        if ours.is_peer_pending() && precedence == Precedence::YieldToPeer {
            return Some(Resolution::Defer(vi));
        }
        self.resolve_precedence(vi, precedence)
    }

    /// Passes a simultaneous open to the state machine of a VI's request.
    fn resolve_precedence(&mut self, vi: ViIndex, precedence: Precedence) -> Option<Resolution> {
        let request = self.endpoints.request(vi)?;
        match request.on_simultaneous_open(precedence)? {
            Remaining::Theirs => {
                if let Some(number) = request.connection.take() {
                    self.connections.remove(number, &mut self.context);
                }
                Some(Resolution::Accept(vi))
            }
            Remaining::Ours => {
                self.context.count(Counter::PeerCrossed);
                Some(Resolution::Refuse)
            }
        }
    }

    /// Returns the local address of a request's TCP connection, if it has one.
    fn local_address_of(&self, request: &Request) -> Option<SocketAddr> {
        let number = request.connection?;
        self.connections.get(number).map(|own| own.local)
    }
}
