//! Outgoing connection requests: client [VI/TCP 4.2] and peer to peer [VI/TCP 4].

use vi_types::{CallError, HostAddress, ViIndex};
use vitcp_lite::transfer::Counter as TransferCounter;
use vitcp_lite::{CeHeader, IsCode, ProofKind, RemoteError, Segment, SegmentHeader, SegmentType};

use super::ce_header::{Advertised, Discriminators};
use super::challenge::Refusal;
use super::connection::{Connection, Stage};
use super::connector::Connector;
use super::counters::Counter;
use super::endpoint::Phase;
use super::request::{Action, Event};
use super::socket::{Stream, socket_address};
use super::timers::TimerKey;
use vi_config::ip_address;
use vitcp_lite::transfer::StreamIo;

/// Consecutive TLS connections closed before a response after which a request fails.
const MAX_EARLY_CLOSES: u32 = 5;

impl Connector {
    pub(super) fn begin_request(&mut self, now_ns: u64, vi: ViIndex, path: &mut impl StreamIo) {
        self.request_event(now_ns, vi, Event::Begin, path);
        self.arm_request_timer(vi);
    }

    /// Sets the timer of a VI's request to its next deadline.
    pub(super) fn arm_request_timer(&mut self, vi: ViIndex) {
        let Some(request) = self.endpoints.request(vi) else {
            return;
        };
        match request.next_timer_ns() {
            Some(at_ns) => self.context.timers.set(at_ns, TimerKey::Request(vi.0)),
            None => self.context.timers.clear(TimerKey::Request(vi.0)),
        }
    }

    /// Passes an event to the state machine of a VI's request and executes its action. Returns true if the
    /// caller must complete the connection.
    pub(super) fn request_event(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        event: Event,
        path: &mut impl StreamIo,
    ) -> bool {
        let Some(request) = self.endpoints.request(vi) else {
            return false;
        };
        match request.on(event) {
            Action::None => {}
            Action::SetUp => self.start_connect(now_ns, vi, path),
            Action::Send => self.send_request(vi, path),
            Action::Connected => return true,
            Action::Failed(error) => self.complete_request(vi, error, path),
            Action::Retry => self.schedule_retry(now_ns, vi),
        }
        self.notify_owner(now_ns);
        false
    }

    /// Schedules a retry of a request, with exponential backoff.
    fn schedule_retry(&mut self, now_ns: u64, vi: ViIndex) {
        let Some(request) = self.endpoints.request(vi) else {
            return;
        };
        request.schedule_retry(now_ns, self.context.settings.retry_ns);
        let connection = request.connection.take();
        let deferred = request.deferred_peer.take();
        if let Some(number) = connection {
            self.connections.remove(number, &mut self.context);
        }
        self.deferred_peers.extend(deferred);
        self.context.count(Counter::Retries);
        self.arm_request_timer(vi);
    }

    pub(super) fn request_timeout(&mut self, now_ns: u64, vi: ViIndex, path: &mut impl StreamIo) {
        let Some(request) = self.endpoints.request(vi) else {
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
            request.begin_retry();
            self.start_connect(now_ns, vi, path);
        }
        self.arm_request_timer(vi);
    }

