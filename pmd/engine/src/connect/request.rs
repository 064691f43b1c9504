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
use vi_types::{CallError, HostAddress, NetAddress, ViParams};

use crate::config::EngineConfig;
use crate::connection::ConnectCommand;
use crate::connection_iu::{ConnectionIu, NO_ROOM_RETRY_NS, Sequence};
use crate::context::Context;
use crate::counters::Counter;
use crate::engine_io::EngineIo;
use crate::pending_disconnects::DisconnectInfo;

/// OX_ID and next SEQ_CNT of the exchange that a RESP1 arrived on; `None` for an earlier one, which
/// is in quarantine.
pub(crate) type RequestExchange = Option<(u16, u16)>;

/// What a port replied so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortReply {
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
pub(crate) struct Target {
    pub(crate) id: NPortId,
    pub(crate) reply: PortReply,
    /// OX_ID and next SEQ_CNT of the last request's exchange, while it is unanswered.
    pub(crate) exchange: Option<(u16, u16)>,
    sent: bool,
    pub(crate) next_request_ns: u64,
    /// Peer-to-peer: the next retry interval.
    pub(crate) interval_ns: u64,
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

    pub(crate) fn is_open(&self) -> bool {
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
    pub(crate) mode: ConnectMode,
    pub(crate) connection_id: u32,
    pub(crate) first_msg_id: u32,
    pub(crate) targets: Vec<Target>,
    local: NetAddress,
    remote: NetAddress,
    pub(crate) deadline_ns: Option<u64>,
    silence: SilenceLimit,
}

impl Attempt {
    /// Creates a request that is due at every port of the host now, under a new connection ID.
    pub(crate) fn new<I: EngineIo>(
        cx: &mut Context<'_, I>,
        mode: ConnectMode,
        command: &ConnectCommand<'_>,
        deadline_ns: Option<u64>,
    ) -> Self {
        let (now_ns, interval_ns) = (cx.now_ns, cx.port.config.peer_retry_ns);
        let asked = |id: &NPortId| Target::new(*id, now_ns, interval_ns);
        Self {
            mode,
            connection_id: cx.port.connection_ids.allocate(),
            first_msg_id: cx.io.random(),
            targets: command.targets.iter().map(asked).collect(),
            local: command.local,
            remote: command.remote,
            deadline_ns,
            silence: SilenceLimit::Unlimited,
        }
    }

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
    pub(crate) fn is_pending_for(&self, address: HostAddress, now_ns: u64) -> bool {
        self.remote.host == address && self.deadline_ns.is_none_or(|at_ns| at_ns > now_ns)
    }

    /// Adds this port, unless the request is pending there already.
    pub(crate) fn add_target(&mut self, id: NPortId, now_ns: u64, interval_ns: u64) {
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

    /// Sends the request to every port where it is due and not refused.
    pub(crate) fn send<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        handle: u32,
        params: &ViParams,
    ) {
        let payload = self.payload(cx, handle, params);
        for at in 0..self.targets.len() {
            let mut target = self.targets[at];
            if !target.is_open() || target.next_request_ns > cx.now_ns {
                continue;
            }
            target.next_request_ns = cx.now_ns
                + if self.send_to(cx, &mut target, &payload) {
                    self.retry_interval_ns(&mut target, &cx.port.config)
                } else {
                    NO_ROOM_RETRY_NS
                };
            self.targets[at] = target;
        }
    }

    fn payload<I>(
        &self,
        cx: &Context<'_, I>,
        handle: u32,
        params: &ViParams,
    ) -> [u8; ConnectRequest::BYTES] {
        let left_ms = |at_ns: u64| {
            let left = at_ns.saturating_sub(cx.now_ns).div_ceil(1_000_000);
            u32::try_from(left).unwrap_or(u32::MAX)
        };
        let mut payload = [0; ConnectRequest::BYTES];
        ConnectRequest {
            vi_handle: handle,
            timeout_ms: self.deadline_ns.map_or(u32::MAX, left_ms),
            local: self.local,
            remote: self.remote,
            attributes: cx.port.config.attributes_of(params),
        }
        .emit(&mut payload);
        payload
    }

    /// Sends the request to one port, on a new exchange. Returns false if there was no room.
    fn send_to<I: EngineIo>(
        &self,
        cx: &mut Context<'_, I>,
        target: &mut Target,
        payload: &[u8],
    ) -> bool {
        let Some(exchange) = cx.port.exchanges.open_control(cx.now_ns) else {
            cx.count(Counter::ControlNoRoom);
            return false;
        };
        let at = Sequence::first_of(exchange);
        let retry = if target.sent {
            connect_request::RETRY
        } else {
            0
        };
        let port_name = match self.mode {
            ConnectMode::ClientServer => 0,
            ConnectMode::PeerToPeer => cx.port.config.port_name,
        };
        let iu = ConnectionIu {
            to: target.id,
            at,
            opcode: Opcode::ConnectRequest,
            f_ctl: profile::F_CTL_REQUEST,
            handle: profile::HANDLE_NONE,
            flags: self.mode.to_flags() | retry,
            msg_id: self.first_msg_id,
            parameter: 0,
            port_name,
            connection_id: self.connection_id,
        };
        if !cx.port.send_connection_iu(&iu, payload, cx.io) {
            cx.port.exchanges.close(at.ox_id, at.seq_cnt);
            return false;
        }
        if let Some((ox_id, seq_cnt)) = target.exchange.replace((at.ox_id, at.next_seq_cnt())) {
            cx.port.exchanges.abandon(cx.now_ns, ox_id, seq_cnt);
        }
        if target.sent {
            cx.count(Counter::Retries);
        }
        target.sent = true;
        true
    }

