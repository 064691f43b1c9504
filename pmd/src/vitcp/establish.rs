//! Connection establishment: calls of the consumer, and the parts that all roles share [VI/TCP 4, VIPL 3.3].

use fcvi_frame::connect::Attributes;
use vi_engine::{ConnId, ConnectCommand, EngineIo, Indication, RemoteVi, Waiter};
use vi_types::{
    CallError, Discriminator, HostAddress, NetAddress, ReliabilityLevel, ViIndex, ViState,
};
use vitcp_lite::machine::initiator::InitiatorState;
use vitcp_lite::machine::peer::PeerState;
use vitcp_lite::profile::{CE_HEADER_BYTES, MAX_SECURITY_BYTES, SEGMENT_HEADER_BYTES};
use vitcp_lite::{
    Attributes as CallingAttributes, CeHeader, Credits, ExactLevel, Flags, Posted, RemoteError,
    Security, SegmentHeader, SegmentType,
};

use super::ViTcp;
use super::connection::{
    Connection, Endpoint, Listener, Machine, PeerRequest, Phase, Request, Stage,
};
use super::counters::Counter;
use super::in_flight::InFlight;
use super::timers::TimerKey;
use super::transmit::advertise_posted;
use crate::datapath::Datapath;

/// Maximum of Segment Length in bytes.
const MAX_SEGMENT_BYTES: u32 = 65_535;

impl ViTcp {
    /// Adds a listener for one request with this discriminator (VIPL 3.3.1). Returns its number.
    pub(crate) fn listen(&mut self, now_ns: u64, discriminator: Discriminator) -> u64 {
        self.next_listener += 1;
        self.listeners.push(Listener {
            id: self.next_listener,
            discriminator,
            matched: None,
        });
        self.shared_listener.listens_changed = true;
        self.notify_owner(now_ns);
        self.next_listener
    }

    /// Returns the request that a listener matched, and removes the listener; `None` while it has none.
    pub(crate) fn take_indication(&mut self, listener: u64) -> Option<Indication> {
        let at = self.listeners.iter().position(|l| l.id == listener)?;
        let conn = self.listeners.get(at)?.matched?;
        let connection = self.connection_of(conn)?;
        let indication = match &connection.stage {
            Stage::RequestReceived(request) => Indication {
                conn,
                remote: request.remote,
                attributes: request.attributes,
            },
            // The client has closed meanwhile: accepting it reports that.
            _ => Indication {
                conn,
                remote: NetAddress::default(),
                attributes: Attributes::default(),
            },
        };
        self.listeners.remove(at);
        Some(indication)
    }

