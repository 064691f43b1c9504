//! Incoming connection requests [VI/TCP 4.3], and service of connections without a VI.

use vi_core::sys;
use vi_engine::{ConnId, EngineIo, Waiter};
use vi_types::{CallError, ViIndex, ViState};
use vitcp_lite::machine::responder::{ResponderEvent, ResponderState};
use vitcp_lite::profile::SEGMENT_HEADER_BYTES;
use vitcp_lite::{
    CeHeader, Flags, Headers, IsCode, Item, ProofKind, RemoteError, Segment, SegmentHeader,
    SegmentType,
};

use super::challenge::{RequestCheck, refusal};
use super::connection::{Connection, Phase, ReceivedRequest, Stage};
use super::connection_options::{Advertised, compare};
use super::counters::Counter;
use super::establish::{Discriminators, attributes_of, from_wire, net_address, put_connect};
use super::initiator::{Event, new_connection};
use super::socket::{host_of, is_would_block};
use super::timers::TimerKey;
use super::tls::{is_budget_spent, is_tls_error, needs_turn};
use super::unbound::Unbound;
use super::{MAX_ACCEPTS, ViTcp};
use crate::datapath::Datapath;

/// Result of reading a connection without a VI.
enum ReadOutcome {
    Nothing,
    /// A segment of connection establishment.
    Segment(Box<Segment>),
    /// The peer closed the connection, or it broke.
    Closed,
    /// Invalid VI/TCP data, or more than is allowed.
    Malformed,
    /// The TLS handshake failed.
    TlsFailed,
    /// The system calls of one poll are used up: there may be more data.
    BudgetSpent,
    /// The TLS handshake has received data, and needs a turn.
    NeedsTurn,
}

impl ViTcp {
    /// Accepts TCP connections.
    pub(super) fn accept_connections(&mut self, now_ns: u64) {
        for _ in 0..MAX_ACCEPTS {
            let Some(listen_socket) = self.shared_listener.listen_socket() else {
                return;
            };
            let credentials = self.credentials.as_ref();
            let stream = match listen_socket.accept(self.socket_options(), credentials) {
                Ok(stream) => stream,
                Err(error) if is_would_block(&error) => return,
                Err(error) => {
                    log::debug!("vi-tcp listener: accept failed: {error}");
                    self.counters.count(Counter::DropUnfitIncoming);
                    // The error concerns this connection only, unless descriptors are exhausted.
                    if sys::is_out_of_descriptors(&error) {
                        self.pause_listener(now_ns);
                        return;
                    }
                    continue;
                }
            };
            self.counters.count(Counter::Accepted);
            if !self.ensure_space(Unbound::Pending) {
                continue;
            }
            let local = stream.local_address();
            let addresses = local.and_then(|local| Ok((local, stream.remote_address()?)));
            let stage = Stage::Incoming(ResponderState::default());
            let added = addresses.and_then(|addresses| {
                self.add(|generation| new_connection(stream, addresses, generation, stage))
            });
            match added {
                Ok(number) => {
                    self.admit(Unbound::Pending, number);
                    self.queue(number);
                }
                Err(error) => {
                    log::debug!("vi-tcp listener: accepted connection dropped: {error}");
                    self.counters.count(Counter::DropUnfitIncoming);
                }
            }
        }
    }

