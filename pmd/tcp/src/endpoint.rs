//! A VI of the NIC: its attributes, and the phase of its connection.

use vi_types::{CallError, ConnectionOptions, ViParams, ViState};

use super::request::Request;

/// A peer request, from the call until its outcome is reported.
#[derive(Clone, Debug)]
pub(super) struct PeerRequest {
    /// Older ones are matched first.
    pub(super) number: u64,
    pub(super) outcome: Option<Result<ViParams, CallError>>,
}

/// Phase of a VI.
#[derive(Debug)]
pub(super) enum Phase {
    Idle,
    Requesting(Box<Request>),
    /// The number of its connection.
    Connected(u32),
    Error,
}

/// One VI.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) params: ViParams,
    pub(super) options: ConnectionOptions,
    pub(super) phase: Phase,
    pub(super) outcome: Option<Result<ViParams, CallError>>,
    pub(super) peer_request: Option<PeerRequest>,
    /// RDMA accesses of the peer that were refused on the last connection that broke.
    pub(super) refused_accesses: u32,
    /// The user that owns it.
    pub(super) user: u32,
}

impl Endpoint {
    pub(super) fn new(params: ViParams, options: ConnectionOptions) -> Self {
        Self {
            params,
            options,
            phase: Phase::Idle,
            outcome: None,
            peer_request: None,
            refused_accesses: 0,
            user: 0,
        }
    }

    pub(super) fn state(&self) -> ViState {
        match self.phase {
            Phase::Idle => ViState::Idle,
            Phase::Requesting(_) => ViState::ConnectPending,
            Phase::Connected(_) => ViState::Connected,
            Phase::Error => ViState::Error,
        }
    }

    pub(super) fn is_reliable(&self) -> bool {
        self.params.level.is_reliable()
    }

    /// Discards outcomes of earlier connection calls.
    pub(super) fn forget_outcomes(&mut self) {
        self.outcome = None;
        self.peer_request = None;
    }

    /// Sets the outcome of the connection call.
    pub(super) fn set_outcome(&mut self, outcome: Result<ViParams, CallError>) {
        match &mut self.peer_request {
            Some(request) => request.outcome = Some(outcome),
            None => self.outcome = Some(outcome),
        }
    }
}
