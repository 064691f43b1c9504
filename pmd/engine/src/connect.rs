//! Connection set-up: what both sides share [FCVI P-12].
//!
//! ```text
//!  originator (client)                       responder (server)
//!   RQST  (exchange opens) ----------------->  match, pending for the consumer
//!         <------------------------- RESP1 accepted / pending / failed
//!   RESP2 (attributes match) --------------->  connected
//!         <--------------------------------- RESP3
//!   connected
//! ```
//! RQST is repeated at the interval `EngineConfig::retry_interval_ns`, on a new exchange with the
//! same connection ID, until the consumer's timeout; RESP1 and RESP2 are repeated on their exchange,
//! until their response times out (RESP2 after four times E_D_TOV at most, RESP3 after
//! FCVI_ULP_TIMEOUT) or a later IU shows that they arrived.
//!
//! Peer to peer both sides are originators until one of them accepts the other's RQST; `peer` decides
//! which. Their first retry intervals are shorter.

mod peer;
mod request;
mod response;

pub(crate) use peer::{PeerRequest, Rank};
pub(crate) use request::Attempt;

use fcvi_frame::connect::Attributes;
use fcvi_frame::fc::{FCtl, NPortId};
use fcvi_frame::fcoe::MIN_DATA_FIELD_BYTES;
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::iu::Opcode;
use fcvi_frame::profile;
use fcvi_frame::reason::MessageReason;
use vi_types::{CallError, NetAddress, ReliabilityLevel, ViIndex, ViState};

use crate::config::ViParams;
use crate::connection::Connection;
use crate::connection_iu::{ConnectionIu, NO_ROOM_RETRY_NS};
use crate::counters::Counter;
use crate::endpoint::{Phase, ResponseWait};
use crate::engine::Engine;
use crate::engine_io::{EngineIo, Waiter};
use crate::misses::PeerKey;
use crate::reassembly::{Ahead, Reassembly};
use crate::receive::RxStream;
use crate::recovery::AckState;
use crate::synonym::{Check, skips};
use crate::transmit::{TxStream, max_message_bytes, payload_room};

/// The remote VI of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteVi {
    /// Its attributes.
    pub attributes: Attributes,
    /// Its N_Port.
    pub n_port_id: NPortId,
}

/// A connection request of the consumer.
#[derive(Clone, Debug)]
pub struct ConnectCommand<'a> {
    /// Local address of the connection; its host part is our address.
    pub local: NetAddress,
    /// Remote host and discriminator.
    pub remote: NetAddress,
    /// The known ports of that host.
    pub targets: &'a [NPortId],
    /// Timeout in nanoseconds; `None`: no timeout.
    pub timeout_ns: Option<u64>,
}

impl ConnectCommand<'_> {
    /// Returns the time at which the request times out.
    fn deadline_ns(&self, now_ns: u64) -> Option<u64> {
        self.timeout_ns.map(|t| now_ns.saturating_add(t))
    }
}

impl Engine {
    /// Returns our attributes as connect IUs carry them.
    pub(crate) fn attributes_of(&self, params: &ViParams) -> Attributes {
        Attributes {
            reliability: params.level,
            rdma_write: params.rdma_write,
            rdma_read: params.rdma_read,
            in_order: true,
            recovery: self.offers_recovery(params.level),
            max_transfer_bytes: params.max_transfer_bytes,
            qos_class: profile::QOS_CLASS_3,
            cs_ctl: profile::CS_CTL,
            max_reads: if params.rdma_read {
                self.port.config.reads_accepted()
            } else {
                0
            },
            receive_data_field_bytes: self.port.config.data_field_bytes,
        }
    }

    /// Reports whether recovery is offered at this level [FCVI P-16].
    fn offers_recovery(&self, level: ReliabilityLevel) -> bool {
        self.port.config.recovery.is_some() && level.is_reliable()
    }

    /// Takes the outcome of a connection call on this VI, once.
    pub fn take_outcome(&mut self, vi: ViIndex) -> Option<Result<RemoteVi, CallError>> {
        self.endpoint_mut(vi)?.outcome.take()
    }

    /// Starts the wait for a response with this timeout. `sent`: the IU that requests it was sent,
    /// otherwise the port had no room.
    pub(crate) fn start_wait(
        &self,
        now_ns: u64,
        vi: ViIndex,
        timeout_ns: u64,
        sent: bool,
    ) -> ResponseWait {
        let peer = self.endpoint(vi).and_then(|ep| ep.peer_request.as_ref());
        let interval_ns = match peer {
            Some(_) => self.port.config.peer_retry_ns,
            None => self.port.config.retry_interval_within_ns(timeout_ns),
        };
        let given_up_ns = peer.and_then(|p| p.deadline_ns()).unwrap_or(u64::MAX);
        let mut wait = ResponseWait {
            sent: false,
            timeout_ns,
            interval_ns,
            next_retry_ns: now_ns,
            deadline_ns: given_up_ns.min(now_ns + timeout_ns),
        };
        self.note_sent(now_ns, &mut wait, sent);
        wait
    }

