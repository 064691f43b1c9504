//! One TCP connection: what it is for, and its two streams of messages.

use std::collections::VecDeque;

use vi_engine::misses::ConnectionMisses;
use vi_engine::{ConnId, ConnectError, EndpointState, Level, RemoteVi, ViIndex, ViParams};
use vitcp_lite::machine::active::ActiveState;
use vitcp_lite::machine::passive::PassiveState;
use vitcp_lite::machine::peer::PeerState;
use vitcp_lite::{CeHeader, Credits, Decoder, Posted, SegmentType};

use fcvi_frame::connect::{Attributes, NetAddress};

use super::challenge::Exchange;
use super::gather::Unfinished;
use super::guests::Guest;
use super::in_flight::InFlight;
use super::socket::{End, Stream};
use crate::choices::ViChoices;

/// What a connection is for.
#[derive(Debug)]
pub(super) enum Stage {
    /// We asked for it, for the request of this VI.
    Asking(ViIndex),
    /// It came in, and no consumer has it yet.
    Incoming(PassiveState),
    /// A consumer was told of it, and has to answer.
    Held(Box<Asked>),
    /// The other end has gone while the consumer had to answer.
    Void,
    /// It is this VI's.
    Connected(ViIndex),
    /// All is said: the other end is given time to read it.
    Closing,
}

/// A Connect Request that waits for a consumer's answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) passive: PassiveState,
    pub(super) ce: CeHeader,
    /// Its message number.
    pub(super) number: u32,
    /// Receives that the other end has posted.
    pub(super) rx_posted: u16,
    /// The other end's name for the connection.
    pub(super) remote: NetAddress,
    pub(super) attributes: Attributes,
}

/// An RDMA read of the peer that is to be answered.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadJob {
    pub(super) number: u32,
    pub(super) source: (u64, u32),
    pub(super) total_bytes: u32,
    pub(super) sent_bytes: u32,
    /// It may not be read.
    pub(super) refused: bool,
}

/// A message of ours that is being cut into segments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub(super) work: vi_engine::SendWork,
    pub(super) number: u32,
    pub(super) sent_bytes: u32,
}

/// What is sent.
#[derive(Debug)]
pub(super) struct Tx {
    /// Of the message begun last.
    pub(super) number: u32,
    pub(super) open: Option<Open>,
    /// Answers that the peer waits for, the oldest first.
    pub(super) answers: VecDeque<ReadJob>,
    /// An answer is sent next, though there are messages of our own.
    pub(super) answer_next: bool,
    pub(super) unfinished: Option<Unfinished>,
    /// Segments of the connection's procedure that wait.
    pub(super) control: Vec<u8>,
    pub(super) in_flight: InFlight,
    /// What the peer has posted, if messages wait for that.
    pub(super) credits: Option<Credits>,
    /// A message waits for that now.
    pub(super) starved: bool,
    /// The longest segment.
    pub(super) segment_bytes: u32,
    /// Descriptors stay in flight until the peer has acknowledged them.
    pub(super) awaits_ack: bool,
    /// The last call took many messages.
    pub(super) streams: bool,
    /// TCP keeps what was written back.
    pub(super) corked: bool,
    /// When something was sent last that it did not keep back.
    pub(super) pushed_ns: u64,
}

/// What a message that is being put together is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RxKind {
    /// A send into the claimed receive descriptor.
    Receive { capacity_bytes: u32 },
    /// An RDMA write; `claimed` if its immediate data took a receive descriptor.
    Write {
        target: (u64, u32),
        total_bytes: u32,
        claimed: bool,
    },
    /// Given up; the rest is swallowed.
    Discard,
}

/// A message that is being put together.
#[derive(Clone, Copy, Debug)]
pub(super) struct RxMessage {
    pub(super) number: u32,
    pub(super) kind: RxKind,
    pub(super) write: bool,
    pub(super) placed_bytes: u32,
    /// Of an RDMA write, behind what is placed.
    pub(super) held: HeldBytes,
    /// Of payload that came, placed or not.
    pub(super) offset_bytes: u32,
    pub(super) immediate: Option<u32>,
}

/// The beginning of an aligned word whose other bytes have not come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeldBytes {
    bytes: [u8; 8],
    count: usize,
}

impl HeldBytes {
    /// Holds bytes behind those that it has, as many as an aligned word has room for.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.bytes[self.count..][..bytes.len()].copy_from_slice(bytes);
        self.count += bytes.len();
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.count]
    }
}

/// The segment whose payload comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RxSegment {
    pub(super) kind: SegmentType,
    pub(super) ends: bool,
    pub(super) transmit_error: bool,
    /// Of a read: where it stands in flight.
    pub(super) read: u32,
}

/// What is received.
#[derive(Debug)]
pub(super) struct Rx {
    pub(super) decoder: Decoder,
    /// Of the message begun last.
    pub(super) number: u32,
    /// Of the last one that is placed, or was asked for.
    pub(super) good: u32,
    pub(super) message: Option<RxMessage>,
    pub(super) segment: Option<RxSegment>,
    /// The peer waits to hear of something.
    pub(super) owes_ack: bool,
    /// The peer wants to hear of messages that are placed.
    pub(super) acknowledges: bool,
    /// What we have posted, if the peer's messages wait for that.
    pub(super) posted: Option<Posted>,
    /// Messages that took a receive descriptor since the connection is there.
    pub(super) used: u32,
    /// Reads of the peer that are served at a time.
    pub(super) reads_accepted: u16,
    /// RDMA accesses of the peer that were refused.
    pub(super) misses: ConnectionMisses,
}

