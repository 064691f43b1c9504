//! The client's half of connection set-up [FCVI P-12].
//!
//! ```text
//!  originator                                responder
//!   RQST  (exchange opens) ----------------->  match, hold for the consumer
//!         <------------------------- RESP1 accepted / pending / failed
//!   RESP2 (attributes agree) --------------->  connected
//!         <--------------------------------- RESP3
//!   connected
//! ```
//! RQST is repeated every quarter of FCVI_ULP_TIMEOUT on a new exchange with the
//! same connection ID until the consumer's time-out; RESP2 likewise until RESP3
//! or a message shows that it arrived. A host may be several ports (one for each
//! of its programs): all are asked, and NO_MATCH needs all of them.

use fcvi_frame::connect::{Attributes, ConnectRequest, ConnectResponse, NetAddress};
use fcvi_frame::device_header::DeviceHeader;
use fcvi_frame::ethernet::MacAddress;
use fcvi_frame::fc::{FCtl, FcHeader, FcType, NPortId, RX_ID_UNASSIGNED};
use fcvi_frame::fcoe::Sof;
use fcvi_frame::flags::connect_request;
use fcvi_frame::frame::{FrameHeader, FrameView, IuView};
use fcvi_frame::iu::Opcode;
use fcvi_frame::profile;
use fcvi_frame::reason::{ConnectReason, ConnectStatus, MessageReason, connect_parameter};

use crate::counters::Counter;
use crate::endpoint::{EndpointState, Link, Phase, RxStream, TxStream, ViParams};
use crate::engine::{Engine, ViIndex};
use crate::host::{Host, Transmit};
use crate::timer::TimerKey;

/// Handle field of a request whose receiver has no VI yet.
pub(crate) const NO_HANDLE: u32 = 0xFFFF_FFFF;

/// Why a connection was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectError {
    /// Not in time.
    Timeout,
    /// The other side's consumer said no.
    Rejected,
    /// Nobody waits there for this discriminator.
    NoMatch,
    /// No known port has this host address, or all of them went away.
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

/// One port that was asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) id: NPortId,
    /// The open exchange of the last request, if it is unanswered.
    exchange: Option<(u16, u16)>,
    no_match: bool,
    /// It holds the request for its consumer.
    pending: bool,
    gone: bool,
}

/// A connection request of ours.
#[derive(Debug)]
pub(crate) struct ClientAttempt {
    pub(crate) connection_id: u32,
    pub(crate) first_msg_id: u32,
    pub(crate) targets: Vec<Target>,
    local: NetAddress,
    remote: NetAddress,
    started_ns: u64,
    deadline_ns: Option<u64>,
    next_retry_ns: u64,
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

impl Engine {
    /// Our attributes as they go into connect IUs.
    pub(crate) fn attributes_of(&self, params: &ViParams) -> Attributes {
        Attributes {
            reliability: params.level.wire(),
            rdma_write: params.rdma_write,
            rdma_read: params.rdma_read,
            in_order: true,
            recovery: false,
            max_transfer_bytes: params.max_transfer_bytes,
            qos_class: profile::QOS_CLASS_3,
            cs_ctl: 0,
            max_reads: 0,
            receive_data_field_bytes: self.config.data_field_bytes,
        }
    }

    /// A handle for this VI that no earlier one helps to guess [FCVI P-9].
    pub(crate) fn new_handle<H: Host>(&mut self, vi: ViIndex, host: &mut H) -> u32 {
        loop {
            let handle = (host.random() << 16) | vi.0;
            if handle != NO_HANDLE && handle >> 16 != 0 {
                return handle;
            }
        }
    }

