//! One VI as the protocol sees it: its state and its two message streams.

use fcvi_frame::connect::Attributes;
use fcvi_frame::fc::{FCtl, NPortId};
use fcvi_frame::flags::{ConnectMode, WireReliability, message_request};
use fcvi_frame::frame::{HeaderTemplate, IuView};
use fcvi_frame::iu::Opcode;
use fcvi_frame::reason::MessageReason;

use crate::answer::Answers;
use crate::closing::Farewell;
use crate::config::EngineConfig;
use crate::connect::{Attempt, ConnectError, PeerRequest, RemoteVi};
use crate::connection_iu::Sequence;
use crate::exchange::Exchange;
use crate::host::SendWork;
use crate::misses::ConnectionMisses;
use crate::recovery::{RxRecovery, TxRecovery};
use crate::shortcut::Shortcut;
use crate::synonym::{Check, skips};
use crate::transmit::InFlight;

/// Reliability level of a VI (VIPL 4.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// Unreliable Delivery.
    UnreliableDelivery,
    /// Reliable Delivery.
    ReliableDelivery,
    /// Reliable Reception: as Reliable Delivery, and a send or write completes when the
    /// other end has placed it.
    ReliableReception,
}

impl Level {
    /// As it stands in frames.
    pub const fn wire(self) -> WireReliability {
        match self {
            Level::UnreliableDelivery => WireReliability::Ud,
            Level::ReliableDelivery => WireReliability::Rd,
            Level::ReliableReception => WireReliability::Rr,
        }
    }

    /// FCVI_FLAGS that every send and write of this level has [FCVI P-6].
    pub(crate) const fn request_flags(self) -> u8 {
        let response = match self {
            Level::UnreliableDelivery | Level::ReliableDelivery => 0,
            Level::ReliableReception => message_request::RESPONSE_REQUESTED,
        };
        self.wire().to_flags() | response
    }
}

/// The consumer's choices for a VI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViParams {
    /// Reliability level.
    pub level: Level,
    /// Longest message in bytes.
    pub max_transfer_bytes: u32,
    /// RDMA writes of the other end are accepted.
    pub rdma_write: bool,
    /// RDMA reads of the other end are accepted; not at Unreliable Delivery.
    pub rdma_read: bool,
}

/// State of a VI (VIPL 4.8).
///
/// ```text
///            request / accept              RESP3, or RESP2
///   Idle ------------------------> Pending ----------------> Connected
///    ^  ^                             |                          |
///    |  +--- refused, timed out ------+        break, peer gone  |
///    |                                                           v
///    +------------------------- disconnect -------------------- Error
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EndpointState {
    /// Not connected.
    Idle = 0,
    /// Messages flow.
    Connected = 1,
    /// A connection procedure is under way.
    ConnectPending = 2,
    /// The connection broke; `disconnect` leads back to Idle.
    Error = 3,
}

/// Where the connection procedure of an endpoint stands.
#[derive(Debug)]
pub(crate) enum Phase {
    Idle,
    /// Originator: RQST sent, no RESP1 that decides yet.
    Requesting(Box<Attempt>),
    /// Originator: RESP2 sent, RESP3 not seen.
    AwaitResponse3(Await),
    /// Responder: RESP1 sent, RESP2 not seen.
    AwaitResponse2(Await),
    Connected,
    Error,
}

/// A response that is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Await {
    /// What asks for it was sent; until then the port had no room.
    pub(crate) asked: bool,
    /// How long it is waited for once it is asked for again.
    pub(crate) interval_ns: u64,
    /// When what asks for it is sent again.
    pub(crate) next_retry_ns: u64,
    /// When it is given up.
    pub(crate) deadline_ns: u64,
}

/// A connection that this end left. The other end may not know it yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Former {
    /// Our handle.
    pub(crate) handle: u32,
    pub(crate) peer: NPortId,
    pub(crate) peer_handle: u32,
    pub(crate) connection_id: u32,
    /// What was placed of its messages, as in [`Farewell`].
    pub(crate) placed: Option<u32>,
}

/// The identity of one connection, on both sides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) peer: NPortId,
    pub(crate) peer_handle: u32,
    pub(crate) connection_id: u32,
    /// What we send next on the exchange of the connect procedure: RESP1 or RESP2.
    pub(crate) at: Sequence,
    /// We asked for the connection.
    pub(crate) originator: bool,
    pub(crate) mode: ConnectMode,
    /// The connect exchange is ours and still open.
    pub(crate) exchange_open: bool,
    pub(crate) remote: Attributes,
}

impl Link {
    /// The largest data field that both ends take.
    pub(crate) fn data_field_bytes(&self, config: &EngineConfig) -> u16 {
        let theirs = self.remote.receive_data_field_bytes;
        config.data_field_bytes.min(theirs)
    }

    /// What ends this connection.
    pub(crate) fn farewell(&self, reason: MessageReason, error: bool) -> Farewell {
        Farewell {
            peer: self.peer,
            peer_handle: self.peer_handle,
            connection_id: self.connection_id,
            reason,
            error,
            placed: None,
        }
    }
}

