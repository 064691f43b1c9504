//! Connection requests of this port, until RESP1 decides: client requests, and those of the peer
//! pool (`peer` has the specifics).
//!
//! A host may have several ports (one for each of its processes): the request is sent to all. The
//! first that accepts is used, and it is cancelled at the others. NO_MATCH needs a reply from all
//! of them, except from those that stay silent: a port whose consumer has not decided yet replies
//! only to a repeated request, so once one port replied NO_MATCH the silent ones are retried at
//! shorter intervals.

use fcvi_frame::connect::ConnectRequest;
use fcvi_frame::fc::NPortId;
use fcvi_frame::flags::{ConnectMode, connect_request};
use fcvi_frame::iu::Opcode;
use fcvi_frame::profile;
use fcvi_frame::reason::MessageReason;
use vi_types::{CallError, HostAddress, NetAddress, ViIndex, ViState};

use crate::config::{EngineConfig, ViParams};
use crate::connect::ConnectCommand;
use crate::connection_iu::{ConnectionIu, NO_ROOM_RETRY_NS, Sequence};
use crate::counters::Counter;
use crate::endpoint::Phase;
use crate::engine::Engine;
use crate::engine_io::EngineIo;
use crate::pending_disconnects::DisconnectInfo;

/// What a port replied so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortReply {
    /// Nothing.
    Silent,
    /// The request is pending for its consumer.
    Pending,
    /// No listener matches.
    NoMatch,
    /// The port was lost.
    Gone,
}

/// One port that the request is sent to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) id: NPortId,
    pub(super) reply: PortReply,
    /// OX_ID and next SEQ_CNT of the last request's exchange, while it is unanswered.
    pub(super) exchange: Option<(u16, u16)>,
    sent: bool,
    pub(super) next_request_ns: u64,
    /// Peer-to-peer: the next retry interval.
    pub(super) interval_ns: u64,
}

impl Target {
    /// Returns a port to which the request is due now.
    fn new(id: NPortId, now_ns: u64, interval_ns: u64) -> Self {
        Self {
            id,
            reply: PortReply::Silent,
            exchange: None,
            sent: false,
            next_request_ns: now_ns,
            interval_ns,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.reply, PortReply::Silent | PortReply::Pending)
    }
}

/// How long a silent port counts as undecided, once another one replied NO_MATCH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SilenceLimit {
    Unlimited,
    Until(u64),
    Expired,
}

/// A connection request of this port.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(super) mode: ConnectMode,
    pub(super) connection_id: u32,
    pub(super) first_msg_id: u32,
    pub(super) targets: Vec<Target>,
    local: NetAddress,
    remote: NetAddress,
    pub(super) deadline_ns: Option<u64>,
    silence: SilenceLimit,
}

impl Attempt {
    /// Returns the ports that the request was sent to.
    pub(crate) fn ports(&self) -> impl Iterator<Item = NPortId> {
        self.targets.iter().map(|target| target.id)
    }

    /// Checks whether this is the request with this ID between these addresses.
    pub(crate) fn matches(
        &self,
        connection_id: u32,
        local: &NetAddress,
        remote: &NetAddress,
    ) -> bool {
        self.connection_id == connection_id && self.local == *local && self.remote == *remote
    }

    /// Reports whether the request is for this host and has not timed out.
    pub(super) fn is_pending_for(&self, address: HostAddress, now_ns: u64) -> bool {
        self.remote.host == address && self.deadline_ns.is_none_or(|at_ns| at_ns > now_ns)
    }

    /// Adds this port, unless the request is pending there already.
    pub(super) fn add_target(&mut self, id: NPortId, now_ns: u64, interval_ns: u64) {
        let new_target = Target::new(id, now_ns, interval_ns);
        if let Some(target) = self.targets.iter_mut().find(|t| t.id == id) {
            if !target.is_open() {
                // Its exchange is abandoned when the next one is opened.
                let exchange = target.exchange;
                *target = Target {
                    exchange,
                    ..new_target
                };
            }
            return;
        }
        // A port that joins and leaves under many N_Port_IDs has one entry.
        let mut targets = self.targets.iter_mut();
        match targets.find(|t| t.reply == PortReply::Gone) {
            Some(gone) => *gone = new_target,
            None => self.targets.push(new_target),
        }
    }

