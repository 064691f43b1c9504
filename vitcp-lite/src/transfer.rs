//! Data transfer of a connected VI [VI/TCP 3]: messages to segments and back, with acknowledgements and flow
//! control. It has no socket and no clock: received bytes come in by a [`Receiver`], and a
//! [`Plan`] fills a [`SendBatch`] with the bytes to send; queues and memory of
//! the VI are those of a [`StreamIo`].
//!
//! | module | contents |
//! | --- | --- |
//! | this file | [`Transfer`]: the state of both directions |
//! | `stream_io` | what it needs of queues and memory |
//! | `ranges` | memory ranges of one system call |
//! | `plan`, `send_batch` | the segments of one system call |
//! | `transmit` | effects of the bytes that TCP took |
//! | `in_flight` | descriptors that are sent and not complete |
//! | `receive` | received segments: matching to messages, placement, completion |
//! | `ending` | the last segments and completions of a connection |

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use vi_types::misses::ConnectionMisses;
use vi_types::{MessageDestination, ReliabilityLevel, SendWork, ViParams};

use crate::source::Source;
use crate::{CeHeader, Credits, Decoder, ExactLevel, Posted, SegmentType};

mod counters;
mod ending;
mod in_flight;
mod plan;
mod ranges;
mod receive;
mod send_batch;
mod stream_io;
#[cfg(test)]
mod tests;
mod transmit;

pub use counters::{Counter, Counters};
pub use ending::CloseReason;
pub use plan::{Plan, Stop};
pub use ranges::{MemoryRange, MemoryRanges};
pub use receive::{Receiver, WORD_BYTES};
pub use send_batch::{CORK_NS, CORK_POLLS, SendBatch};
pub use stream_io::{BufferAccess, MessageMemory, RemoteAccess, StreamIo};

use in_flight::InFlight;
use send_batch::Unfinished;

/// Maximum of Segment Length in bytes.
const MAX_SEGMENT_BYTES: u32 = 65_535;

/// The state of both directions.
#[derive(Debug)]
pub struct Transfer {
    /// Transmit state.
    pub tx: Tx,
    /// Receive state.
    pub rx: Rx,
    /// Attributes of the VI, with the maximum message size that both sides agreed on.
    pub params: ViParams,
}

/// What both sides agreed on when they connected.
pub struct Established<'a> {
    /// Attributes of the VI.
    pub params: ViParams,
    /// The peer's CE header.
    pub theirs: &'a CeHeader,
    /// The number of its message.
    pub message: u32,
    /// With flow control: receives that the peer has posted.
    pub credits: Option<u16>,
    /// Maximum segment size of TCP in bytes.
    pub segment_bytes: u32,
    /// Own limit of descriptors in flight.
    pub max_in_flight: u32,
    /// Own limit of outstanding reads of the peer.
    pub max_reads: u16,
}

impl Default for Transfer {
    /// Creates the state of a connection that is not established.
    fn default() -> Self {
        Self {
            tx: Tx::new(),
            rx: Rx::new(),
            params: ViParams {
                level: ReliabilityLevel::UnreliableDelivery,
                max_transfer_bytes: 0,
                rdma_write: false,
                rdma_read: false,
            },
        }
    }
}

impl Transfer {
    /// Begins the data transfer of a connected VI.
    pub fn establish(&mut self, with: &Established<'_>) {
        let (params, theirs) = (&with.params, with.theirs);
        let reliable = params.level.is_reliable();
        let in_flight = if reliable {
            with.max_in_flight as usize
        } else {
            0
        };
        self.params = ViParams {
            max_transfer_bytes: params.max_transfer_bytes.min(theirs.mtu_bytes),
            ..*params
        };
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
pub(crate) struct ReadJob {
    pub(crate) number: u32,
    pub(crate) source: (u64, u32),
    pub(crate) total_bytes: u32,
    pub(crate) sent_bytes: u32,
    /// The access is refused.
    pub(crate) refused: bool,
}

/// An outgoing message of which not all segments are sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenMessage {
    pub(crate) work: SendWork,
    pub(crate) number: u32,
    pub(crate) sent_bytes: u32,
}

/// Transmit state.
#[derive(Debug)]
pub struct Tx {
    /// Number of the last message that was begun.
    pub number: u32,
    pub(crate) open: Option<OpenMessage>,
    /// Reads of the peer that need a response, oldest first.
    pub(crate) read_responses: VecDeque<ReadJob>,
    /// A read response is sent next, before messages of our own.
    pub(crate) response_next: bool,
    pub(crate) unfinished: Option<Unfinished>,
    /// Pending control segments: of connection establishment and teardown.
    pub control: Vec<u8>,
    pub(crate) in_flight: InFlight,
    /// With flow control: credits for receives that the peer has posted.
    pub credits: Option<Credits>,
    /// A message waits for a credit.
    pub(crate) starved: bool,
    /// Maximum bytes of a segment.
    pub(crate) segment_bytes: u32,
    /// Descriptors stay in flight until the peer has acknowledged them.
    pub(crate) awaits_ack: bool,
    /// The last call sent many segments.
    pub streaming: bool,
    /// TCP holds written data back.
    pub corked: bool,
    /// Time of the last send that was not corked.
    pub pushed_ns: u64,
}

/// A message that is being received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RxMessage {
    pub(crate) number: u32,
    pub(crate) kind: MessageDestination,
    pub(crate) write: bool,
    pub(crate) placed_bytes: u32,
    /// Of an RDMA write: received bytes after the placed ones.
    pub(crate) partial_word: PartialWord,
    /// Received bytes of payload, placed or not.
    pub(crate) offset_bytes: u32,
    pub(crate) immediate: Option<u32>,
}

