//! Connections made: what the consumer asks for, and what both ends have in common
//! [VI/TCP 4, VIPL 3.3].

use fcvi_frame::connect::{Attributes, Discriminator, HostAddress, NetAddress};
use fcvi_frame::flags::WireReliability;
use vi_engine::{
    ConnId, ConnectCommand, ConnectError, EndpointState, Host, Indication, Level, RemoteVi,
    ViIndex, Waiter,
};
use vitcp_lite::machine::active::ActiveState;
use vitcp_lite::machine::peer::PeerState;
use vitcp_lite::profile::{CE_HEADER_BYTES, MAX_SECURITY_BYTES, SEGMENT_HEADER_BYTES};
use vitcp_lite::{
    Attributes as CallingAttributes, CeHeader, Credits, ExactLevel, Flags, Posted, RemoteError,
    Security, SegmentHeader, SegmentType,
};

use super::ViTcp;
use super::connection::{Connection, Endpoint, Machine, PeerRequest, Phase, Request, Stage};
use super::counters::Counter;
use super::in_flight::InFlight;
use super::timers::Key;
use super::transmit::said;
use crate::datapath::Datapath;

/// The longest segment that the format can say.
const MAX_SEGMENT_BYTES: u32 = 65_535;

/// A consumer that waits for a request.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) id: u64,
    pub(super) discriminator: Discriminator,
    pub(super) matched: Option<ConnId>,
}

impl ViTcp {
    /// A consumer waits for one request with this discriminator (VIPL 3.3.1).
    pub(crate) fn listen(&mut self, now_ns: u64, discriminator: Discriminator) -> u64 {
        self.next_listener += 1;
        self.listeners.push(Listener {
            id: self.next_listener,
            discriminator,
            matched: None,
        });
        self.door.news = true;
        self.tell_keeper(now_ns);
        self.next_listener
    }

    /// The request that this listener matched, once; the listener is gone then.
    pub(crate) fn take_indication(&mut self, listener: u64) -> Option<Indication> {
        let at = self.listeners.iter().position(|l| l.id == listener)?;
        let conn = self.listeners.get(at)?.matched?;
        let connection = self.of_conn(conn)?;
        let indication = match &connection.stage {
            Stage::Held(asked) => Indication {
                conn,
                remote: asked.remote,
                attributes: asked.attributes,
            },
            // It has gone meanwhile: accepting it says so.
            _ => Indication {
                conn,
                remote: NetAddress::default(),
                attributes: Attributes::default(),
            },
        };
        self.listeners.remove(at);
        Some(indication)
    }

    /// The consumer waits no longer. A request that was matched meanwhile goes to another listener
    /// or is answered with No Match.
    pub(crate) fn unlisten(&mut self, now_ns: u64, listener: u64, path: &mut Datapath) {
        let Some(at) = self.listeners.iter().position(|l| l.id == listener) else {
            return;
        };
        let gone = self.listeners.remove(at);
        self.door.news = true;
        self.tell_keeper(now_ns);
        let Some(conn) = gone.matched else {
            return;
        };
        if let Some(other) = self.match_listener(&gone.discriminator, conn) {
            path.control_event(Waiter::Request(other));
            return;
        }
        self.refuse_held(now_ns, conn, SegmentType::ConnectNoMatch, RemoteError::NONE);
    }

