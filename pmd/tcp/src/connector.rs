//! Establishment and end of connections: the calls of the consumer, and the parts that all roles share [VI/TCP 4,
//! VIPL 3.3].

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use vi_types::misses::PeerMisses;
use vi_types::{
    AsyncError, CallError, ConnId, ConnectRequest, Discriminator, Indication, NegotiatedOptions,
    NetAddress, ReliabilityLevel, ViIndex, ViParams, ViState, Waiter,
};
use vitcp_lite::machine::initiator::InitiatorState;
use vitcp_lite::machine::peer::PeerState;
use vitcp_lite::{CeHeader, RemoteError, SegmentType};

use super::budget::Budget;
use super::ce_header::attributes_of;
use super::connection::Stage;
use super::connection_table::ConnectionTable;
use super::context::Context;
use super::counters::Counter;
use super::endpoint::{PeerRequest, Phase};
use super::endpoint_table::EndpointTable;
use super::listeners::Listeners;
use super::request::{Machine, Request};
use super::shared_listener::{ListenKey, SharedListener};
use super::timers::TimerKey;
use super::{Credentials, Keys};
use vitcp_lite::Source;
use vitcp_lite::transfer::{CloseReason, Established, ResponseTimer, StreamIo};

/// The VIs of a NIC with their connections and listeners.
pub struct Connector {
    pub(super) context: Context,
    pub(super) endpoints: EndpointTable,
    pub(super) connections: ConnectionTable,
    pub(super) listeners: Listeners,
    pub(super) shared_listener: SharedListener,
    /// If present, all connections use TLS.
    pub(super) credentials: Option<Credentials>,
    /// If present, only hosts with a key can connect.
    pub(super) keys: Option<Keys>,
    /// RDMA misses of all peers.
    pub(super) misses: PeerMisses<Source>,
    /// Peer requests to resolve now: they were deferred until the response to our own request.
    pub(super) deferred_peers: Vec<ConnId>,
    next_peer_request: u64,
    /// What the current poll may still do.
    pub(super) budget: Budget,
}

impl Connector {
    /// Creates a NIC without VIs.
    ///
    /// # Errors
    /// The error of `epoll_create1`.
    pub(super) fn new(
        context: Context,
        local_directory: Option<PathBuf>,
        credentials: Option<Credentials>,
        keys: Option<Keys>,
    ) -> io::Result<Self> {
        Ok(Self {
            endpoints: EndpointTable::new(context.settings.max_vi),
            connections: ConnectionTable::new(&context)?,
            listeners: Listeners::default(),
            shared_listener: SharedListener::new(local_directory),
            credentials,
            keys,
            misses: PeerMisses::new(context.settings.miss_limits),
            deferred_peers: Vec::new(),
            next_peer_request: 0,
            budget: Budget::new(),
            context,
        })
    }

    /// Adds a listener for one request with this discriminator (VIPL 3.3.1). Returns its number.
    pub fn listen(&mut self, now_ns: u64, discriminator: Discriminator) -> u64 {
        let number = self.listeners.add(discriminator);
        self.listens_changed(now_ns);
        number
    }

    /// Returns the request that a listener matched, and removes the listener; `None` while it has none.
    pub fn take_indication(&mut self, listener: u64) -> Option<Indication> {
        let conn = self.listeners.matched(listener)?;
        let connection = self.connections.of(conn)?;
        let indication = match connection.received_request() {
            Some(request) => Indication {
                conn,
                remote: request.remote,
                attributes: request.attributes,
            },
            // The client has closed meanwhile: accepting it reports that.
            None => Indication {
                conn,
                remote: NetAddress::default(),
                attributes: ViParams {
                    level: ReliabilityLevel::UnreliableDelivery,
                    max_transfer_bytes: 0,
                    rdma_write: false,
                    rdma_read: false,
                },
            },
        };
        self.listeners.remove(listener);
        Some(indication)
    }

