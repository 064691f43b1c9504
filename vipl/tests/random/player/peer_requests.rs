//! Peer requests and their outcomes.

use std::time::Duration;

use vipl::{
    Discriminator, HostAddress, NetAddress, Timeout, ViAttributes, ViHandle, ViState, VipError,
    provider as vip,
};

use super::{Checked, Player, choose};
use crate::model::{Peer, PeerOutcome, PeerRequest, Stage, State, Tables, Verdict};
use crate::program::{Fault, PeerSpec, Pick};

/// Number of discriminators of a program.
const NAMES: u32 = 3;
/// Maximum of requests for one discriminator between two quiescent points. Four could form two connections in ways that
/// the program cannot distinguish.
const MAX_REQUESTS: u32 = 3;
/// A short timeout.
const SHORT: Duration = Duration::from_millis(2);

impl Player {
    /// The address of both requests of a match.
    pub(super) fn peer_address(&self, name: u32) -> NetAddress {
        let text = format!("peers {name}");
        NetAddress {
            host: HostAddress(self.host),
            discriminator: Discriminator::new(text.as_bytes()).expect("short enough"),
        }
    }

    /// Selects a VI and a discriminator, mostly one with a pending request.
    fn pick_requester(&self, pick: Pick, seed: u32) -> (u64, u32) {
        let name = (seed >> 8) % NAMES;
        let waiting: Vec<u64> = self.oracle.any().pool().map(|(_, id)| id).collect();
        let index = (seed as usize >> 4).checked_rem(waiting.len());
        let Some(index) = index.filter(|_| !seed.is_multiple_of(8) && !pick.invalid) else {
            return (self.pick_idle_vi(pick), name);
        };
        let request = &self.tables.peers[&waiting[index]];
        let fits = |vi: &u64| {
            let ours = &self.tables.vis[vi].attributes;
            Tables::conflicts(ours, &request.attributes) == Verdict::default()
        };
        let fitting: Vec<u64> = self.idle_vis().into_iter().filter(fits).collect();
        let vi = choose(pick, &[&fitting]).unwrap_or_else(|| self.pick_idle_vi(pick));
        (vi, request.name.unwrap_or(name))
    }

    pub(super) fn peer_request(&mut self, pick: Pick, spec: &PeerSpec) -> Checked {
        if !pick.invalid && self.idle_vis().is_empty() {
            self.quiesce()?;
            self.reset_any()?;
        }
        let (vi, name) = self.pick_requester(pick, spec.seed);
        if self
            .peer_request_counts
            .get(&name)
            .is_some_and(|count| *count >= MAX_REQUESTS)
        {
            self.quiesce()?;
        }
        let (mut local, mut remote) = (self.address("peer"), self.peer_address(name));
        let is_unreachable = spec.fault == Fault::Host;
        let limited = spec.limited || is_unreachable;
        let mut limit = if limited {
            Timeout::After(SHORT)
        } else {
            Timeout::Infinite
        };
        match spec.fault {
            Fault::Address => local.host.0[3] ^= 1,
            Fault::Host => remote.host.0[3] ^= 1,
            Fault::Timeout => limit = Timeout::Immediate,
            Fault::None | Fault::NoListener | Fault::Attribute => {}
        }
        let invalid = [Fault::Address, Fault::Timeout].contains(&spec.fault);
        let verdict = Verdict::default().refuse_if(invalid, VipError::InvalidParameter);
        self.oracle.explore(&self.tables);
        let outcome = vip::connect_peer_request(ViHandle::from_raw(vi), &local, &remote, limit);
        let Some(facts) = self.tables.vis.get(&vi) else {
            return self.unknown_vi("peer request", vi, &outcome);
        };
        let attributes = facts.attributes;
        let text = format!("peer request {name} of {vi:#x}, {spec:?} -> {outcome:?}");
        self.note(|| text.clone());
        self.oracle.observe(
            || text,
            |state| {
                let fits = state.may_request_peer(verdict.clone(), vi).fits(&outcome);
                fits.then(|| state.clone()).into_iter().collect()
            },
        )?;
        if outcome.is_ok() {
            let id = self.next_id();
            let request = PeerRequest {
                name: (!is_unreachable).then_some(name),
                limited,
                attributes,
            };
            self.tables.peers.insert(id, request);
            self.oracle.apply(|state| state.request_peer(vi, id));
            *self.peer_request_counts.entry(name).or_default() += 1;
        }
        Ok(())
    }

