//! The end that asks [VI/TCP 4.2], and peers that ask each other [VI/TCP 4].

use vi_engine::{ConnectError, Host, ViIndex};
use vitcp_lite::machine::Failure;
use vitcp_lite::machine::active::{ActiveAction, ActiveEvent};
use vitcp_lite::machine::peer::{PeerAction, PeerEvent};
use vitcp_lite::{
    CeHeader, IsCode, RemoteError, Says as Sender, Segment, SegmentHeader, SegmentType,
};

use super::ViTcp;
use super::choices::{Says, compare};
use super::connection::{Connection, Machine, Phase, Rx, Stage, Tx};
use super::counters::Counter;
use super::establish::{Names, put_connect};
use super::socket::{End, Stream};
use super::timers::Key;
use crate::datapath::Datapath;

/// A request that finds nobody is repeated more rarely each time, down to one in so many of the
/// first intervals: nobody tells us when the other end is there.
const SLOWEST: u64 = 16;
/// A host that speaks TLS may close so many connections of a request before its answer.
const MOST_CLOSED: u32 = 5;

/// What happened to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Begin,
    TcpFailed(ConnectError),
    TcpNotYet,
    TcpEstablished,
    TcpClosed,
    Accept,
    Reject(ConnectError),
    Challenge,
    NoMatch,
    Timeout,
}

/// What is to be done then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    None,
    SetUp,
    Send,
    Connected,
    Failed(Failure),
    /// It is made again after a while, on another TCP connection.
    Wait,
}

impl ViTcp {
    pub(super) fn begin_request(&mut self, now_ns: u64, vi: ViIndex, path: &mut Datapath) {
        self.request_event(now_ns, vi, Event::Begin, path);
        self.arm_request(vi);
    }

    /// Sets the timer of a VI's request to the next moment at which it wants attention.
    pub(super) fn arm_request(&mut self, vi: ViIndex) {
        let Some(request) = self.endpoint_mut(vi).and_then(|ep| ep.request()) else {
            return;
        };
        let concede_ns = request.theirs.map(|_| request.concede_ns);
        match [request.deadline_ns, request.retry_ns, concede_ns]
            .into_iter()
            .flatten()
            .min()
        {
            Some(at_ns) => self.timers.set(at_ns, Key::Request(vi.0)),
            None => self.timers.clear(Key::Request(vi.0)),
        }
    }

    /// Something happened to the request of a VI; the machine says what is to be done.
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
            Machine::Active(state) => {
                let (state, action) = state.on(active(event));
                request.machine = Machine::Active(state);
                match action {
                    ActiveAction::SetUpTcp if event != Event::Begin => Action::Wait,
                    ActiveAction::SetUpTcp => Action::SetUp,
                    ActiveAction::SendRequest | ActiveAction::AnswerChallenge => Action::Send,
                    ActiveAction::Connected => Action::Connected,
                    ActiveAction::Failed(failure) => Action::Failed(failure),
                    ActiveAction::None | ActiveAction::CloseTcp | ActiveAction::Unexpected => {
                        Action::None
                    }
                }
            }
            Machine::Peer(state) => {
                let waits = matches!(event, Event::NoMatch | Event::TcpClosed | Event::TcpNotYet);
                let (state, action) = state.on(peer(event));
                request.machine = Machine::Peer(state);
                match action {
                    PeerAction::SetUpTcp => Action::SetUp,
                    PeerAction::SendRequest | PeerAction::AnswerChallenge => Action::Send,
                    PeerAction::Connected => Action::Connected,
                    PeerAction::Failed(failure) => Action::Failed(failure),
                    PeerAction::None | PeerAction::CloseTcp if waits => Action::Wait,
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
            Action::SetUp => self.set_up(now_ns, vi, path),
            Action::Send => self.send_request(vi, path),
            Action::Connected => return true,
            Action::Failed(failure) => {
                let error = match (event, failure) {
                    (Event::TcpFailed(error) | Event::Reject(error), _) => error,
                    (_, Failure::NoMatch) => ConnectError::NoMatch,
                    (_, Failure::Timeout) => ConnectError::Timeout,
                    (_, Failure::Rejected) => ConnectError::Rejected,
                    (_, Failure::Tcp) => ConnectError::NotReachable,
                };
                self.conclude(vi, error, path);
            }
            Action::Wait => self.wait_to_ask(now_ns, vi),
        }
        self.tell_keeper(now_ns);
        false
    }

    /// A request is made again after a while, and each time after a longer one.
    fn wait_to_ask(&mut self, now_ns: u64, vi: ViIndex) {
        let most_ns = self.settings.retry_ns.saturating_mul(SLOWEST);
        let Some(request) = self.endpoint_mut(vi).and_then(|ep| ep.request()) else {
            return;
        };
        request.retry_ns = Some(now_ns + request.interval_ns);
        request.interval_ns = request.interval_ns.saturating_mul(2).min(most_ns);
        let connection = request.connection.take();
        let theirs = request.theirs.take();
        if let Some(number) = connection {
            self.remove(number);
        }
        self.ask_again.extend(theirs);
        self.counters.count(Counter::Retries);
        self.arm_request(vi);
    }