/// A message that is being cut into frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TxMessage {
    pub(crate) work: SendWork,
    pub(crate) exchange: Exchange,
    pub(crate) msg_id: u32,
    pub(crate) sent_bytes: u32,
    pub(crate) next_seq_cnt: u16,
}

/// What the level says in every frame of a send or write [FCVI P-3, P-6].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Framing {
    /// F_CTL of any frame but the last.
    pub(crate) f_ctl: FCtl,
    /// F_CTL of the last one, without fill.
    pub(crate) last_f_ctl: FCtl,
    pub(crate) flags: u8,
}

/// The sending side of a connection.
pub(crate) struct TxStream {
    pub(crate) next_msg_id: u32,
    pub(crate) message: Option<TxMessage>,
    pub(crate) send: HeaderTemplate,
    pub(crate) write: HeaderTemplate,
    pub(crate) read: HeaderTemplate,
    /// Also of an answer to a read, whose header is as long.
    pub(crate) send_payload_bytes: u32,
    pub(crate) write_payload_bytes: u32,
    pub(crate) framing: Framing,
    /// What is sent is not complete at once: the level is Reliable Reception, what is lost is
    /// sent again, or something is in flight.
    pub(crate) tracked: bool,
    /// There are `answers` to be sent.
    pub(crate) answering: bool,
    pub(crate) in_flight: InFlight,
    pub(crate) answers: Answers,
    /// If what is lost is sent again.
    pub(crate) recovery: Option<Box<TxRecovery>>,
}

/// What a message that is being put together is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RxKind {
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
pub(crate) struct RxMessage {
    pub(crate) msg_id: u32,
    pub(crate) ox_id: u16,
    pub(crate) seq_id: u8,
    pub(crate) next_seq_cnt: u16,
    pub(crate) placed_bytes: u32,
    pub(crate) immediate: Option<u32>,
    pub(crate) kind: RxKind,
    /// FCVI_SEND_RQST or FCVI_WRITE_RQST.
    pub(crate) opcode: Opcode,
}

/// The receiving side of a connection.
#[derive(Debug, Default)]
pub(crate) struct RxStream {
    /// Mexp: the message ID of the next new message.
    pub(crate) expected: u32,
    pub(crate) message: Option<RxMessage>,
    /// RDMA accesses of the peer that were refused.
    pub(crate) misses: ConnectionMisses,
    /// If what is lost is sent again.
    pub(crate) recovery: Option<Box<RxRecovery>>,
    /// MSG_ID of the last RDMA write without immediate data that had a frame with a bad CRC.
    pub(crate) damaged_write: Option<u32>,
    pub(crate) deadline_ns: u64,
    pub(crate) timer_set: bool,
}

/// One VI.
pub(crate) struct Endpoint {
    pub(crate) params: ViParams,
    pub(crate) phase: Phase,
    /// The user whose VI it is.
    pub(crate) user: u32,
    /// Our handle for this connection; 0 while there is none.
    pub(crate) handle: u32,
    /// Where frames of messages come from.
    pub(crate) peer: NPortId,
    pub(crate) peer_index: u32,
    /// If messages need no frames.
    pub(crate) shortcut: Option<Box<Shortcut>>,
    pub(crate) link: Option<Link>,
    pub(crate) tx: Option<Box<TxStream>>,
    pub(crate) rx: RxStream,
    /// What became of a connect or accept call, until it is told.
    pub(crate) outcome: Option<Result<RemoteVi, ConnectError>>,
    /// Its peer request, until its outcome is told.
    pub(crate) peer_request: Option<Box<PeerRequest>>,
    /// The connection before, until the next one ends.
    pub(crate) former: Option<Former>,
}

impl Endpoint {
    pub(crate) fn new(params: ViParams) -> Self {
        Self {
            params,
            phase: Phase::Idle,
            user: 0,
            handle: 0,
            peer: NPortId::default(),
            peer_index: 0,
            shortcut: None,
            link: None,
            tx: None,
            rx: RxStream::default(),
            outcome: None,
            peer_request: None,
            former: None,
        }
    }

    /// Does a connection IU name the handle of this endpoint's procedure?
    pub(crate) fn is_addressed(&self, iu: &IuView<'_>) -> bool {
        self.handle == iu.header.handle || skips(Check::ConnectionHandle)
    }

    /// A connection procedure starts: what an earlier one came to is told no more.
    pub(crate) fn forget_outcomes(&mut self) {
        self.outcome = None;
        self.peer_request = None;
    }

    /// The connection procedure came to this.
    pub(crate) fn conclude(&mut self, outcome: Result<RemoteVi, ConnectError>) {
        match &mut self.peer_request {
            Some(request) => request.conclude(outcome),
            None => self.outcome = Some(outcome),
        }
    }

    pub(crate) fn state(&self) -> EndpointState {
        match self.phase {
            Phase::Idle => EndpointState::Idle,
            Phase::Requesting(_) | Phase::AwaitResponse3(_) | Phase::AwaitResponse2(_) => {
                EndpointState::ConnectPending
            }
            Phase::Connected => EndpointState::Connected,
            Phase::Error => EndpointState::Error,
        }
    }
}
