//! Connection set-up: what both sides share [FCVI P-12].
//!
//! ```text
//!  originator (client)                       responder (server)
//!   RQST  (exchange opens) ----------------->  match, hold for the consumer
//!         <------------------------- RESP1 accepted / pending / failed
//!   RESP2 (attributes agree) --------------->  connected
//!         <--------------------------------- RESP3
//!   connected
//! ```
//! RQST is repeated at the pace of `EngineConfig::retry_interval_ns`, on a new
//! exchange with the same connection ID, until the consumer's time-out; RESP1 and
//! RESP2 likewise, on their exchange, until FCVI_ULP_TIMEOUT is over or what
//! follows shows that they arrived.
//!
//! Peer to peer both sides are originators, until one of them answers the other's
//! RQST; `peer` says which. Their IUs are repeated sooner at first.

mod peer;
mod request;
mod response;

pub(crate) use peer::{PeerRequest, Rank};
pub(crate) use request::Attempt;

use fcvi_frame::connect::{Attributes, NetAddress};
use fcvi_frame::fc::{FCtl, NPortId};
use fcvi_frame::fcoe::MIN_DATA_FIELD_BYTES;
use fcvi_frame::frame::{FrameView, IuView};
use fcvi_frame::iu::Opcode;
use fcvi_frame::profile;
use fcvi_frame::reason::MessageReason;

use crate::connection_iu::{ConnectionIu, NO_ROOM_RETRY_NS};
use crate::counters::Counter;
use crate::endpoint::{Await, EndpointState, Level, Link, Phase, RxStream, TxStream, ViParams};
use crate::engine::{Engine, ViIndex};
use crate::host::{Host, Waiter};
use crate::recovery::RxRecovery;
use crate::synonym::{Check, skips};
use crate::timer::TimerKey;
use crate::transmit::most_message_bytes;

/// Why a connection was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectError {
    /// Not in time.
    Timeout,
    /// The other side's consumer said no.
    Rejected,
    /// Nobody waits there for this discriminator.
    NoMatch,
    /// There is no route to this host, or all of its ports were lost.
    NotReachable,
    /// The reliability levels differ.
    ReliabilityLevel,
    /// The maximum transfer sizes differ.
    MaxTransferSize,
    /// The qualities of service differ.
    Qos,
    /// One side has no room.
    Resources,
    /// The VI is not Idle.
    InvalidState,
    /// No such VI or request.
    Invalid,
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteVi {
    /// Its attributes.
    pub attributes: Attributes,
    /// Its N_Port.
    pub n_port_id: NPortId,
}

/// What the consumer asks for with a connection request.
#[derive(Clone, Debug)]
pub struct ConnectCommand<'a> {
    /// Our name for the connection; its host part is our address.
    pub local: NetAddress,
    /// Host and discriminator that are wanted.
    pub remote: NetAddress,
    /// The ports of that host.
    pub targets: &'a [NPortId],
    /// Give up after so long; `None`: never.
    pub timeout_ns: Option<u64>,
}

impl ConnectCommand<'_> {
    /// When to give up.
    fn deadline_ns(&self, now_ns: u64) -> Option<u64> {
        self.timeout_ns.map(|t| now_ns.saturating_add(t))
    }
}

impl Engine {
    /// Our attributes as they go into connect IUs.
    pub(crate) fn attributes_of(&self, params: &ViParams) -> Attributes {
        Attributes {
            reliability: params.level.wire(),
            rdma_write: params.rdma_write,
            rdma_read: params.rdma_read,
            in_order: true,
            recovery: self.recovers(params.level),
            max_transfer_bytes: params.max_transfer_bytes,
            qos_class: profile::QOS_CLASS_3,
            cs_ctl: profile::CS_CTL,
            max_reads: if params.rdma_read {
                self.config.reads_accepted()
            } else {
                0
            },
            receive_data_field_bytes: self.config.data_field_bytes,
        }
    }

    /// Is recovery offered at this level [FCVI P-16]?
    fn recovers(&self, level: Level) -> bool {
        self.config.recovery.is_some() && level != Level::UnreliableDelivery
    }

    /// The outcome of a connection call on this VI, once.
    pub fn take_outcome(&mut self, vi: ViIndex) -> Option<Result<RemoteVi, ConnectError>> {
        self.endpoint_mut(vi)?.outcome.take()
    }

    /// As [`EngineConfig::retry_interval_ns`](crate::EngineConfig).
    pub(crate) fn retry_interval_ns(&self) -> u64 {
        self.config.retry_interval_ns()
    }