    /// Notes that the IU that requests a response was sent, or had no room.
    fn note_sent(&self, now_ns: u64, wait: &mut ResponseWait, sent: bool) {
        if sent {
            wait.sent = true;
            wait.next_retry_ns = now_ns + wait.interval_ns;
            wait.interval_ns = self
                .port
                .config
                .next_retry_interval_ns(wait.interval_ns, wait.timeout_ns);
        } else {
            wait.next_retry_ns = now_ns + NO_ROOM_RETRY_NS;
        }
    }

    /// Starts both streams of an endpoint for a connection. `first_msg_id` and `expected` are the
    /// IDs of the first message sent and received.
    pub(crate) fn bind(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        mut connection: Connection,
        first_msg_id: u32,
        expected: u32,
    ) {
        let negotiated_bytes = self.port.data_field_bytes(connection.peer);
        let receive_bytes = &mut connection.remote.receive_data_field_bytes;
        *receive_bytes = negotiated_bytes.min(*receive_bytes);
        let peer_index = self.port.add_peer_connection(now_ns, connection.peer);
        let peer_key = self.peer_key(vi, &connection);
        let (config, misses) = (&self.port.config, &self.port.misses);
        let Some(ep) = self.endpoints.get_mut(vi.slot()).and_then(Option::as_mut) else {
            return;
        };
        let level = ep.params.level;
        let recovers = connection.remote.recovery && level.is_reliable();
        let recovery = config.recovery.as_ref().filter(|_| recovers);
        let tx = TxStream::new(config, &connection, level, first_msg_id, recovery);
        let ahead = recovery.map(|recovery| {
            let data_field_bytes = connection.data_field_bytes(config);
            let room = |opcode| payload_room(data_field_bytes, opcode);
            let (send, write) = (room(Opcode::SendRequest), room(Opcode::WriteRequest));
            Ahead::new(
                (send, write),
                recovery.max_received_ranges,
                config.unanswered(),
            )
        });
        let window = config.message_window;
        ep.tx = Some(Box::new(tx));
        ep.rx = RxStream {
            reassembly: Reassembly::new(expected, window, level.is_reliable(), ahead),
            misses: misses.connect(peer_key),
            peer_key,
            ack: recovery.map(|recovery| Box::new(AckState::new(recovery))),
            timer_set: ep.rx.timer_set,
            ..RxStream::new(ep.params)
        };
        ep.peer = connection.peer;
        ep.peer_index = peer_index;
        ep.connection = Some(connection);
        if !connection.originator {
            let request = (connection.peer, connection.connection_id);
            self.port.accepted.insert(request, vi);
        }
    }

    /// Returns the key of a VI's peer; `None` if it is a VI of this engine and of the same user.
    fn peer_key(&self, vi: ViIndex, connection: &Connection) -> Option<PeerKey> {
        let ep = self.endpoint(vi)?;
        let port = connection.peer;
        if port != self.port.config.n_port_id {
            return Some(PeerKey { port, user: None });
        }
        let other = self.endpoint(self.port.slot_of(connection.peer_handle));
        let other = other.filter(|other| other.handle == connection.peer_handle);
        let user = other.map(|other| other.user);
        (user != Some(ep.user)).then_some(PeerKey { port, user })
    }

    /// Returns the endpoint whose connection a RESP2 or RESP3 names.
    pub(crate) fn connection_of(&self, frame: &FrameView<'_>, iu: &IuView<'_>) -> Option<ViIndex> {
        let vi = self.port.slot_of(iu.header.handle);
        let ep = self.endpoint(vi)?;
        let connection = ep.connection.as_ref()?;
        let fits = ep.is_addressed(iu)
            && (connection.peer == frame.fc.s_id || skips(Check::ConnectionPeer))
            && (connection.connection_id == iu.header.connection_id()
                || skips(Check::ConnectionId));
        fits.then_some(vi)
    }

    /// Returns an IU of the connect exchange of this connection.
    pub(crate) fn connect_iu(connection: &Connection, opcode: Opcode, f_ctl: FCtl) -> ConnectionIu {
        ConnectionIu {
            to: connection.peer,
            at: connection.at,
            opcode,
            f_ctl,
            handle: connection.peer_handle,
            flags: connection.mode.to_flags(),
            msg_id: 0,
            parameter: 0,
            port_name: 0,
            connection_id: connection.connection_id,
        }
    }