    pub(super) fn request_timeout(&mut self, now_ns: u64, vi: ViIndex, path: &mut Datapath) {
        let Some(request) = self.endpoint_mut(vi).and_then(|ep| ep.request()) else {
            return;
        };
        if request.deadline_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            self.request_event(now_ns, vi, Event::Timeout, path);
            return;
        }
        if request.theirs.is_some() && request.concede_ns <= now_ns {
            self.concede(now_ns, vi, path);
            self.arm_request(vi);
            return;
        }
        if request.retry_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            request.retry_ns = None;
            self.ask_again(now_ns, vi, path);
        }
        self.arm_request(vi);
    }

    /// The time of a request that waits has come.
    fn ask_again(&mut self, now_ns: u64, vi: ViIndex, path: &mut Datapath) {
        let Some(request) = self.endpoint_mut(vi).and_then(|ep| ep.request()) else {
            return;
        };
        if let Machine::Peer(state) = request.machine {
            let (state, _) = state.on(PeerEvent::Retry);
            request.machine = Machine::Peer(state);
        }
        self.set_up(now_ns, vi, path);
    }

    /// Begins the TCP connection of a request.
    fn set_up(&mut self, now_ns: u64, vi: ViIndex, path: &mut Datapath) {
        let Some(request) = self.endpoint_mut(vi).and_then(|ep| ep.request()) else {
            return;
        };
        let (local, remote) = (request.local.host.0, request.remote.host.0);
        if !self.has_key_for(remote) {
            let event = Event::TcpFailed(ConnectError::Rejected);
            self.request_event(now_ns, vi, event, path);
            return;
        }
        let ends = [local, remote].map(|host| End {
            host,
            port: self.settings.port,
            scope: self.settings.scope,
        });
        self.counters.count(Counter::Connecting);
        let credentials = self.credentials.as_ref();
        let stream = Stream::connect(ends[0], ends[1], self.habits(), credentials);
        let near = stream.as_ref().map_or(Ok(ends[0]), Stream::near);
        let added = stream.and_then(|stream| {
            let near = near?;
            self.add(|generation| {
                connection(stream, (near, ends[1]), generation, Stage::Asking(vi))
            })
        });
        match added {
            Ok(number) => {
                if let Some(request) = self.endpoint_mut(vi).and_then(|ep| ep.request()) {
                    request.connection = Some(number);
                }
                // On this host it is decided already.
                self.look_at_all(now_ns, path);
                self.serve_stranger(now_ns, number, path);
            }
            Err(error) => self.set_up_failed(now_ns, vi, &error, path),
        }
    }

    /// TCP is there: the Connect Request goes out; the next one, where it was challenged.
    fn send_request(&mut self, vi: ViIndex, path: &mut Datapath) {
        let random = path.random();
        let credits_low = self.settings.credits_low;
        let Some(ep) = self.endpoint(vi) else {
            return;
        };
        let Phase::Asking(request) = &ep.phase else {
            return;
        };
        let peer_to_peer = matches!(request.machine, Machine::Peer(_));
        let names = Names {
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
        self.prove(number, Sender::Request, message, &mut ce);
        if let Some(request) = self.endpoint_mut(vi).and_then(|ep| ep.request()) {
            request.number = message;
        }
        if let Some(connection) = self.connection_mut(number) {
            connection.tx.number = message;
            let ack = (0, credits_low);
            put_connect(vi, connection, SegmentType::ConnectRequest, ack, &ce, path);
            // If TCP is gone that is read, too.
            let _gone = super::closing::write_control(connection);
        }
    }

    /// The socket of a request can be written for the first time: the connection is made, or not.
    pub(super) fn established(
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
            Err(error) => self.set_up_failed(now_ns, vi, &error, path),
        }
    }

    /// The TCP connection of a request closed before the answer. The request is made again; but with
    /// TLS not often, as who refuses us, or speaks no TLS, may close it without a word.
    pub(super) fn closed_early(&mut self, vi: ViIndex, number: u32) -> Event {
        let stream = self.connection(number).map(|connection| &connection.stream);
        let secure = stream.is_some_and(Stream::is_secure);
        let request = self.endpoint_mut(vi).and_then(|ep| ep.request());
        let Some(request) = request.filter(|_| secure) else {
            return Event::TcpClosed;
        };
        request.closed += 1;
        if request.closed < MOST_CLOSED {
            return Event::TcpClosed;
        }
        let host = request.remote.host;
        let line = format_args!(
            "TLS with {host}: it closes the connection: does it speak TLS at this port?"
        );
        self.log_limited(log::Level::Warn, line);
        self.counters.count(Counter::DropTlsHandshake);
        Event::Reject(ConnectError::Rejected)
    }

    /// Handles a failed TCP connect: an error for the consumer, or a retry (VIPL 3.3.4, 3.3.6).
    fn set_up_failed(
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
        let is_client = matches!(request.machine, Machine::Active(_));
        let event = match error.raw_os_error() {
            // The host answers, and no program listens there. At our own address another program
            // does: the port is being handed over.
            Some(libc::ECONNREFUSED) if is_client && remote != own => {
                Event::TcpFailed(ConnectError::NoMatch)
            }
            // No answer. EHOSTUNREACH: address resolution failed, here or at the last router. A
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
            ) => Event::TcpFailed(ConnectError::Resources),
            // ENETUNREACH and its like: there is no route.
            _ => Event::TcpFailed(ConnectError::NotReachable),
        };
        if let Event::TcpFailed(ConnectError::Resources | ConnectError::NotReachable) = event {
            let line = format_args!("connection request to {remote}: TCP connect failed: {error}");
            self.log_limited(log::Level::Warn, line);
        }
        self.request_event(now_ns, vi, event, path);
    }

    /// The answer to a request.
    pub(super) fn answered(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        number: u32,
        segment: &Segment,
        path: &mut Datapath,
    ) {
        let header = &segment.header;
        let asked = self.endpoint_mut(vi).and_then(|ep| ep.request());
        if asked.is_none_or(|request| header.ack != request.number) {
            self.counters.count(Counter::DropOutOfOrder);
            let event = Event::Reject(ConnectError::Rejected);
            self.request_event(now_ns, vi, event, path);
            return;
        }
        if let Some(request) = self.endpoint_mut(vi).and_then(|ep| ep.request()) {
            request.closed = 0;
        }
        let event = match (header.kind, &segment.headers) {
            (SegmentType::ConnectAccept, vitcp_lite::Headers::Connect(ce)) => {
                self.accepted(now_ns, vi, number, (header, ce), path);
                return;
            }
            (SegmentType::ConnectNoMatch, _) => Event::NoMatch,
            (SegmentType::ConnectReject, vitcp_lite::Headers::Connect(ce))
                if header.remote_error.is_code == IsCode::Challenge =>
            {
                self.challenged(number, header, ce)
            }
            (SegmentType::ConnectReject, _) => {
                if header.remote_error.is_code == IsCode::Security {
                    let why = "it does not accept who we are: do both ends have the same key \
                               for each other in their key_file?";
                    self.refuse_answer(number, Counter::NotAccepted, why);
                }
                Event::Reject(error_of(header.remote_error))
            }
            _ => {
                self.counters.count(Counter::DropOutOfOrder);
                Event::Reject(ConnectError::Rejected)
            }
        };
        self.request_event(now_ns, vi, event, path);
    }

    fn accepted(
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
                self.refuse_answer(number, Counter::DropUnproven, why);
                let event = Event::Reject(ConnectError::Rejected);
                self.request_event(now_ns, vi, event, path);
                return;
            }
        };
        let ce = CeHeader { security, ..*ce };
        let theirs = (&ce, header.message, header.rx_posted);
        let Some(ep) = self.endpoint(vi) else {
            return;
        };
        let flow_control = ep.choices.flow_control;
        if let Err(error) = compare(ep, theirs.0, Says::Accepter) {
            self.request_event(now_ns, vi, Event::Reject(error), path);
            return;
        }
        if self.request_event(now_ns, vi, Event::Accept, path) {
            let flow_control = flow_control && theirs.0.attributes.flow_control;
            self.connected(vi, number, theirs, flow_control, path);
            self.tell_keeper(now_ns);
        }
    }
}