    /// Removes a listener. A request that it matched is passed to another listener, or refused with No Match.
    pub fn unlisten(&mut self, now_ns: u64, listener: u64, path: &mut impl StreamIo) {
        let Some((discriminator, matched)) = self.listeners.remove(listener) else {
            return;
        };
        self.listens_changed(now_ns);
        let Some(conn) = matched else {
            return;
        };
        if let Some(other) = self.match_listener(&discriminator, conn) {
            path.control_event(Waiter::Request(other));
            return;
        }
        self.refuse_request(now_ns, conn, SegmentType::ConnectNoMatch, RemoteError::NONE);
    }

    /// Passes a request to the oldest free listener with its discriminator; `None` if there is none.
    pub(super) fn match_listener(
        &mut self,
        discriminator: &Discriminator,
        conn: ConnId,
    ) -> Option<u64> {
        let number = self.listeners.match_request(discriminator, conn)?;
        self.shared_listener.listens_changed = true;
        Some(number)
    }

    /// Notes a change of our listens, and reports them to the listener owner.
    pub(super) fn listens_changed(&mut self, now_ns: u64) {
        self.shared_listener.listens_changed = true;
        self.notify_owner(now_ns);
    }

    /// Reports the changed listens of our consumers to the listener owner.
    pub(super) fn notify_owner(&mut self, now_ns: u64) {
        let Self {
            listeners,
            endpoints,
            shared_listener,
            context,
            ..
        } = self;
        let listens = || {
            let mut all = BTreeMap::new();
            for discriminator in listeners.free() {
                let called = discriminator.as_bytes().to_vec();
                *all.entry(ListenKey { peer: None, called }).or_default() += 1;
            }
            for (_, _, request) in endpoints
                .requests()
                .filter(|(.., request)| request.is_peer())
            {
                let called = request.remote.discriminator.as_bytes().to_vec();
                let peer = Some(request.remote.host.0);
                *all.entry(ListenKey { peer, called }).or_default() += 1;
            }
            all
        };
        shared_listener.report_listens(now_ns, listens, context);
    }

    /// Starts a connection request (VIPL 3.3.4); its outcome is available by [`Connector::take_outcome`].
    ///
    /// # Errors
    /// `Invalid`, `InvalidState`.
    pub fn connect(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        request: &ConnectRequest<'_>,
        path: &mut impl StreamIo,
    ) -> Result<(), CallError> {
        let machine = Machine::Initiator(InitiatorState::Disconnected);
        self.start_request(now_ns, vi, machine, request, path)
    }

    /// Starts a peer request (VIPL 3.3.6); its outcome is available by [`Connector::take_peer_outcome`].
    ///
    /// # Errors
    /// As for [`Connector::connect`].
    pub fn connect_peer(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        request: &ConnectRequest<'_>,
        path: &mut impl StreamIo,
    ) -> Result<(), CallError> {
        let machine = Machine::Peer(PeerState::Disconnected);
        self.start_request(now_ns, vi, machine, request, path)
    }

    fn start_request(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        machine: Machine,
        request: &ConnectRequest<'_>,
        path: &mut impl StreamIo,
    ) -> Result<(), CallError> {
        let endpoint = self
            .endpoints
            .get_mut(vi)
            .ok_or(CallError::InvalidParameter)?;
        if !matches!(endpoint.phase, Phase::Idle) {
            return Err(CallError::InvalidState);
        }
        endpoint.forget_outcomes();
        let request = Request::new(machine, request, now_ns, self.context.settings.retry_ns);
        if request.is_peer() {
            self.next_peer_request += 1;
            endpoint.peer_request = Some(PeerRequest {
                number: self.next_peer_request,
                outcome: None,
            });
        }
        endpoint.phase = Phase::Requesting(Box::new(request));
        path.set_state(vi, ViState::ConnectPending);
        self.listens_changed(now_ns);
        self.begin_request(now_ns, vi, path);
        Ok(())
    }

    /// Takes the outcome of a connection call on this VI; `None` while it has none.
    pub fn take_outcome(&mut self, vi: ViIndex) -> Option<Result<ViParams, CallError>> {
        self.endpoints.get_mut(vi)?.outcome.take()
    }