    /// Sends RESP1 or RESP2 of this endpoint's connection. A repetition is a new sequence, so that
    /// a frame that is still in the network keeps its own identity.
    pub(crate) fn send_connect_iu<I: EngineIo>(
        &mut self,
        vi: ViIndex,
        iu: &ConnectionIu,
        payload: &[u8],
        io: &mut I,
    ) -> bool {
        let sent = self.port.send_connection_iu(iu, payload, io);
        if sent
            && let Some(connection) = self.endpoint_mut(vi).and_then(|ep| ep.connection.as_mut())
        {
            connection.at = iu.at.next_sequence();
        }
        sent
    }

    /// Sets the connect timer of this endpoint to the next deadline of its procedure.
    pub(crate) fn arm_connect_timer(&mut self, vi: ViIndex) {
        if let Some((ep, mut cx)) = self.split(0, vi, &mut ()) {
            ep.arm_connect_timer(&mut cx);
        }
    }

    pub(crate) fn connect_timeout<I: EngineIo>(&mut self, now_ns: u64, vi: ViIndex, io: &mut I) {
        match self.endpoint(vi).map(|ep| &ep.phase) {
            Some(Phase::Requesting(_)) => self.request_timeout(now_ns, vi, io),
            Some(Phase::AwaitResponse3(wait) | Phase::AwaitResponse2(wait)) => {
                let wait = *wait;
                self.connect_response_timeout(now_ns, vi, wait, io);
            }
            Some(Phase::Idle | Phase::Connected | Phase::Error) | None => {}
        }
        self.arm_connect_timer(vi);
    }

    /// Retries RESP1 or RESP2, or gives up, if the response to it did not arrive.
    fn connect_response_timeout<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        wait: ResponseWait,
        io: &mut I,
    ) {
        if wait.deadline_ns <= now_ns {
            let reason = Some(MessageReason::UlpTimeout);
            self.abort_pending(now_ns, vi, CallError::Timeout, reason, io);
            return;
        }
        if wait.next_retry_ns > now_ns {
            return;
        }
        let asks_with_response2 = self
            .endpoint(vi)
            .is_some_and(|ep| matches!(ep.phase, Phase::AwaitResponse3(_)));
        let sent = if asks_with_response2 {
            self.send_response2(vi, io)
        } else {
            self.send_response1_accept(vi, io)
        };
        if sent && wait.sent {
            self.port.counters.count(Counter::Retries);
        }
        let mut next = wait;
        self.note_sent(now_ns, &mut next, sent);
        if let Some(Phase::AwaitResponse3(wait) | Phase::AwaitResponse2(wait)) =
            self.endpoint_mut(vi).map(|ep| &mut ep.phase)
        {
            *wait = next;
        }
    }

    /// Gives up a connection that is half made. Its peer request may return to the pool. The peer
    /// is sent `reason_for_peer`, if any.
    pub(crate) fn abort_pending<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        error: CallError,
        reason_for_peer: Option<MessageReason>,
        io: &mut I,
    ) {
        self.end_connection(now_ns, vi, reason_for_peer, io);
        self.remove_accepting(vi);
        if self.return_to_pool(now_ns, vi, io) {
            return;
        }
        self.conclude_failed(vi, error, io);
    }

    /// Completes a connection attempt with an error. The VI returns to Idle and keeps its receives,
    /// except that `NotReachable` moves a reliable VI to Error and flushes them (VIPL 3.3.2-3.3.8).
    fn conclude_failed<I: EngineIo>(&mut self, vi: ViIndex, error: CallError, io: &mut I) {
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        let breaks = error == CallError::NotReachable && ep.params.level.is_reliable();
        ep.phase = if breaks { Phase::Error } else { Phase::Idle };
        ep.conclude(Err(error));
        self.arm_connect_timer(vi);
        if breaks {
            io.set_state(vi, ViState::Error);
            io.flush_receives(vi);
        } else {
            io.set_state(vi, ViState::Idle);
        }
        io.control_event(Waiter::Outcome(vi));
    }
}

/// Checks the attributes that must match (VIPL 3.3.2), and that the longest message fits into
/// frames of the size that both sides support.
pub(crate) fn check_attributes(ours: &Attributes, theirs: &Attributes) -> Result<(), CallError> {
    let data_field_bytes = ours
        .receive_data_field_bytes
        .min(theirs.receive_data_field_bytes);
    if ours.reliability != theirs.reliability {
        return Err(CallError::ReliabilityLevel);
    }
    if ours.max_transfer_bytes != theirs.max_transfer_bytes
        || ours.max_transfer_bytes > max_message_bytes(data_field_bytes)
    {
        return Err(CallError::MaxTransferSize);
    }
    if ours.qos_class != theirs.qos_class || ours.cs_ctl != theirs.cs_ctl {
        return Err(CallError::Qos);
    }
    Ok(())
}

/// Reports whether a connection with a VI of this handle and these attributes is possible.
pub(crate) fn is_valid_peer(handle: u32, attributes: &Attributes) -> bool {
    handle != profile::HANDLE_NONE
        && usize::from(attributes.receive_data_field_bytes) >= MIN_DATA_FIELD_BYTES
}
