//! Peer requests and their matches (VIPL 3.3.6 to 3.3.8, 6.7).
//!
//! ```text
//!             a match         the other VI is already Connected
//!   Pool ----------------> Joining -----------------------------> Done(Connected)
//!     |
//!     +---- a match with conflicting attributes, a timeout, an unreachable host ----> Done(...)
//! ```
//! The two VIs of a match are connected one after the other. The outcome is reported once. If three requests have the
//! same address, the guide does not specify which two match.

use vipl::{ViAttributes, ViState, VipError};

use super::calls::Verdict;
use super::state::{Connection, State};
use super::tables::Tables;

/// A peer request, as it was made.
#[derive(Clone, Debug)]
pub(crate) struct PeerRequest {
    /// Requested discriminator; `None` for an unreachable host.
    pub(crate) name: Option<u32>,
    /// Has a timeout.
    pub(crate) limited: bool,
    pub(crate) attributes: ViAttributes,
}

/// A peer request whose outcome is not reported yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Peer {
    pub(crate) id: u64,
    pub(crate) stage: Stage,
    /// A client request failed before the outcome was reported.
    pub(crate) attempted: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    Pool,
    /// In the pool until the conflict with this request, which has already ended, is detected.
    Refused(u64),
    /// Matched with this request, whose VI is already Connected.
    Joining(u64),
    Done(PeerOutcome),
}

/// Outcome of a peer request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PeerOutcome {
    Connected(u64),
    /// The attributes of the two VIs conflict.
    Conflict(u64),
    Expired,
    /// The host is unreachable.
    Unreachable,
}

impl State {
    /// VIPL 3.3.6.
    pub(crate) fn may_request_peer(&self, verdict: Verdict, vi: u64) -> Verdict {
        let busy = self.vis[&vi].state != ViState::Idle;
        verdict.refuse_if(busy, VipError::InvalidState)
    }

    pub(crate) fn request_peer(&mut self, vi: u64, id: u64) {
        let found = self.vi_mut(vi);
        found.state = ViState::ConnectPending;
        let stage = Stage::Pool;
        let attempted = false;
        found.peer = Some(Peer {
            id,
            stage,
            attempted,
        });
    }

    /// A client request of a VI failed.
    pub(crate) fn note_failed_attempt(&mut self, vi: u64) {
        if let Some(peer) = self.vis.get_mut(&vi).and_then(|vi| vi.peer.as_mut()) {
            peer.attempted = true;
        }
    }

    /// VIPL 3.3.7, 3.3.8; returns the state after this result, or `None` if it is not possible.
    pub(crate) fn peer_result(
        &self,
        tables: &Tables,
        vi: u64,
        outcome: &vipl::Result<ViAttributes>,
    ) -> Option<Self> {
        let found = &self.vis[&vi];
        let Some(Peer {
            id,
            stage,
            attempted,
        }) = &found.peer
        else {
            return (*outcome == Err(VipError::InvalidState)).then(|| self.clone());
        };
        let Stage::Done(peer_outcome) = stage else {
            return (*outcome == Err(VipError::NotDone)).then(|| self.clone());
        };
        let attributes = |id: &u64| &tables.peers[id].attributes;
        let fits = match (peer_outcome, outcome) {
            (PeerOutcome::Connected(other), Ok(received)) => {
                let must = ViAttributes {
                    ptag: None,
                    ..*attributes(other)
                };
                *received == must
            }
            (PeerOutcome::Conflict(other), Err(_)) => {
                Tables::conflicts(attributes(id), attributes(other)).fits(outcome)
            }
            (PeerOutcome::Expired, Err(error)) => *error == VipError::Timeout,
            (PeerOutcome::Unreachable, Err(error)) => *error == VipError::NotReachable,
            (_, _) => false,
        };
        // The connection broke first, or another request was made: the guide does not specify which error is reported.
        let over = *attempted || found.state == ViState::Error;
        (fits || over && *outcome == Err(VipError::InvalidState)).then(|| {
            let mut state = self.clone();
            state.vi_mut(vi).peer = None;
            state
        })
    }