    /// Makes the request due at a port that has to accept it: now, or after one retry interval if
    /// an earlier one is unanswered.
    pub(crate) fn hurry(&mut self, now_ns: u64, id: NPortId, retry_ns: u64) {
        for target in self.targets.iter_mut().filter(|t| t.id == id) {
            let wait_ns = if target.exchange.is_some() {
                retry_ns
            } else {
                0
            };
            target.next_request_ns = target.next_request_ns.min(now_ns + wait_ns);
            target.interval_ns = retry_ns;
        }
    }

    /// Reports whether this request yields to one that matches it, of a port of a higher rank. It
    /// also yields to one of lower rank from a port that it was not sent to, which could never
    /// accept it.
    pub(crate) fn yields_to(&self, n_port_id: NPortId, is_higher: bool) -> bool {
        let mut asked = self.targets.iter();
        is_higher || !asked.any(|t| t.id == n_port_id && t.is_open())
    }

    /// Returns the error if the request is over now.
    pub(crate) fn timeout(&mut self, now_ns: u64) -> Option<CallError> {
        if self.deadline_ns.is_some_and(|at| at <= now_ns) {
            return Some(CallError::Timeout);
        }
        if matches!(self.silence, SilenceLimit::Until(end_ns) if end_ns <= now_ns) {
            self.silence = SilenceLimit::Expired;
        }
        self.failure()
    }

    /// Records the reply of ports. Returns the error if no port is left that could accept.
    pub(crate) fn record<I>(
        &mut self,
        cx: &mut Context<'_, I>,
        is_from: impl Fn(NPortId) -> bool,
        reply: PortReply,
    ) -> Option<CallError> {
        for target in self.targets.iter_mut().filter(|t| is_from(t.id)) {
            target.reply = reply;
            if reply == PortReply::Gone
                && let Some((ox_id, seq_cnt)) = target.exchange.take()
            {
                cx.port.exchanges.abandon(cx.now_ns, ox_id, seq_cnt);
            }
        }
        if reply == PortReply::NoMatch {
            self.limit_silence(cx.now_ns, cx.port.config.silent_port_ns);
        }
        self.failure()
    }

    /// Marks a port that refused, so that the request is not cancelled there.
    pub(crate) fn mark_refused(&mut self, id: NPortId) {
        for target in self.targets.iter_mut().filter(|t| t.id == id) {
            target.reply = PortReply::NoMatch;
        }
    }

    /// Returns the exchange of this request that a RESP1 of a port answers; `None` if it answers
    /// none.
    pub(crate) fn answered_exchange(
        &mut self,
        s_id: NPortId,
        ox_id: u16,
        connection_id: u32,
    ) -> Option<RequestExchange> {
        if self.connection_id != connection_id {
            return None;
        }
        let target = self
            .targets
            .iter_mut()
            .find(|t| t.id == s_id && t.reply != PortReply::NoMatch)?;
        // A reply to an earlier exchange of the same request counts as well: it may have crossed
        // our retry. That exchange is in quarantine already.
        let ours = target.exchange.is_some_and(|(ox, _)| ox == ox_id);
        Some(if ours { target.exchange.take() } else { None })
    }

    /// Cancels the request at every port where it may be pending, except `keep`.
    pub(crate) fn cancel<I: EngineIo>(
        &mut self,
        cx: &mut Context<'_, I>,
        handle: u32,
        keep: Option<NPortId>,
    ) {
        let (now_ns, port) = (cx.now_ns, &mut *cx.port);
        let ended = (handle, self.connection_id);
        port.quarantine.add_own(now_ns, ended);
        for target in core::mem::take(&mut self.targets) {
            if let Some((ox_id, seq_cnt)) = target.exchange {
                port.exchanges.abandon(now_ns, ox_id, seq_cnt);
            }
            let may_be_pending = match self.mode {
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
            if target.reply == PortReply::Silent && !port.has_spare_disconnect_slots() {
                port.counters.count(Counter::CloseOverflows);
                continue;
            }
            let info = DisconnectInfo {
                peer: target.id,
                peer_handle: profile::HANDLE_NONE,
                connection_id: self.connection_id,
                reason: MessageReason::Disconnected,
                error: false,
                placed: None,
            };
            port.start_disconnect(now_ns, info, cx.io);
        }
    }
}