/// A TCP connection of ours or of another host's, of which nothing is known yet.
pub(super) fn connection(
    stream: Stream,
    (near, far): (End, End),
    generation: u32,
    stage: Stage,
) -> Connection {
    let asking = matches!(stage, Stage::Asking(_));
    Connection {
        stream,
        near,
        far,
        generation,
        stage,
        tx: Tx::new(),
        rx: Rx::new(),
        max_transfer_bytes: 0,
        security: Vec::new(),
        exchange: None,
        established: !asking,
        queued: false,
        may_read: !asking,
        may_write: !asking,
        over: false,
        lost: false,
        finished: false,
        timed: false,
        guest: None,
    }
}

fn active(event: Event) -> ActiveEvent {
    match event {
        Event::Begin => ActiveEvent::Request,
        Event::TcpFailed(_) => ActiveEvent::TcpFailed,
        Event::TcpNotYet => ActiveEvent::TcpNotYet,
        Event::TcpEstablished => ActiveEvent::TcpEstablished,
        Event::TcpClosed => ActiveEvent::TcpClosed,
        Event::Accept => ActiveEvent::Accept,
        Event::Reject(_) => ActiveEvent::Reject,
        Event::Challenge => ActiveEvent::Challenge,
        Event::NoMatch => ActiveEvent::NoMatch,
        Event::Timeout => ActiveEvent::Timeout,
    }
}

fn peer(event: Event) -> PeerEvent {
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

/// Why the other end rejects.
fn error_of(error: RemoteError) -> ConnectError {
    match error.is_code {
        IsCode::ReliabilityLevel => ConnectError::ReliabilityLevel,
        IsCode::MaxTransferSize => ConnectError::MaxTransferSize,
        IsCode::NoRoom => ConnectError::Resources,
        _ => ConnectError::Rejected,
    }
}
