//! Data transfer of a connected VI [VI/TCP 3]: messages to segments and back, with acknowledgements and flow
//! control. It has no socket and no clock: received bytes come in by a [`Receiver`](receive::Receiver), and a
//! [`Plan`](plan::Plan) fills a [`SendBatch`](send_batch::SendBatch) with the bytes to send; queues and memory of
//! the VI are those of a [`StreamIo`].
//!
//! | module | contents |
//! | --- | --- |
//! | this file | the state of both directions |
//! | `stream_io` | what it needs of queues and memory |
//! | `io_vecs` | memory ranges of one system call |
//! | `plan`, `send_batch` | the segments of one system call |
//! | `transmit` | effects of the bytes that TCP took |
//! | `in_flight` | descriptors that are sent and not complete |
//! | `receive` | received segments: matching to messages, placement, completion |
//! | `ending` | the last segments and completions of a connection |

use std::collections::VecDeque;

use vi_engine::ViParams;
use vi_engine::misses::ConnectionMisses;
use vi_types::ReliabilityLevel;
use vitcp_lite::{CeHeader, Credits, Decoder, ExactLevel, Posted, SegmentType};

use super::source::Source;
use in_flight::InFlight;
use send_batch::Unfinished;

pub(super) mod ending;
pub(super) mod in_flight;
pub(super) mod io_vecs;
pub(super) mod plan;
pub(super) mod receive;
pub(super) mod send_batch;
pub(super) mod stream_io;
pub(super) mod transmit;

pub(super) use ending::CloseReason;
pub(crate) use io_vecs::IoVecs;
pub(crate) use stream_io::{BufferAccess, MessageMemory, RemoteAccess, StreamIo};

/// Maximum of Segment Length in bytes.
const MAX_SEGMENT_BYTES: u32 = 65_535;

/// The state of both directions.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(in crate::vitcp) tx: Tx,
    pub(in crate::vitcp) rx: Rx,
    /// Maximum message size that both sides agreed on.
    pub(in crate::vitcp) max_transfer_bytes: u32,
}

/// What both sides agreed on when they connected.
pub(super) struct Established<'a> {
    pub(super) params: ViParams,
    /// The peer's CE header, and the number of its message.
    pub(super) theirs: &'a CeHeader,
    pub(super) message: u32,
    /// With flow control: receives that the peer has posted.
    pub(super) credits: Option<u16>,
    /// Maximum segment size of TCP in bytes.
    pub(super) segment_bytes: u32,
    /// Own limits: of descriptors in flight, and of outstanding reads of the peer.
    pub(super) max_in_flight: u32,
    pub(super) max_reads: u16,
}

impl Transfer {
    /// Creates the state of a connection that is not established.
    pub(in crate::vitcp) fn new() -> Self {
        Self {
            tx: Tx::new(),
            rx: Rx::new(),
            max_transfer_bytes: 0,
        }
    }

    /// Begins the data transfer of a connected VI.
    pub(super) fn establish(&mut self, with: &Established<'_>) {
        let (params, theirs) = (&with.params, with.theirs);
        let reliable = params.level.is_reliable();
        let in_flight = if reliable {
            with.max_in_flight as usize
        } else {
            0
        };
        self.max_transfer_bytes = params.max_transfer_bytes.min(theirs.mtu_bytes);
        let tx = &mut self.tx;
        tx.in_flight = InFlight::new(in_flight, theirs.read_window);
        // The most that read_request accepts, so that no message allocates; at least one, which it refuses.
        let reads = if params.rdma_read { with.max_reads } else { 0 };
        tx.read_responses.reserve(usize::from(reads.max(1)));
        tx.awaits_ack = params.level == ReliabilityLevel::ReliableReception;
        tx.segment_bytes = with.segment_bytes.min(MAX_SEGMENT_BYTES);
        tx.credits = with.credits.map(Credits::new);
        let rx = &mut self.rx;
        (rx.number, rx.ack_number) = (with.message, with.message);
        rx.sends_acks = reliable && theirs.attributes.level != ExactLevel::Delivery;
        rx.reads_accepted = with.max_reads;
        if with.credits.is_none() {
            rx.posted = None;
        }
    }
}

/// An RDMA read of the peer that needs a response.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadJob {
    pub(in crate::vitcp) number: u32,
    pub(in crate::vitcp) source: (u64, u32),
    pub(in crate::vitcp) total_bytes: u32,
    pub(in crate::vitcp) sent_bytes: u32,
    /// The access is refused.
    pub(in crate::vitcp) refused: bool,
}

/// An outgoing message of which not all segments are sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenMessage {
    pub(in crate::vitcp) work: vi_engine::SendWork,
    pub(in crate::vitcp) number: u32,
    pub(in crate::vitcp) sent_bytes: u32,
}

