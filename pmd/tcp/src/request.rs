//! A VI's request for a connection: client [VI/TCP 4.2] or peer to peer [VI/TCP 4], with its state machine.

use std::io;

use vi_types::{CallError, ConnId, ConnectRequest, NetAddress};
use vitcp_lite::machine::Failure;
use vitcp_lite::machine::initiator::{InitiatorAction, InitiatorEvent, InitiatorState};
use vitcp_lite::machine::peer::{PeerAction, PeerEvent, PeerState, Precedence};

/// Limit of the exponential backoff of retries, as a multiple of the first interval.
const MAX_BACKOFF: u64 = 16;

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

impl Event {
    /// Returns the event of a failed TCP connect (VIPL 3.3.4, 3.3.6). `is_client`: the request is a client's to another
    /// host.
    pub(super) fn of_failed_connect(error: &io::Error, is_client: bool) -> Self {
        match error.raw_os_error() {
            // The host responds, and no program listens there. At our own address another program
            // does: the listener is being handed over.
            Some(libc::ECONNREFUSED) if is_client => Self::TcpFailed(CallError::NoMatch),
            // No response. EHOSTUNREACH: address resolution failed, here or at the last router. A
            // connection that is reset was accepted, and closed before we polled it.
            Some(
                libc::ECONNREFUSED
                | libc::ECONNRESET
                | libc::ETIMEDOUT
                | libc::EHOSTUNREACH
                | libc::EHOSTDOWN,
            ) => Self::TcpNotYet,
            // Descriptors, memory, or ports of our own are used up.
            Some(
                libc::EMFILE
                | libc::ENFILE
                | libc::ENOMEM
                | libc::ENOBUFS
                | libc::EADDRINUSE
                | libc::EAGAIN,
            ) => Self::TcpFailed(CallError::NO_RESOURCES),
            // ENETUNREACH and its like: there is no route.
            _ => Self::TcpFailed(CallError::NotReachable),
        }
    }
}

/// Action on a connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    None,
    SetUp,
    Send,
    Connected,
    Failed(CallError),
    /// Retry after an interval, on a new TCP connection.
    Retry,
}

/// The connection state machine of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Machine {
    Initiator(InitiatorState),
    Peer(PeerState),
}

/// A connection request of a VI.
#[derive(Clone, Debug)]
pub(super) struct Request {
    machine: Machine,
    pub(super) local: NetAddress,
    pub(super) remote: NetAddress,
    pub(super) deadline_ns: Option<u64>,
    /// Its current TCP connection.
    pub(super) connection: Option<u32>,
    /// Time of the next retry.
    pub(super) retry_ns: Option<u64>,
    /// Interval of that retry.
    interval_ns: u64,
    /// The message number of its Connect Request.
    pub(super) number: u32,
    /// A peer's crossing request, which is resolved when this one has a response.
    pub(super) deferred_peer: Option<ConnId>,
    /// Time at which that one is accepted without a response.
    pub(super) yield_at_ns: u64,
    /// Consecutive TLS connections that the peer closed without a response.
    pub(super) closed: u32,
}

impl Request {
    /// Creates a request that begins at `now_ns`, with this first interval between retries.
    pub(super) fn new(
        machine: Machine,
        request: &ConnectRequest<'_>,
        now_ns: u64,
        interval_ns: u64,
    ) -> Self {
        Self {
            machine,
            local: *request.local,
            remote: *request.remote,
            deadline_ns: request
                .timeout_ns
                .map(|timeout_ns| now_ns.saturating_add(timeout_ns)),
            connection: None,
            retry_ns: None,
            interval_ns,
            number: 0,
            deferred_peer: None,
            yield_at_ns: 0,
            closed: 0,
        }
    }

    /// Checks whether it is a peer's.
    pub(super) fn is_peer(&self) -> bool {
        matches!(self.machine, Machine::Peer(_))
    }

    /// Checks whether it is a peer's whose Connect Request has no response yet.
    pub(super) fn is_peer_pending(&self) -> bool {
        self.machine == Machine::Peer(PeerState::PendingAccept)
    }