    /// Takes the outcome of the peer request with this number; `None` while it has none.
    /// `InvalidState` if the VI has no such request any more.
    pub fn take_peer_outcome(
        &mut self,
        vi: ViIndex,
        number: u64,
    ) -> Option<Result<ViParams, CallError>> {
        let Some(slot) = self
            .endpoints
            .get_mut(vi)
            .map(|endpoint| &mut endpoint.peer_request)
        else {
            return Some(Err(CallError::InvalidParameter));
        };
        let matches = |request: &&mut PeerRequest| request.number == number;
        let Some(request) = slot.as_mut().filter(matches) else {
            return Some(Err(CallError::InvalidState));
        };
        let outcome = request.outcome?;
        *slot = None;
        Some(outcome)
    }

    /// Returns the VI of this NIC that makes a request, or `None` if another program makes it.
    ///
    /// # Errors
    /// `Timeout`: the request is not pending any more.
    pub fn requester(&self, conn: ConnId) -> Result<Option<ViIndex>, CallError> {
        match self.connections.of(conn) {
            Some(connection) if connection.received_request().is_some() => {
                Ok(self.connections.local_peer_of(connection))
            }
            _ => Err(CallError::Timeout),
        }
    }

    /// Returns the VI of this NIC that a connected VI is connected to, or `None` if it is another
    /// program's.
    ///
    /// # Errors
    /// `InvalidState`: the VI is not connected.
    pub fn connected_to(&self, vi: ViIndex) -> Result<Option<ViIndex>, CallError> {
        let number = self
            .endpoints
            .connection_of(vi)
            .ok_or(CallError::InvalidState)?;
        let connection = self.connections.get(number);
        Ok(connection.and_then(|connection| self.connections.local_peer_of(connection)))
    }

    /// Returns the options that a VI and its peer have negotiated; `None` unless it is connected.
    pub fn negotiated_options(&self, vi: ViIndex) -> Option<NegotiatedOptions> {
        let connection = self.connections.get(self.endpoints.connection_of(vi)?)?;
        Some(NegotiatedOptions {
            flow_control: connection.transfer.tx.credits.is_some(),
            max_transfer_bytes: connection.transfer.params.max_transfer_bytes,
            security: connection.security.clone(),
        })
    }

    /// Returns the security information of a pending request; `None` if there is no such request any more.
    pub fn security_of(&self, conn: ConnId) -> Option<Vec<u8>> {
        let request = self.connections.of(conn)?.received_request()?;
        Some(request.ce.security.as_bytes().to_vec())
    }

    /// Completes a connection attempt with an error. The VI returns to Idle and keeps its receives,
    /// except that `NotReachable` moves a reliable VI to Error and flushes them (VIPL 3.3.4).
    pub(super) fn complete_request(
        &mut self,
        vi: ViIndex,
        error: CallError,
        path: &mut impl StreamIo,
    ) {
        self.shared_listener.listens_changed = true;
        self.context.timers.clear(TimerKey::Request(vi.0));
        let Some(endpoint) = self.endpoints.get_mut(vi) else {
            return;
        };
        let breaks = error == CallError::NotReachable && endpoint.is_reliable();
        let after = if breaks { Phase::Error } else { Phase::Idle };
        let phase = core::mem::replace(&mut endpoint.phase, after);
        endpoint.set_outcome(Err(error));
        if let Phase::Requesting(request) = phase {
            self.deferred_peers.extend(request.deferred_peer);
            if let Some(number) = request.connection {
                self.connections.remove(number, &mut self.context);
            }
        }
        if breaks {
            path.set_state(vi, ViState::Error);
            path.flush_receives(vi);
        } else {
            path.set_state(vi, ViState::Idle);
        }
        path.control_event(Waiter::Outcome(vi));
    }