    /// Removes a listener. A request that it matched is passed to another listener, or refused with No Match.
    pub(crate) fn unlisten(&mut self, now_ns: u64, listener: u64, path: &mut Datapath) {
        let Some(at) = self.listeners.iter().position(|l| l.id == listener) else {
            return;
        };
        let removed = self.listeners.remove(at);
        self.shared_listener.listens_changed = true;
        self.notify_owner(now_ns);
        let Some(conn) = removed.matched else {
            return;
        };
        if let Some(other) = self.match_listener(&removed.discriminator, conn) {
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
        let listener = self
            .listeners
            .iter_mut()
            .find(|l| l.matched.is_none() && l.discriminator == *discriminator)?;
        listener.matched = Some(conn);
        self.shared_listener.listens_changed = true;
        Some(listener.id)
    }

    /// Starts a connection request (VIPL 3.3.4); its outcome is available by [`ViTcp::take_outcome`].
    ///
    /// # Errors
    /// `Invalid`, `InvalidState`.
    pub(crate) fn connect(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        command: &ConnectCommand<'_>,
        path: &mut Datapath,
    ) -> Result<(), CallError> {
        let machine = Machine::Initiator(InitiatorState::Disconnected);
        self.start_request(now_ns, vi, machine, command, path)
    }

    /// Starts a peer request (VIPL 3.3.6); its outcome is available by [`ViTcp::take_peer_outcome`].
    ///
    /// # Errors
    /// As for [`ViTcp::connect`].
    pub(crate) fn connect_peer(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        command: &ConnectCommand<'_>,
        path: &mut Datapath,
    ) -> Result<(), CallError> {
        let machine = Machine::Peer(PeerState::Disconnected);
        self.start_request(now_ns, vi, machine, command, path)
    }

    fn start_request(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        machine: Machine,
        command: &ConnectCommand<'_>,
        path: &mut Datapath,
    ) -> Result<(), CallError> {
        self.next_peer_request += 1;
        let number = self.next_peer_request;
        let interval_ns = self.settings.retry_ns;
        let ep = self.endpoint_mut(vi).ok_or(CallError::InvalidParameter)?;
        if !matches!(ep.phase, Phase::Idle) {
            return Err(CallError::InvalidState);
        }
        ep.forget_outcomes();
        if matches!(machine, Machine::Peer(_)) {
            ep.peer_request = Some(PeerRequest {
                number,
                outcome: None,
            });
        }
        let deadline_ns = command
            .timeout_ns
            .map(|timeout_ns| now_ns.saturating_add(timeout_ns));
        ep.phase = Phase::Requesting(Box::new(Request {
            machine,
            local: command.local,
            remote: command.remote,
            deadline_ns,
            connection: None,
            retry_ns: None,
            interval_ns,
            number: 0,
            deferred_peer: None,
            yield_at_ns: 0,
            closed: 0,
        }));
        path.set_state(vi, ViState::ConnectPending);
        self.shared_listener.listens_changed = true;
        self.notify_owner(now_ns);
        self.begin_request(now_ns, vi, path);
        Ok(())
    }

    /// Takes the outcome of a connection call on this VI; `None` while it has none.
    pub(crate) fn take_outcome(&mut self, vi: ViIndex) -> Option<Result<RemoteVi, CallError>> {
        self.endpoint_mut(vi)?.outcome.take()
    }

    /// Returns the number of the VI's peer request, from the call until its outcome was taken.
    pub(crate) fn peer_request(&self, vi: ViIndex) -> Option<u64> {
        let request = self.endpoint(vi)?.peer_request.as_ref()?;
        Some(request.number)
    }

    /// Takes the outcome of the peer request with this number; `None` while it has none.
    /// `InvalidState` if the VI has no such request any more.
    pub(crate) fn take_peer_outcome(
        &mut self,
        vi: ViIndex,
        number: u64,
    ) -> Option<Result<RemoteVi, CallError>> {
        let Some(slot) = self.endpoint_mut(vi).map(|ep| &mut ep.peer_request) else {
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

    /// Completes a connection attempt with an error. The VI returns to Idle and keeps its receives,
    /// except that `NotReachable` moves a reliable VI to Error and flushes them (VIPL 3.3.4).
    pub(super) fn complete_request(&mut self, vi: ViIndex, error: CallError, path: &mut Datapath) {
        self.shared_listener.listens_changed = true;
        self.timers.clear(TimerKey::Request(vi.0));
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        let breaks = error == CallError::NotReachable && ep.params.level.is_reliable();
        let after = if breaks { Phase::Error } else { Phase::Idle };
        let phase = core::mem::replace(&mut ep.phase, after);
        ep.set_outcome(Err(error));
        if let Phase::Requesting(request) = phase {
            self.deferred_peers.extend(request.deferred_peer);
            if let Some(number) = request.connection {
                self.remove(number);
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
        path: &mut Datapath,
    ) {
        self.timers.clear(TimerKey::Request(vi.0));
        self.timers.clear(TimerKey::Connection(number));
        let max_in_flight = self.settings.max_in_flight as usize;
        let max_reads = self.settings.max_reads;
        let Some(params) = self.endpoint(vi).map(|ep| ep.params) else {
            return;
        };
        let miss_key = self.miss_key(vi, number);
        let misses = self.misses.connect(miss_key);
        let Some(connection) = self.connection_mut(number) else {
            return;
        };
        connection.stage = Stage::Connected(vi);
        (connection.rx.misses, connection.rx.miss_key) = (misses, miss_key);
        let unbound = connection.unbound.take();
        let (segment_bytes, timestamps) = connection.stream.segment_bytes();
        let reliable = params.level.is_reliable();
        let limit = if reliable { max_in_flight } else { 0 };
        let agreed_bytes = params.max_transfer_bytes.min(theirs.mtu_bytes);
        connection.max_transfer_bytes = agreed_bytes;
        connection.security = theirs.security.as_bytes().to_vec();
        connection.exchange = None;
        let tx = &mut connection.tx;
        tx.in_flight = InFlight::new(limit, theirs.read_window);
        // The most that read_request accepts, so that no message allocates; at least one, which it refuses.
        let reads = if params.rdma_read { max_reads } else { 0 };
        tx.read_responses.reserve(usize::from(reads.max(1)));
        tx.awaits_ack = params.level == ReliabilityLevel::ReliableReception;
        tx.segment_bytes = segment_bytes.min(MAX_SEGMENT_BYTES);
        tx.credits = flow_control.then(|| Credits::new(rx_posted));
        let rx = &mut connection.rx;
        (rx.number, rx.ack_number) = (message, message);
        rx.sends_acks = reliable && theirs.attributes.level != ExactLevel::Delivery;
        rx.reads_accepted = max_reads;
        if !flow_control {
            rx.posted = None;
        }
        let remote = RemoteVi {
            attributes: attributes_of(theirs, params.level),
            n_port_id: Default::default(),
        };
        self.release_unbound(unbound);
        self.shared_listener.listens_changed = true;
        self.counters.count(Counter::Connects);
        if !timestamps {
            self.counters.count(Counter::WithoutTimestamps);
        }
        if let Some(ep) = self.endpoint_mut(vi) {
            let before = core::mem::replace(&mut ep.phase, Phase::Connected(number));
            ep.set_outcome(Ok(remote));
            if let Phase::Requesting(request) = before {
                self.deferred_peers.extend(request.deferred_peer);
            }
        }
        self.queue(number);
        path.set_notify_receives(vi, flow_control);
        path.set_state(vi, ViState::Connected);
        path.control_event(Waiter::Outcome(vi));
        path.resume(vi);
    }

    /// Returns the CE header of a VI, for a request or an acceptance.
    pub(super) fn own_ce(
        &self,
        ep: &Endpoint,
        names: Discriminators<'_>,
        peer_to_peer: bool,
    ) -> CeHeader {
        let params = &ep.params;
        CeHeader {
            attributes: CallingAttributes {
                reliable: params.level.is_reliable(),
                rdma_write: params.rdma_write,
                rdma_read: params.rdma_read,
                flow_control: ep.options.flow_control,
                peer_to_peer,
                level: match params.level {
                    ReliabilityLevel::UnreliableDelivery => ExactLevel::Unspecified,
                    ReliabilityLevel::ReliableDelivery => ExactLevel::Delivery,
                    ReliabilityLevel::ReliableReception => ExactLevel::Reception,
                },
            },
            mtu_bytes: params.max_transfer_bytes,
            calling: to_wire(names.calling),
            called: to_wire(names.called),
            read_window: match params.rdma_read {
                true => self.settings.max_reads,
                false => 0,
            },
            // Its length was checked.
            security: Security::new(&ep.options.security).unwrap_or_default(),
        }
    }
}

/// The discriminators of both sides.
pub(super) struct Discriminators<'a> {
    pub(super) calling: &'a Discriminator,
    pub(super) called: &'a Discriminator,
}

/// Converts a discriminator for a CE header. Longer ones were refused before.
fn to_wire(discriminator: &Discriminator) -> vitcp_lite::Discriminator {
    vitcp_lite::Discriminator::new(discriminator.as_bytes()).unwrap_or_default()
}

/// Converts a discriminator of a CE header.
pub(super) fn from_wire(discriminator: &vitcp_lite::Discriminator) -> Discriminator {
    Discriminator::new(discriminator.as_bytes()).unwrap_or_default()
}

/// Converts the attributes of a CE header to those of VIPL; an unspecified reliable level becomes `level`.
pub(super) fn attributes_of(ce: &CeHeader, level: ReliabilityLevel) -> Attributes {
    let reliability = match (ce.attributes.reliable, ce.attributes.level) {
        (false, _) => ReliabilityLevel::UnreliableDelivery,
        (true, ExactLevel::Delivery) => ReliabilityLevel::ReliableDelivery,
        (true, ExactLevel::Reception) => ReliabilityLevel::ReliableReception,
        (true, ExactLevel::Unspecified | ExactLevel::Unknown) => match level {
            ReliabilityLevel::ReliableReception => ReliabilityLevel::ReliableReception,
            ReliabilityLevel::UnreliableDelivery | ReliabilityLevel::ReliableDelivery => {
                ReliabilityLevel::ReliableDelivery
            }
        },
    };
    Attributes {
        reliability,
        rdma_write: ce.attributes.rdma_write,
        rdma_read: ce.attributes.rdma_read,
        in_order: true,
        max_transfer_bytes: ce.mtu_bytes,
        max_reads: ce.read_window,
        ..Attributes::default()
    }
}

/// Builds the network address of a remote VI.
pub(super) fn net_address(host: [u8; 16], discriminator: Discriminator) -> NetAddress {
    NetAddress {
        host: HostAddress(host),
        discriminator,
    }
}

/// Adds a Connect Request or Accept to the pending control segments.
pub(super) fn put_connect(
    vi: ViIndex,
    connection: &mut Connection,
    kind: SegmentType,
    (ack, credits_low): (u32, u16),
    ce: &CeHeader,
    path: &mut Datapath,
) {
    let mut extension = [0; CE_HEADER_BYTES + MAX_SECURITY_BYTES];
    let Some(extension_bytes) = ce.emit(&mut extension) else {
        return;
    };
    let mut posted = Posted::new(credits_low);
    posted.note(path.unclaimed(vi));
    connection.rx.posted = Some(posted);
    let mut header = SegmentHeader::new(kind, (SEGMENT_HEADER_BYTES + extension_bytes) as u16);
    header.flags = Flags::END_OF_MESSAGE;
    header.message = connection.tx.number;
    header.ack = ack;
    header.rx_posted = advertise_posted(vi, connection, path);
    super::closing::put_control(connection, &header);
    connection
        .tx
        .control
        .extend(extension.iter().take(extension_bytes));
}