    /// Counts the pending requests at a quiescent point.
    pub(super) fn count_pool(&mut self) {
        self.peer_request_counts.clear();
        for (_, id) in self.oracle.any().pool() {
            if let Some(name) = self.tables.peers[&id].name {
                *self.peer_request_counts.entry(name).or_default() += 1;
            }
        }
    }

    /// Selects a VI with a request, if one exists and the pick is valid.
    fn pick_peer(&self, pick: Pick) -> u64 {
        let vis = self.oracle.any().vis.iter();
        let requesting: Vec<u64> = vis
            .filter(|(_, vi)| vi.peer.is_some())
            .map(|(handle, _)| *handle)
            .collect();
        if pick.invalid || pick.number & 0x700 == 0 {
            return self.pick_vi(pick);
        }
        choose(pick, &[&requesting]).unwrap_or_else(|| self.pick_vi(pick))
    }

    pub(super) fn peer_done(&mut self, pick: Pick) -> Checked {
        let vi = self.pick_peer(pick);
        self.oracle.explore(&self.tables);
        let outcome = vip::connect_peer_done(ViHandle::from_raw(vi));
        self.check_peer_result("done", vi, outcome)
    }

    /// Waits for an outcome, unless the request may be pending for ever.
    pub(super) fn peer_wait(&mut self, pick: Pick) -> Checked {
        let vi = self.pick_peer(pick);
        self.oracle.explore(&self.tables);
        let endless = |state: &State| state.pool().any(|(waiting, _)| waiting == vi);
        if self.oracle.quiescent(&self.tables).iter().any(endless) {
            return self.peer_done(pick);
        }
        let outcome = vip::connect_peer_wait(ViHandle::from_raw(vi));
        if outcome == Err(VipError::NotDone) {
            // Not a valid result of this call (VIPL 3.3.8).
            return self.check_result(|| "peer wait".into(), &outcome, &Verdict::default());
        }
        self.check_peer_result("wait", vi, outcome)
    }

    fn check_peer_result(
        &mut self,
        call: &str,
        vi: u64,
        outcome: vipl::Result<ViAttributes>,
    ) -> Checked {
        if !self.tables.vis.contains_key(&vi) {
            return self.unknown_vi("peer done or wait", vi, &outcome);
        }
        let text = format!("peer {call} of {vi:#x} -> {outcome:?}");
        self.note(|| text.clone());
        let tables = &self.tables;
        let peer_outcome = self.oracle.states().iter().find_map(|state| {
            state.peer_result(tables, vi, &outcome)?;
            match &state.vis[&vi].peer {
                Some(Peer {
                    stage: Stage::Done(peer_outcome),
                    ..
                }) => Some(peer_outcome.clone()),
                Some(_) | None => None,
            }
        });
        self.oracle.observe(
            || text,
            |state| {
                state
                    .peer_result(tables, vi, &outcome)
                    .into_iter()
                    .collect()
            },
        )?;
        let Some(peer_outcome) = peer_outcome else {
            return Ok(());
        };
        self.count(match peer_outcome {
            PeerOutcome::Connected(_) => "peers: connected".into(),
            PeerOutcome::Conflict(_) => "peers: conflict".into(),
            PeerOutcome::Expired => "peers: timeout".into(),
            PeerOutcome::Unreachable => "peers: unreachable host".into(),
        });
        // The outcome is reported once.
        let again = vip::connect_peer_done(ViHandle::from_raw(vi));
        self.check_peer_result("done", vi, again)
    }

    pub(super) fn idle_vis(&self) -> Vec<u64> {
        let vis = self.oracle.any().vis.iter();
        let idle = vis.filter(|(_, vi)| vi.state == ViState::Idle);
        idle.map(|(handle, _)| *handle).collect()
    }
}
