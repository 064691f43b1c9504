//! State of a TCP connection and of a VI.

use std::collections::VecDeque;
use std::net::SocketAddr;

use vi_engine::misses::ConnectionMisses;
use vi_engine::{ConnId, RemoteVi, ViParams};
use vi_types::{CallError, ConnectionOptions, Discriminator, NetAddress, ViIndex, ViState};
use vitcp_lite::keyed::Nonce;
use vitcp_lite::machine::initiator::InitiatorState;
use vitcp_lite::machine::peer::PeerState;
use vitcp_lite::machine::responder::ResponderState;
use vitcp_lite::{CeHeader, Credits, Decoder, Posted, SegmentType};

use fcvi_frame::connect::Attributes;

use super::in_flight::InFlight;
use super::send_batch::Unfinished;
use super::socket::Stream;
use super::source::Source;
use super::unbound::Unbound;

/// Stage of a TCP connection.
#[derive(Debug)]
pub(super) enum Stage {
    /// Opened for the connection request of this VI.
    Requesting(ViIndex),
    /// Accepted; no Connect Request is received, or its proof is pending.
    Incoming(ResponderState),
    /// A Connect Request is received; the consumer's decision is pending.
    RequestReceived(Box<ReceivedRequest>),
    /// The peer disconnected before the consumer's decision.
    PeerGone,
    /// Bound to this VI.
    Connected(ViIndex),
    /// Closing: the peer has time to read what was sent.
    Closing,
}

/// A Connect Request that waits for the consumer's decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceivedRequest {
    pub(super) state: ResponderState,
    pub(super) ce: CeHeader,
    /// Its message number.
    pub(super) number: u32,
    /// Receives that the peer has posted.
    pub(super) rx_posted: u16,
    /// The peer's address and discriminator.
    pub(super) remote: NetAddress,
    pub(super) attributes: Attributes,
}

/// An RDMA read of the peer that needs a response.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadJob {
    pub(super) number: u32,
    pub(super) source: (u64, u32),
    pub(super) total_bytes: u32,
    pub(super) sent_bytes: u32,
    /// The access is refused.
    pub(super) refused: bool,
}

/// An outgoing message of which not all segments are sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenMessage {
    pub(super) work: vi_engine::SendWork,
    pub(super) number: u32,
    pub(super) sent_bytes: u32,
}

/// Transmit state.
#[derive(Debug)]
pub(super) struct Tx {
    /// Number of the last message that was begun.
    pub(super) number: u32,
    pub(super) open: Option<OpenMessage>,
    /// Reads of the peer that need a response, oldest first.
    pub(super) read_responses: VecDeque<ReadJob>,
    /// A read response is sent next, before messages of our own.
    pub(super) response_next: bool,
    pub(super) unfinished: Option<Unfinished>,
    /// Pending control segments: of connection establishment and teardown.
    pub(super) control: Vec<u8>,
    pub(super) in_flight: InFlight,
    /// With flow control: credits for receives that the peer has posted.
    pub(super) credits: Option<Credits>,
    /// A message waits for a credit.
    pub(super) starved: bool,
    /// Maximum bytes of a segment.
    pub(super) segment_bytes: u32,
    /// Descriptors stay in flight until the peer has acknowledged them.
    pub(super) awaits_ack: bool,
    /// The last call sent many segments.
    pub(super) streaming: bool,
    /// TCP holds written data back.
    pub(super) corked: bool,
    /// Time of the last send that was not corked.
    pub(super) pushed_ns: u64,
}

/// Destination of a message that is being received.
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
    /// Failed; the rest is discarded.
    Discard,
}

/// A message that is being received.
#[derive(Clone, Copy, Debug)]
pub(super) struct RxMessage {
    pub(super) number: u32,
    pub(super) kind: RxKind,
    pub(super) write: bool,
    pub(super) placed_bytes: u32,
    /// Of an RDMA write: received bytes after the placed ones.
    pub(super) partial_word: PartialWord,
    /// Received bytes of payload, placed or not.
    pub(super) offset_bytes: u32,
    pub(super) immediate: Option<u32>,
}

/// The received beginning of an aligned word.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PartialWord {
    bytes: [u8; 8],
    count: usize,
}

