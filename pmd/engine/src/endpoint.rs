//! One VI as the protocol sees it: its state and its two message streams.

use fcvi_frame::connect::Attributes;
use fcvi_frame::fc::{FCtl, NPortId};
use fcvi_frame::flags::{ConnectMode, message_request, reliability_flags};
use fcvi_frame::frame::{HeaderTemplate, IuView};
use fcvi_frame::iu::Opcode;
use fcvi_frame::reason::MessageReason;
use vi_types::{CallError, ReliabilityLevel, ViState};

use crate::config::EngineConfig;
use crate::connect::{Attempt, PeerRequest, RemoteVi};
use crate::connection_iu::Sequence;
use crate::engine_io::SendWork;
use crate::exchange::Exchange;
use crate::misses::ConnectionMisses;
use crate::pending_disconnects::DisconnectInfo;
use crate::recovery::{RxRecovery, TxRecovery};
use crate::responses::Responses;
use crate::shortcut::Shortcut;
use crate::synonym::{Check, skips};
use crate::transmit::InFlight;

/// Returns the FCVI_FLAGS of every send and write of a level [FCVI P-6].
pub(crate) const fn request_flags(level: ReliabilityLevel) -> u8 {
    let response = match level {
        ReliabilityLevel::UnreliableDelivery | ReliabilityLevel::ReliableDelivery => 0,
        ReliabilityLevel::ReliableReception => message_request::RESPONSE_REQUESTED,
    };
    reliability_flags(level) | response
}

/// Attributes of a VI, as its consumer chose them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViParams {
    /// Reliability level.
    pub level: ReliabilityLevel,
    /// Maximum message length in bytes.
    pub max_transfer_bytes: u32,
    /// RDMA writes of the peer are accepted.
    pub rdma_write: bool,
    /// RDMA reads of the peer are accepted; not at Unreliable Delivery.
    pub rdma_read: bool,
}

/// Phase of an endpoint's connection procedure.
#[derive(Debug)]
pub(crate) enum Phase {
    Idle,
    /// Originator: RQST sent, no RESP1 that decides yet.
    Requesting(Box<Attempt>),
    /// Originator: RESP2 sent, RESP3 not received.
    AwaitResponse3(ResponseWait),
    /// Responder: RESP1 sent, RESP2 not received.
    AwaitResponse2(ResponseWait),
    Connected,
    Error,
}

/// The wait for RESP2 or RESP3.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseWait {
    /// The IU that requests the response was sent; until then the port had no room.
    pub(crate) sent: bool,
    /// Timeout of the response.
    pub(crate) timeout_ns: u64,
    /// Retry interval after the next retry.
    pub(crate) interval_ns: u64,
    /// Time of the next retry.
    pub(crate) next_retry_ns: u64,
    /// Time at which the procedure is given up.
    pub(crate) deadline_ns: u64,
}

/// A connection that this side ended. The peer may not know it yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreviousConnection {
    /// Our handle.
    pub(crate) handle: u32,
    pub(crate) peer: NPortId,
    pub(crate) peer_handle: u32,
    pub(crate) connection_id: u32,
    /// What was placed of the peer's messages, as in [`DisconnectInfo`].
    pub(crate) placed: Option<u32>,
}

/// A connection: its identifiers on both sides, and the attributes of the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connection {
    pub(crate) peer: NPortId,
    pub(crate) peer_handle: u32,
    pub(crate) connection_id: u32,
    /// Sequence of the next IU on the exchange of the connect procedure: RESP1 or RESP2.
    pub(crate) at: Sequence,
    /// This side sent the request.
    pub(crate) originator: bool,
    pub(crate) mode: ConnectMode,
    /// The connect exchange is ours and still open.
    pub(crate) exchange_open: bool,
    pub(crate) remote: Attributes,
}

impl Connection {
    /// Returns the largest data field that both sides support, in bytes.
    pub(crate) fn data_field_bytes(&self, config: &EngineConfig) -> u16 {
        let theirs = self.remote.receive_data_field_bytes;
        config.data_field_bytes.min(theirs)
    }

    /// Returns the DISCONNECT_RQST of this connection.
    pub(crate) fn disconnect_info(&self, reason: MessageReason, error: bool) -> DisconnectInfo {
        DisconnectInfo {
            peer: self.peer,
            peer_handle: self.peer_handle,
            connection_id: self.connection_id,
            reason,
            error,
            placed: None,
        }
    }
}

