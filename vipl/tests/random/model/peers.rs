//! Peer requests and their matches (VIPL 3.3.6 to 3.3.8, 6.7).
//!
//! ```text
//!             a match         the other one is Connected already
//!   Pool ----------------> Joining -----------------------------> Met(Connected)
//!     |
//!     +---- a match with other attributes, the end of its time, a host that is not there ----> Met(...)
//! ```
//! Two ends of a match hear of it one after the other. The outcome is told once. Where three ask for the same, the guide does not say which two match.

use vipl::{ViAttributes, ViState, VipError};

use super::calls::Verdict;
use super::state::{Link, State};
use super::tables::Tables;

/// A peer request, as it was made.
#[derive(Clone, Debug)]
pub(crate) struct PeerRequest {
    /// The discriminator that it asks for; `None` of a host that is not there.
    pub(crate) name: Option<u32>,
    pub(crate) limited: bool,
    pub(crate) attributes: ViAttributes,
}

/// A peer request whose outcome was not told yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Peer {
    pub(crate) id: u64,
    pub(crate) stage: Stage,
    /// Another attempt was made before the outcome was told, in vain.
    pub(crate) passed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stage {
    Pool,
    /// In the pool until it hears that it conflicts with this request, which is over already.
    Refused(u64),
    /// With this request, whose VI is Connected already.
    Joining(u64),
    Met(Met),
}

/// An outcome.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Met {
    Connected(u64),
    /// The attributes of the two VIs conflict.
    Conflict(u64),
    Expired,
    /// There is no way to the host.
    Nowhere,
}

impl State {
    /// VIPL 3.3.6.
    pub(crate) fn may_ask_peer(&self, verdict: Verdict, vi: u64) -> Verdict {
        let busy = self.vis[&vi].state != ViState::Idle;
        verdict.refuse_if(busy, VipError::InvalidState)
    }

    pub(crate) fn ask_peer(&mut self, vi: u64, id: u64) {
        let found = self.vi_mut(vi);
        found.state = ViState::ConnectPending;
        let stage = Stage::Pool;
        let passed = false;
        found.peer = Some(Peer { id, stage, passed });
    }

    /// A client's request was made, in vain.
    pub(crate) fn pass_peer(&mut self, vi: u64) {
        if let Some(peer) = self.vis.get_mut(&vi).and_then(|vi| vi.peer.as_mut()) {
            peer.passed = true;
        }
    }

    /// VIPL 3.3.7, 3.3.8: the state after such an answer, if there could be one.
    pub(crate) fn peer_told(
        &self,
        tables: &Tables,
        vi: u64,
        outcome: &vipl::Result<ViAttributes>,
    ) -> Option<Self> {
        let found = &self.vis[&vi];
        let Some(Peer { id, stage, passed }) = &found.peer else {
            return (*outcome == Err(VipError::InvalidState)).then(|| self.clone());
        };
        let Stage::Met(met) = stage else {
            return (*outcome == Err(VipError::NotDone)).then(|| self.clone());
        };
        let attributes = |id: &u64| &tables.peers[id].attributes;
        let fits = match (met, outcome) {
            (Met::Connected(other), Ok(told)) => {
                let must = ViAttributes {
                    ptag: None,
                    ..*attributes(other)
                };
                *told == must
            }
            (Met::Conflict(other), Err(_)) => {
                Tables::conflicts(attributes(id), attributes(other)).fits(outcome)
            }
            (Met::Expired, Err(error)) => *error == VipError::Timeout,
            (Met::Nowhere, Err(error)) => *error == VipError::NotReachable,
            (_, _) => false,
        };
        // It broke before it was told, or was asked for something else: the guide does not say which of the two is told.
        let over = *passed || found.state == ViState::Error;
        (fits || over && *outcome == Err(VipError::InvalidState)).then(|| {
            let mut state = self.clone();
            state.vi_mut(vi).peer = None;
            state
        })
    }

    /// Is it on its way to a connection of which the other end knows already?
    pub(super) fn is_joining(&self, vi: u64) -> bool {
        let peer = self.vis.get(&vi).and_then(|vi| vi.peer.as_ref());
        peer.is_some_and(|peer| matches!(peer.stage, Stage::Joining(_)))
    }

    /// The VIs whose requests wait for a match, with these requests.
    pub(crate) fn pool(&self) -> impl Iterator<Item = (u64, u64)> {
        self.vis.iter().filter_map(|(vi, found)| {
            let peer = found.peer.as_ref()?;
            let there = matches!(peer.stage, Stage::Pool | Stage::Refused(_));
            there.then_some((*vi, peer.id))
        })
    }

    /// What may become of peer requests next.
    pub(super) fn peer_acts(&self, tables: &Tables) -> Vec<State> {
        let mut next = Vec::new();
        let pool: Vec<(u64, u64)> = self.pool().collect();
        for &(vi, id) in &pool {
            let request = &tables.peers[&id];
            if request.limited {
                next.push(self.met(vi, Met::Expired));
            }
            if request.name.is_none() {
                let mut lost = self.met(vi, Met::Nowhere);
                lost.cannot_reach(tables, vi);
                next.push(lost);
                continue;
            }
            for gone in &self.withdrawn {
                // The guide does not say when a request that is taken back stops ending those that conflict with it.
                let theirs = &tables.peers[gone];
                let conflict = Tables::conflicts(&request.attributes, &theirs.attributes);
                if request.name == theirs.name && conflict != Verdict::default() {
                    next.push(self.met(vi, Met::Conflict(*gone)));
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
                let mut state = self.met(vi, Met::Conflict(other_id));
                if let Some(peer) = &mut state.vi_mut(other).peer {
                    peer.stage = Stage::Refused(id);
                }
                next.push(state);
            }
        }
        for (vi, found) in &self.vis {
            let Some(peer) = &found.peer else { continue };
            match peer.stage {
                Stage::Refused(other) => next.push(self.met(*vi, Met::Conflict(other))),
                Stage::Joining(other) => {
                    next.push(self.met(*vi, Met::Connected(other)));
                    if tables.peers[&peer.id].limited {
                        let mut late = self.met(*vi, Met::Expired);
                        late.leave(tables, *vi);
                        next.push(late);
                    }
                }
                Stage::Pool | Stage::Met(_) => {}
            }
        }
        next
    }

    fn met(&self, vi: u64, met: Met) -> State {
        let mut state = self.clone();
        let found = state.vi_mut(vi);
        found.state = match met {
            Met::Connected(_) => ViState::Connected,
            Met::Conflict(_) | Met::Expired | Met::Nowhere => ViState::Idle,
        };
        if let Some(peer) = &mut found.peer {
            peer.stage = Stage::Met(met);
        }
        state
    }

    /// The first of the two is Connected.
    fn matched(&self, (vi, id): (u64, u64), (other, other_id): (u64, u64)) -> State {
        let mut state = self.met(vi, Met::Connected(other_id));
        let number = id.min(other_id);
        state.vi_mut(vi).link = Some(number);
        let joining = state.vi_mut(other);
        joining.link = Some(number);
        if let Some(peer) = &mut joining.peer {
            peer.stage = Stage::Joining(id);
        }
        let vis = [vi.min(other), vi.max(other)];
        let link = Link {
            vis,
            onward: Default::default(),
            cut: [false; 2],
        };
        state.links.insert(number, link);
        state
    }
}