/// One TCP connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: Stream,
    pub(super) near: End,
    pub(super) far: End,
    pub(super) generation: u32,
    pub(super) stage: Stage,
    pub(super) tx: Tx,
    pub(super) rx: Rx,
    /// The longest message, as both ends have agreed.
    pub(super) max_transfer_bytes: u32,
    /// What the other end told.
    pub(super) security: Vec<u8>,
    /// What is proven on it until it is a VI's.
    pub(super) exchange: Option<Box<Exchange>>,
    /// TCP has made it, or given it up.
    pub(super) established: bool,
    /// It is among those that have something to do.
    pub(super) queued: bool,
    pub(super) may_read: bool,
    pub(super) may_write: bool,
    /// Behind what is to be read comes the end.
    pub(super) over: bool,
    /// Writing failed: it ends when nothing is left to be read.
    pub(super) lost: bool,
    /// We have said that we send nothing more.
    pub(super) finished: bool,
    /// The time of one that came in runs.
    pub(super) timed: bool,
    /// It takes a place of those that are no VI's.
    pub(super) guest: Option<Guest>,
}

impl Connection {
    /// What the system calls it that tells of what happens on it.
    pub(super) fn watched_as(&self, number: u32) -> u64 {
        u64::from(self.generation) << 32 | u64::from(number)
    }
}

/// A connection request of a VI's.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) machine: Machine,
    pub(super) local: NetAddress,
    pub(super) remote: NetAddress,
    pub(super) deadline_ns: Option<u64>,
    /// The TCP connection on which it is made.
    pub(super) connection: Option<u32>,
    /// When it is made again.
    pub(super) retry_ns: Option<u64>,
    /// How long it waits then.
    pub(super) interval_ns: u64,
    /// The number of its Connect Request.
    pub(super) number: u32,
    /// A peer's request that is accepted if this one is not.
    pub(super) theirs: Option<ConnId>,
    /// That one waits so long.
    pub(super) concede_ns: u64,
    /// Its connections with TLS that closed without an answer, one after the other.
    pub(super) closed: u32,
}

/// Which of the draft's machines it goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Machine {
    Active(ActiveState),
    Peer(PeerState),
}

/// A peer request, from the call until its outcome is told.
#[derive(Clone, Debug)]
pub(super) struct PeerRequest {
    /// Older ones are matched first.
    pub(super) number: u64,
    pub(super) outcome: Option<Result<RemoteVi, ConnectError>>,
}

/// Where a VI stands.
#[derive(Debug)]
pub(super) enum Phase {
    Idle,
    Asking(Box<Request>),
    /// Its connection.
    Connected(u32),
    Error,
}

/// One VI.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) params: ViParams,
    pub(super) choices: ViChoices,
    pub(super) phase: Phase,
    pub(super) outcome: Option<Result<RemoteVi, ConnectError>>,
    pub(super) peer_request: Option<PeerRequest>,
    /// RDMA accesses of the peer that were refused on the last connection that broke.
    pub(super) refused_accesses: u32,
}

impl Endpoint {
    pub(super) fn new(params: ViParams, choices: ViChoices) -> Self {
        Self {
            params,
            choices,
            phase: Phase::Idle,
            outcome: None,
            peer_request: None,
            refused_accesses: 0,
        }
    }

    pub(super) fn state(&self) -> EndpointState {
        match self.phase {
            Phase::Idle => EndpointState::Idle,
            Phase::Asking(_) => EndpointState::ConnectPending,
            Phase::Connected(_) => EndpointState::Connected,
            Phase::Error => EndpointState::Error,
        }
    }

    pub(super) fn is_reliable(&self) -> bool {
        self.params.level != Level::UnreliableDelivery
    }

    /// A connection procedure starts: what an earlier one came to is told no more.
    pub(super) fn forget_outcomes(&mut self) {
        self.outcome = None;
        self.peer_request = None;
    }

    /// The connection procedure came to this.
    pub(super) fn conclude(&mut self, outcome: Result<RemoteVi, ConnectError>) {
        match &mut self.peer_request {
            Some(request) => request.outcome = Some(outcome),
            None => self.outcome = Some(outcome),
        }
    }

    pub(super) fn request(&mut self) -> Option<&mut Request> {
        match &mut self.phase {
            Phase::Asking(request) => Some(request),
            Phase::Idle | Phase::Connected(_) | Phase::Error => None,
        }
    }
}

impl Tx {
    /// Nothing is sent yet but segments of the procedure.
    pub(super) fn new() -> Self {
        Self {
            number: 0,
            open: None,
            answers: VecDeque::new(),
            answer_next: false,
            unfinished: None,
            control: Vec::new(),
            in_flight: InFlight::new(0, 0),
            credits: None,
            starved: false,
            segment_bytes: 0,
            awaits_ack: false,
            streams: false,
            corked: false,
            pushed_ns: 0,
        }
    }

    /// The number of a message of which TCP has a part of the first segment, and no more.
    pub(super) fn begun_number(&self) -> Option<u32> {
        let unfinished = self.unfinished.as_ref()?;
        unfinished.begins().then(|| self.number.wrapping_add(1))
    }
}

impl Rx {
    /// A segment that says what is placed and posted is on its way.
    #[inline]
    pub(super) fn say(&mut self) {
        self.owes_ack = false;
        if let Some(posted) = &mut self.posted {
            posted.note_said();
        }
    }

    pub(super) fn new() -> Self {
        Self {
            decoder: Decoder::new(),
            number: 0,
            good: 0,
            message: None,
            segment: None,
            owes_ack: false,
            acknowledges: false,
            posted: None,
            used: 0,
            reads_accepted: 0,
            misses: ConnectionMisses::default(),
        }
    }
}
