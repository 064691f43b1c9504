//! A request of ours, until RESP1 decides: a client's, or one of the peer pool
//! (`peer` has what is special about those).
//!
//! A host may be several ports (one for each of its programs): all are asked.
//! The first that accepts is taken, and the others are told that the request is
//! void. NO_MATCH needs all of them, except those that stay silent: a port whose
//! consumer thinks about the request answers nothing until it is asked again, so
//! once another one said NO_MATCH the silent ones are asked at shorter intervals.

use fcvi_frame::connect::{ConnectRequest, HostAddress, NetAddress};
use fcvi_frame::fc::NPortId;
use fcvi_frame::flags::{ConnectMode, connect_request};
use fcvi_frame::iu::Opcode;
use fcvi_frame::profile;
use fcvi_frame::reason::MessageReason;

use crate::closing::Farewell;
use crate::config::EngineConfig;
use crate::connect::{ConnectCommand, ConnectError};
use crate::connection_iu::{ConnectionIu, NO_ROOM_RETRY_NS, Sequence};
use crate::counters::Counter;
use crate::endpoint::{EndpointState, Phase, ViParams};
use crate::engine::{Engine, ViIndex};
use crate::host::Host;

/// What a port that was asked said so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Nothing.
    Silent,
    /// It holds the request for its consumer.
    Pending,
    /// Nobody waits there.
    NoMatch,
    /// It went away.
    Gone,
}

/// One port that is asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) id: NPortId,
    pub(super) answer: Answer,
    /// The open exchange of the last request, if it is unanswered, and its next SEQ_CNT.
    pub(super) exchange: Option<(u16, u16)>,
    asked: bool,
    pub(super) ask_at_ns: u64,
    /// Peer-to-peer: how long it is left alone once it is asked again.
    pub(super) interval_ns: u64,
}

impl Target {
    /// A port that is to be asked now.
    fn new(id: NPortId, now_ns: u64, interval_ns: u64) -> Self {
        Self {
            id,
            answer: Answer::Silent,
            exchange: None,
            asked: false,
            ask_at_ns: now_ns,
            interval_ns,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.answer, Answer::Silent | Answer::Pending)
    }
}

/// How long a silent port counts, once another one said NO_MATCH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Silence {
    Unlimited,
    Until(u64),
    Over,
}

/// A connection request of ours.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(super) mode: ConnectMode,
    pub(super) connection_id: u32,
    pub(super) first_msg_id: u32,
    pub(super) targets: Vec<Target>,
    local: NetAddress,
    remote: NetAddress,
    pub(super) deadline_ns: Option<u64>,
    silence: Silence,
}

impl Attempt {
    /// The ports that were asked.
    pub(crate) fn ports(&self) -> impl Iterator<Item = NPortId> {
        self.targets.iter().map(|target| target.id)
    }

