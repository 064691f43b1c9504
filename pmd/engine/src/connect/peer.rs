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
use vi_types::{CallError, HostAddress, NetAddress};

use crate::connection::{ConnectCommand, RemoteVi};

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
    pub(crate) number: u64,
    pub(crate) local: NetAddress,
    pub(crate) remote: NetAddress,
    /// Known ports of the remote host.
    pub(crate) targets: Vec<NPortId>,
    /// Time at which the request times out.
    pub(crate) deadline_ns: Option<u64>,
    pub(crate) outcome: Option<Result<RemoteVi, CallError>>,
}

impl PeerRequest {
    pub(crate) fn new(number: u64, command: &ConnectCommand<'_>, now_ns: u64) -> Self {
        Self {
            number,
            local: command.local,
            remote: command.remote,
            targets: command.targets.to_vec(),
            deadline_ns: command.deadline_ns(now_ns),
            outcome: None,
        }
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

    pub(crate) fn add_port(&mut self, id: NPortId) {
        if !self.targets.contains(&id) {
            self.targets.push(id);
        }
    }

    pub(crate) fn remove_ports(&mut self, is_lost: impl Fn(NPortId) -> bool) {
        self.targets.retain(|target| !is_lost(*target));
    }

    pub(crate) fn matches(&self, other: &ConnectRequest) -> bool {
        self.remote.host == other.local.host
            && self.remote.discriminator == other.remote.discriminator
    }

    pub(crate) fn is_over(&self, now_ns: u64) -> bool {
        self.is_concluded() || self.deadline_ns.is_some_and(|at| at <= now_ns)
    }

    pub(crate) fn is_pending_for(&self, address: HostAddress, now_ns: u64) -> bool {
        self.remote.host == address && !self.is_over(now_ns)
    }
}
