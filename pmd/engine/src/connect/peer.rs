//! Peer-to-peer requests (VIPL 3.3.6-3.3.8, 6.7) [FCVI P-12].
//!
//! A request stays in the pool and asks every port of the remote host again and
//! again, until one of them accepts it, a request of another VI that matches it
//! stands instead, or its time is over. Two requests match if each asks for the
//! other's host and both ask for the same discriminator; the local addresses
//! name the VIs and nothing else. Of two that match the one of higher [`Rank`]
//! stands: its RQST is accepted by the other one, which takes its own back.
//!
//! ```text
//!             RQST of a match that outranks us: RESP1             RESP2
//!          +-------------------------------------> AwaitResponse2 -----+
//!          |                                             |             v
//!   Requesting <---- the other end left, or is silent ---+         Connected
//!    |     |                                             |             ^
//!    |     +-------------------------------------> AwaitResponse3 -----+
//!    |        RESP1 "accepted": RESP2                             RESP3
//!    +-- time-out, other attributes: Idle, with an outcome
//! ```

use fcvi_frame::connect::{ConnectRequest, HostAddress, NetAddress};
use fcvi_frame::fc::NPortId;
use fcvi_frame::flags::ConnectMode;

use crate::connect::request::Attempt;
use crate::connect::{ConnectCommand, ConnectError, RemoteVi};
use crate::counters::Counter;
use crate::endpoint::{EndpointState, Phase};
use crate::engine::{Engine, ViIndex};
use crate::host::Host;

/// Which of two requests that match stands: the one of the port with the higher
/// N_Port_Name, then the one with the higher connection ID. The last field only makes
/// sure that no two ports are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub(crate) port_name: u64,
    pub(crate) connection_id: u32,
    pub(crate) n_port_id: NPortId,
}

/// A peer request of the consumer's, from the call until its outcome is told.
#[derive(Debug)]
pub(crate) struct PeerRequest {
    /// Counts the requests of this N_Port: older ones are matched first.
    number: u64,
    local: NetAddress,
    remote: NetAddress,
    /// The ports of the remote host that are there as far as we know.
    targets: Vec<NPortId>,
    deadline_ns: Option<u64>,
    outcome: Option<Result<RemoteVi, ConnectError>>,
}

impl PeerRequest {
    /// When its time is over.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.deadline_ns
    }

    /// The address at which it is found.
    pub(crate) fn found_at(&self) -> NetAddress {
        NetAddress {
            host: self.local.host,
            discriminator: self.remote.discriminator,
        }
    }

    pub(crate) fn conclude(&mut self, outcome: Result<RemoteVi, ConnectError>) {
        self.outcome = Some(outcome);
    }

    /// Only its outcome is left of it.
    pub(crate) fn is_concluded(&self) -> bool {
        self.outcome.is_some()
    }

    fn port_came(&mut self, id: NPortId) {
        if !self.targets.contains(&id) {
            self.targets.push(id);
        }
    }

    pub(crate) fn port_gone(&mut self, id: NPortId) {
        self.targets.retain(|target| *target != id);
    }

    fn matches(&self, other: &ConnectRequest) -> bool {
        self.remote.host == other.local.host
            && self.remote.discriminator == other.remote.discriminator
    }

    fn is_over(&self, now_ns: u64) -> bool {
        self.is_concluded() || self.deadline_ns.is_some_and(|at| at <= now_ns)
    }

    fn is_pending_for(&self, address: HostAddress, now_ns: u64) -> bool {
        self.remote.host == address && !self.is_over(now_ns)
    }
}

