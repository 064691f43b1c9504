//! Events of sockets other than the data of connected VIs: accepted connections, connection establishment, the
//! sockets of the shared listener.

use pmd_port::fork::Descriptor;
use vi_core::sys;
use vi_types::{CallError, ViIndex};
use vitcp_lite::machine::responder::ResponderState;
use vitcp_lite::{Headers, SegmentType};

use super::MAX_ACCEPTS;
use super::connection::{Connection, Exchange, ReadOutcome, Stage};
use super::connector::Connector;
use super::counters::Counter;
use super::request::Event;
use super::shared_listener::{
    FromOwner, HandoffRequest, LISTENER_GENERATION, ListenState, MAX_MESSAGES, OWNER,
    SentChallenge, TCP_LISTENER, UNIX_LISTENER,
};
use super::socket::Stream;
use super::stream_error::is_would_block;
use super::timers::TimerKey;
use super::unbound::Unbound;
use vitcp_lite::transfer::{Counter as TransferCounter, StreamIo};

impl Connector {
    /// Polls epoll and queues the connections with events. Returns true if the listener had one.
    pub(super) fn poll_epoll(&mut self, now_ns: u64, path: &mut impl StreamIo) -> bool {
        self.connections.poll_unregistered(path);
        let mut listener_served = false;
        for at in 0..self.connections.epoll.poll() {
            let Some(readiness) = self.connections.epoll.readiness(at) else {
                break;
            };
            let number = readiness.data as u32;
            let generation = (readiness.data >> 32) as u32;
            if generation == LISTENER_GENERATION {
                self.serve_listener(now_ns, number, path);
                listener_served = true;
                continue;
            }
            let Some(connection) = self.connections.get_mut(number) else {
                continue;
            };
            if connection.generation != generation {
                continue;
            }
            connection.may_read |= readiness.readable;
            connection.peer_closed |= readiness.peer_closed;
            // Writing waiting TLS data counts towards the limits of a poll.
            let unsent = readiness.writable && connection.stream.has_unsent();
            connection.must_flush |= unsent;
            let writable_again = readiness.writable
                && !unsent
                && !core::mem::replace(&mut connection.may_write, true);
            if writable_again && let Some(vi) = connection.vi() {
                path.resume(vi);
            }
            let is_unbound = !matches!(connection.stage, Stage::Connected(_));
            if readiness.readable || unsent || (writable_again && is_unbound) {
                self.connections.queue(number);
            }
        }
        listener_served
    }

    /// Accepts TCP connections.
    pub(super) fn accept_connections(&mut self, now_ns: u64) {
        for _ in 0..MAX_ACCEPTS {
            let Some(listen_socket) = self.shared_listener.listen_socket() else {
                return;
            };
            let credentials = self.credentials.as_ref();
            let stream = match listen_socket.accept(self.context.socket_options(), credentials) {
                Ok(stream) => stream,
                Err(error) if is_would_block(&error) => return,
                Err(error) => {
                    log::debug!("vi-tcp listener: accept failed: {error}");
                    self.context.count(Counter::DropUnfitIncoming);
                    // The error concerns this connection only, unless descriptors are exhausted.
                    if sys::is_out_of_descriptors(&error) {
                        let epoll = &self.connections.epoll;
                        self.shared_listener.pause(now_ns, epoll, &mut self.context);
                        return;
                    }
                    continue;
                }
            };
            self.context.count(Counter::Accepted);
            if !self
                .connections
                .ensure_space(Unbound::Pending, &mut self.context)
            {
                continue;
            }
            let local = stream.local_address();
            let addresses = local.and_then(|local| Ok((local, stream.remote_address()?)));
            let stage = Stage::Incoming(ResponderState::default());
            let added = addresses.and_then(|addresses| {
                self.connections
                    .add(|generation| Connection::new(stream, addresses, generation, stage))
            });
            match added {
                Ok(number) => {
                    self.connections.admit(Unbound::Pending, number);
                    self.connections.queue(number);
                }
                Err(error) => {
                    log::debug!("vi-tcp listener: accepted connection dropped: {error}");
                    self.context.count(Counter::DropUnfitIncoming);
                }
            }
        }
    }