    /// Returns the next deadline of the request.
    pub(crate) fn next_deadline_ns(&self) -> u64 {
        let asks = self.targets.iter().filter(|t| t.is_open());
        let mut at_ns = asks.map(|t| t.next_request_ns).min().unwrap_or(u64::MAX);
        if let SilenceLimit::Until(end_ns) = self.silence {
            at_ns = at_ns.min(end_ns);
        }
        at_ns.min(self.deadline_ns.unwrap_or(u64::MAX))
    }

    /// Returns the error if no port is left that could accept. A peer request, or one for a host
    /// without a known port, can still be accepted by a port that logs in later.
    fn failure(&self) -> Option<CallError> {
        if self.mode == ConnectMode::PeerToPeer || self.targets.is_empty() {
            return None;
        }
        let undecided = |t: &Target| match t.reply {
            PortReply::Pending => true,
            PortReply::Silent => self.silence != SilenceLimit::Expired,
            PortReply::NoMatch | PortReply::Gone => false,
        };
        if self.targets.iter().any(undecided) {
            return None;
        }
        let refused = self.targets.iter().any(|t| t.reply == PortReply::NoMatch);
        Some(if refused {
            CallError::NoMatch
        } else {
            CallError::NotReachable
        })
    }

    /// Limits the time of silent ports and shortens their retry interval, after a port replied
    /// NO_MATCH.
    fn limit_silence(&mut self, now_ns: u64, silent_port_ns: u64) {
        if self.silence != SilenceLimit::Unlimited {
            return;
        }
        self.silence = SilenceLimit::Until(now_ns + silent_port_ns);
        for target in &mut self.targets {
            if target.reply == PortReply::Silent {
                target.next_request_ns = target.next_request_ns.min(now_ns + silent_port_ns / 4);
            }
        }
    }

    /// Returns the retry interval of a port that the request is sent to now.
    fn retry_interval_ns(&self, target: &mut Target, config: &EngineConfig) -> u64 {
        if self.mode == ConnectMode::PeerToPeer {
            let interval_ns = target.interval_ns;
            target.interval_ns = config.next_retry_interval_ns(interval_ns, config.ulp_timeout_ns);
            return interval_ns;
        }
        match self.silence {
            SilenceLimit::Until(_) if target.reply == PortReply::Silent => {
                config.silent_port_ns / 4
            }
            SilenceLimit::Unlimited | SilenceLimit::Until(_) | SilenceLimit::Expired => {
                config.retry_interval_ns()
            }
        }
    }
}