/// The received beginning of an aligned word.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PartialWord {
    bytes: [u8; 8],
    count: usize,
}

impl PartialWord {
    /// Appends bytes; an aligned word must have space for them.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let end = self.count + bytes.len();
        debug_assert!(end <= self.bytes.len(), "more than a word");
        if let Some(to) = self.bytes.get_mut(self.count..end) {
            to.copy_from_slice(bytes);
            self.count = end;
        }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.count).unwrap_or_default()
    }
}

/// The segment whose payload is being received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RxSegment {
    pub(crate) kind: SegmentType,
    pub(crate) ends: bool,
    pub(crate) transmit_error: bool,
    /// Of a read response: index of the read in flight.
    pub(crate) read: u32,
}

/// Receive state.
#[derive(Debug)]
pub struct Rx {
    /// Decoder of the received stream.
    pub decoder: Decoder,
    /// Number of the last message that was begun.
    pub(crate) number: u32,
    /// Message ACK to send: number of the last message that is placed, or of a later Read Request or NOP.
    pub(crate) ack_number: u32,
    pub(crate) message: Option<RxMessage>,
    pub(crate) segment: Option<RxSegment>,
    /// An acknowledgement is due.
    pub(crate) ack_pending: bool,
    /// The peer uses acknowledgements of placed messages.
    pub(crate) sends_acks: bool,
    /// With flow control: receives that we have posted.
    pub posted: Option<Posted>,
    /// Receive descriptors consumed since the start of the connection.
    pub(crate) used: u32,
    /// Limit of outstanding reads of the peer.
    pub(crate) reads_accepted: u16,
    /// RDMA accesses of the peer that were refused.
    pub misses: ConnectionMisses,
    /// The peer to which they count; `None` if it is of the same user on this NIC.
    pub miss_key: Option<Source>,
}

/// What a response timer that is due means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseTimer {
    /// No response is missing.
    NotNeeded,
    /// There was progress meanwhile: the timeout starts anew.
    Restart,
    /// A response is missing.
    Expired,
}

impl Tx {
    /// Creates the state of a connection that is not established.
    pub(crate) fn new() -> Self {
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

    /// Checks whether TCP took only a part of a segment, whose remainder must follow.
    #[must_use]
    pub fn is_mid_segment(&self) -> bool {
        self.unfinished.is_some()
    }

    /// Handles the response timer that [`Tx::response_deadline`] returned.
    pub fn on_response_timer(&mut self) -> ResponseTimer {
        let flight = &mut self.in_flight;
        flight.timer_set = false;
        if flight.unanswered() == 0 {
            return ResponseTimer::NotNeeded;
        }
        match core::mem::take(&mut flight.progressed) {
            true => {
                flight.timer_set = true;
                ResponseTimer::Restart
            }
            false => ResponseTimer::Expired,
        }
    }

    /// Returns the number of a message of which TCP took only a part of the first segment.
    pub(crate) fn begun_number(&self) -> Option<u32> {
        let unfinished = self.unfinished.as_ref()?;
        unfinished.begins().then(|| self.number.wrapping_add(1))
    }
}

impl Rx {
    /// Marks Message ACK and Rx Descriptors Posted as advertised: a segment with them was sent.
    #[inline]
    pub(crate) fn note_advertised(&mut self) {
        self.ack_pending = false;
        if let Some(posted) = &mut self.posted {
            posted.note_advertised();
        }
    }

    /// Returns the number of the last message that was begun.
    #[must_use]
    pub fn last_message(&self) -> u32 {
        self.number
    }

    pub(crate) fn new() -> Self {
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
