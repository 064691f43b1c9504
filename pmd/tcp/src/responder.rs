//! Incoming connection requests [VI/TCP 4.3].

use vi_types::{CallError, ConnId, ReliabilityLevel, ViIndex, ViState, Waiter};
use vitcp_lite::machine::responder::ResponderEvent;
use vitcp_lite::profile::SEGMENT_HEADER_BYTES;
use vitcp_lite::{CeHeader, Flags, IsCode, ProofKind, RemoteError, SegmentHeader, SegmentType};

use super::ce_header::{Advertised, Discriminators, attributes_of, from_wire, net_address};
use super::challenge::{RequestCheck, refusal};
use super::connection::{ReadOutcome, ReceivedRequest, Stage};
use super::connector::Connector;
use super::counters::Counter;
use super::endpoint::Phase;
use super::shared_listener::HandOff;
use super::timers::TimerKey;
use vitcp_lite::source::host_of;
use vitcp_lite::transfer::StreamIo;

impl Connector {
    /// Processes a Connect Request: reports it to a matching consumer, hands it off, or refuses it. `tried`:
    /// programs of this host that have returned it.
    pub(super) fn on_connect_request(
        &mut self,
        now_ns: u64,
        number: u32,
        header: &SegmentHeader,
        ce: &CeHeader,
        tried: &[u32],
        path: &mut impl StreamIo,
    ) {
        let Some(connection) = self.connections.get_mut(number) else {
            return;
        };
        if !matches!(connection.stage, Stage::Incoming(_)) {
            return;
        }
        let security = match connection.check_request(self.keys.as_ref(), header, ce) {
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
        // As that of the host that our own request connects to: either request may make the connection.
        let is_certified = || connection.stream.is_certified_for(connection.remote.ip());
        if ce.attributes.peer_to_peer && !is_certified() {
            self.refuse_unproven(now_ns, number, header, Counter::DropWrongCertificate);
            return;
        }
        let may_match = connection.can_prove(self.keys.as_ref());
        let Some(state) = connection.advance(ResponderEvent::Request) else {
            return;
        };
        let request = ReceivedRequest {
            state,
            ce: CeHeader { security, ..*ce },
            number: header.message,
            rx_posted: header.rx_posted,
            remote: net_address(host_of(connection.remote), from_wire(&ce.calling)),
            attributes: attributes_of(ce, ReliabilityLevel::ReliableDelivery),
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
        let Some(connection) = self.connections.of(conn) else {
            return;
        };
        let number = conn.index();
        let shared = (&self.connections.epoll, &mut self.context);
        match (self.shared_listener).hand_off(now_ns, connection, request, tried, shared) {
            HandOff::Done => {
                self.context.count(Counter::HandedOver);
                if let Some(connection) = self.connections.get_mut(number) {
                    connection.stream.set_foreign();
                }
                self.connections.remove(number, &mut self.context);
            }
            HandOff::QueueFull => {
                // Its peer retries.
                self.context.count(Counter::DropUnfitIncoming);
                self.connections.remove(number, &mut self.context);
            }
            HandOff::NoListener => {
                self.context.count(Counter::NoMatch);
                let kind = SegmentType::ConnectNoMatch;
                self.refuse_request(now_ns, conn, kind, RemoteError::NONE);
            }
        }
    }

    /// Passes an event to the state machine of a received request.
    pub(super) fn advance_request(&mut self, conn: ConnId, event: ResponderEvent) {
        if let Some(connection) = self.connections.of_mut(conn)
            && connection.received_request().is_some()
        {
            connection.advance(event);
        }
    }

    /// Rejects a request for the consumer (VIPL 3.3.3).
    ///
    /// # Errors
    /// `Invalid` if there is no such request.
    pub fn reject(&mut self, now_ns: u64, conn: ConnId) -> Result<(), CallError> {
        let connection = self
            .connections
            .of(conn)
            .ok_or(CallError::InvalidParameter)?;
        match connection.stage {
            Stage::PeerGone => {
                self.connections.remove(conn.index(), &mut self.context);
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
    /// [`Connector::take_outcome`]. An attribute conflict sends nothing to the client: the request stays pending.
    ///
    /// # Errors
    /// `Invalid`: no such request or VI. `Timeout`: the client has closed. `InvalidState`: the VI is
    /// not Idle. `ReliabilityLevel`, `MaxTransferSize`: the attributes conflict.
    pub fn accept(
        &mut self,
        conn: ConnId,
        vi: ViIndex,
        path: &mut impl StreamIo,
    ) -> Result<(), CallError> {
        let connection = self
            .connections
            .of_mut(conn)
            .ok_or(CallError::InvalidParameter)?;
        // The client may have closed meanwhile.
        if matches!(connection.stage, Stage::RequestReceived(_)) {
            connection.may_read = true;
            if !matches!(
                connection.read_control(),
                ReadOutcome::Nothing | ReadOutcome::BudgetSpent | ReadOutcome::NeedsTurn
            ) {
                connection.stage = Stage::PeerGone;
            }
        }
        let request = match &connection.stage {
            Stage::RequestReceived(request) => **request,
            Stage::PeerGone => {
                self.connections.remove(conn.index(), &mut self.context);
                return Err(CallError::Timeout);
            }
            Stage::Requesting(_) | Stage::Incoming(_) | Stage::Connected(_) | Stage::Closing => {
                return Err(CallError::InvalidParameter);
            }
        };
        let endpoint = self
            .endpoints
            .get_mut(vi)
            .ok_or(CallError::InvalidParameter)?;
        if !matches!(endpoint.phase, Phase::Idle) {
            return Err(CallError::InvalidState);
        }
        endpoint.compare(&request.ce, Advertised::InRequest)?;
        endpoint.forget_outcomes();
        path.set_state(vi, ViState::ConnectPending);
        self.accept_with(conn, vi, &request, path);
        Ok(())
    }

    pub(super) fn accept_with(
        &mut self,
        conn: ConnId,
        vi: ViIndex,
        request: &ReceivedRequest,
        path: &mut impl StreamIo,
    ) {
        self.advance_request(conn, ResponderEvent::Accept);
        let random = path.random();
        let Some(endpoint) = self.endpoints.get(vi) else {
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
        let settings = &self.context.settings;
        let peer_to_peer = request.ce.attributes.peer_to_peer;
        let mut ce = endpoint.ce_header(names, peer_to_peer, settings.max_reads);
        ce.mtu_bytes = ce.mtu_bytes.min(request.ce.mtu_bytes);
        ce.attributes.flow_control &= request.ce.attributes.flow_control;
        let flow_control = ce.attributes.flow_control;
        let Some(connection) = self.connections.of_mut(conn) else {
            return;
        };
        let message = match connection.exchange {
            Some(_) => connection.transfer.tx.number.wrapping_add(1),
            None => random,
        };
        connection.prove(self.keys.as_ref(), ProofKind::Accept, message, &mut ce);
        let transfer = &mut connection.transfer;
        transfer.tx.number = message;
        let ack = (request.number, settings.credits_low);
        transfer.put_connect(vi, SegmentType::ConnectAccept, ack, &ce, path);
        connection.try_write_control();
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
        let Some(connection) = self.connections.of_mut(conn) else {
            return;
        };
        let Some(request) = connection.received_request() else {
            self.connections.remove(conn.index(), &mut self.context);
            return;
        };
        let ack = request.number;
        if kind == SegmentType::ConnectNoMatch {
            connection.advance(ResponderEvent::NoMatch);
        }
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
        let Some(connection) = self.connections.get_mut(number) else {
            return;
        };
        let mut header = SegmentHeader::new(kind, SEGMENT_HEADER_BYTES as u16);
        header.flags = Flags::END_OF_MESSAGE;
        header.ack = ack;
        header.remote_error = error;
        let tx = &mut connection.transfer.tx;
        if connection.exchange.is_some() {
            // The challenge was a message, too.
            header.message = tx.number.wrapping_add(1);
        }
        tx.put_control(&header);
        self.connections.close(now_ns, number, &mut self.context);
    }

    /// Sends a challenge on the connection of a request, and starts the timeout for the response.
    fn challenge(
        &mut self,
        now_ns: u64,
        number: u32,
        (header, ce): (&SegmentHeader, &CeHeader),
        random: u32,
    ) {
        let Some(connection) = self.connections.get_mut(number) else {
            return;
        };
        connection.put_challenge(header, ce, random);
        connection.try_write_control();
        self.context.count(Counter::Challenges);
        self.start_response_timer(now_ns, number);
        // The response may be readable already, which epoll does not report again.
        self.connections.queue(number);
    }

    /// Sets the timeout of a connection without a VI.
    fn start_response_timer(&mut self, now_ns: u64, number: u32) {
        let deadline_ns = now_ns + self.context.settings.response_timeout_ns;
        let timers = &mut self.context.timers;
        timers.set(deadline_ns, TimerKey::Connection(number));
    }

    /// Refuses a request without a valid proof.
    fn refuse_unproven(
        &mut self,
        now_ns: u64,
        number: u32,
        header: &SegmentHeader,
        counter: Counter,
    ) {
        let Some(connection) = self.connections.get_mut(number) else {
            return;
        };
        connection.advance(ResponderEvent::ProofFailed);
        let remote = connection.remote.ip();
        log::debug!(
            "vi-tcp listener: connection request refused: host={remote} counter={}",
            counter.name()
        );
        self.context.count(counter);
        let (kind, error) = (SegmentType::ConnectReject, refusal(IsCode::Security));
        self.refuse(now_ns, number, header.message, (kind, error));
    }
}