    /// This VI waits for a response from now on; what asks for it was `sent`, or had no room.
    pub(crate) fn await_from(&self, now_ns: u64, vi: ViIndex, sent: bool) -> Await {
        let peer = self.endpoint(vi).and_then(|ep| ep.peer_request.as_ref());
        let interval_ns = match peer {
            Some(_) => self.config.peer_retry_ns,
            None => self.retry_interval_ns(),
        };
        let given_up_ns = peer.and_then(|p| p.deadline_ns()).unwrap_or(u64::MAX);
        let mut wait = Await {
            asked: false,
            interval_ns,
            next_retry_ns: now_ns,
            deadline_ns: given_up_ns.min(now_ns + self.config.ulp_timeout_ns),
        };
        self.note_asked(now_ns, &mut wait, sent);
        wait
    }

    /// What asks for a response was sent now, or had no room.
    fn note_asked(&self, now_ns: u64, wait: &mut Await, sent: bool) {
        if sent {
            wait.asked = true;
            wait.next_retry_ns = now_ns + wait.interval_ns;
            wait.interval_ns = self.config.slower(wait.interval_ns);
        } else {
            wait.next_retry_ns = now_ns + NO_ROOM_RETRY_NS;
        }
    }

    /// Sets both streams of an endpoint for a connection: the IDs of the first message
    /// that we send and of the one that the peer sends.
    pub(crate) fn bind(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        mut link: Link,
        first_msg_id: u32,
        expected: u32,
    ) {
        let agreed_bytes = self.data_field_bytes(link.peer);
        let receive_bytes = &mut link.remote.receive_data_field_bytes;
        *receive_bytes = agreed_bytes.min(*receive_bytes);
        let peer_index = self.adopt_peer(now_ns, link.peer);
        let Some(level) = self.level_of(vi) else {
            return;
        };
        let recovery = link.remote.recovery && self.recovers(level);
        let recovery = self.config.recovery.as_ref().filter(|_| recovery);
        let tx = TxStream::new(&self.config, &link, level, first_msg_id, recovery);
        let rx = recovery.map(|recovery| {
            let data_field_bytes = link.data_field_bytes(&self.config);
            Box::new(RxRecovery::new(
                recovery,
                data_field_bytes,
                self.config.unanswered(),
            ))
        });
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        ep.tx = Some(Box::new(tx));
        ep.rx = RxStream {
            expected,
            timer_set: ep.rx.timer_set,
            recovery: rx,
            ..RxStream::default()
        };
        ep.peer = link.peer;
        ep.peer_index = peer_index;
        ep.link = Some(link);
        self.watch_misses(vi);
    }

    /// The endpoint whose connection a RESP2 or RESP3 names.
    pub(crate) fn link_of(&self, frame: &FrameView<'_>, iu: &IuView<'_>) -> Option<ViIndex> {
        let vi = self.place_of(iu.header.handle);
        let ep = self.endpoint(vi)?;
        let link = ep.link.as_ref()?;
        let fits = ep.is_addressed(iu)
            && (link.peer == frame.fc.s_id || skips(Check::ConnectionPeer))
            && (link.connection_id == iu.header.connection_id() || skips(Check::ConnectionId));
        fits.then_some(vi)
    }

    /// An IU of the connect exchange of this link.
    pub(crate) fn link_iu(link: &Link, opcode: Opcode, f_ctl: FCtl) -> ConnectionIu {
        ConnectionIu {
            to: link.peer,
            at: link.at,
            opcode,
            f_ctl,
            handle: link.peer_handle,
            flags: link.mode.to_flags(),
            msg_id: 0,
            parameter: 0,
            port_name: 0,
            connection_id: link.connection_id,
        }
    }

    /// Sends RESP1 or RESP2 of this endpoint's link. If it is to be sent again, it is a new
    /// sequence: a frame that is still on its way has its own identity.
    pub(crate) fn send_link_iu<H: Host>(
        &mut self,
        vi: ViIndex,
        iu: &ConnectionIu,
        payload: &[u8],
        host: &mut H,
    ) -> bool {
        let sent = self.send_connection_iu(iu, payload, host);
        if sent && let Some(link) = self.endpoint_mut(vi).and_then(|ep| ep.link.as_mut()) {
            link.at = iu.at.following();
        }
        sent
    }

