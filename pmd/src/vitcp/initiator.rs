//! Outgoing connection requests: client [VI/TCP 4.2] and peer to peer [VI/TCP 4].

use std::net::SocketAddr;

use vi_engine::EngineIo;
use vi_types::{CallError, ViIndex};
use vitcp_lite::machine::Failure;
use vitcp_lite::machine::initiator::{InitiatorAction, InitiatorEvent};
use vitcp_lite::machine::peer::{PeerAction, PeerEvent};
use vitcp_lite::{CeHeader, IsCode, ProofKind, RemoteError, Segment, SegmentHeader, SegmentType};

use super::ViTcp;
use super::connection::{Connection, Machine, Phase, Rx, Stage, Tx};
use super::connection_options::{Advertised, compare};
use super::counters::Counter;
use super::establish::{Discriminators, put_connect};
use super::socket::{Stream, socket_address};
use super::timers::TimerKey;
use crate::datapath::Datapath;

/// Limit of the exponential backoff of retries, as a multiple of the first interval.
const MAX_BACKOFF: u64 = 16;
/// Consecutive TLS connections closed before a response after which a request fails.
const MAX_EARLY_CLOSES: u32 = 5;

/// Event of a connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Begin,
    TcpFailed(CallError),
    TcpNotYet,
    TcpEstablished,
    TcpClosed,
    Accept,
    Reject(CallError),
    Challenge,
    NoMatch,
    Timeout,
}

/// Action on a connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    None,
    SetUp,
    Send,
    Connected,
    Failed(Failure),
    /// Retry after an interval, on a new TCP connection.
    Retry,
}

impl ViTcp {
    pub(super) fn begin_request(&mut self, now_ns: u64, vi: ViIndex, path: &mut Datapath) {
        self.request_event(now_ns, vi, Event::Begin, path);
        self.arm_request_timer(vi);
    }

    /// Sets the timer of a VI's request to its next deadline.
    pub(super) fn arm_request_timer(&mut self, vi: ViIndex) {
        let Some(request) = self.endpoint_mut(vi).and_then(|ep| ep.request()) else {
            return;
        };
        let yield_at_ns = request.deferred_peer.map(|_| request.yield_at_ns);
        match [request.deadline_ns, request.retry_ns, yield_at_ns]
            .into_iter()
            .flatten()
            .min()
        {
            Some(at_ns) => self.timers.set(at_ns, TimerKey::Request(vi.0)),
            None => self.timers.clear(TimerKey::Request(vi.0)),
        }
    }

    /// Passes an event to the state machine of a VI's request and executes its action. Returns true if the
    /// caller must complete the connection.
    pub(super) fn request_event(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        event: Event,
        path: &mut Datapath,
    ) -> bool {
        let Some(request) = self.endpoint_mut(vi).and_then(|ep| ep.request()) else {
            return false;
        };
        let action = match request.machine {
            Machine::Initiator(state) => {
                let (state, action) = state.on(initiator_event(event));
                request.machine = Machine::Initiator(state);
                match action {
                    InitiatorAction::SetUpTcp if event != Event::Begin => Action::Retry,
                    InitiatorAction::SetUpTcp => Action::SetUp,
                    InitiatorAction::SendRequest | InitiatorAction::AnswerChallenge => Action::Send,
                    InitiatorAction::Connected => Action::Connected,
                    InitiatorAction::Failed(failure) => Action::Failed(failure),
                    InitiatorAction::None
                    | InitiatorAction::CloseTcp
                    | InitiatorAction::Unexpected => Action::None,
                }
            }
            Machine::Peer(state) => {
                let is_retried =
                    matches!(event, Event::NoMatch | Event::TcpClosed | Event::TcpNotYet);
                let (state, action) = state.on(peer_event(event));
                request.machine = Machine::Peer(state);
                match action {
                    PeerAction::SetUpTcp => Action::SetUp,
                    PeerAction::SendRequest | PeerAction::AnswerChallenge => Action::Send,
                    PeerAction::Connected => Action::Connected,
                    PeerAction::Failed(failure) => Action::Failed(failure),
                    PeerAction::None | PeerAction::CloseTcp if is_retried => Action::Retry,
                    PeerAction::None
                    | PeerAction::CloseTcp
                    | PeerAction::AcceptTheirs
                    | PeerAction::RefuseTheirs
                    | PeerAction::Unexpected => Action::None,
                }
            }
        };
        match action {
            Action::None => {}
            Action::SetUp => self.start_connect(now_ns, vi, path),
            Action::Send => self.send_request(vi, path),
            Action::Connected => return true,
            Action::Failed(failure) => {
                let error = match (event, failure) {
                    (Event::TcpFailed(error) | Event::Reject(error), _) => error,
                    (_, Failure::NoMatch) => CallError::NoMatch,
                    (_, Failure::Timeout) => CallError::Timeout,
                    (_, Failure::Rejected) => CallError::Rejected,
                    (_, Failure::Tcp) => CallError::NotReachable,
                };
                self.complete_request(vi, error, path);
            }
            Action::Retry => self.schedule_retry(now_ns, vi),
        }
        self.notify_owner(now_ns);
        false
    }