    /// Starts the TCP connect of a request.
    fn start_connect(&mut self, now_ns: u64, vi: ViIndex, path: &mut impl StreamIo) {
        let Some(request) = self.endpoints.request(vi) else {
            return;
        };
        let (local, remote) = (request.local.host.0, request.remote.host.0);
        if !self.has_key_for(remote) {
            let event = Event::TcpFailed(CallError::Rejected);
            self.request_event(now_ns, vi, event, path);
            return;
        }
        let (port, scope) = (self.context.settings.port, self.context.settings.scope);
        let [from, to] = [local, remote].map(|host| socket_address(host, port, scope));
        self.context.count(Counter::Connecting);
        let credentials = self.credentials.as_ref();
        let stream = Stream::connect(from, to, self.context.socket_options(), credentials);
        let local = stream.as_ref().map_or(Ok(from), Stream::local_address);
        let added = stream.and_then(|stream| {
            let local = local?;
            self.connections.add(|generation| {
                Connection::new(stream, (local, to), generation, Stage::Requesting(vi))
            })
        });
        match added {
            Ok(number) => {
                if let Some(request) = self.endpoints.request(vi) {
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
    fn send_request(&mut self, vi: ViIndex, path: &mut impl StreamIo) {
        let random = path.random();
        let settings = &self.context.settings;
        let Some(endpoint) = self.endpoints.get(vi) else {
            return;
        };
        let Phase::Requesting(request) = &endpoint.phase else {
            return;
        };
        let Some(number) = request.connection else {
            return;
        };
        let Some(connection) = self.connections.get_mut(number) else {
            return;
        };
        let message = match connection.exchange {
            Some(_) => request.number.wrapping_add(1),
            None => random,
        };
        let names = Discriminators {
            calling: &request.local.discriminator,
            called: &request.remote.discriminator,
        };
        let mut ce = endpoint.ce_header(names, request.is_peer(), settings.max_reads);
        connection.prove(self.keys.as_ref(), ProofKind::Request, message, &mut ce);
        let transfer = &mut connection.transfer;
        transfer.tx.number = message;
        let ack = (0, settings.credits_low);
        transfer.put_connect(vi, SegmentType::ConnectRequest, ack, &ce, path);
        connection.try_write_control();
        if let Some(request) = self.endpoints.request(vi) {
            request.number = message;
        }
    }

    /// Handles the end of a request's TCP connect: its socket is writable for the first time.
    pub(super) fn on_tcp_connected(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        number: u32,
        path: &mut impl StreamIo,
    ) {
        let Some(connection) = self.connections.get_mut(number) else {
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
        let stream = self
            .connections
            .get(number)
            .map(|connection| &connection.stream);
        let is_tls = stream.is_some_and(Stream::is_tls);
        let request = self.endpoints.request(vi);
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
        self.context.log_limited(log::Level::Warn, line);
        self.context.count(Counter::DropTlsHandshake);
        Event::Reject(CallError::Rejected)
    }

    /// Handles a failed TCP connect: an error for the consumer, or a retry.
    fn connect_failed(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        error: &std::io::Error,
        path: &mut impl StreamIo,
    ) {
        self.context.count(Counter::ConnectingFailed);
        let own = self.context.settings.host;
        let Some(request) = self.endpoints.request(vi) else {
            return;
        };
        let remote = request.remote.host;
        let is_client = !request.is_peer() && remote != own;
        let event = Event::of_failed_connect(error, is_client);
        if let Event::TcpFailed(CallError::NO_RESOURCES | CallError::NotReachable) = event {
            let line = format_args!("connection request to {remote}: TCP connect failed: {error}");
            self.context.log_limited(log::Level::Warn, line);
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
        path: &mut impl StreamIo,
    ) {
        let header = &segment.header;
        let request = self.endpoints.request(vi);
        if request.is_none_or(|request| header.ack != request.number) {
            self.context
                .transfer_counters
                .count(TransferCounter::DropOutOfOrder);
            let event = Event::Reject(CallError::Rejected);
            self.request_event(now_ns, vi, event, path);
            return;
        }
        if let Some(request) = self.endpoints.request(vi) {
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
                    self.log_refused_peer(number, (Counter::NotAccepted, why));
                }
                Event::Reject(error_of(header.remote_error))
            }
            _ => {
                self.context
                    .transfer_counters
                    .count(TransferCounter::DropOutOfOrder);
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
        path: &mut impl StreamIo,
    ) {
        let Some(connection) = self.connections.get(number) else {
            return;
        };
        let security = match connection.proven_acceptance(self.keys.as_ref(), header, ce) {
            Ok(security) => security,
            Err(refusal) => {
                self.log_refused_peer(number, refusal);
                let event = Event::Reject(CallError::Rejected);
                self.request_event(now_ns, vi, event, path);
                return;
            }
        };
        let ce = CeHeader { security, ..*ce };
        let theirs = (&ce, header.message, header.rx_posted);
        let Some(endpoint) = self.endpoints.get(vi) else {
            return;
        };
        let flow_control = endpoint.options.flow_control;
        if let Err(error) = endpoint.compare(theirs.0, Advertised::InAccept) {
            self.request_event(now_ns, vi, Event::Reject(error), path);
            return;
        }
        if self.request_event(now_ns, vi, Event::Accept, path) {
            let flow_control = flow_control && theirs.0.attributes.flow_control;
            self.connected(vi, number, theirs, flow_control, path);
            self.notify_owner(now_ns);
        }
    }

    /// Processes a challenge. Returns the event for the request.
    fn on_challenge(&mut self, number: u32, header: &SegmentHeader, ce: &CeHeader) -> Event {
        let Some(connection) = self.connections.get_mut(number) else {
            return Event::Reject(CallError::Rejected);
        };
        match connection.take_challenge(self.keys.as_ref(), header, ce) {
            Ok(()) => {
                // More may be readable already, which epoll does not report again.
                self.connections.queue(number);
                Event::Challenge
            }
            Err(refusal) => {
                self.log_refused_peer(number, refusal);
                Event::Reject(CallError::Rejected)
            }
        }
    }

    /// Counts and logs the refusal of a peer that we connect to.
    fn log_refused_peer(&mut self, number: u32, (counter, why): Refusal) {
        self.context.count(counter);
        if let Some(connection) = self.connections.get(number) {
            let remote = connection.remote.ip();
            let line = format_args!("connection to {remote} refused: {why}");
            self.context.log_limited(log::Level::Warn, line);
        }
    }

    /// Checks that there is a key for a host, if this NIC has keys; otherwise counts and logs it.
    fn has_key_for(&mut self, host: [u8; 16]) -> bool {
        let has = (self.keys.as_ref()).is_none_or(|keys| keys.of(host).is_some());
        if !has {
            self.context.count(Counter::DropNoKey);
            let remote = ip_address(HostAddress(host));
            let line = format_args!(
                "connection to {remote} refused: key_file of this NIC has no key for it"
            );
            self.context.log_limited(log::Level::Warn, line);
        }
        has
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