    /// Serves a connection without a VI. Returns true if it made progress.
    pub(super) fn serve_unbound(
        &mut self,
        now_ns: u64,
        number: u32,
        path: &mut impl StreamIo,
    ) -> bool {
        let Some(connection) = self.connections.get_mut(number) else {
            return false;
        };
        match connection.stage {
            Stage::Requesting(vi) => self.serve_requesting(now_ns, vi, number, path),
            Stage::Incoming(_) => self.serve_incoming(now_ns, number, path),
            Stage::RequestReceived(_) => {
                // The peer must not send more before the response.
                match connection.read_control() {
                    ReadOutcome::Nothing => return false,
                    ReadOutcome::BudgetSpent => self.connections.queue(number),
                    ReadOutcome::NeedsTurn => {
                        self.connections
                            .wait_for_handshake(now_ns, number, &mut self.context)
                    }
                    ReadOutcome::Segment(_)
                    | ReadOutcome::Closed
                    | ReadOutcome::Malformed
                    | ReadOutcome::TlsFailed => connection.stage = Stage::PeerGone,
                }
                true
            }
            Stage::Closing => {
                let discarded = self.connections.serve_closing(number, &mut self.context);
                self.budget.spend_bytes(discarded);
                true
            }
            Stage::PeerGone | Stage::Connected(_) => false,
        }
    }

    fn serve_requesting(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        number: u32,
        path: &mut impl StreamIo,
    ) -> bool {
        let Some(connection) = self.connections.get_mut(number) else {
            return false;
        };
        if !connection.established {
            if !connection.may_write {
                return false;
            }
            connection.established = true;
            self.on_tcp_connected(now_ns, vi, number, path);
        }
        let Some(connection) = self.connections.get_mut(number) else {
            return true;
        };
        if !matches!(connection.stage, Stage::Requesting(_)) {
            return true;
        }
        connection.try_write_control();
        let outcome = connection.read_control();
        match outcome {
            ReadOutcome::Nothing => return false,
            ReadOutcome::BudgetSpent => self.connections.queue(number),
            ReadOutcome::NeedsTurn => {
                self.connections
                    .wait_for_handshake(now_ns, number, &mut self.context)
            }
            ReadOutcome::Segment(segment) => self.on_response(now_ns, vi, number, &segment, path),
            ReadOutcome::Closed => {
                let event = self.on_early_close(vi, number);
                self.request_event(now_ns, vi, event, path);
            }
            ReadOutcome::Malformed | ReadOutcome::TlsFailed => {
                match outcome {
                    ReadOutcome::TlsFailed => self.context.count(Counter::DropTlsHandshake),
                    _ => {
                        let counters = &mut self.context.transfer_counters;
                        counters.count(TransferCounter::DropMalformed);
                    }
                }
                let event = Event::Reject(CallError::Rejected);
                self.request_event(now_ns, vi, event, path);
            }
        }
        true
    }

    fn serve_incoming(&mut self, now_ns: u64, number: u32, path: &mut impl StreamIo) -> bool {
        let response_timeout_ns = self.context.settings.response_timeout_ns;
        let Some(connection) = self.connections.get_mut(number) else {
            return false;
        };
        connection.try_write_control();
        let challenged = connection.is_challenged();
        let unfit = match challenged {
            true => Counter::DropUnansweredChallenge,
            false => Counter::DropUnfitIncoming,
        };
        match connection.read_control() {
            ReadOutcome::Nothing if challenged => false,
            outcome @ (ReadOutcome::Nothing | ReadOutcome::NeedsTurn) => {
                if !core::mem::replace(&mut connection.timer_started, true) {
                    self.context
                        .timers
                        .set(now_ns + response_timeout_ns, TimerKey::Connection(number));
                }
                if matches!(outcome, ReadOutcome::NeedsTurn) {
                    self.connections
                        .wait_for_handshake(now_ns, number, &mut self.context);
                }
                false
            }
            ReadOutcome::Segment(segment) => match segment.headers {
                Headers::Connect(ce) if segment.header.kind == SegmentType::ConnectRequest => {
                    self.context.timers.clear(TimerKey::Connection(number));
                    self.on_connect_request(now_ns, number, &segment.header, &ce, &[], path);
                    true
                }
                Headers::Connect(_) | Headers::Plain | Headers::Rdma(_) => {
                    self.context.count(unfit);
                    self.connections.remove(number, &mut self.context);
                    true
                }
            },
            ReadOutcome::Closed | ReadOutcome::Malformed => {
                let why = match connection.stream.is_handshaking() {
                    true => Counter::DropTlsHandshake,
                    false => unfit,
                };
                self.context.count(why);
                self.connections.remove(number, &mut self.context);
                true
            }
            ReadOutcome::TlsFailed => {
                self.context.count(Counter::DropTlsHandshake);
                // The peer gets the TLS alert before the end.
                self.connections.close(now_ns, number, &mut self.context);
                true
            }
            ReadOutcome::BudgetSpent => {
                self.connections.queue(number);
                true
            }
        }
    }

