//! Peer-to-peer requests (VIPL 3.3.6-3.3.8, 6.7) [FCVI P-12].
//!
//! A request stays in the pool and is sent to every port of the remote host repeatedly, until one of
//! them accepts it, it yields to a matching request of another VI, or it times out. Two requests
//! match if each names the other's host and both name the same discriminator; the local addresses
//! name the VIs and are not compared. Of two that match the one of higher [`Rank`] prevails: its
//! RQST is accepted by the other VI, which withdraws its own.
//!
//! ```text
//!             RQST of a match with higher rank: RESP1             RESP2
//!          +-------------------------------------> AwaitResponse2 -----+
//!          |                                             |             v
//!   Requesting <---- the peer left, or is silent --------+         Connected
//!    |     |                                             |             ^
//!    |     +-------------------------------------> AwaitResponse3 -----+
//!    |        RESP1 "accepted": RESP2                             RESP3
//!    +-- timeout, other attributes: Idle, with an outcome
//! ```

use fcvi_frame::connect::ConnectRequest;
use fcvi_frame::fc::NPortId;
use fcvi_frame::flags::ConnectMode;
use vi_types::{CallError, HostAddress, NetAddress, ViIndex, ViState};

use crate::connect::request::Attempt;
use crate::connect::{ConnectCommand, RemoteVi};
use crate::counters::Counter;
use crate::endpoint::Phase;
use crate::engine::Engine;
use crate::engine_io::EngineIo;

/// Rank of a peer request: of two that match, the higher one prevails. The port with the higher
/// N_Port_Name has the higher rank, then the higher connection ID. The last field only ensures that
/// no two ports are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub(crate) port_name: u64,
    pub(crate) connection_id: u32,
    pub(crate) n_port_id: NPortId,
}

/// A peer request of the consumer, from the call until its outcome is reported.
#[derive(Debug)]
pub(crate) struct PeerRequest {
    /// Number among the requests of this N_Port: older ones are matched first.
    number: u64,
    local: NetAddress,
    remote: NetAddress,
    /// Known ports of the remote host.
    targets: Vec<NPortId>,
    deadline_ns: Option<u64>,
    outcome: Option<Result<RemoteVi, CallError>>,
}

impl PeerRequest {
    /// Returns the time at which the request times out.
    pub(crate) fn deadline_ns(&self) -> Option<u64> {
        self.deadline_ns
    }

    /// Returns the address that a matching request names.
    pub(crate) fn requested_address(&self) -> NetAddress {
        NetAddress {
            host: self.local.host,
            discriminator: self.remote.discriminator,
        }
    }

    pub(crate) fn conclude(&mut self, outcome: Result<RemoteVi, CallError>) {
        self.outcome = Some(outcome);
    }

    /// Reports whether only the outcome is left.
    pub(crate) fn is_concluded(&self) -> bool {
        self.outcome.is_some()
    }

    fn add_port(&mut self, id: NPortId) {
        if !self.targets.contains(&id) {
            self.targets.push(id);
        }
    }

    pub(crate) fn remove_ports(&mut self, is_lost: impl Fn(NPortId) -> bool) {
        self.targets.retain(|target| !is_lost(*target));
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
    /// Adds a request to the peer pool (VIPL 3.3.6). Its outcome is reported by
    /// [`Engine::take_peer_outcome`]; `NotReachable` if no port of the host is known and none can
    /// be discovered.
    ///
    /// # Errors
    /// `Invalid`, `InvalidState`.
    pub fn connect_peer<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        command: &ConnectCommand<'_>,
        io: &mut I,
    ) -> Result<(), CallError> {
        self.port.next_peer_request += 1;
        let request = PeerRequest {
            number: self.port.next_peer_request,
            local: command.local,
            remote: command.remote,
            targets: command.targets.to_vec(),
            deadline_ns: command.deadline_ns(now_ns),
            outcome: None,
        };
        let deadline_ns = request.deadline_ns;
        let ep = self.endpoint_mut(vi).ok_or(CallError::InvalidParameter)?;
        if !matches!(ep.phase, Phase::Idle) {
            return Err(CallError::InvalidState);
        }
        ep.clear_outcomes();
        ep.peer_request = Some(Box::new(request));
        if !self.port.peer_requesters.contains(&vi) {
            self.port.peer_requesters.push(vi);
        }
        if self.has_no_route(command) {
            self.conclude_failed(vi, CallError::NotReachable, io);
            return Ok(());
        }
        io.set_state(vi, ViState::ConnectPending);
        let mode = ConnectMode::PeerToPeer;
        self.start_request(now_ns, vi, mode, command, deadline_ns, io);
        Ok(())
    }