    /// Starts a connection request (VIPL 3.3.4); its outcome comes by [`Engine::take_outcome`].
    pub fn connect<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        command: &ConnectCommand<'_>,
        host: &mut H,
    ) -> Result<(), ConnectError> {
        let ep = self.endpoint(vi).ok_or(ConnectError::Invalid)?;
        if !matches!(ep.phase, Phase::Idle) {
            return Err(ConnectError::InvalidState);
        }
        if command.targets.is_empty() {
            return Err(ConnectError::NotReachable);
        }
        let handle = self.new_handle(vi, host);
        self.next_connection_id = self.next_connection_id.wrapping_add(1);
        let attempt = ClientAttempt {
            connection_id: self.next_connection_id,
            first_msg_id: host.random(),
            targets: command
                .targets
                .iter()
                .map(|id| Target {
                    id: *id,
                    exchange: None,
                    no_match: false,
                    pending: false,
                    gone: false,
                })
                .collect(),
            local: command.local,
            remote: command.remote,
            started_ns: now_ns,
            deadline_ns: command.timeout_ns.map(|t| now_ns.saturating_add(t)),
            next_retry_ns: now_ns,
        };
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.handle = handle;
            ep.outcome = None;
            ep.phase = Phase::Requesting(Box::new(attempt));
        }
        host.set_state(vi, EndpointState::ConnectPending);
        self.send_requests(now_ns, vi, false, host);
        self.arm_connect_timer(now_ns, vi);
        Ok(())
    }

    /// The outcome of a connection call on this VI, once.
    pub fn take_outcome(&mut self, vi: ViIndex) -> Option<Result<RemoteVi, ConnectError>> {
        self.endpoint_mut(vi)?.outcome.take()
    }

    fn ask_interval_ns(&self) -> u64 {
        self.config.ulp_timeout_ns / 4
    }

    /// Sends the request to every port that has not answered yet.
    fn send_requests<H: Host>(&mut self, now_ns: u64, vi: ViIndex, retry: bool, host: &mut H) {
        let retry_at = now_ns + self.ask_interval_ns();
        let Some(ep) = self.endpoints.get_mut(vi.slot()).and_then(Option::as_mut) else {
            return;
        };
        let (params, handle) = (ep.params, ep.handle);
        let Phase::Requesting(attempt) = &mut ep.phase else {
            return;
        };
        attempt.next_retry_ns = retry_at;
        let mut attempt = core::mem::replace(&mut ep.phase, Phase::Idle);
        if let Phase::Requesting(attempt) = &mut attempt {
            let attributes = self.attributes_of(&params);
            let mut payload = [0u8; ConnectRequest::BYTES];
            ConnectRequest {
                vi_handle: handle,
                timeout_ms: attempt.deadline_ns.map_or(u32::MAX, |at| {
                    u32::try_from(at.saturating_sub(now_ns) / 1_000_000).unwrap_or(u32::MAX)
                }),
                local: attempt.local,
                remote: attempt.remote,
                attributes,
            }
            .emit(&mut payload);
            let (connection_id, msg_id) = (attempt.connection_id, attempt.first_msg_id);
            for target in &mut attempt.targets {
                if target.no_match || target.gone {
                    continue;
                }
                if let Some((ox_id, seq_cnt)) = target.exchange.take() {
                    self.exchanges.abandon(now_ns, ox_id, seq_cnt);
                }
                let Some(exchange) = self.exchanges.open(now_ns) else {
                    self.counters.count(Counter::ControlNoRoom);
                    continue;
                };
                let header = FrameHeader {
                    dst: MacAddress::vn2vn(target.id),
                    src: self.mac,
                    sof: Sof::I3,
                    fc: FcHeader {
                        r_ctl: Opcode::ConnectRequest.r_ctl(),
                        d_id: target.id,
                        cs_ctl: 0,
                        s_id: self.config.n_port_id,
                        fc_type: FcType::Vi,
                        f_ctl: profile::F_CTL_REQUEST,
                        seq_id: exchange.seq_id,
                        df_ctl: profile::df_ctl(Opcode::ConnectRequest.header_bytes()),
                        seq_cnt: exchange.seq_cnt,
                        ox_id: exchange.ox_id,
                        rx_id: RX_ID_UNASSIGNED,
                        parameter: 0,
                    },
                    device: Some(connect_header(
                        Opcode::ConnectRequest,
                        NO_HANDLE,
                        if retry { connect_request::RETRY } else { 0 },
                        msg_id,
                        0,
                        connection_id,
                    )),
                };
                if retry {
                    self.counters.count(Counter::Retries);
                }
                let next_seq_cnt = exchange.seq_cnt.wrapping_add(1);
                if host.transmit_control(&header, &payload) == Transmit::Sent {
                    target.exchange = Some((exchange.ox_id, next_seq_cnt));
                } else {
                    self.counters.count(Counter::ControlNoRoom);
                    self.exchanges.close(exchange.ox_id, exchange.seq_cnt);
                }
            }
        }
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.phase = attempt;
        }
    }

    /// The next moment at which the procedure of this endpoint wants attention.
    fn connect_deadline(&self, vi: ViIndex) -> Option<u64> {
        match &self.endpoint(vi)?.phase {
            Phase::Requesting(attempt) => {
                let mut at = attempt.next_retry_ns;
                if let Some(deadline) = attempt.deadline_ns {
                    at = at.min(deadline);
                }
                if attempt.targets.iter().any(|t| t.no_match) {
                    let silent = attempt.started_ns + self.config.silent_port_ns;
                    at = at.min(silent);
                }
                Some(at)
            }
            Phase::AwaitResponse3 { next_retry_ns, .. }
            | Phase::AwaitResponse2 { next_retry_ns, .. } => Some(*next_retry_ns),
            Phase::Idle | Phase::Connected | Phase::Error => None,
        }
    }

    pub(crate) fn arm_connect_timer(&mut self, now_ns: u64, vi: ViIndex) {
        if let Some(at) = self.connect_deadline(vi) {
            self.timers
                .set(at.max(now_ns + 1), TimerKey::Connect(vi.0));
        }
    }

    pub(crate) fn connect_timeout<H: Host>(&mut self, now_ns: u64, vi: ViIndex, host: &mut H) {
        match self.connect_deadline(vi) {
            None => return,
            Some(at) if at > now_ns => return,
            Some(_) => {}
        }
        let limit = 4;
        let interval = self.ask_interval_ns();
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        match &mut ep.phase {
            Phase::Requesting(attempt) => {
                if attempt.deadline_ns.is_some_and(|at| at <= now_ns) {
                    self.fail_request(now_ns, vi, ConnectError::Timeout, host);
                    return;
                }
                let (due, started) = (attempt.next_retry_ns <= now_ns, attempt.started_ns);
                let silent = started + self.config.silent_port_ns <= now_ns;
                if self.decide_no_match(now_ns, vi, silent, host) {
                    return;
                }
                if due {
                    self.send_requests(now_ns, vi, true, host);
                }
            }
            Phase::AwaitResponse3 {
                next_retry_ns,
                retries,
            } => {
                *next_retry_ns = now_ns + interval;
                *retries += 1;
                if *retries > limit {
                    self.fail_link(now_ns, vi, ConnectError::Timeout, host);
                    return;
                }
                self.counters.count(Counter::Retries);
                self.send_response2(vi, host);
            }
            Phase::AwaitResponse2 {
                next_retry_ns,
                retries,
            } => {
                *next_retry_ns = now_ns + interval;
                *retries += 1;
                if *retries > limit {
                    self.fail_link(now_ns, vi, ConnectError::Timeout, host);
                    return;
                }
                self.counters.count(Counter::Retries);
                self.send_response1_accept(vi, host);
            }
            Phase::Idle | Phase::Connected | Phase::Error => {}
        }
        self.arm_connect_timer(now_ns, vi);
    }

    /// NO_MATCH if every port said so, or one did and the others stay `silent`.
    /// True if the attempt ended.
    fn decide_no_match<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        silent: bool,
        host: &mut H,
    ) -> bool {
        let Some(ep) = self.endpoint(vi) else {
            return true;
        };
        let Phase::Requesting(attempt) = &ep.phase else {
            return false;
        };
        let any = attempt.targets.iter().any(|t| t.no_match);
        let open = attempt
            .targets
            .iter()
            .filter(|t| !t.no_match && !t.gone)
            .collect::<Vec<_>>();
        let over = open.is_empty() || (any && silent && open.iter().all(|t| !t.pending));
        if !over {
            return false;
        }
        let error = if any {
            ConnectError::NoMatch
        } else {
            ConnectError::NotReachable
        };
        self.fail_request(now_ns, vi, error, host);
        true
    }

    /// Ends a request that got no connection: the VI is Idle again.
    fn fail_request<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        error: ConnectError,
        host: &mut H,
    ) {
        self.cancel_request(now_ns, vi, None, host);
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        ep.phase = Phase::Idle;
        ep.handle = 0;
        ep.outcome = Some(Err(error));
        host.set_state(vi, EndpointState::Idle);
        host.control_event();
    }

    /// Tells every port that may hold our request, except `keep`, that it is void.
    pub(crate) fn cancel_request<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        keep: Option<NPortId>,
        host: &mut H,
    ) {
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        let Phase::Requesting(attempt) = &mut ep.phase else {
            return;
        };
        let connection_id = attempt.connection_id;
        let targets = core::mem::take(&mut attempt.targets);
        for target in targets {
            if let Some((ox_id, seq_cnt)) = target.exchange {
                self.exchanges.abandon(now_ns, ox_id, seq_cnt);
            }
            if Some(target.id) != keep && !target.no_match && !target.gone {
                self.close_connection(
                    now_ns,
                    target.id,
                    NO_HANDLE,
                    connection_id,
                    MessageReason::Disconnected,
                    false,
                    host,
                );
            }
        }
    }

    pub(crate) fn handle_response1<H: Host>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        host: &mut H,
    ) {
        let Ok(payload) = ConnectResponse::parse(iu.payload) else {
            self.counters.count(Counter::DropBadIu);
            return;
        };
        let (status, reason) = connect_parameter::unpack(iu.header.parameter);
        let connection_id = iu.header.connection_id();
        let s_id = frame.fc.s_id;
        let vi = ViIndex(iu.header.handle & 0xFFFF);
        let handle_fits = self
            .endpoint(vi)
            .is_some_and(|ep| ep.handle == iu.header.handle);
        // A repeated RESP1 after ours was taken: our RESP2 was lost.
        if handle_fits && self.repeats_response1(vi, s_id, connection_id) {
            if status == ConnectStatus::GoOn {
                self.send_response2(vi, host);
            }
            return;
        }
        let answer = if handle_fits {
            self.answer_to_request(vi, frame, connection_id)
        } else {
            None
        };
        let Some(exchange_open) = answer else {
            self.counters.count(Counter::DropStrayConnect);
            if status == ConnectStatus::GoOn {
                // It accepted a request that we gave up: it must not wait for RESP2.
                self.close_connection(
                    now_ns,
                    s_id,
                    payload.vi_handle,
                    connection_id,
                    MessageReason::Disconnected,
                    false,
                    host,
                );
            }
            return;
        };
        match status {
            ConnectStatus::GoOn => {
                self.accepted(now_ns, vi, frame, iu, &payload, exchange_open, host);
            }
            ConnectStatus::Pending => {
                self.mark_target(vi, s_id, |t| t.pending = true);
            }
            ConnectStatus::Failed | ConnectStatus::Superseded | ConnectStatus::Unknown(_) => {
                let error = match reason {
                    ConnectReason::NoMatch | ConnectReason::NotMyAddress => {
                        self.mark_target(vi, s_id, |t| t.no_match = true);
                        if !self.decide_no_match(now_ns, vi, false, host) {
                            self.arm_connect_timer(now_ns, vi);
                        }
                        return;
                    }
                    ConnectReason::ReliabilityLevel => ConnectError::ReliabilityLevel,
                    ConnectReason::MaxTransferSize => ConnectError::MaxTransferSize,
                    ConnectReason::Qos => ConnectError::Qos,
                    ConnectReason::NoResources => ConnectError::Resources,
                    ConnectReason::TimedOut => ConnectError::Timeout,
                    _ => ConnectError::Rejected,
                };
                self.mark_target(vi, s_id, |t| t.no_match = true);
                self.fail_request(now_ns, vi, error, host);
            }
        }
    }

    fn repeats_response1(&self, vi: ViIndex, s_id: NPortId, connection_id: u32) -> bool {
        self.endpoint(vi).is_some_and(|ep| {
            matches!(ep.phase, Phase::AwaitResponse3 { .. } | Phase::Connected)
                && ep.link.as_ref().is_some_and(|link| {
                    link.originator && link.peer == s_id && link.connection_id == connection_id
                })
        })
    }

    /// Does this RESP1 answer an open request of ours? If so: does its exchange go on with us?
    fn answer_to_request(
        &mut self,
        vi: ViIndex,
        frame: &FrameView<'_>,
        connection_id: u32,
    ) -> Option<bool> {
        let ep = self.endpoints.get_mut(vi.slot())?.as_mut()?;
        let Phase::Requesting(attempt) = &mut ep.phase else {
            return None;
        };
        if attempt.connection_id != connection_id {
            return None;
        }
        let target = attempt
            .targets
            .iter_mut()
            .find(|t| t.id == frame.fc.s_id && !t.no_match)?;
        // The answer to an earlier exchange of the same request counts as well:
        // it may have crossed our retry. That exchange is dead already.
        match target.exchange {
            Some((ox_id, seq_cnt)) if ox_id == frame.fc.ox_id => {
                target.exchange = None;
                let last = frame.fc.f_ctl.contains(FCtl::LAST_SEQUENCE);
                if last {
                    self.exchanges.close(ox_id, seq_cnt);
                }
                Some(!last)
            }
            _ => Some(false),
        }
    }

    fn mark_target(&mut self, vi: ViIndex, id: NPortId, mark: impl Fn(&mut Target)) {
        if let Some(Phase::Requesting(attempt)) = self.endpoint_mut(vi).map(|ep| &mut ep.phase) {
            for target in &mut attempt.targets {
                if target.id == id {
                    mark(target);
                }
            }
        }
    }

    /// RESP1 said yes: compare, enable receiving, answer with RESP2.
    fn accepted<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        payload: &ConnectResponse,
        exchange_open: bool,
        host: &mut H,
    ) {
        let Some(params) = self.endpoint(vi).map(|ep| ep.params) else {
            return;
        };
        let link = Link {
            peer: frame.fc.s_id,
            peer_handle: payload.vi_handle,
            connection_id: iu.header.connection_id(),
            ox_id: frame.fc.ox_id,
            rx_id: frame.fc.rx_id,
            seq_id: frame.fc.seq_id.wrapping_add(1),
            seq_cnt: frame.fc.seq_cnt.wrapping_add(1),
            originator: true,
            exchange_open,
            remote: payload.attributes,
        };
        self.cancel_request(now_ns, vi, Some(link.peer), host);
        if let Err(error) = compare(&self.attributes_of(&params), &payload.attributes) {
            self.close_connection(
                now_ns,
                link.peer,
                link.peer_handle,
                link.connection_id,
                MessageReason::Disconnected,
                false,
                host,
            );
            self.fail_request(now_ns, vi, error, host);
            return;
        }
        self.bind(vi, link, iu.header.msg_id);
        let retry_at = now_ns + self.ask_interval_ns();
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.phase = Phase::AwaitResponse3 {
                next_retry_ns: retry_at,
                retries: 0,
            };
        }
        self.send_response2(vi, host);
        self.arm_connect_timer(now_ns, vi);
    }

    /// Sets both streams of an endpoint for a connection. The peer's first message ID
    /// is `expected`; ours was told to the peer by the request or response.
    pub(crate) fn bind(&mut self, vi: ViIndex, link: Link, expected: u32) {
        let own = self.config.n_port_id;
        let data_field = self
            .config
            .data_field_bytes
            .min(link.remote.receive_data_field_bytes);
        let peer_index = self.adopt_peer(link.peer);
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        let first = match &ep.phase {
            Phase::Requesting(attempt) => attempt.first_msg_id,
            _ => 0,
        };
        ep.tx = Some(Box::new(TxStream::new(own, &link, first, data_field)));
        ep.rx = RxStream {
            expected,
            timer_set: ep.rx.timer_set,
            ..RxStream::default()
        };
        ep.peer = link.peer;
        ep.peer_index = peer_index;
        ep.link = Some(link);
    }

    /// RESP3, or a message that implies it: the client may transmit.
    pub(crate) fn client_connected<H: Host>(&mut self, vi: ViIndex, host: &mut H) {
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        let Some(link) = &ep.link else {
            return;
        };
        let remote = RemoteVi {
            attributes: link.remote,
            n_port_id: link.peer,
        };
        ep.phase = Phase::Connected;
        ep.outcome = Some(Ok(remote));
        self.end_connect_exchange(vi);
        self.counters.count(Counter::Connects);
        host.set_state(vi, EndpointState::Connected);
        host.control_event();
    }

    /// The connect exchange ended cleanly: its OX_ID may be used again.
    fn end_connect_exchange(&mut self, vi: ViIndex) {
        let Some(link) = self.endpoint_mut(vi).and_then(|ep| ep.link.as_mut()) else {
            return;
        };
        let (open, ox_id, next) = (link.exchange_open, link.ox_id, link.seq_cnt.wrapping_add(1));
        link.exchange_open = false;
        if open {
            self.exchanges.close(ox_id, next);
        }
    }

    pub(crate) fn handle_response3<H: Host>(
        &mut self,
        now_ns: u64,
        frame: &FrameView<'_>,
        iu: &IuView<'_>,
        host: &mut H,
    ) {
        let Some(vi) = self.link_of(frame, iu) else {
            self.counters.count(Counter::DropStrayConnect);
            return;
        };
        let peer_index = self.endpoint(vi).map(|ep| ep.peer_index);
        if let Some(index) = peer_index {
            self.heard(index, now_ns);
        }
        if self
            .endpoint(vi)
            .is_some_and(|ep| matches!(ep.phase, Phase::AwaitResponse3 { .. }))
        {
            self.client_connected(vi, host);
        }
    }

    /// The endpoint whose connection a RESP2, RESP3 or DISCONNECT names.
    pub(crate) fn link_of(&self, frame: &FrameView<'_>, iu: &IuView<'_>) -> Option<ViIndex> {
        let vi = ViIndex(iu.header.handle & 0xFFFF);
        let ep = self.endpoint(vi)?;
        let link = ep.link.as_ref()?;
        (ep.handle == iu.header.handle
            && link.peer == frame.fc.s_id
            && link.connection_id == iu.header.connection_id())
        .then_some(vi)
    }

    fn send_response2<H: Host>(&mut self, vi: ViIndex, host: &mut H) {
        let Some(link) = self.endpoint(vi).and_then(|ep| ep.link) else {
            return;
        };
        let header = self.link_header(
            &link,
            Opcode::ConnectResponse2,
            profile::F_CTL_CONNECT_RESPONSE2,
            0,
            0,
        );
        if host.transmit_control(&header, &[]) != Transmit::Sent {
            self.counters.count(Counter::ControlNoRoom);
        }
    }

    /// A single frame of the connect exchange of this link.
    pub(crate) fn link_header(
        &self,
        link: &Link,
        opcode: Opcode,
        f_ctl: FCtl,
        msg_id: u32,
        parameter: u32,
    ) -> FrameHeader {
        FrameHeader {
            dst: MacAddress::vn2vn(link.peer),
            src: self.mac,
            sof: Sof::I3,
            fc: FcHeader {
                r_ctl: opcode.r_ctl(),
                d_id: link.peer,
                cs_ctl: 0,
                s_id: self.config.n_port_id,
                fc_type: FcType::Vi,
                f_ctl,
                seq_id: link.seq_id,
                df_ctl: profile::df_ctl(opcode.header_bytes()),
                seq_cnt: link.seq_cnt,
                ox_id: link.ox_id,
                rx_id: link.rx_id,
                parameter: 0,
            },
            device: Some(connect_header(
                opcode,
                link.peer_handle,
                0,
                msg_id,
                parameter,
                link.connection_id,
            )),
        }
    }

    /// A connection that was half made is given up; the other side is told.
    pub(crate) fn fail_link<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        error: ConnectError,
        host: &mut H,
    ) {
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        let link = ep.link.take();
        ep.phase = Phase::Idle;
        ep.handle = 0;
        ep.tx = None;
        ep.rx.message = None;
        ep.outcome = Some(Err(error));
        if let Some(link) = link {
            self.release_link(now_ns, &link);
            self.close_connection(
                now_ns,
                link.peer,
                link.peer_handle,
                link.connection_id,
                MessageReason::UlpTimeout,
                true,
                host,
            );
        }
        host.set_state(vi, EndpointState::Idle);
        host.control_event();
    }

    /// A station went: requests to it will not be answered.
    pub(crate) fn targets_gone<H: Host>(&mut self, now_ns: u64, id: NPortId, host: &mut H) {
        for slot in 0..self.endpoints.len() {
            let vi = ViIndex(slot as u32);
            let asked = self.endpoint(vi).is_some_and(|ep| match &ep.phase {
                Phase::Requesting(attempt) => attempt.targets.iter().any(|t| t.id == id),
                _ => false,
            });
            if asked {
                self.mark_target(vi, id, |t| t.gone = true);
                self.decide_no_match(now_ns, vi, false, host);
            }
        }
    }
}

/// The device_header of a connection IU.
pub(crate) fn connect_header(
    opcode: Opcode,
    handle: u32,
    flags: u8,
    msg_id: u32,
    parameter: u32,
    connection_id: u32,
) -> DeviceHeader {
    DeviceHeader {
        handle,
        opcode,
        flags,
        msg_id,
        parameter,
        rmt_va: 0,
        rmt_va_handle: 0,
        tot_len: connection_id,
    }
}

/// The attributes that must match (VIPL 3.3.2).
pub(crate) fn compare(ours: &Attributes, theirs: &Attributes) -> Result<(), ConnectError> {
    if ours.reliability != theirs.reliability {
        return Err(ConnectError::ReliabilityLevel);
    }
    if ours.max_transfer_bytes != theirs.max_transfer_bytes {
        return Err(ConnectError::MaxTransferSize);
    }
    if ours.qos_class != theirs.qos_class || ours.cs_ctl != theirs.cs_ctl {
        return Err(ConnectError::Qos);
    }
    Ok(())
}