    /// Serves a connection without a VI. Returns true if it made progress.
    pub(super) fn serve_unbound(&mut self, now_ns: u64, number: u32, path: &mut Datapath) -> bool {
        let Some(connection) = self.connection_mut(number) else {
            return false;
        };
        match connection.stage {
            Stage::Requesting(vi) => self.serve_requesting(now_ns, vi, number, path),
            Stage::Incoming(_) => self.serve_incoming(now_ns, number, path),
            Stage::RequestReceived(_) => {
                // The peer must not send more before the response.
                match read_control_segment(connection) {
                    ReadOutcome::Nothing => return false,
                    ReadOutcome::BudgetSpent => self.queue(number),
                    ReadOutcome::NeedsTurn => self.wait_for_handshake(now_ns, number),
                    ReadOutcome::Segment(_)
                    | ReadOutcome::Closed
                    | ReadOutcome::Malformed
                    | ReadOutcome::TlsFailed => connection.stage = Stage::PeerGone,
                }
                true
            }
            Stage::Closing => {
                self.serve_closing(number);
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
        path: &mut Datapath,
    ) -> bool {
        let Some(connection) = self.connection_mut(number) else {
            return false;
        };
        if !connection.established {
            if !connection.may_write {
                return false;
            }
            connection.established = true;
            self.on_tcp_connected(now_ns, vi, number, path);
        }
        let Some(connection) = self.connection_mut(number) else {
            return true;
        };
        if !matches!(connection.stage, Stage::Requesting(_)) {
            return true;
        }
        // A broken connection is reported by the next read.
        let _ignored = super::closing::write_control(connection);
        let outcome = read_control_segment(connection);
        match outcome {
            ReadOutcome::Nothing => return false,
            ReadOutcome::BudgetSpent => self.queue(number),
            ReadOutcome::NeedsTurn => self.wait_for_handshake(now_ns, number),
            ReadOutcome::Segment(segment) => self.on_response(now_ns, vi, number, &segment, path),
            ReadOutcome::Closed => {
                let event = self.on_early_close(vi, number);
                self.request_event(now_ns, vi, event, path);
            }
            ReadOutcome::Malformed | ReadOutcome::TlsFailed => {
                self.counters.count(match outcome {
                    ReadOutcome::TlsFailed => Counter::DropTlsHandshake,
                    _ => Counter::DropMalformed,
                });
                let event = Event::Reject(CallError::Rejected);
                self.request_event(now_ns, vi, event, path);
            }
        }
        true
    }

    fn serve_incoming(&mut self, now_ns: u64, number: u32, path: &mut Datapath) -> bool {
        let response_timeout_ns = self.settings.response_timeout_ns;
        let Some(connection) = self.connection_mut(number) else {
            return false;
        };
        // A broken connection is reported by the next read.
        let _ignored = super::closing::write_control(connection);
        let challenged = connection.is_challenged();
        let unfit = match challenged {
            true => Counter::DropUnansweredChallenge,
            false => Counter::DropUnfitIncoming,
        };
        match read_control_segment(connection) {
            ReadOutcome::Nothing if challenged => false,
            outcome @ (ReadOutcome::Nothing | ReadOutcome::NeedsTurn) => {
                if !core::mem::replace(&mut connection.timer_started, true) {
                    self.timers
                        .set(now_ns + response_timeout_ns, TimerKey::Connection(number));
                }
                if matches!(outcome, ReadOutcome::NeedsTurn) {
                    self.wait_for_handshake(now_ns, number);
                }
                false
            }
            ReadOutcome::Segment(segment) => match segment.headers {
                Headers::Connect(ce) if segment.header.kind == SegmentType::ConnectRequest => {
                    self.timers.clear(TimerKey::Connection(number));
                    self.on_connect_request(now_ns, number, &segment.header, &ce, &[], path);
                    true
                }
                Headers::Connect(_) | Headers::Plain | Headers::Rdma(_) => {
                    self.counters.count(unfit);
                    self.remove(number);
                    true
                }
            },
            ReadOutcome::Closed | ReadOutcome::Malformed => {
                let why = match connection.stream.is_handshaking() {
                    true => Counter::DropTlsHandshake,
                    false => unfit,
                };
                self.counters.count(why);
                self.remove(number);
                true
            }
            ReadOutcome::TlsFailed => {
                self.counters.count(Counter::DropTlsHandshake);
                // The peer gets the TLS alert before the end.
                self.close(now_ns, number);
                true
            }
            ReadOutcome::BudgetSpent => {
                self.queue(number);
                true
            }
        }
    }

    /// Discards what the peer sends on a closing connection, until it closes, too.
    fn serve_closing(&mut self, number: u32) {
        let Self {
            connections,
            buffer,
            ..
        } = self;
        let connection = connections.get_mut(number as usize);
        let Some(connection) = connection.and_then(Option::as_mut) else {
            return;
        };
        match connection.stream.drain(buffer) {
            Ok(0) => self.remove(number),
            Ok(got) => {
                self.budget.spend_bytes(got);
                self.queue(number);
            }
            Err(error) if is_would_block(&error) => {
                connection.may_read = false;
                if connection.may_write && !connection.send_closed {
                    self.finish(number);
                }
            }
            Err(_) => self.remove(number),
        }
    }

    /// Processes a Connect Request: reports it to a matching consumer, hands it off, or refuses it. `tried`:
    /// programs of this host that have returned it.
    pub(super) fn on_connect_request(
        &mut self,
        now_ns: u64,
        number: u32,
        header: &SegmentHeader,
        ce: &CeHeader,
        tried: &[u32],
        path: &mut Datapath,
    ) {
        let Some(connection) = self.connection_mut(number) else {
            return;
        };
        let Stage::Incoming(state) = connection.stage else {
            return;
        };
        let security = match self.check_request(number, header, ce) {
            RequestCheck::Accept(security) => security,
            RequestCheck::Challenge => {
                self.challenge(now_ns, number, (header, ce), path.random());
                return;
            }
            RequestCheck::Refuse(counter) => {
                self.refuse_unproven(now_ns, number, header, counter);
                return;
            }
        };
        if ce.attributes.peer_to_peer && !self.is_certified_peer(number) {
            self.refuse_unproven(now_ns, number, header, Counter::DropWrongCertificate);
            return;
        }
        let may_match = self.can_prove(number);
        let Some(connection) = self.connection_mut(number) else {
            return;
        };
        let (state, _) = state.on(ResponderEvent::Request);
        let remote = connection.remote;
        let request = ReceivedRequest {
            state,
            ce: CeHeader { security, ..*ce },
            number: header.message,
            rx_posted: header.rx_posted,
            remote: net_address(host_of(remote), from_wire(&ce.calling)),
            attributes: attributes_of(ce, vi_types::ReliabilityLevel::ReliableDelivery),
        };
        let conn = ConnId::new(number, connection.generation);
        connection.stage = Stage::RequestReceived(Box::new(request));
        if !may_match {
            self.hand_off_or_refuse(now_ns, conn, (header, ce), tried);
        } else if ce.attributes.peer_to_peer {
            self.on_peer_request(now_ns, conn, &request, ((header, ce), tried), path);
        } else {
            match self.match_listener(&from_wire(&ce.called), conn) {
                Some(listener) => {
                    self.advance_request(conn, ResponderEvent::Match);
                    path.control_event(Waiter::Request(listener));
                }
                None => self.hand_off_or_refuse(now_ns, conn, (header, ce), tried),
            }
        }
        self.notify_owner(now_ns);
    }

    /// Handles a request without a listener in this program: hands it off to another program of this host, or
    /// refuses it.
    pub(super) fn hand_off_or_refuse(
        &mut self,
        now_ns: u64,
        conn: ConnId,
        request: (&SegmentHeader, &CeHeader),
        tried: &[u32],
    ) {
        if !self.hand_off(now_ns, conn.index(), request, tried) {
            self.counters.count(Counter::NoMatch);
            self.refuse_request(now_ns, conn, SegmentType::ConnectNoMatch, RemoteError::NONE);
        }
    }

    /// Passes an event to the state machine of a received request.
    pub(super) fn advance_request(&mut self, conn: ConnId, event: ResponderEvent) {
        if let Some(connection) = self.connection_of_mut(conn)
            && let Stage::RequestReceived(request) = &mut connection.stage
        {
            (request.state, _) = request.state.on(event);
        }
    }

    /// Rejects a request for the consumer (VIPL 3.3.3).
    ///
    /// # Errors
    /// `Invalid` if there is no such request.
    pub(crate) fn reject(&mut self, now_ns: u64, conn: ConnId) -> Result<(), CallError> {
        let connection = self
            .connection_of(conn)
            .ok_or(CallError::InvalidParameter)?;
        match connection.stage {
            Stage::PeerGone => {
                self.remove(conn.index());
                Ok(())
            }
            Stage::RequestReceived(_) => {
                self.advance_request(conn, ResponderEvent::Reject);
                let rejected = refusal(IsCode::Rejected);
                self.refuse_request(now_ns, conn, SegmentType::ConnectReject, rejected);
                Ok(())
            }
            Stage::Requesting(_) | Stage::Incoming(_) | Stage::Connected(_) | Stage::Closing => {
                Err(CallError::InvalidParameter)
            }
        }
    }

    /// Accepts a request with an Idle VI for the consumer (VIPL 3.3.2). `Ok`: the outcome is available by
    /// [`ViTcp::take_outcome`]. An attribute conflict sends nothing to the client: the request stays pending.
    ///
    /// # Errors
    /// `Invalid`: no such request or VI. `Timeout`: the client has closed. `InvalidState`: the VI is
    /// not Idle. `ReliabilityLevel`, `MaxTransferSize`: the attributes conflict.
    pub(crate) fn accept(
        &mut self,
        conn: ConnId,
        vi: ViIndex,
        path: &mut Datapath,
    ) -> Result<(), CallError> {
        let connection = self
            .connection_of_mut(conn)
            .ok_or(CallError::InvalidParameter)?;
        // The client may have closed meanwhile.
        if matches!(connection.stage, Stage::RequestReceived(_)) {
            connection.may_read = true;
            if !matches!(
                read_control_segment(connection),
                ReadOutcome::Nothing | ReadOutcome::BudgetSpent | ReadOutcome::NeedsTurn
            ) {
                connection.stage = Stage::PeerGone;
            }
        }
        let request = match &connection.stage {
            Stage::RequestReceived(request) => **request,
            Stage::PeerGone => {
                self.remove(conn.index());
                return Err(CallError::Timeout);
            }
            Stage::Requesting(_) | Stage::Incoming(_) | Stage::Connected(_) | Stage::Closing => {
                return Err(CallError::InvalidParameter);
            }
        };
        let ep = self.endpoint_mut(vi).ok_or(CallError::InvalidParameter)?;
        if !matches!(ep.phase, Phase::Idle) {
            return Err(CallError::InvalidState);
        }
        compare(ep, &request.ce, Advertised::InRequest)?;
        ep.forget_outcomes();
        path.set_state(vi, ViState::ConnectPending);
        self.accept_with(conn, vi, &request, path);
        Ok(())
    }

    pub(super) fn accept_with(
        &mut self,
        conn: ConnId,
        vi: ViIndex,
        request: &ReceivedRequest,
        path: &mut Datapath,
    ) {
        self.advance_request(conn, ResponderEvent::Accept);
        let random = path.random();
        let Some(ep) = self.endpoint(vi) else {
            return;
        };
        let (calling, called) = (
            from_wire(&request.ce.called),
            from_wire(&request.ce.calling),
        );
        let names = Discriminators {
            calling: &calling,
            called: &called,
        };
        let mut ce = self.own_ce(ep, names, request.ce.attributes.peer_to_peer);
        ce.mtu_bytes = ce.mtu_bytes.min(request.ce.mtu_bytes);
        ce.attributes.flow_control &= request.ce.attributes.flow_control;
        let flow_control = ce.attributes.flow_control;
        let credits_low = self.settings.credits_low;
        let message = match self.connection_of(conn) {
            Some(connection) if connection.exchange.is_some() => {
                connection.tx.number.wrapping_add(1)
            }
            Some(_) => random,
            None => return,
        };
        self.prove(conn.index(), ProofKind::Accept, message, &mut ce);
        let Some(connection) = self.connection_of_mut(conn) else {
            return;
        };
        connection.tx.number = message;
        let kind = SegmentType::ConnectAccept;
        put_connect(
            vi,
            connection,
            kind,
            (request.number, credits_low),
            &ce,
            path,
        );
        // A broken connection is reported by the next read.
        let _ignored = super::closing::write_control(connection);
        let theirs = (&request.ce, request.number, request.rx_posted);
        self.connected(vi, conn.index(), theirs, flow_control, path);
    }

    /// Refuses a received request with a segment of type `kind`, and closes its connection.
    pub(super) fn refuse_request(
        &mut self,
        now_ns: u64,
        conn: ConnId,
        kind: SegmentType,
        error: RemoteError,
    ) {
        let Some(connection) = self.connection_of_mut(conn) else {
            return;
        };
        let Stage::RequestReceived(request) = &mut connection.stage else {
            self.remove(conn.index());
            return;
        };
        if kind == SegmentType::ConnectNoMatch {
            (request.state, _) = request.state.on(ResponderEvent::NoMatch);
        }
        let ack = request.number;
        self.refuse(now_ns, conn.index(), ack, (kind, error));
    }

    /// Refuses the request with message number `ack`, and closes its connection.
    pub(super) fn refuse(
        &mut self,
        now_ns: u64,
        number: u32,
        ack: u32,
        (kind, error): (SegmentType, RemoteError),
    ) {
        let Some(connection) = self.connection_mut(number) else {
            return;
        };
        let mut header = SegmentHeader::new(kind, SEGMENT_HEADER_BYTES as u16);
        header.flags = Flags::END_OF_MESSAGE;
        header.ack = ack;
        header.remote_error = error;
        if connection.exchange.is_some() {
            // The challenge was a message, too.
            header.message = connection.tx.number.wrapping_add(1);
        }
        super::closing::put_control(connection, &header);
        self.close(now_ns, number);
    }

    /// Returns the connection of a request if it still exists.
    pub(super) fn connection_of(&self, conn: ConnId) -> Option<&Connection> {
        self.connection(conn.index())
            .filter(|connection| connection.generation == conn.generation())
    }

    pub(super) fn connection_of_mut(&mut self, conn: ConnId) -> Option<&mut Connection> {
        self.connection_mut(conn.index())
            .filter(|connection| connection.generation == conn.generation())
    }
}

/// Reads the next segment of connection establishment, and no byte after it.
fn read_control_segment(connection: &mut Connection) -> ReadOutcome {
    loop {
        if !connection.may_read {
            return ReadOutcome::Nothing;
        }
        // Before a connection is established segments have headers only: at least these bytes are
        // missing.
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        let missing = connection.rx.decoder.missing_bytes().min(bytes.len());
        let Some(buffer) = bytes.get_mut(..missing) else {
            return ReadOutcome::Malformed;
        };
        let got = match connection.stream.receive_bytes(buffer) {
            Ok(0) => return ReadOutcome::Closed,
            Ok(got) => got,
            Err(error) if is_would_block(&error) => {
                connection.may_read = false;
                return ReadOutcome::Nothing;
            }
            Err(error) if is_budget_spent(&error) => return ReadOutcome::BudgetSpent,
            Err(error) if needs_turn(&error) => return ReadOutcome::NeedsTurn,
            Err(error) if is_tls_error(&error) => return ReadOutcome::TlsFailed,
            Err(_) => return ReadOutcome::Closed,
        };
        let Some(mut input) = bytes.get(..got) else {
            return ReadOutcome::Malformed;
        };
        match connection.rx.decoder.next(&mut input) {
            Ok(None) => {}
            Ok(Some(Item::Segment(segment))) => {
                let header = &segment.header;
                let is_whole =
                    header.flags.contains(Flags::END_OF_MESSAGE) && header.data_offset == 0;
                return match is_whole {
                    true => ReadOutcome::Segment(Box::new(segment)),
                    false => ReadOutcome::Malformed,
                };
            }
            Ok(Some(Item::Payload { .. })) | Err(_) => return ReadOutcome::Malformed,
        }
    }
}