    /// Gives a request to whoever waits longest for it, if anybody does.
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
        self.door.news = true;
        Some(listener.id)
    }

    /// Asks for a connection (VIPL 3.3.4); the outcome comes by [`ViTcp::take_outcome`].
    ///
    /// # Errors
    /// `Invalid`, `InvalidState`.
    pub(crate) fn connect(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        command: &ConnectCommand<'_>,
        path: &mut Datapath,
    ) -> Result<(), ConnectError> {
        let machine = Machine::Active(ActiveState::Disconnected);
        self.ask(now_ns, vi, machine, command, path)
    }

    /// Puts a request into the peer pool (VIPL 3.3.6); the outcome comes by
    /// [`ViTcp::take_peer_outcome`].
    ///
    /// # Errors
    /// As for [`ViTcp::connect`].
    pub(crate) fn connect_peer(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        command: &ConnectCommand<'_>,
        path: &mut Datapath,
    ) -> Result<(), ConnectError> {
        let machine = Machine::Peer(PeerState::Disconnected);
        self.ask(now_ns, vi, machine, command, path)
    }

    fn ask(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        machine: Machine,
        command: &ConnectCommand<'_>,
        path: &mut Datapath,
    ) -> Result<(), ConnectError> {
        self.next_peer_request += 1;
        let number = self.next_peer_request;
        let interval_ns = self.settings.retry_ns;
        let ep = self.endpoint_mut(vi).ok_or(ConnectError::Invalid)?;
        if !matches!(ep.phase, Phase::Idle) {
            return Err(ConnectError::InvalidState);
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
        ep.phase = Phase::Asking(Box::new(Request {
            machine,
            local: command.local,
            remote: command.remote,
            deadline_ns,
            connection: None,
            retry_ns: None,
            interval_ns,
            number: 0,
            theirs: None,
            concede_ns: 0,
            closed: 0,
        }));
        path.set_state(vi, EndpointState::ConnectPending);
        self.door.news = true;
        self.tell_keeper(now_ns);
        self.begin_request(now_ns, vi, path);
        Ok(())
    }

    /// The outcome of a connection call on this VI, once.
    pub(crate) fn take_outcome(&mut self, vi: ViIndex) -> Option<Result<RemoteVi, ConnectError>> {
        self.endpoint_mut(vi)?.outcome.take()
    }

    /// The number of the VI's peer request, from the call until its outcome was taken.
    pub(crate) fn peer_request(&self, vi: ViIndex) -> Option<u64> {
        let request = self.endpoint(vi)?.peer_request.as_ref()?;
        Some(request.number)
    }

    /// The outcome of the peer request with this number, once; `None` while it has none.
    /// `InvalidState` if the VI has no such request any more.
    pub(crate) fn take_peer_outcome(
        &mut self,
        vi: ViIndex,
        number: u64,
    ) -> Option<Result<RemoteVi, ConnectError>> {
        let Some(slot) = self.endpoint_mut(vi).map(|ep| &mut ep.peer_request) else {
            return Some(Err(ConnectError::Invalid));
        };
        let own = |request: &&mut PeerRequest| request.number == number;
        let Some(request) = slot.as_mut().filter(own) else {
            return Some(Err(ConnectError::InvalidState));
        };
        let outcome = request.outcome?;
        *slot = None;
        Some(outcome)
    }

    /// Completes a connection attempt with an error. The VI returns to Idle and keeps its receives,
    /// except that `NotReachable` moves a reliable VI to Error and flushes them (VIPL 3.3.4).
    pub(super) fn conclude(&mut self, vi: ViIndex, error: ConnectError, path: &mut Datapath) {
        self.door.news = true;
        self.timers.clear(Key::Request(vi.0));
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        let breaks =
            error == ConnectError::NotReachable && ep.params.level != Level::UnreliableDelivery;
        let after = if breaks { Phase::Error } else { Phase::Idle };
        let phase = core::mem::replace(&mut ep.phase, after);
        ep.conclude(Err(error));
        if let Phase::Asking(request) = phase {
            self.ask_again.extend(request.theirs);
            if let Some(number) = request.connection {
                self.remove(number);
            }
        }
        if breaks {
            path.set_state(vi, EndpointState::Error);
            path.flush_receives(vi);
        } else {
            path.set_state(vi, EndpointState::Idle);
        }
        path.control_event(Waiter::Outcome(vi));
    }

    /// Both ends agree: the VI has this connection. `theirs` is what the other end said, in the
    /// message of this number, with so many receives posted.
    pub(super) fn connected(
        &mut self,
        vi: ViIndex,
        number: u32,
        (theirs, message, rx_posted): (&CeHeader, u32, u16),
        flow_control: bool,
        path: &mut Datapath,
    ) {
        self.timers.clear(Key::Request(vi.0));
        self.timers.clear(Key::Connection(number));
        let max_in_flight = self.settings.max_in_flight as usize;
        let max_reads = self.settings.max_reads;
        let Some(params) = self.endpoint(vi).map(|ep| ep.params) else {
            return;
        };
        let Self {
            connections,
            misses,
            ..
        } = self;
        let Some(Some(connection)) = connections.get_mut(number as usize) else {
            return;
        };
        connection.stage = Stage::Connected(vi);
        connection.rx.misses = misses.connect(Some(HostAddress(connection.far.host)));
        let guest = connection.guest.take();
        let (segment_bytes, timestamps) = connection.stream.segment_bytes();
        let reliable = params.level != Level::UnreliableDelivery;
        let limit = if reliable { max_in_flight } else { 0 };
        let agreed_bytes = params.max_transfer_bytes.min(theirs.mtu_bytes);
        connection.max_transfer_bytes = agreed_bytes;
        connection.security = theirs.security.as_bytes().to_vec();
        connection.exchange = None;
        let tx = &mut connection.tx;
        tx.in_flight = InFlight::new(limit, theirs.read_window);
        tx.awaits_ack = params.level == Level::ReliableReception;
        tx.segment_bytes = segment_bytes.min(MAX_SEGMENT_BYTES);
        tx.credits = flow_control.then(|| Credits::new(rx_posted));
        let rx = &mut connection.rx;
        (rx.number, rx.good) = (message, message);
        rx.acknowledges = reliable && theirs.attributes.level != ExactLevel::Delivery;
        rx.reads_accepted = max_reads;
        if !flow_control {
            rx.posted = None;
        }
        let remote = RemoteVi {
            attributes: attributes_of(theirs, params.level),
            n_port_id: Default::default(),
        };
        self.release(guest);
        self.door.news = true;
        self.counters.count(Counter::Connects);
        if !timestamps {
            self.counters.count(Counter::WithoutTimestamps);
        }
        if let Some(ep) = self.endpoint_mut(vi) {
            let before = core::mem::replace(&mut ep.phase, Phase::Connected(number));
            ep.conclude(Ok(remote));
            if let Phase::Asking(request) = before {
                self.ask_again.extend(request.theirs);
            }
        }
        self.queue(number);
        path.tell_receives(vi, flow_control);
        path.set_state(vi, EndpointState::Connected);
        path.control_event(Waiter::Outcome(vi));
        path.resume(vi);
    }

    /// What we say of a VI when we ask for a connection, or accept one.
    pub(super) fn own_ce(&self, ep: &Endpoint, names: Names<'_>, peer_to_peer: bool) -> CeHeader {
        let params = &ep.params;
        CeHeader {
            attributes: CallingAttributes {
                reliable: params.level != Level::UnreliableDelivery,
                rdma_write: params.rdma_write,
                rdma_read: params.rdma_read,
                flow_control: ep.choices.flow_control,
                peer_to_peer,
                level: match params.level {
                    Level::UnreliableDelivery => ExactLevel::NotSaid,
                    Level::ReliableDelivery => ExactLevel::Delivery,
                    Level::ReliableReception => ExactLevel::Reception,
                },
            },
            mtu_bytes: params.max_transfer_bytes,
            calling: short(names.calling),
            called: short(names.called),
            read_window: match params.rdma_read {
                true => self.settings.max_reads,
                false => 0,
            },
            // No longer than it may be: that was checked.
            security: Security::new(&ep.choices.security).unwrap_or_default(),
        }
    }
}