impl Engine {
    /// Puts a request into the peer pool (VIPL 3.3.6). Its outcome comes by
    /// [`Engine::take_peer_outcome`]; `NotReachable` if there is no port to ask, and none that
    /// might be found.
    ///
    /// # Errors
    /// `Invalid`, `InvalidState`.
    pub fn connect_peer<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        command: &ConnectCommand<'_>,
        host: &mut H,
    ) -> Result<(), ConnectError> {
        self.next_peer_request += 1;
        let request = PeerRequest {
            number: self.next_peer_request,
            local: command.local,
            remote: command.remote,
            targets: command.targets.to_vec(),
            deadline_ns: command.deadline_ns(now_ns),
            outcome: None,
        };
        let deadline_ns = request.deadline_ns;
        let ep = self.endpoint_mut(vi).ok_or(ConnectError::Invalid)?;
        if !matches!(ep.phase, Phase::Idle) {
            return Err(ConnectError::InvalidState);
        }
        ep.forget_outcomes();
        ep.peer_request = Some(Box::new(request));
        if self.has_no_route(command) {
            self.conclude_failed(vi, ConnectError::NotReachable, host);
            return Ok(());
        }
        host.set_state(vi, EndpointState::ConnectPending);
        let mode = ConnectMode::PeerToPeer;
        self.start_request(now_ns, vi, mode, command, deadline_ns, host);
        Ok(())
    }

    /// Adds a port of this host, to which pending requests for the host are sent, too, until
    /// [`Engine::peer_lost`] removes it.
    pub fn port_joined<H: Host>(
        &mut self,
        now_ns: u64,
        address: HostAddress,
        id: NPortId,
        host: &mut H,
    ) {
        let interval_ns = self.config.peer_retry_ns;
        for slot in 0..self.endpoints.len() {
            let vi = ViIndex(slot as u32);
            let Some(ep) = self.endpoint_mut(vi) else {
                continue;
            };
            let pooled = ep.peer_request.as_mut();
            if let Some(request) = pooled.filter(|request| request.is_pending_for(address, now_ns))
            {
                request.port_came(id);
            }
            if let Phase::Requesting(attempt) = &mut ep.phase
                && attempt.is_pending_for(address, now_ns)
            {
                attempt.ask_also(id, now_ns, interval_ns);
                self.ask_targets(now_ns, vi, host);
                self.arm_connect_timer(vi);
            }
        }
    }

    /// The number of the VI's peer request, from the call until its outcome was taken.
    pub fn peer_request(&self, vi: ViIndex) -> Option<u64> {
        let request = self.endpoint(vi)?.peer_request.as_ref()?;
        Some(request.number)
    }

    /// The outcome of the peer request with this number, once; `None` while it has none.
    /// `InvalidState` if the VI has no such request any more.
    pub fn take_peer_outcome(
        &mut self,
        vi: ViIndex,
        number: u64,
    ) -> Option<Result<RemoteVi, ConnectError>> {
        let own = |request: &&mut Box<PeerRequest>| request.number == number;
        let slot = self.endpoint_mut(vi).map(|ep| &mut ep.peer_request);
        let Some(slot) = slot else {
            return Some(Err(ConnectError::Invalid));
        };
        let Some(request) = slot.as_mut().filter(own) else {
            return Some(Err(ConnectError::InvalidState));
        };
        let outcome = request.outcome?;
        *slot = None;
        Some(outcome)
    }

    /// Does this VI ask as a peer?
    pub(super) fn asks_as_peer(&self, vi: ViIndex) -> bool {
        self.pooled(vi).is_some()
    }

    /// The attempt of a VI whose request is in the pool.
    fn pooled(&self, vi: ViIndex) -> Option<&Attempt> {
        match &self.endpoint(vi)?.phase {
            Phase::Requesting(attempt) if attempt.mode == ConnectMode::PeerToPeer => Some(attempt),
            Phase::Requesting(_)
            | Phase::Idle
            | Phase::AwaitResponse3(_)
            | Phase::AwaitResponse2(_)
            | Phase::Connected
            | Phase::Error => None,
        }
    }

    /// The VI whose request in the pool matches this one of another VI: the oldest.
    pub(crate) fn pooled_match(
        &self,
        now_ns: u64,
        from: &Rank,
        request: &ConnectRequest,
    ) -> Option<ViIndex> {
        let candidate = |slot: usize| {
            let vi = ViIndex(slot as u32);
            let attempt = self.pooled(vi)?;
            let ours = self.endpoint(vi)?.peer_request.as_ref()?;
            let itself = from.n_port_id == self.config.n_port_id
                && from.connection_id == attempt.connection_id;
            (!itself && !ours.is_over(now_ns) && ours.matches(request)).then_some((ours.number, vi))
        };
        let found = (0..self.endpoints.len()).filter_map(candidate);
        found.min_by_key(|(number, _)| *number).map(|(_, vi)| vi)
    }

    /// Does the request of this VI give way to one that matches it? Also to one of lower
    /// rank if its port is not asked by ours: that one could never accept it.
    pub(crate) fn gives_way(&self, vi: ViIndex, from: &Rank) -> bool {
        self.pooled(vi).is_some_and(|attempt| {
            let mut asked = attempt.targets.iter();
            let own = Rank {
                port_name: self.config.port_name,
                connection_id: attempt.connection_id,
                n_port_id: self.config.n_port_id,
            };
            own < *from || !asked.any(|t| t.id == from.n_port_id && t.is_open())
        })
    }

    /// This port has a request that has to accept ours: asks it now, or soon if it was asked
    /// and did not answer yet.
    pub(crate) fn ask_at_once<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        id: NPortId,
        host: &mut H,
    ) {
        let first_ns = self.config.peer_retry_ns;
        let Some(Phase::Requesting(attempt)) = self.endpoint_mut(vi).map(|ep| &mut ep.phase) else {
            return;
        };
        for target in attempt.targets.iter_mut().filter(|t| t.id == id) {
            let wait_ns = if target.exchange.is_some() {
                first_ns
            } else {
                0
            };
            target.ask_at_ns = target.ask_at_ns.min(now_ns + wait_ns);
            target.interval_ns = first_ns;
        }
        self.ask_targets(now_ns, vi, host);
        self.arm_connect_timer(vi);
    }

    /// Half a connection ended. A peer request whose time is not over asks anew, so that
    /// nothing late of this attempt fits the next one. False if this VI has none.
    pub(super) fn return_to_pool<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        host: &mut H,
    ) -> bool {
        let request = self.endpoint(vi).and_then(|ep| ep.peer_request.as_ref());
        let Some(request) = request.filter(|request| !request.is_over(now_ns)) else {
            return false;
        };
        let targets = request.targets.clone();
        let command = ConnectCommand {
            local: request.local,
            remote: request.remote,
            targets: &targets,
            timeout_ns: None,
        };
        let deadline_ns = request.deadline_ns;
        self.counters.count(Counter::PeerReturned);
        let mode = ConnectMode::PeerToPeer;
        self.start_request(now_ns, vi, mode, &command, deadline_ns, host);
        true
    }
}