    /// Schedules a retry of a request, with exponential backoff.
    fn schedule_retry(&mut self, now_ns: u64, vi: ViIndex) {
        let max_ns = self.settings.retry_ns.saturating_mul(MAX_BACKOFF);
        let Some(request) = self.endpoint_mut(vi).and_then(|ep| ep.request()) else {
            return;
        };
        request.retry_ns = Some(now_ns + request.interval_ns);
        request.interval_ns = request.interval_ns.saturating_mul(2).min(max_ns);
        let connection = request.connection.take();
        let deferred = request.deferred_peer.take();
        if let Some(number) = connection {
            self.remove(number);
        }
        self.deferred_peers.extend(deferred);
        self.counters.count(Counter::Retries);
        self.arm_request_timer(vi);
    }

    pub(super) fn request_timeout(&mut self, now_ns: u64, vi: ViIndex, path: &mut Datapath) {
        let Some(request) = self.endpoint_mut(vi).and_then(|ep| ep.request()) else {
            return;
        };
        if request.deadline_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            self.request_event(now_ns, vi, Event::Timeout, path);
            return;
        }
        if request.deferred_peer.is_some() && request.yield_at_ns <= now_ns {
            self.yield_to_peer(now_ns, vi, path);
            self.arm_request_timer(vi);
            return;
        }
        if request.retry_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            request.retry_ns = None;
            self.retry_request(now_ns, vi, path);
        }
        self.arm_request_timer(vi);
    }

    /// Retries a request.
    fn retry_request(&mut self, now_ns: u64, vi: ViIndex, path: &mut Datapath) {
        let Some(request) = self.endpoint_mut(vi).and_then(|ep| ep.request()) else {
            return;
        };
        if let Machine::Peer(state) = request.machine {
            let (state, _) = state.on(PeerEvent::Retry);
            request.machine = Machine::Peer(state);
        }
        self.start_connect(now_ns, vi, path);
    }

    /// Starts the TCP connect of a request.
    fn start_connect(&mut self, now_ns: u64, vi: ViIndex, path: &mut Datapath) {
        let Some(request) = self.endpoint_mut(vi).and_then(|ep| ep.request()) else {
            return;
        };
        let (local, remote) = (request.local.host.0, request.remote.host.0);
        if !self.has_key_for(remote) {
            let event = Event::TcpFailed(CallError::Rejected);
            self.request_event(now_ns, vi, event, path);
            return;
        }
        let (port, scope) = (self.settings.port, self.settings.scope);
        let [from, to] = [local, remote].map(|host| socket_address(host, port, scope));
        self.counters.count(Counter::Connecting);
        let credentials = self.credentials.as_ref();
        let stream = Stream::connect(from, to, self.socket_options(), credentials);
        let local = stream.as_ref().map_or(Ok(from), Stream::local_address);
        let added = stream.and_then(|stream| {
            let local = local?;
            self.add(|generation| {
                new_connection(stream, (local, to), generation, Stage::Requesting(vi))
            })
        });
        match added {
            Ok(number) => {
                if let Some(request) = self.endpoint_mut(vi).and_then(|ep| ep.request()) {
                    request.connection = Some(number);
                }
                // A connect to this host is complete already.
                self.poll_epoll(now_ns, path);
                self.serve_unbound(now_ns, number, path);
            }
            Err(error) => self.connect_failed(now_ns, vi, &error, path),
        }
    }

    /// Sends the Connect Request; after a challenge the next one, with the response.
    fn send_request(&mut self, vi: ViIndex, path: &mut Datapath) {
        let random = path.random();
        let credits_low = self.settings.credits_low;
        let Some(ep) = self.endpoint(vi) else {
            return;
        };
        let Phase::Requesting(request) = &ep.phase else {
            return;
        };
        let peer_to_peer = matches!(request.machine, Machine::Peer(_));
        let names = Discriminators {
            calling: &request.local.discriminator,
            called: &request.remote.discriminator,
        };
        let mut ce = self.own_ce(ep, names, peer_to_peer);
        let Some(number) = request.connection else {
            return;
        };
        let before = request.number;
        let message = match self.connection(number) {
            Some(connection) if connection.exchange.is_some() => before.wrapping_add(1),
            Some(_) | None => random,
        };
        self.prove(number, ProofKind::Request, message, &mut ce);
        if let Some(request) = self.endpoint_mut(vi).and_then(|ep| ep.request()) {
            request.number = message;
        }
        if let Some(connection) = self.connection_mut(number) {
            connection.tx.number = message;
            let ack = (0, credits_low);
            put_connect(vi, connection, SegmentType::ConnectRequest, ack, &ce, path);
            // A broken connection is reported by the next read.
            let _ignored = super::closing::write_control(connection);
        }
    }

    /// Handles the end of a request's TCP connect: its socket is writable for the first time.
    pub(super) fn on_tcp_connected(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        number: u32,
        path: &mut Datapath,
    ) {
        let Some(connection) = self.connection_mut(number) else {
            return;
        };
        match connection.stream.take_error() {
            Ok(()) => {
                self.request_event(now_ns, vi, Event::TcpEstablished, path);
            }
            Err(error) => self.connect_failed(now_ns, vi, &error, path),
        }
    }

    /// Handles a TCP connection that the peer closed before a response: the request is retried. With TLS
    /// only a few times, since a peer that refuses us, or does not use TLS, may close without an alert.
    pub(super) fn on_early_close(&mut self, vi: ViIndex, number: u32) -> Event {
        let stream = self.connection(number).map(|connection| &connection.stream);
        let is_tls = stream.is_some_and(Stream::is_tls);
        let request = self.endpoint_mut(vi).and_then(|ep| ep.request());
        let Some(request) = request.filter(|_| is_tls) else {
            return Event::TcpClosed;
        };
        request.closed += 1;
        if request.closed < MAX_EARLY_CLOSES {
            return Event::TcpClosed;
        }
        let host = request.remote.host;
        let line = format_args!(
            "TLS handshake with {host} failed: the peer closed {MAX_EARLY_CLOSES} connections: \
             check that it uses TLS at this port"
        );
        self.log_limited(log::Level::Warn, line);
        self.counters.count(Counter::DropTlsHandshake);
        Event::Reject(CallError::Rejected)
    }

    /// Handles a failed TCP connect: an error for the consumer, or a retry (VIPL 3.3.4, 3.3.6).
    fn connect_failed(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        error: &std::io::Error,
        path: &mut Datapath,
    ) {
        self.counters.count(Counter::ConnectingFailed);
        let own = self.settings.host;
        let Some(request) = self.endpoint_mut(vi).and_then(|ep| ep.request()) else {
            return;
        };
        let remote = request.remote.host;
        let is_client = matches!(request.machine, Machine::Initiator(_));
        let event = match error.raw_os_error() {
            // The host responds, and no program listens there. At our own address another program
            // does: the listener is being handed over.
            Some(libc::ECONNREFUSED) if is_client && remote != own => {
                Event::TcpFailed(CallError::NoMatch)
            }
            // No response. EHOSTUNREACH: address resolution failed, here or at the last router. A
            // connection that is reset was accepted, and closed before we polled it.
            Some(
                libc::ECONNREFUSED
                | libc::ECONNRESET
                | libc::ETIMEDOUT
                | libc::EHOSTUNREACH
                | libc::EHOSTDOWN,
            ) => Event::TcpNotYet,
            // Descriptors, memory, or ports of our own are used up.
            Some(
                libc::EMFILE
                | libc::ENFILE
                | libc::ENOMEM
                | libc::ENOBUFS
                | libc::EADDRINUSE
                | libc::EAGAIN,
            ) => Event::TcpFailed(CallError::NO_RESOURCES),
            // ENETUNREACH and its like: there is no route.
            _ => Event::TcpFailed(CallError::NotReachable),
        };
        if let Event::TcpFailed(CallError::NO_RESOURCES | CallError::NotReachable) = event {
            let line = format_args!("connection request to {remote}: TCP connect failed: {error}");
            self.log_limited(log::Level::Warn, line);
        }
        self.request_event(now_ns, vi, event, path);
    }

    /// Processes the response to a request.
    pub(super) fn on_response(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        number: u32,
        segment: &Segment,
        path: &mut Datapath,
    ) {
        let header = &segment.header;
        let request = self.endpoint_mut(vi).and_then(|ep| ep.request());
        if request.is_none_or(|request| header.ack != request.number) {
            self.counters.count(Counter::DropOutOfOrder);
            let event = Event::Reject(CallError::Rejected);
            self.request_event(now_ns, vi, event, path);
            return;
        }
        if let Some(request) = self.endpoint_mut(vi).and_then(|ep| ep.request()) {
            request.closed = 0;
        }
        let event = match (header.kind, &segment.headers) {
            (SegmentType::ConnectAccept, vitcp_lite::Headers::Connect(ce)) => {
                self.on_accept(now_ns, vi, number, (header, ce), path);
                return;
            }
            (SegmentType::ConnectNoMatch, _) => Event::NoMatch,
            (SegmentType::ConnectReject, vitcp_lite::Headers::Connect(ce))
                if header.remote_error.is_code == IsCode::Challenge =>
            {
                self.on_challenge(number, header, ce)
            }
            (SegmentType::ConnectReject, _) => {
                if header.remote_error.is_code == IsCode::Security {
                    let why = "the peer rejected our proof or certificate: check that both hosts have \
                               the same key for each other in key_file, and that tls.certificate \
                               is valid for the address of this NIC";
                    self.log_refused_peer(number, Counter::NotAccepted, why);
                }
                Event::Reject(error_of(header.remote_error))
            }
            _ => {
                self.counters.count(Counter::DropOutOfOrder);
                Event::Reject(CallError::Rejected)
            }
        };
        self.request_event(now_ns, vi, event, path);
    }

    fn on_accept(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        number: u32,
        (header, ce): (&SegmentHeader, &CeHeader),
        path: &mut Datapath,
    ) {
        let security = match self.proven_acceptance(number, header, ce) {
            Ok(security) => security,
            Err(why) => {
                self.log_refused_peer(number, Counter::DropUnproven, why);
                let event = Event::Reject(CallError::Rejected);
                self.request_event(now_ns, vi, event, path);
                return;
            }
        };
        let ce = CeHeader { security, ..*ce };
        let theirs = (&ce, header.message, header.rx_posted);
        let Some(ep) = self.endpoint(vi) else {
            return;
        };
        let flow_control = ep.options.flow_control;
        if let Err(error) = compare(ep, theirs.0, Advertised::InAccept) {
            self.request_event(now_ns, vi, Event::Reject(error), path);
            return;
        }
        if self.request_event(now_ns, vi, Event::Accept, path) {
            let flow_control = flow_control && theirs.0.attributes.flow_control;
            self.connected(vi, number, theirs, flow_control, path);
            self.notify_owner(now_ns);
        }
    }
}