    /// Binds an accepted connection to a VI. `theirs`: the peer's CE header, in the message with number
    /// `message` and Rx Descriptors Posted `rx_posted`.
    pub(super) fn connected(
        &mut self,
        vi: ViIndex,
        number: u32,
        (theirs, message, rx_posted): (&CeHeader, u32, u16),
        flow_control: bool,
        path: &mut impl StreamIo,
    ) {
        self.context.timers.clear(TimerKey::Request(vi.0));
        self.context.timers.clear(TimerKey::Connection(number));
        let Some(params) = self.endpoints.get(vi).map(|endpoint| endpoint.params) else {
            return;
        };
        let miss_key = self.miss_key(vi, number);
        let misses = self.misses.connect(miss_key);
        let Some(connection) = self.connections.get_mut(number) else {
            return;
        };
        connection.stage = Stage::Connected(vi);
        connection.security = theirs.security.as_bytes().to_vec();
        connection.exchange = None;
        let unbound = connection.unbound.take();
        let (segment_bytes, timestamps) = connection.stream.segment_bytes();
        let rx = &mut connection.transfer.rx;
        (rx.misses, rx.miss_key) = (misses, miss_key);
        connection.transfer.establish(&Established {
            params,
            theirs,
            message,
            credits: flow_control.then_some(rx_posted),
            segment_bytes,
            max_in_flight: self.context.settings.max_in_flight,
            max_reads: self.context.settings.max_reads,
        });
        let remote = attributes_of(theirs, params.level);
        self.connections.unbound.release(unbound);
        self.shared_listener.listens_changed = true;
        self.context.count(Counter::Connects);
        if !timestamps {
            self.context.count(Counter::WithoutTimestamps);
        }
        if let Some(endpoint) = self.endpoints.get_mut(vi) {
            let before = core::mem::replace(&mut endpoint.phase, Phase::Connected(number));
            endpoint.set_outcome(Ok(remote));
            if let Phase::Requesting(request) = before {
                self.deferred_peers.extend(request.deferred_peer);
            }
        }
        self.connections.queue(number);
        path.set_notify_receives(vi, flow_control);
        path.set_state(vi, ViState::Connected);
        path.control_event(Waiter::Outcome(vi));
        path.resume(vi);
    }

    /// Returns to which peer the RDMA misses on a connection of this VI count: a user of this NIC, or else an
    /// address; `None` if the peer is of the same user on this NIC.
    fn miss_key(&self, vi: ViIndex, number: u32) -> Option<Source> {
        let connection = self.connections.get(number)?;
        let peer = self.connections.local_peer_of(connection);
        let Some(peer) = peer.and_then(|peer| self.endpoints.get(peer)) else {
            return Some(Source::address(connection.remote));
        };
        let own = self.endpoints.get(vi).map(|endpoint| endpoint.user);
        (own != Some(peer.user)).then_some(Source::User(peer.user))
    }

    /// Breaks the connection of a VI: completes its descriptors and moves the VI to Error.
    #[cold]
    pub(super) fn break_connection(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        number: u32,
        reason: CloseReason,
        path: &mut impl StreamIo,
    ) {
        let Some(mut connection) = self.connections.take(number) else {
            return;
        };
        if let CloseReason::Malformed(error) = reason {
            log::debug!("vi-tcp: malformed segment: {error}");
        }
        let counters = &mut self.context.transfer_counters;
        connection.transfer.end(vi, reason, counters, path);
        if reason == CloseReason::PeerClosed && !connection.transfer.tx.is_mid_segment() {
            connection.stream.send_close_notify();
        }
        self.context.count(Counter::Breaks);
        self.context.timers.clear(TimerKey::Response(vi.0));
        let refused = connection.transfer.rx.misses.refused();
        self.connections.put(number, connection);
        if let Some(endpoint) = self.endpoints.get_mut(vi) {
            endpoint.phase = Phase::Error;
            endpoint.refused_accesses = refused;
        }
        path.set_state(vi, ViState::Error);
        path.flush_sends(vi);
        path.flush_receives(vi);
        let loss = match reason {
            CloseReason::PeerClosed => AsyncError::Disconnected,
            _ => AsyncError::ConnectionLost,
        };
        path.report(vi, loss);
        match reason {
            CloseReason::PeerClosed | CloseReason::ConnectionLost => {
                self.connections.remove(number, &mut self.context);
            }
            _ => self.connections.close(now_ns, number, &mut self.context),
        }
    }

    /// Disconnects a VI for the consumer (VIPL 3.3.5): legal in every state; both queues are flushed and
    /// the VI is Idle when this returns. A pending connection call on this VI ends with `InvalidState`.
    pub fn disconnect(&mut self, now_ns: u64, vi: ViIndex, path: &mut impl StreamIo) {
        self.move_to_idle(now_ns, vi, path);
        if let Some(endpoint) = self.endpoints.get_mut(vi) {
            endpoint.peer_request = None;
        }
    }