impl PartialWord {
    /// Appends bytes; an aligned word must have space for them.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.bytes[self.count..][..bytes.len()].copy_from_slice(bytes);
        self.count += bytes.len();
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.count]
    }
}

/// The segment whose payload is being received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RxSegment {
    pub(super) kind: SegmentType,
    pub(super) ends: bool,
    pub(super) transmit_error: bool,
    /// Of a read response: index of the read in flight.
    pub(super) read: u32,
}

/// Receive state.
#[derive(Debug)]
pub(super) struct Rx {
    pub(super) decoder: Decoder,
    /// Number of the last message that was begun.
    pub(super) number: u32,
    /// Message ACK to send: number of the last message that is placed, or of a later Read Request or NOP.
    pub(super) ack_number: u32,
    pub(super) message: Option<RxMessage>,
    pub(super) segment: Option<RxSegment>,
    /// An acknowledgement is due.
    pub(super) ack_pending: bool,
    /// The peer uses acknowledgements of placed messages.
    pub(super) sends_acks: bool,
    /// With flow control: receives that we have posted.
    pub(super) posted: Option<Posted>,
    /// Receive descriptors consumed since the start of the connection.
    pub(super) used: u32,
    /// Limit of outstanding reads of the peer.
    pub(super) reads_accepted: u16,
    /// RDMA accesses of the peer that were refused.
    pub(super) misses: ConnectionMisses,
    /// The peer to which they count; `None` if it is of the same user on this NIC.
    pub(super) miss_key: Option<Source>,
}

/// Challenge-response exchange on a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exchange {
    /// Chosen by the responder.
    pub(super) challenge: Nonce,
    /// Chosen by the initiator; `None` at the responder until it is received.
    pub(super) nonce: Option<Nonce>,
    /// Expected number of the peer's next message.
    pub(super) next: u32,
}

/// One TCP connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: Stream,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) generation: u32,
    pub(super) stage: Stage,
    pub(super) tx: Tx,
    pub(super) rx: Rx,
    /// Maximum message size that both sides agreed on.
    pub(super) max_transfer_bytes: u32,
    /// Security Information of the peer's consumer.
    pub(super) security: Vec<u8>,
    /// Challenge and nonce of a keyed connection, until it is bound to a VI.
    pub(super) exchange: Option<Box<Exchange>>,
    /// The TCP connect has succeeded or failed.
    pub(super) established: bool,
    /// It is queued in `ViTcp::ready`.
    pub(super) queued: bool,
    pub(super) may_read: bool,
    pub(super) may_write: bool,
    /// The peer has closed: after the data that is left to read, the stream ends.
    pub(super) peer_closed: bool,
    /// A write failed: the connection breaks when nothing is left to read.
    pub(super) write_failed: bool,
    /// Our sending direction is shut down.
    pub(super) send_closed: bool,
    /// The timeout of an accepted connection is set.
    pub(super) timer_started: bool,
    /// TCP may have space again for TLS data that waits.
    pub(super) must_flush: bool,
    /// Its TLS handshake waits for a turn.
    pub(super) handshake_waits: bool,
    /// Its TLS handshake has had a turn, or is our own.
    pub(super) handshake_started: bool,
    /// Set if it counts towards a limit of connections without a VI.
    pub(super) unbound: Option<Unbound>,
}

impl Connection {
    /// Returns its epoll user data: generation and number.
    pub(super) fn epoll_data(&self, number: u32) -> u64 {
        u64::from(self.generation) << 32 | u64::from(number)
    }
}

/// A consumer that waits for a connection request.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) id: u64,
    pub(super) discriminator: Discriminator,
    pub(super) matched: Option<ConnId>,
}

/// A connection request of a VI.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) machine: Machine,
    pub(super) local: NetAddress,
    pub(super) remote: NetAddress,
    pub(super) deadline_ns: Option<u64>,
    /// Its current TCP connection.
    pub(super) connection: Option<u32>,
    /// Time of the next retry.
    pub(super) retry_ns: Option<u64>,
    /// Interval of that retry.
    pub(super) interval_ns: u64,
    /// The message number of its Connect Request.
    pub(super) number: u32,
    /// A peer's crossing request, which is resolved when this one has a response.
    pub(super) deferred_peer: Option<ConnId>,
    /// Time at which that one is accepted without a response.
    pub(super) yield_at_ns: u64,
    /// Consecutive TLS connections that the peer closed without a response.
    pub(super) closed: u32,
}