    /// Sets the timer of this endpoint to the next moment at which its procedure wants attention.
    pub(crate) fn arm_connect_timer(&mut self, vi: ViIndex) {
        let at_ns = self.endpoint(vi).and_then(|ep| match &ep.phase {
            Phase::Requesting(attempt) => Some(attempt.next_attention_ns()),
            Phase::AwaitResponse3(wait) | Phase::AwaitResponse2(wait) => {
                Some(wait.next_retry_ns.min(wait.deadline_ns))
            }
            Phase::Idle | Phase::Connected | Phase::Error => None,
        });
        match at_ns {
            Some(at_ns) => self.timers.set(at_ns, TimerKey::Connect(vi.0)),
            None => self.timers.clear(TimerKey::Connect(vi.0)),
        }
    }

    pub(crate) fn connect_timeout<H: Host>(&mut self, now_ns: u64, vi: ViIndex, host: &mut H) {
        match self.endpoint(vi).map(|ep| &ep.phase) {
            Some(Phase::Requesting(_)) => self.request_timeout(now_ns, vi, host),
            Some(Phase::AwaitResponse3(wait) | Phase::AwaitResponse2(wait)) => {
                let wait = *wait;
                self.response_timeout(now_ns, vi, wait, host);
            }
            Some(Phase::Idle | Phase::Connected | Phase::Error) | None => {}
        }
        self.arm_connect_timer(vi);
    }

    /// RESP2 or RESP3 did not come: asks for it again, or gives up.
    fn response_timeout<H: Host>(&mut self, now_ns: u64, vi: ViIndex, wait: Await, host: &mut H) {
        if wait.deadline_ns <= now_ns {
            let told = Some(MessageReason::UlpTimeout);
            self.end_pending(now_ns, vi, ConnectError::Timeout, told, host);
            return;
        }
        if wait.next_retry_ns > now_ns {
            return;
        }
        let asks_with_response2 = self
            .endpoint(vi)
            .is_some_and(|ep| matches!(ep.phase, Phase::AwaitResponse3(_)));
        let sent = if asks_with_response2 {
            self.send_response2(vi, host)
        } else {
            self.send_response1_accept(vi, host)
        };
        if sent && wait.asked {
            self.counters.count(Counter::Retries);
        }
        let mut next = wait;
        self.note_asked(now_ns, &mut next, sent);
        if let Some(Phase::AwaitResponse3(wait) | Phase::AwaitResponse2(wait)) =
            self.endpoint_mut(vi).map(|ep| &mut ep.phase)
        {
            *wait = next;
        }
    }

    /// A connection that was half made is given up. Its request may go back to the peer pool.
    /// `told`: why, if the other end must hear of it.
    pub(crate) fn end_pending<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        error: ConnectError,
        told: Option<MessageReason>,
        host: &mut H,
    ) {
        self.unlink(now_ns, vi, told, host);
        self.forget_accepting(vi);
        if self.return_to_pool(now_ns, vi, host) {
            return;
        }
        self.conclude_failed(vi, error, host);
    }

    /// Completes a connection attempt with an error. The VI returns to Idle and keeps its receives,
    /// except that `NotReachable` moves a reliable VI to Error and flushes them (VIPL 3.3.2-3.3.8).
    fn conclude_failed<H: Host>(&mut self, vi: ViIndex, error: ConnectError, host: &mut H) {
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        let breaks =
            error == ConnectError::NotReachable && ep.params.level != Level::UnreliableDelivery;
        ep.phase = if breaks { Phase::Error } else { Phase::Idle };
        ep.conclude(Err(error));
        self.arm_connect_timer(vi);
        if breaks {
            host.set_state(vi, EndpointState::Error);
            host.flush_receives(vi);
        } else {
            host.set_state(vi, EndpointState::Idle);
        }
        host.control_event(Waiter::Outcome(vi));
    }
}

/// Checks the attributes that must match (VIPL 3.3.2), and that the longest message fits into
/// frames of the size that both peers support.
pub(crate) fn compare(ours: &Attributes, theirs: &Attributes) -> Result<(), ConnectError> {
    let data_field_bytes = ours
        .receive_data_field_bytes
        .min(theirs.receive_data_field_bytes);
    if ours.reliability != theirs.reliability {
        return Err(ConnectError::ReliabilityLevel);
    }
    if ours.max_transfer_bytes != theirs.max_transfer_bytes
        || ours.max_transfer_bytes > most_message_bytes(data_field_bytes)
    {
        return Err(ConnectError::MaxTransferSize);
    }
    if ours.qos_class != theirs.qos_class || ours.cs_ctl != theirs.cs_ctl {
        return Err(ConnectError::Qos);
    }
    Ok(())
}

/// Can there be a connection with a VI that says this of itself?
pub(crate) fn credible(handle: u32, attributes: &Attributes) -> bool {
    handle != profile::HANDLE_NONE
        && usize::from(attributes.receive_data_field_bytes) >= MIN_DATA_FIELD_BYTES
}