    /// Moves a VI from any state to Idle, with both queues flushed.
    fn move_to_idle(&mut self, now_ns: u64, vi: ViIndex, path: &mut impl StreamIo) {
        let Some(endpoint) = self.endpoints.get_mut(vi) else {
            return;
        };
        let waiting = endpoint.state() == ViState::ConnectPending;
        let phase = core::mem::replace(&mut endpoint.phase, Phase::Idle);
        if waiting && endpoint.peer_request.is_none() {
            endpoint.outcome = Some(Err(CallError::InvalidState));
        }
        match phase {
            Phase::Connected(number) => self.close_bound(now_ns, vi, number, path),
            Phase::Requesting(request) => {
                self.context.timers.clear(TimerKey::Request(vi.0));
                self.deferred_peers.extend(request.deferred_peer);
                self.shared_listener.listens_changed = true;
                if let Some(number) = request.connection {
                    self.connections.remove(number, &mut self.context);
                }
            }
            Phase::Idle | Phase::Error => {}
        }
        path.set_state(vi, ViState::Idle);
        path.flush_sends(vi);
        path.flush_receives(vi);
        if waiting {
            self.notify_owner(now_ns);
            path.control_event(Waiter::Outcome(vi));
        }
    }

    /// Closes the connection of a VI that disconnects: acknowledges what is placed, then closes.
    fn close_bound(&mut self, now_ns: u64, vi: ViIndex, number: u32, path: &mut impl StreamIo) {
        self.context.timers.clear(TimerKey::Response(vi.0));
        if let Some(connection) = self.connections.get_mut(number) {
            connection.transfer.disconnect(vi, path);
        }
        self.connections.close(now_ns, number, &mut self.context);
    }

    /// Moves a VI to Error after a fatal local error of the consumer (VIPL 6.3.1), at every level and in every
    /// state.
    pub fn fail_vi(&mut self, now_ns: u64, vi: ViIndex, path: &mut impl StreamIo) {
        let Some(endpoint) = self.endpoints.get(vi) else {
            return;
        };
        match endpoint.phase {
            Phase::Connected(number) => {
                self.break_connection(now_ns, vi, number, CloseReason::Local, path);
            }
            Phase::Idle | Phase::Requesting(_) => {
                self.move_to_idle(now_ns, vi, path);
                if let Some(endpoint) = self.endpoints.get_mut(vi) {
                    endpoint.phase = Phase::Error;
                    endpoint
                        .peer_request
                        .take_if(|request| request.outcome.is_none());
                }
                path.set_state(vi, ViState::Error);
            }
            Phase::Error => {}
        }
    }

    /// Handles the response timer of a VI.
    fn response_timeout(&mut self, now_ns: u64, vi: ViIndex, path: &mut impl StreamIo) {
        let Some(number) = self.endpoints.connection_of(vi) else {
            return;
        };
        let Some(connection) = self.connections.get_mut(number) else {
            return;
        };
        match connection.transfer.tx.on_response_timer() {
            ResponseTimer::NotNeeded => {}
            ResponseTimer::Restart => {
                let deadline_ns = now_ns + self.context.settings.response_timeout_ns;
                let timers = &mut self.context.timers;
                timers.set(deadline_ns, TimerKey::Response(vi.0));
            }
            ResponseTimer::Expired => {
                self.break_connection(now_ns, vi, number, CloseReason::TimedOut, path);
            }
        }
    }

    /// Closes the listener and every connection of a NIC that shuts down.
    pub fn leave_network(&mut self) {
        self.shared_listener.close(&self.connections.epoll);
        self.connections.close_all(&mut self.context);
    }

    /// Handles a due timer.
    pub(super) fn on_timer(&mut self, now_ns: u64, timer: TimerKey, path: &mut impl StreamIo) {
        match timer {
            TimerKey::Connection(number) => self.connections.on_timeout(number, &mut self.context),
            TimerKey::Request(slot) => self.request_timeout(now_ns, ViIndex(slot), path),
            TimerKey::Response(slot) => self.response_timeout(now_ns, ViIndex(slot), path),
            TimerKey::SharedListener => self.retry_listener(now_ns),
            TimerKey::Handshakes => self.connections.handshakes.set_due(),
        }
    }
}