/// Creates the state of a TCP connection, outgoing or accepted.
pub(super) fn new_connection(
    stream: Stream,
    (local, remote): (SocketAddr, SocketAddr),
    generation: u32,
    stage: Stage,
) -> Connection {
    let is_outgoing = matches!(stage, Stage::Requesting(_));
    Connection {
        stream,
        local,
        remote,
        generation,
        stage,
        tx: Tx::new(),
        rx: Rx::new(),
        max_transfer_bytes: 0,
        security: Vec::new(),
        exchange: None,
        established: !is_outgoing,
        queued: false,
        may_read: !is_outgoing,
        may_write: !is_outgoing,
        peer_closed: false,
        write_failed: false,
        send_closed: false,
        timer_started: false,
        must_flush: false,
        handshake_waits: false,
        handshake_started: is_outgoing,
        unbound: None,
    }
}

fn initiator_event(event: Event) -> InitiatorEvent {
    match event {
        Event::Begin => InitiatorEvent::Request,
        Event::TcpFailed(_) => InitiatorEvent::TcpFailed,
        Event::TcpNotYet => InitiatorEvent::TcpNotYet,
        Event::TcpEstablished => InitiatorEvent::TcpEstablished,
        Event::TcpClosed => InitiatorEvent::TcpClosed,
        Event::Accept => InitiatorEvent::Accept,
        Event::Reject(_) => InitiatorEvent::Reject,
        Event::Challenge => InitiatorEvent::Challenge,
        Event::NoMatch => InitiatorEvent::NoMatch,
        Event::Timeout => InitiatorEvent::Timeout,
    }
}

fn peer_event(event: Event) -> PeerEvent {
    match event {
        Event::Begin => PeerEvent::Request,
        Event::TcpFailed(_) => PeerEvent::TcpFailed,
        Event::TcpNotYet => PeerEvent::TcpNotYet,
        Event::TcpEstablished => PeerEvent::TcpEstablished,
        Event::TcpClosed => PeerEvent::TcpClosed,
        Event::Accept => PeerEvent::Accept,
        Event::Reject(_) => PeerEvent::Reject,
        Event::Challenge => PeerEvent::Challenge,
        Event::NoMatch => PeerEvent::NoMatch,
        Event::Timeout => PeerEvent::Timeout,
    }
}

/// Converts the reason of a Connect Reject.
fn error_of(error: RemoteError) -> CallError {
    match error.is_code {
        IsCode::ReliabilityLevel => CallError::ReliabilityLevel,
        IsCode::MaxTransferSize => CallError::MaxTransferSize,
        IsCode::NoResources => CallError::NO_RESOURCES,
        _ => CallError::Rejected,
    }
}