/// A message that is being sent in frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TxMessage {
    pub(crate) work: SendWork,
    pub(crate) exchange: Exchange,
    pub(crate) msg_id: u32,
    pub(crate) sent_bytes: u32,
    pub(crate) next_seq_cnt: u16,
}

/// Per-level fields of every frame of a send or write [FCVI P-3, P-6].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Framing {
    /// F_CTL of any frame but the last.
    pub(crate) f_ctl: FCtl,
    /// F_CTL of the last frame, without fill.
    pub(crate) last_f_ctl: FCtl,
    pub(crate) flags: u8,
}

/// The send stream of a connection.
pub(crate) struct TxStream {
    pub(crate) next_msg_id: u32,
    pub(crate) message: Option<TxMessage>,
    pub(crate) send: HeaderTemplate,
    pub(crate) write: HeaderTemplate,
    pub(crate) read: HeaderTemplate,
    /// Also that of a read's data, whose header has the same length.
    pub(crate) send_payload_bytes: u32,
    pub(crate) write_payload_bytes: u32,
    pub(crate) framing: Framing,
    /// Sends and writes do not complete when they are sent: the level is Reliable Reception,
    /// recovery is used, or something is in flight.
    pub(crate) tracked: bool,
    /// `responses` has something to send.
    pub(crate) responding: bool,
    pub(crate) in_flight: InFlight,
    pub(crate) responses: Responses,
    /// Present if message recovery is used.
    pub(crate) recovery: Option<Box<TxRecovery>>,
}

/// Destination of a message that is being received.
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
    /// Given up: the remaining frames are dropped.
    Discard,
}

/// A message that is being received.
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

/// The receive stream of a connection.
#[derive(Debug, Default)]
pub(crate) struct RxStream {
    /// Mexp: the message ID of the next new message.
    pub(crate) expected: u32,
    pub(crate) message: Option<RxMessage>,
    /// Refused RDMA accesses of the peer.
    pub(crate) misses: ConnectionMisses,
    /// Present if message recovery is used.
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
    /// The user that owns the VI.
    pub(crate) user: u32,
    /// Our handle for this connection; 0 without one.
    pub(crate) handle: u32,
    /// Source of message frames.
    pub(crate) peer: NPortId,
    pub(crate) peer_index: u32,
    /// Present if messages are moved without frames.
    pub(crate) shortcut: Option<Box<Shortcut>>,
    pub(crate) connection: Option<Connection>,
    pub(crate) tx: Option<Box<TxStream>>,
    pub(crate) rx: RxStream,
    /// Outcome of a connect or accept call, until it is taken.
    pub(crate) outcome: Option<Result<RemoteVi, CallError>>,
    /// The VI's peer request, until its outcome is taken.
    pub(crate) peer_request: Option<Box<PeerRequest>>,
    /// The previous connection, until the next one ends.
    pub(crate) previous: Option<PreviousConnection>,
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
            connection: None,
            tx: None,
            rx: RxStream::default(),
            outcome: None,
            peer_request: None,
            previous: None,
        }
    }

    /// Reports whether a connection IU names the handle of this endpoint's procedure.
    pub(crate) fn is_addressed(&self, iu: &IuView<'_>) -> bool {
        self.handle == iu.header.handle || skips(Check::ConnectionHandle)
    }

    /// Clears the outcomes of earlier connection procedures.
    pub(crate) fn clear_outcomes(&mut self) {
        self.outcome = None;
        self.peer_request = None;
    }

    /// Records the outcome of the connection procedure.
    pub(crate) fn conclude(&mut self, outcome: Result<RemoteVi, CallError>) {
        match &mut self.peer_request {
            Some(request) => request.conclude(outcome),
            None => self.outcome = Some(outcome),
        }
    }

    pub(crate) fn state(&self) -> ViState {
        match self.phase {
            Phase::Idle => ViState::Idle,
            Phase::Requesting(_) | Phase::AwaitResponse3(_) | Phase::AwaitResponse2(_) => {
                ViState::ConnectPending
            }
            Phase::Connected => ViState::Connected,
            Phase::Error => ViState::Error,
        }
    }
}