impl Engine {
    /// Starts a connection request (VIPL 3.3.4); its outcome is reported by
    /// [`Engine::take_outcome`]. If no port of the host is known, the request waits for one with
    /// discovery, and is `NotReachable` without.
    ///
    /// # Errors
    /// `Invalid`, `InvalidState`.
    pub fn connect<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        command: &ConnectCommand<'_>,
        io: &mut I,
    ) -> Result<(), CallError> {
        let ep = self.endpoint(vi).ok_or(CallError::InvalidParameter)?;
        if !matches!(ep.phase, Phase::Idle) {
            return Err(CallError::InvalidState);
        }
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.clear_outcomes();
        }
        if self.has_no_route(command) {
            self.conclude_failed(vi, CallError::NotReachable, io);
            return Ok(());
        }
        io.set_state(vi, ViState::ConnectPending);
        let deadline_ns = command.deadline_ns(now_ns);
        let mode = ConnectMode::ClientServer;
        self.start_request(now_ns, vi, mode, command, deadline_ns, io);
        Ok(())
    }

    /// Reports whether no port of the host is known and ports are not discovered.
    pub(super) fn has_no_route(&self, command: &ConnectCommand<'_>) -> bool {
        command.targets.is_empty() && self.port.logged_in_ports.is_none()
    }

    /// Starts a request under a new handle and a new connection ID.
    pub(super) fn start_request<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        mode: ConnectMode,
        command: &ConnectCommand<'_>,
        deadline_ns: Option<u64>,
        io: &mut I,
    ) {
        let Some(handle) = self.port.new_handle(now_ns, vi, io) else {
            self.fail_request(now_ns, vi, CallError::NO_RESOURCES, io);
            return;
        };
        let interval_ns = self.port.config.peer_retry_ns;
        let asked = |id: &NPortId| Target::new(*id, now_ns, interval_ns);
        let attempt = Attempt {
            mode,
            connection_id: self.port.connection_ids.allocate(),
            first_msg_id: io.random(),
            targets: command.targets.iter().map(asked).collect(),
            local: command.local,
            remote: command.remote,
            deadline_ns,
            silence: SilenceLimit::Unlimited,
        };
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.handle = handle;
            ep.phase = Phase::Requesting(Box::new(attempt));
        }
        self.send_requests(now_ns, vi, io);
        self.arm_connect_timer(vi);
    }

    /// Sends the request to every port where it is due and not refused.
    pub(super) fn send_requests<I: EngineIo>(&mut self, now_ns: u64, vi: ViIndex, io: &mut I) {
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        let (params, handle) = (ep.params, ep.handle);
        // The attempt is taken out of the endpoint meanwhile.
        let Phase::Requesting(mut attempt) = core::mem::replace(&mut ep.phase, Phase::Idle) else {
            return;
        };
        let payload = self.request_payload(now_ns, &attempt, handle, &params);
        for at in 0..attempt.targets.len() {
            let mut target = attempt.targets[at];
            if !target.is_open() || target.next_request_ns > now_ns {
                continue;
            }
            target.next_request_ns =
                if self.send_request(now_ns, &attempt, &mut target, &payload, io) {
                    now_ns + attempt.retry_interval_ns(&mut target, &self.port.config)
                } else {
                    now_ns + NO_ROOM_RETRY_NS
                };
            attempt.targets[at] = target;
        }
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.phase = Phase::Requesting(attempt);
        }
    }

    fn request_payload(
        &self,
        now_ns: u64,
        attempt: &Attempt,
        handle: u32,
        params: &ViParams,
    ) -> [u8; ConnectRequest::BYTES] {
        let left_ms = |at_ns: u64| {
            let left = at_ns.saturating_sub(now_ns).div_ceil(1_000_000);
            u32::try_from(left).unwrap_or(u32::MAX)
        };
        let mut payload = [0; ConnectRequest::BYTES];
        ConnectRequest {
            vi_handle: handle,
            timeout_ms: attempt.deadline_ns.map_or(u32::MAX, left_ms),
            local: attempt.local,
            remote: attempt.remote,
            attributes: self.attributes_of(params),
        }
        .emit(&mut payload);
        payload
    }

    /// Sends the request to one port, on a new exchange. Returns false if there was no room.
    fn send_request<I: EngineIo>(
        &mut self,
        now_ns: u64,
        attempt: &Attempt,
        target: &mut Target,
        payload: &[u8],
        io: &mut I,
    ) -> bool {
        let Some(exchange) = self.port.exchanges.open_control(now_ns) else {
            self.port.counters.count(Counter::ControlNoRoom);
            return false;
        };
        let at = Sequence::first_of(exchange);
        let retry = if target.sent {
            connect_request::RETRY
        } else {
            0
        };
        let port_name = match attempt.mode {
            ConnectMode::ClientServer => 0,
            ConnectMode::PeerToPeer => self.port.config.port_name,
        };
        let iu = ConnectionIu {
            to: target.id,
            at,
            opcode: Opcode::ConnectRequest,
            f_ctl: profile::F_CTL_REQUEST,
            handle: profile::HANDLE_NONE,
            flags: attempt.mode.to_flags() | retry,
            msg_id: attempt.first_msg_id,
            parameter: 0,
            port_name,
            connection_id: attempt.connection_id,
        };
        if !self.port.send_connection_iu(&iu, payload, io) {
            self.port.exchanges.close(at.ox_id, at.seq_cnt);
            return false;
        }
        if let Some((ox_id, seq_cnt)) = target.exchange.replace((at.ox_id, at.next_seq_cnt())) {
            self.port.exchanges.abandon(now_ns, ox_id, seq_cnt);
        }
        if target.sent {
            self.port.counters.count(Counter::Retries);
        }
        target.sent = true;
        true
    }

    /// Handles the connect timer of a request.
    pub(super) fn request_timeout<I: EngineIo>(&mut self, now_ns: u64, vi: ViIndex, io: &mut I) {
        let Some(Phase::Requesting(attempt)) = self.endpoint_mut(vi).map(|ep| &mut ep.phase) else {
            return;
        };
        if attempt.deadline_ns.is_some_and(|at| at <= now_ns) {
            self.fail_request(now_ns, vi, CallError::Timeout, io);
            return;
        }
        if matches!(attempt.silence, SilenceLimit::Until(end_ns) if end_ns <= now_ns) {
            attempt.silence = SilenceLimit::Expired;
        }
        if let Some(error) = attempt.failure() {
            self.fail_request(now_ns, vi, error, io);
            return;
        }
        self.send_requests(now_ns, vi, io);
    }

    /// Records the reply of a port; ends the request if no port is left that could accept it.
    pub(super) fn record_reply<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        id: NPortId,
        reply: PortReply,
        io: &mut I,
    ) {
        self.record_replies(now_ns, vi, |port| port == id, reply, io);
    }

    fn record_replies<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        is_from: impl Fn(NPortId) -> bool,
        reply: PortReply,
        io: &mut I,
    ) {
        let silent_port_ns = self.port.config.silent_port_ns;
        let ep = self.endpoints.get_mut(vi.slot()).and_then(Option::as_mut);
        let Some(Phase::Requesting(attempt)) = ep.map(|ep| &mut ep.phase) else {
            return;
        };
        for target in attempt.targets.iter_mut().filter(|t| is_from(t.id)) {
            target.reply = reply;
            if reply == PortReply::Gone
                && let Some((ox_id, seq_cnt)) = target.exchange.take()
            {
                self.port.exchanges.abandon(now_ns, ox_id, seq_cnt);
            }
        }
        if reply == PortReply::NoMatch {
            attempt.limit_silence(now_ns, silent_port_ns);
        }
        match attempt.failure() {
            Some(error) => self.fail_request(now_ns, vi, error, io),
            None => self.arm_connect_timer(vi),
        }
    }

    /// Ends a request without a connection.
    pub(crate) fn fail_request<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        error: CallError,
        io: &mut I,
    ) {
        self.cancel_request(now_ns, vi, None, io);
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.handle = 0;
        }
        self.conclude_failed(vi, error, io);
    }

    /// Cancels the request at every port where it may be pending, except `keep`.
    pub(crate) fn cancel_request<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        keep: Option<NPortId>,
        io: &mut I,
    ) {
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        let handle = ep.handle;
        let Phase::Requesting(attempt) = &mut ep.phase else {
            return;
        };
        let (mode, connection_id) = (attempt.mode, attempt.connection_id);
        let targets = core::mem::take(&mut attempt.targets);
        self.port.note_ended_request(now_ns, handle, connection_id);
        for target in targets {
            if let Some((ox_id, seq_cnt)) = target.exchange {
                self.port.exchanges.abandon(now_ns, ox_id, seq_cnt);
            }
            let may_be_pending = match mode {
                ConnectMode::ClientServer => target.sent && target.is_open(),
                // No port stores a peer request. One that accepted it repeats RESP1, which is
                // answered with a disconnect then.
                ConnectMode::PeerToPeer => false,
            };
            if Some(target.id) == keep || !may_be_pending {
                continue;
            }
            // A configuration may name many ports that do not exist: silent ports leave half of the
            // table to connections and to ports where the request is pending.
            if target.reply == PortReply::Silent && !self.port.has_spare_disconnect_slots() {
                self.port.counters.count(Counter::CloseOverflows);
                continue;
            }
            let info = DisconnectInfo {
                peer: target.id,
                peer_handle: profile::HANDLE_NONE,
                connection_id,
                reason: MessageReason::Disconnected,
                error: false,
                placed: None,
            };
            self.port.start_disconnect(now_ns, info, io);
        }
    }

    /// Ends all requests to lost ports.
    pub(crate) fn remove_targets<I: EngineIo>(
        &mut self,
        now_ns: u64,
        is_lost: impl Fn(NPortId) -> bool + Copy,
        io: &mut I,
    ) {
        for slot in 0..self.endpoints.len() {
            let vi = ViIndex(slot as u32);
            if let Some(peer) = self
                .endpoint_mut(vi)
                .and_then(|ep| ep.peer_request.as_mut())
            {
                peer.remove_ports(is_lost);
            }
            let asked = self.endpoint(vi).is_some_and(|ep| match &ep.phase {
                Phase::Requesting(attempt) => attempt.ports().any(is_lost),
                Phase::Idle
                | Phase::AwaitResponse3(_)
                | Phase::AwaitResponse2(_)
                | Phase::Connected
                | Phase::Error => false,
            });
            if asked {
                self.record_replies(now_ns, vi, is_lost, PortReply::Gone, io);
            }
        }
    }
}