/// The connection state machine of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Machine {
    Initiator(InitiatorState),
    Peer(PeerState),
}

/// A peer request, from the call until its outcome is reported.
#[derive(Clone, Debug)]
pub(super) struct PeerRequest {
    /// Older ones are matched first.
    pub(super) number: u64,
    pub(super) outcome: Option<Result<RemoteVi, CallError>>,
}

/// Phase of a VI.
#[derive(Debug)]
pub(super) enum Phase {
    Idle,
    Requesting(Box<Request>),
    /// The number of its connection.
    Connected(u32),
    Error,
}

/// One VI.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) params: ViParams,
    pub(super) options: ConnectionOptions,
    pub(super) phase: Phase,
    pub(super) outcome: Option<Result<RemoteVi, CallError>>,
    pub(super) peer_request: Option<PeerRequest>,
    /// RDMA accesses of the peer that were refused on the last connection that broke.
    pub(super) refused_accesses: u32,
    /// The user that owns it.
    pub(super) user: u32,
}

impl Endpoint {
    pub(super) fn new(params: ViParams, options: ConnectionOptions) -> Self {
        Self {
            params,
            options,
            phase: Phase::Idle,
            outcome: None,
            peer_request: None,
            refused_accesses: 0,
            user: 0,
        }
    }

    pub(super) fn state(&self) -> ViState {
        match self.phase {
            Phase::Idle => ViState::Idle,
            Phase::Requesting(_) => ViState::ConnectPending,
            Phase::Connected(_) => ViState::Connected,
            Phase::Error => ViState::Error,
        }
    }

    pub(super) fn is_reliable(&self) -> bool {
        self.params.level.is_reliable()
    }

    /// Discards outcomes of earlier connection calls.
    pub(super) fn forget_outcomes(&mut self) {
        self.outcome = None;
        self.peer_request = None;
    }

    /// Sets the outcome of the connection call.
    pub(super) fn set_outcome(&mut self, outcome: Result<RemoteVi, CallError>) {
        match &mut self.peer_request {
            Some(request) => request.outcome = Some(outcome),
            None => self.outcome = Some(outcome),
        }
    }

    pub(super) fn request(&mut self) -> Option<&mut Request> {
        match &mut self.phase {
            Phase::Requesting(request) => Some(request),
            Phase::Idle | Phase::Connected(_) | Phase::Error => None,
        }
    }
}

impl Tx {
    /// Creates the state of a connection that is not established.
    pub(super) fn new() -> Self {
        Self {
            number: 0,
            open: None,
            read_responses: VecDeque::new(),
            response_next: false,
            unfinished: None,
            control: Vec::new(),
            in_flight: InFlight::new(0, 0),
            credits: None,
            starved: false,
            segment_bytes: 0,
            awaits_ack: false,
            streaming: false,
            corked: false,
            pushed_ns: 0,
        }
    }

    /// Returns the number of a message of which TCP took only a part of the first segment.
    pub(super) fn begun_number(&self) -> Option<u32> {
        let unfinished = self.unfinished.as_ref()?;
        unfinished.begins().then(|| self.number.wrapping_add(1))
    }
}

impl Rx {
    /// Marks Message ACK and Rx Descriptors Posted as advertised: a segment with them was sent.
    #[inline]
    pub(super) fn note_advertised(&mut self) {
        self.ack_pending = false;
        if let Some(posted) = &mut self.posted {
            posted.note_advertised();
        }
    }

    pub(super) fn new() -> Self {
        Self {
            decoder: Decoder::new(),
            number: 0,
            ack_number: 0,
            message: None,
            segment: None,
            ack_pending: false,
            sends_acks: false,
            posted: None,
            used: 0,
            reads_accepted: 0,
            misses: ConnectionMisses::default(),
            miss_key: None,
        }
    }
}