/// Transmit state.
#[derive(Debug)]
pub(super) struct Tx {
    /// Number of the last message that was begun.
    pub(in crate::vitcp) number: u32,
    pub(in crate::vitcp) open: Option<OpenMessage>,
    /// Reads of the peer that need a response, oldest first.
    pub(in crate::vitcp) read_responses: VecDeque<ReadJob>,
    /// A read response is sent next, before messages of our own.
    pub(in crate::vitcp) response_next: bool,
    pub(in crate::vitcp) unfinished: Option<Unfinished>,
    /// Pending control segments: of connection establishment and teardown.
    pub(in crate::vitcp) control: Vec<u8>,
    pub(in crate::vitcp) in_flight: InFlight,
    /// With flow control: credits for receives that the peer has posted.
    pub(in crate::vitcp) credits: Option<Credits>,
    /// A message waits for a credit.
    pub(in crate::vitcp) starved: bool,
    /// Maximum bytes of a segment.
    pub(in crate::vitcp) segment_bytes: u32,
    /// Descriptors stay in flight until the peer has acknowledged them.
    pub(in crate::vitcp) awaits_ack: bool,
    /// The last call sent many segments.
    pub(in crate::vitcp) streaming: bool,
    /// TCP holds written data back.
    pub(in crate::vitcp) corked: bool,
    /// Time of the last send that was not corked.
    pub(in crate::vitcp) pushed_ns: u64,
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
    pub(in crate::vitcp) number: u32,
    pub(in crate::vitcp) kind: RxKind,
    pub(in crate::vitcp) write: bool,
    pub(in crate::vitcp) placed_bytes: u32,
    /// Of an RDMA write: received bytes after the placed ones.
    pub(in crate::vitcp) partial_word: PartialWord,
    /// Received bytes of payload, placed or not.
    pub(in crate::vitcp) offset_bytes: u32,
    pub(in crate::vitcp) immediate: Option<u32>,
}

/// The received beginning of an aligned word.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PartialWord {
    bytes: [u8; 8],
    count: usize,
}

impl PartialWord {
    /// Appends bytes; an aligned word must have space for them.
    pub(in crate::vitcp) fn add(&mut self, bytes: &[u8]) {
        self.bytes[self.count..][..bytes.len()].copy_from_slice(bytes);
        self.count += bytes.len();
    }

    pub(in crate::vitcp) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.count]
    }
}

/// The segment whose payload is being received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RxSegment {
    pub(in crate::vitcp) kind: SegmentType,
    pub(in crate::vitcp) ends: bool,
    pub(in crate::vitcp) transmit_error: bool,
    /// Of a read response: index of the read in flight.
    pub(in crate::vitcp) read: u32,
}

/// Receive state.
#[derive(Debug)]
pub(super) struct Rx {
    pub(in crate::vitcp) decoder: Decoder,
    /// Number of the last message that was begun.
    pub(in crate::vitcp) number: u32,
    /// Message ACK to send: number of the last message that is placed, or of a later Read Request or NOP.
    pub(in crate::vitcp) ack_number: u32,
    pub(in crate::vitcp) message: Option<RxMessage>,
    pub(in crate::vitcp) segment: Option<RxSegment>,
    /// An acknowledgement is due.
    pub(in crate::vitcp) ack_pending: bool,
    /// The peer uses acknowledgements of placed messages.
    pub(in crate::vitcp) sends_acks: bool,
    /// With flow control: receives that we have posted.
    pub(in crate::vitcp) posted: Option<Posted>,
    /// Receive descriptors consumed since the start of the connection.
    pub(in crate::vitcp) used: u32,
    /// Limit of outstanding reads of the peer.
    pub(in crate::vitcp) reads_accepted: u16,
    /// RDMA accesses of the peer that were refused.
    pub(in crate::vitcp) misses: ConnectionMisses,
    /// The peer to which they count; `None` if it is of the same user on this NIC.
    pub(in crate::vitcp) miss_key: Option<Source>,
}

impl Tx {
    /// Creates the state of a connection that is not established.
    pub(in crate::vitcp) fn new() -> Self {
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
    pub(in crate::vitcp) fn begun_number(&self) -> Option<u32> {
        let unfinished = self.unfinished.as_ref()?;
        unfinished.begins().then(|| self.number.wrapping_add(1))
    }
}

impl Rx {
    /// Marks Message ACK and Rx Descriptors Posted as advertised: a segment with them was sent.
    #[inline]
    pub(in crate::vitcp) fn note_advertised(&mut self) {
        self.ack_pending = false;
        if let Some(posted) = &mut self.posted {
            posted.note_advertised();
        }
    }

    pub(in crate::vitcp) fn new() -> Self {
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