    /// Returns whether the VI is about to be connected with a VI that is already Connected.
    pub(super) fn is_joining(&self, vi: u64) -> bool {
        let peer = self.vis.get(&vi).and_then(|vi| vi.peer.as_ref());
        peer.is_some_and(|peer| matches!(peer.stage, Stage::Joining(_)))
    }

    /// The VIs with requests that wait for a match, and these requests.
    pub(crate) fn pool(&self) -> impl Iterator<Item = (u64, u64)> {
        self.vis.iter().filter_map(|(vi, found)| {
            let peer = found.peer.as_ref()?;
            let is_waiting = matches!(peer.stage, Stage::Pool | Stage::Refused(_));
            is_waiting.then_some((*vi, peer.id))
        })
    }

    /// Returns the possible next states of peer requests.
    pub(super) fn peer_steps(&self, tables: &Tables) -> Vec<State> {
        let mut next = Vec::new();
        let pool: Vec<(u64, u64)> = self.pool().collect();
        for &(vi, id) in &pool {
            let request = &tables.peers[&id];
            if request.limited {
                next.push(self.with_outcome(vi, PeerOutcome::Expired));
            }
            if request.name.is_none() {
                let mut lost = self.with_outcome(vi, PeerOutcome::Unreachable);
                lost.cannot_reach(tables, vi);
                next.push(lost);
                continue;
            }
            for withdrawn in &self.withdrawn {
                // The guide does not specify when a withdrawn request stops ending those that conflict with it.
                let theirs = &tables.peers[withdrawn];
                let conflict = Tables::conflicts(&request.attributes, &theirs.attributes);
                if request.name == theirs.name && conflict != Verdict::default() {
                    next.push(self.with_outcome(vi, PeerOutcome::Conflict(*withdrawn)));
                }
            }
            for &(other, other_id) in pool.iter().filter(|(other, _)| *other != vi) {
                let theirs = &tables.peers[&other_id];
                if request.name != theirs.name {
                    continue;
                }
                let conflict = Tables::conflicts(&request.attributes, &theirs.attributes);
                if conflict == Verdict::default() {
                    next.push(self.matched((vi, id), (other, other_id)));
                    continue;
                }
                let mut state = self.with_outcome(vi, PeerOutcome::Conflict(other_id));
                if let Some(peer) = &mut state.vi_mut(other).peer {
                    peer.stage = Stage::Refused(id);
                }
                next.push(state);
            }
        }
        for (vi, found) in &self.vis {
            let Some(peer) = &found.peer else { continue };
            match peer.stage {
                Stage::Refused(other) => {
                    next.push(self.with_outcome(*vi, PeerOutcome::Conflict(other)))
                }
                Stage::Joining(other) => {
                    next.push(self.with_outcome(*vi, PeerOutcome::Connected(other)));
                    if tables.peers[&peer.id].limited {
                        let mut late = self.with_outcome(*vi, PeerOutcome::Expired);
                        late.leave_connection(tables, *vi);
                        next.push(late);
                    }
                }
                Stage::Pool | Stage::Done(_) => {}
            }
        }
        next
    }

    fn with_outcome(&self, vi: u64, peer_outcome: PeerOutcome) -> State {
        let mut state = self.clone();
        let found = state.vi_mut(vi);
        found.state = match peer_outcome {
            PeerOutcome::Connected(_) => ViState::Connected,
            PeerOutcome::Conflict(_) | PeerOutcome::Expired | PeerOutcome::Unreachable => {
                ViState::Idle
            }
        };
        if let Some(peer) = &mut found.peer {
            peer.stage = Stage::Done(peer_outcome);
        }
        state
    }

    /// Matches two requests; the VI of the first is Connected.
    fn matched(&self, (vi, id): (u64, u64), (other, other_id): (u64, u64)) -> State {
        let mut state = self.with_outcome(vi, PeerOutcome::Connected(other_id));
        let number = id.min(other_id);
        state.vi_mut(vi).connection = Some(number);
        let joining = state.vi_mut(other);
        joining.connection = Some(number);
        if let Some(peer) = &mut joining.peer {
            peer.stage = Stage::Joining(id);
        }
        let vis = [vi.min(other), vi.max(other)];
        let connection = Connection {
            vis,
            in_transit: Default::default(),
            is_lossy: [false; 2],
        };
        state.connections.insert(number, connection);
        state
    }
}