    /// Returns the time of its next timer.
    pub(super) fn next_timer_ns(&self) -> Option<u64> {
        let yield_at_ns = self.deferred_peer.map(|_| self.yield_at_ns);
        [self.deadline_ns, self.retry_ns, yield_at_ns]
            .into_iter()
            .flatten()
            .min()
    }

    /// Schedules the next retry, with exponential backoff from `first_ns`.
    pub(super) fn schedule_retry(&mut self, now_ns: u64, first_ns: u64) {
        self.retry_ns = Some(now_ns + self.interval_ns);
        let doubled_ns = self.interval_ns.saturating_mul(2);
        self.interval_ns = doubled_ns.min(first_ns.saturating_mul(MAX_BACKOFF));
    }

    /// Begins a scheduled retry.
    pub(super) fn begin_retry(&mut self) {
        self.retry_ns = None;
        if let Machine::Peer(state) = self.machine {
            let (state, _) = state.on(PeerEvent::Retry);
            self.machine = Machine::Peer(state);
        }
    }

    /// Passes an event to the state machine; returns its action.
    pub(super) fn on(&mut self, event: Event) -> Action {
        match self.machine {
            Machine::Initiator(state) => {
                let (state, action) = state.on(initiator_event(event));
                self.machine = Machine::Initiator(state);
                match action {
                    InitiatorAction::SetUpTcp if event != Event::Begin => Action::Retry,
                    InitiatorAction::SetUpTcp => Action::SetUp,
                    InitiatorAction::SendRequest | InitiatorAction::AnswerChallenge => Action::Send,
                    InitiatorAction::Connected => Action::Connected,
                    InitiatorAction::Failed(failure) => Action::Failed(error_of(event, failure)),
                    InitiatorAction::None
                    | InitiatorAction::CloseTcp
                    | InitiatorAction::Unexpected => Action::None,
                }
            }
            Machine::Peer(state) => {
                let is_retried =
                    matches!(event, Event::NoMatch | Event::TcpClosed | Event::TcpNotYet);
                let (state, action) = state.on(peer_event(event));
                self.machine = Machine::Peer(state);
                match action {
                    PeerAction::SetUpTcp => Action::SetUp,
                    PeerAction::SendRequest | PeerAction::AnswerChallenge => Action::Send,
                    PeerAction::Connected => Action::Connected,
                    PeerAction::Failed(failure) => Action::Failed(error_of(event, failure)),
                    PeerAction::None | PeerAction::CloseTcp if is_retried => Action::Retry,
                    PeerAction::None
                    | PeerAction::CloseTcp
                    | PeerAction::AcceptTheirs
                    | PeerAction::RefuseTheirs
                    | PeerAction::Unexpected => Action::None,
                }
            }
        }
    }

    /// Passes a simultaneous open to the state machine of a peer's request. Returns which of the two requests
    /// remains; `None` if the machine does not expect it.
    pub(super) fn on_simultaneous_open(&mut self, precedence: Precedence) -> Option<Remaining> {
        let Machine::Peer(state) = self.machine else {
            return None;
        };
        let (state, action) = state.on(PeerEvent::SimultaneousOpen(precedence));
        let remaining = match action {
            PeerAction::AcceptTheirs => Remaining::Theirs,
            PeerAction::RefuseTheirs => Remaining::Ours,
            _ => return None,
        };
        self.machine = Machine::Peer(state);
        Some(remaining)
    }
}

/// The request that remains of two that cross.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remaining {
    Ours,
    Theirs,
}

/// Returns the error of a failed request.
fn error_of(event: Event, failure: Failure) -> CallError {
    match (event, failure) {
        (Event::TcpFailed(error) | Event::Reject(error), _) => error,
        (_, Failure::NoMatch) => CallError::NoMatch,
        (_, Failure::Timeout) => CallError::Timeout,
        (_, Failure::Rejected) => CallError::Rejected,
        (_, Failure::Tcp) => CallError::NotReachable,
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