    /// Serves the next TLS handshake. Returns true if there was one.
    pub(super) fn serve_handshake(&mut self, now_ns: u64, path: &mut impl StreamIo) -> bool {
        let number = match self.connections.handshakes.next(now_ns) {
            Ok(number) => number,
            Err(at_ns) => {
                if let Some(at_ns) = at_ns {
                    self.context.timers.set(at_ns, TimerKey::Handshakes);
                }
                return false;
            }
        };
        let Some(connection) = self.connections.get_mut(number) else {
            return false;
        };
        connection.handshake_waits = false;
        let is_new = !core::mem::replace(&mut connection.handshake_started, true);
        if is_new && connection.peer_closed && matches!(connection.stage, Stage::Incoming(_)) {
            self.context.count(Counter::DropTlsHandshake);
            self.connections.remove(number, &mut self.context);
            return true;
        }
        connection.stream.permit_handshake(true);
        if is_new {
            self.context.count(Counter::TlsHandshakes);
        }
        self.serve_unbound(now_ns, number, path);
        if let Some(connection) = self.connections.get_mut(number) {
            connection.stream.permit_handshake(false);
        }
        true
    }

    /// Starts listening: at the first VI [VI/TCP 4.3], or when a consumer waits for a request, if that is
    /// sooner. Logs `PortTaken` at the last try only.
    pub fn start_listening(&mut self, is_last_try: bool) -> ListenState {
        let epoll = &self.connections.epoll;
        self.shared_listener
            .start(is_last_try, epoll, &mut self.context)
    }

    /// Retries what failed before: acquiring a role after the listener owner ended, registrations, the report to the
    /// owner.
    pub(super) fn retry_listener(&mut self, now_ns: u64) {
        let epoll = &self.connections.epoll;
        self.shared_listener.retry(now_ns, epoll, &mut self.context);
        self.notify_owner(now_ns);
    }

    /// Serves a socket of the shared listener, by its number.
    fn serve_listener(&mut self, now_ns: u64, number: u32, path: &mut impl StreamIo) {
        let (listener, epoll) = (&mut self.shared_listener, &self.connections.epoll);
        match number {
            TCP_LISTENER => self.accept_connections(now_ns),
            UNIX_LISTENER => listener.accept_clients(now_ns, epoll, &mut self.context),
            OWNER => self.read_owner(now_ns, path),
            client => listener.read_client(now_ns, client, epoll, &mut self.context),
        }
    }

    /// Processes messages of the listener owner.
    fn read_owner(&mut self, now_ns: u64, path: &mut impl StreamIo) {
        for _ in 0..MAX_MESSAGES {
            let epoll = &self.connections.epoll;
            match (self.shared_listener).read_owner(now_ns, epoll, &mut self.context) {
                FromOwner::Nothing => return,
                FromOwner::Joined => {}
                FromOwner::Handoff(descriptor, handoff) => {
                    if let Some(descriptor) = descriptor {
                        self.context.count(Counter::TakenOver);
                        self.take_over(now_ns, descriptor, &handoff, path);
                    }
                    self.notify_owner(now_ns);
                }
                FromOwner::Ended => {
                    self.retry_listener(now_ns);
                    return;
                }
            }
        }
    }

    /// Processes connections that listener clients have returned. Returns true if there were any.
    pub(super) fn take_returned(&mut self, now_ns: u64, path: &mut impl StreamIo) -> bool {
        let mut some = false;
        // Those that are returned meanwhile wait for the next poll.
        for _ in 0..self.shared_listener.returned().min(MAX_ACCEPTS as usize) {
            if let Some((descriptor, handoff)) = self.shared_listener.next_returned() {
                self.take_over(now_ns, descriptor, &handoff, path);
                some = true;
            }
        }
        some
    }

    /// Takes over a connection whose Connect Request another program has read.
    fn take_over(
        &mut self,
        now_ns: u64,
        descriptor: Descriptor,
        handoff: &HandoffRequest,
        path: &mut impl StreamIo,
    ) {
        let Some((header, ce)) = handoff.parse() else {
            return;
        };
        if !self
            .connections
            .ensure_space(Unbound::Pending, &mut self.context)
        {
            return;
        }
        let stream = Stream::passed(descriptor, self.context.socket_options());
        let state = match handoff.challenge {
            Some(_) => ResponderState::Challenged,
            None => ResponderState::Incoming,
        };
        let added = stream.and_then(|stream| {
            let addresses = (stream.local_address()?, stream.remote_address()?);
            let stage = Stage::Incoming(state);
            self.connections
                .add(|generation| Connection::new(stream, addresses, generation, stage))
        });
        match added {
            Ok(number) => {
                self.connections.admit(Unbound::Pending, number);
                if let Some(connection) = self.connections.get_mut(number)
                    && let Some(SentChallenge { challenge, message }) = handoff.challenge
                {
                    connection.transfer.tx.number = message;
                    connection.exchange = Some(Box::new(Exchange {
                        challenge,
                        nonce: None,
                        next: header.message,
                    }));
                }
                self.on_connect_request(now_ns, number, &header, &ce, &handoff.tried, path);
            }
            Err(error) => log::debug!("vi-tcp listener: handoff failed: {error}"),
        }
    }
}