    /// Adds a port of this host: pending requests for the host are sent to it too, until
    /// [`Engine::peer_lost`] removes it.
    pub fn port_joined<I: EngineIo>(
        &mut self,
        now_ns: u64,
        address: HostAddress,
        id: NPortId,
        io: &mut I,
    ) {
        let interval_ns = self.port.config.peer_retry_ns;
        for slot in 0..self.endpoints.len() {
            let vi = ViIndex(slot as u32);
            let Some(ep) = self.endpoint_mut(vi) else {
                continue;
            };
            let pooled = ep.peer_request.as_mut();
            if let Some(request) = pooled.filter(|request| request.is_pending_for(address, now_ns))
            {
                request.add_port(id);
            }
            if let Phase::Requesting(attempt) = &mut ep.phase
                && attempt.is_pending_for(address, now_ns)
            {
                attempt.add_target(id, now_ns, interval_ns);
                self.send_requests(now_ns, vi, io);
                self.arm_connect_timer(vi);
            }
        }
    }

    /// Returns the number of the VI's peer request, from the call until its outcome was taken.
    pub fn peer_request(&self, vi: ViIndex) -> Option<u64> {
        let request = self.endpoint(vi)?.peer_request.as_ref()?;
        Some(request.number)
    }

    /// Takes the outcome of the peer request with this number, once; `None` while it is pending.
    /// `InvalidState` if the VI has no such request any more.
    pub fn take_peer_outcome(
        &mut self,
        vi: ViIndex,
        number: u64,
    ) -> Option<Result<RemoteVi, CallError>> {
        let own = |request: &&mut Box<PeerRequest>| request.number == number;
        let slot = self.endpoint_mut(vi).map(|ep| &mut ep.peer_request);
        let Some(slot) = slot else {
            return Some(Err(CallError::InvalidParameter));
        };
        let Some(request) = slot.as_mut().filter(own) else {
            return Some(Err(CallError::InvalidState));
        };
        let outcome = request.outcome?;
        *slot = None;
        Some(outcome)
    }

    /// Reports whether this VI has a request in the peer pool.
    pub(super) fn is_pooled(&self, vi: ViIndex) -> bool {
        self.pooled(vi).is_some()
    }

    /// Returns the attempt of a VI whose request is in the pool.
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

    /// Returns the VI whose request in the pool matches this one of another VI; the oldest, if
    /// several.
    pub(crate) fn pooled_match(
        &mut self,
        now_ns: u64,
        from: &Rank,
        request: &ConnectRequest,
    ) -> Option<ViIndex> {
        let endpoints = &self.endpoints;
        self.port.peer_requesters.retain(|vi| {
            let ep = endpoints.get(vi.slot()).and_then(Option::as_ref);
            ep.is_some_and(|ep| ep.peer_request.is_some())
        });
        let candidate = |vi: &ViIndex| {
            let vi = *vi;
            let attempt = self.pooled(vi)?;
            let ours = self.endpoint(vi)?.peer_request.as_ref()?;
            let itself = from.n_port_id == self.port.config.n_port_id
                && from.connection_id == attempt.connection_id;
            (!itself && !ours.is_over(now_ns) && ours.matches(request)).then_some((ours.number, vi))
        };
        let found = self.port.peer_requesters.iter().filter_map(candidate);
        found.min_by_key(|(number, _)| *number).map(|(_, vi)| vi)
    }

    /// Reports whether the request of this VI yields to one that matches it. It also yields to one
    /// of lower rank from a port that it was not sent to, which could never accept it.
    pub(crate) fn yields_to(&self, vi: ViIndex, from: &Rank) -> bool {
        self.pooled(vi).is_some_and(|attempt| {
            let mut asked = attempt.targets.iter();
            let own = Rank {
                port_name: self.port.config.port_name,
                connection_id: attempt.connection_id,
                n_port_id: self.port.config.n_port_id,
            };
            own < *from || !asked.any(|t| t.id == from.n_port_id && t.is_open())
        })
    }

    /// Sends the request to a port that has to accept it: now, or after one retry interval if an
    /// earlier one is unanswered.
    pub(crate) fn request_now<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        id: NPortId,
        io: &mut I,
    ) {
        let retry_ns = self.port.config.peer_retry_ns;
        let Some(Phase::Requesting(attempt)) = self.endpoint_mut(vi).map(|ep| &mut ep.phase) else {
            return;
        };
        for target in attempt.targets.iter_mut().filter(|t| t.id == id) {
            let wait_ns = if target.exchange.is_some() {
                retry_ns
            } else {
                0
            };
            target.next_request_ns = target.next_request_ns.min(now_ns + wait_ns);
            target.interval_ns = retry_ns;
        }
        self.send_requests(now_ns, vi, io);
        self.arm_connect_timer(vi);
    }

    /// Returns a peer request that has not timed out to the pool, after half a connection ended. It
    /// gets a new connection ID, so that late IUs of this attempt do not match the next one.
    /// Returns false if the VI has none.
    pub(super) fn return_to_pool<I: EngineIo>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        io: &mut I,
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
        self.port.counters.count(Counter::PeerReturned);
        let mode = ConnectMode::PeerToPeer;
        self.start_request(now_ns, vi, mode, &command, deadline_ns, io);
        true
    }
}