/// The names of the two ends.
pub(super) struct Names<'a> {
    pub(super) calling: &'a Discriminator,
    pub(super) called: &'a Discriminator,
}

/// A discriminator as it stands in a CE header. A longer one is refused before.
fn short(discriminator: &Discriminator) -> vitcp_lite::Discriminator {
    vitcp_lite::Discriminator::new(discriminator.as_bytes()).unwrap_or_default()
}

/// A discriminator as VIPL has it.
pub(super) fn long(discriminator: &vitcp_lite::Discriminator) -> Discriminator {
    Discriminator::new(discriminator.as_bytes()).unwrap_or_default()
}

/// What a CE header says of a VI, as VIPL has it; where it does not say which reliable level, it
/// is that of the other end.
pub(super) fn attributes_of(ce: &CeHeader, level: Level) -> Attributes {
    let reliability = match (ce.attributes.reliable, ce.attributes.level) {
        (false, _) => WireReliability::Ud,
        (true, ExactLevel::Delivery) => WireReliability::Rd,
        (true, ExactLevel::Reception) => WireReliability::Rr,
        (true, ExactLevel::NotSaid | ExactLevel::Unknown) => match level {
            Level::ReliableReception => WireReliability::Rr,
            Level::UnreliableDelivery | Level::ReliableDelivery => WireReliability::Rd,
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

/// An address of the other end.
pub(super) fn address(host: [u8; 16], discriminator: Discriminator) -> NetAddress {
    NetAddress {
        host: HostAddress(host),
        discriminator,
    }
}

/// Adds a Connect Request or Accept to what is written next.
pub(super) fn put_connect(
    vi: ViIndex,
    connection: &mut Connection,
    kind: SegmentType,
    (ack, credits_low): (u32, u16),
    ce: &CeHeader,
    path: &mut Datapath,
) {
    let mut behind = [0; CE_HEADER_BYTES + MAX_SECURITY_BYTES];
    let Some(behind_bytes) = ce.emit(&mut behind) else {
        return;
    };
    let mut posted = Posted::new(credits_low);
    posted.note(path.unclaimed(vi));
    connection.rx.posted = Some(posted);
    let mut header = SegmentHeader::new(kind, (SEGMENT_HEADER_BYTES + behind_bytes) as u16);
    header.flags = Flags::END_OF_MESSAGE;
    header.message = connection.tx.number;
    header.ack = ack;
    header.rx_posted = said(vi, connection, path);
    super::closing::put_control(connection, &header);
    connection
        .tx
        .control
        .extend(behind.iter().take(behind_bytes));
}