    /// Checks whether this is the request with this ID between these addresses.
    pub(crate) fn is_for(
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

    /// Asks this port, too, if it is not asked already.
    pub(super) fn ask_also(&mut self, id: NPortId, now_ns: u64, interval_ns: u64) {
        let fresh = Target::new(id, now_ns, interval_ns);
        match self.targets.iter_mut().find(|t| t.id == id) {
            Some(target) if target.is_open() => {}
            // Its exchange is abandoned when the next one is opened.
            Some(target) => {
                let exchange = target.exchange;
                *target = Target { exchange, ..fresh };
            }
            None => self.targets.push(fresh),
        }
    }

    /// When it wants to be looked after.
    pub(super) fn next_attention_ns(&self) -> u64 {
        let asks = self.targets.iter().filter(|t| t.is_open());
        let mut at_ns = asks.map(|t| t.ask_at_ns).min().unwrap_or(u64::MAX);
        if let Silence::Until(end_ns) = self.silence {
            at_ns = at_ns.min(end_ns);
        }
        at_ns.min(self.deadline_ns.unwrap_or(u64::MAX))
    }

    /// The outcome, if no port is left that could accept. A peer request, or one for a host without
    /// a known port, can still be accepted by a port that logs in later.
    fn failure(&self) -> Option<ConnectError> {
        if self.mode == ConnectMode::PeerToPeer || self.targets.is_empty() {
            return None;
        }
        let undecided = |t: &Target| match t.answer {
            Answer::Pending => true,
            Answer::Silent => self.silence != Silence::Over,
            Answer::NoMatch | Answer::Gone => false,
        };
        if self.targets.iter().any(undecided) {
            return None;
        }
        let refused = self.targets.iter().any(|t| t.answer == Answer::NoMatch);
        Some(if refused {
            ConnectError::NoMatch
        } else {
            ConnectError::NotReachable
        })
    }

    /// A port said NO_MATCH: from now on the silent ones are asked more often, for a while.
    fn limit_silence(&mut self, now_ns: u64, silent_port_ns: u64) {
        if self.silence != Silence::Unlimited {
            return;
        }
        self.silence = Silence::Until(now_ns + silent_port_ns);
        for target in &mut self.targets {
            if target.answer == Answer::Silent {
                target.ask_at_ns = target.ask_at_ns.min(now_ns + silent_port_ns / 4);
            }
        }
    }

    /// How long a port that is asked now is left alone.
    fn ask_again_in_ns(&self, target: &mut Target, config: &EngineConfig) -> u64 {
        if self.mode == ConnectMode::PeerToPeer {
            let interval_ns = target.interval_ns;
            target.interval_ns = config.slower(interval_ns);
            return interval_ns;
        }
        match self.silence {
            Silence::Until(_) if target.answer == Answer::Silent => config.silent_port_ns / 4,
            Silence::Unlimited | Silence::Until(_) | Silence::Over => config.retry_interval_ns(),
        }
    }
}

impl Engine {
    /// Starts a connection request (VIPL 3.3.4); its outcome comes by [`Engine::take_outcome`]. If
    /// no port of the host is known, the request waits for one with discovery, and is
    /// `NotReachable` without.
    ///
    /// # Errors
    /// `Invalid`, `InvalidState`.
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
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.forget_outcomes();
        }
        if self.has_no_route(command) {
            self.conclude_failed(vi, ConnectError::NotReachable, host);
            return Ok(());
        }
        host.set_state(vi, EndpointState::ConnectPending);
        let deadline_ns = command.deadline_ns(now_ns);
        let mode = ConnectMode::ClientServer;
        self.start_request(now_ns, vi, mode, command, deadline_ns, host);
        Ok(())
    }

    /// Reports whether no port of the host is known and ports are not discovered.
    pub(super) fn has_no_route(&self, command: &ConnectCommand<'_>) -> bool {
        command.targets.is_empty() && self.logins.is_none()
    }

    /// Asks for a connection, under a handle and a connection ID that nobody heard of before.
    pub(super) fn start_request<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        mode: ConnectMode,
        command: &ConnectCommand<'_>,
        deadline_ns: Option<u64>,
        host: &mut H,
    ) {
        let Some(handle) = self.new_handle(now_ns, vi, host) else {
            self.fail_request(now_ns, vi, ConnectError::Resources, host);
            return;
        };
        self.next_connection_id = self.next_connection_id.wrapping_add(1);
        let interval_ns = self.config.peer_retry_ns;
        let asked = |id: &NPortId| Target::new(*id, now_ns, interval_ns);
        let attempt = Attempt {
            mode,
            connection_id: self.next_connection_id,
            first_msg_id: host.random(),
            targets: command.targets.iter().map(asked).collect(),
            local: command.local,
            remote: command.remote,
            deadline_ns,
            silence: Silence::Unlimited,
        };
        if let Some(ep) = self.endpoint_mut(vi) {
            ep.handle = handle;
            ep.phase = Phase::Requesting(Box::new(attempt));
        }
        self.ask_targets(now_ns, vi, host);
        self.arm_connect_timer(vi);
    }

    /// Asks every port whose time has come and that did not refuse.
    pub(super) fn ask_targets<H: Host>(&mut self, now_ns: u64, vi: ViIndex, host: &mut H) {
        let Some(ep) = self.endpoint_mut(vi) else {
            return;
        };
        let (params, handle) = (ep.params, ep.handle);
        // The attempt is out of its place while it is worked on.
        let Phase::Requesting(mut attempt) = core::mem::replace(&mut ep.phase, Phase::Idle) else {
            return;
        };
        let payload = self.request_payload(now_ns, &attempt, handle, &params);
        for at in 0..attempt.targets.len() {
            let mut target = attempt.targets[at];
            if !target.is_open() || target.ask_at_ns > now_ns {
                continue;
            }
            target.ask_at_ns = if self.ask(now_ns, &attempt, &mut target, &payload, host) {
                now_ns + attempt.ask_again_in_ns(&mut target, &self.config)
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

    /// Sends the request to one port, on a new exchange. False if there was no room.
    fn ask<H: Host>(
        &mut self,
        now_ns: u64,
        attempt: &Attempt,
        target: &mut Target,
        payload: &[u8],
        host: &mut H,
    ) -> bool {
        let Some(exchange) = self.exchanges.open_control(now_ns) else {
            self.counters.count(Counter::ControlNoRoom);
            return false;
        };
        let at = Sequence::first_of(exchange);
        let retry = if target.asked {
            connect_request::RETRY
        } else {
            0
        };
        let port_name = match attempt.mode {
            ConnectMode::ClientServer => 0,
            ConnectMode::PeerToPeer => self.config.port_name,
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
        if !self.send_connection_iu(&iu, payload, host) {
            self.exchanges.close(at.ox_id, at.seq_cnt);
            return false;
        }
        if let Some((ox_id, seq_cnt)) = target.exchange.replace((at.ox_id, at.next_seq_cnt())) {
            self.exchanges.abandon(now_ns, ox_id, seq_cnt);
        }
        if target.asked {
            self.counters.count(Counter::Retries);
        }
        target.asked = true;
        true
    }

    pub(super) fn request_timeout<H: Host>(&mut self, now_ns: u64, vi: ViIndex, host: &mut H) {
        let Some(Phase::Requesting(attempt)) = self.endpoint_mut(vi).map(|ep| &mut ep.phase) else {
            return;
        };
        if attempt.deadline_ns.is_some_and(|at| at <= now_ns) {
            self.fail_request(now_ns, vi, ConnectError::Timeout, host);
            return;
        }
        if matches!(attempt.silence, Silence::Until(end_ns) if end_ns <= now_ns) {
            attempt.silence = Silence::Over;
        }
        if let Some(error) = attempt.failure() {
            self.fail_request(now_ns, vi, error, host);
            return;
        }
        self.ask_targets(now_ns, vi, host);
    }

    /// What a port answered; ends the request if nobody is left who could accept it.
    pub(super) fn note_answer<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        id: NPortId,
        answer: Answer,
        host: &mut H,
    ) {
        let silent_port_ns = self.config.silent_port_ns;
        let Some(Phase::Requesting(attempt)) = self.endpoint_mut(vi).map(|ep| &mut ep.phase) else {
            return;
        };
        for target in attempt.targets.iter_mut().filter(|t| t.id == id) {
            target.answer = answer;
        }
        if answer == Answer::NoMatch {
            attempt.limit_silence(now_ns, silent_port_ns);
        }
        match attempt.failure() {
            Some(error) => self.fail_request(now_ns, vi, error, host),
            None => self.arm_connect_timer(vi),
        }
    }

    /// Ends a request that got no connection.
    pub(crate) fn fail_request<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        error: ConnectError,
        host: &mut H,
    ) {
        self.cancel_request(now_ns, vi, None, host);
        self.retire_handle(vi);
        self.conclude_failed(vi, error, host);
    }

    /// Tells every port that may hold our request, except `keep`, that it is void.
    pub(crate) fn cancel_request<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        keep: Option<NPortId>,
        host: &mut H,
    ) {
        let Some(Phase::Requesting(attempt)) = self.endpoint_mut(vi).map(|ep| &mut ep.phase) else {
            return;
        };
        let (mode, connection_id) = (attempt.mode, attempt.connection_id);
        for target in core::mem::take(&mut attempt.targets) {
            if let Some((ox_id, seq_cnt)) = target.exchange {
                self.exchanges.abandon(now_ns, ox_id, seq_cnt);
            }
            let may_hold_it = match mode {
                ConnectMode::ClientServer => target.asked && target.is_open(),
                // No port keeps a peer request. One that accepted it says so until it is
                // answered: then it is told.
                ConnectMode::PeerToPeer => false,
            };
            if Some(target.id) == keep || !may_hold_it {
                continue;
            }
            // Silent ports, of which a configuration may name many that nobody has, leave half of
            // the table to connections and to ports that hold the request.
            if target.answer == Answer::Silent && !self.closing_has_room_to_spare() {
                self.counters.count(Counter::CloseOverflows);
                continue;
            }
            let farewell = Farewell {
                peer: target.id,
                peer_handle: profile::HANDLE_NONE,
                connection_id,
                reason: MessageReason::Disconnected,
                error: false,
                placed: None,
            };
            self.close_connection(now_ns, farewell, host);
        }
    }

    /// A station went: requests to it will not be answered.
    pub(crate) fn targets_gone<H: Host>(&mut self, now_ns: u64, id: NPortId, host: &mut H) {
        for slot in 0..self.endpoints.len() {
            let vi = ViIndex(slot as u32);
            if let Some(peer) = self
                .endpoint_mut(vi)
                .and_then(|ep| ep.peer_request.as_mut())
            {
                peer.port_gone(id);
            }
            let asked = self.endpoint(vi).is_some_and(|ep| match &ep.phase {
                Phase::Requesting(attempt) => attempt.targets.iter().any(|t| t.id == id),
                Phase::Idle
                | Phase::AwaitResponse3(_)
                | Phase::AwaitResponse2(_)
                | Phase::Connected
                | Phase::Error => false,
            });
            if asked {
                self.note_answer(now_ns, vi, id, Answer::Gone, host);
            }
        }
    }
}
