//! Peer requests, and what came of them.

use std::time::Duration;

use vipl::{
    Discriminator, HostAddress, NetAddress, Timeout, ViAttributes, ViHandle, ViState, VipError,
    provider as vip,
};

use super::{Checked, Player, choose};
use crate::model::{Met, Peer, PeerRequest, Stage, State, Tables, Verdict};
use crate::program::{Mistake, PeerShape, Pick};

/// Discriminators of one program.
const NAMES: u32 = 3;
/// Requests for one discriminator between two rests. Of four, two connections could come in ways that nobody can tell
/// from outside.
const MAX_ASKED: u32 = 3;
/// Soon over.
const SHORT: Duration = Duration::from_millis(2);

impl Player {
    /// The address that both requests of a match ask for.
    pub(super) fn peer_address(&self, name: u32) -> NetAddress {
        let text = format!("peers {name}");
        NetAddress {
            host: HostAddress(self.host),
            discriminator: Discriminator::new(text.as_bytes()).expect("short enough"),
        }
    }

    /// Who asks, and for what: most often what another one waits for already.
    fn pick_asker(&self, pick: Pick, dice: u32) -> (u64, u32) {
        let name = (dice >> 8) % NAMES;
        let waiting: Vec<u64> = self.oracle.any().pool().map(|(_, id)| id).collect();
        let index = (dice as usize >> 4).checked_rem(waiting.len());
        let Some(index) = index.filter(|_| !dice.is_multiple_of(8) && !pick.wrong) else {
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

    pub(super) fn peer_request(&mut self, pick: Pick, shape: &PeerShape) -> Checked {
        if !pick.wrong && self.idle_vis().is_empty() {
            self.settle()?;
            self.mend_any()?;
        }
        let (vi, name) = self.pick_asker(pick, shape.dice);
        if self
            .peers_asked
            .get(&name)
            .is_some_and(|asked| *asked >= MAX_ASKED)
        {
            self.settle()?;
        }
        let (mut local, mut remote) = (self.address("peer"), self.peer_address(name));
        let nowhere = shape.mistake == Mistake::Host;
        let limited = shape.limited || nowhere;
        let mut limit = if limited {
            Timeout::After(SHORT)
        } else {
            Timeout::Infinite
        };
        match shape.mistake {
            Mistake::Address => local.host.0[3] ^= 1,
            Mistake::Host => remote.host.0[3] ^= 1,
            Mistake::Timeout => limit = Timeout::Immediate,
            Mistake::None | Mistake::Nobody | Mistake::Attribute => {}
        }
        let wrong = [Mistake::Address, Mistake::Timeout].contains(&shape.mistake);
        let verdict = Verdict::default().refuse_if(wrong, VipError::InvalidParameter);
        self.oracle.work_on(&self.tables);
        let outcome = vip::connect_peer_request(ViHandle::from_raw(vi), &local, &remote, limit);
        let Some(facts) = self.tables.vis.get(&vi) else {
            return self.unknown_vi("peer request", vi, &outcome);
        };
        let attributes = facts.attributes;
        let text = format!("peer request {name} of {vi:#x}, {shape:?} -> {outcome:?}");
        self.note(|| text.clone());
        self.oracle.see(
            || text,
            |state| {
                let fits = state.may_ask_peer(verdict.clone(), vi).fits(&outcome);
                fits.then(|| state.clone()).into_iter().collect()
            },
        )?;
        if outcome.is_ok() {
            let id = self.name();
            let request = PeerRequest {
                name: (!nowhere).then_some(name),
                limited,
                attributes,
            };
            self.tables.peers.insert(id, request);
            self.oracle.change(|state| state.ask_peer(vi, id));
            *self.peers_asked.entry(name).or_default() += 1;
        }
        Ok(())
    }

    /// At rest: whoever waits for a match counts, and nobody else.
    pub(super) fn count_pool(&mut self) {
        self.peers_asked.clear();
        for (_, id) in self.oracle.any().pool() {
            if let Some(name) = self.tables.peers[&id].name {
                *self.peers_asked.entry(name).or_default() += 1;
            }
        }
    }

    /// A VI with a request, if there is one and the pick is not wrong.
    fn pick_peer(&self, pick: Pick) -> u64 {
        let vis = self.oracle.any().vis.iter();
        let asked: Vec<u64> = vis
            .filter(|(_, vi)| vi.peer.is_some())
            .map(|(handle, _)| *handle)
            .collect();
        if pick.wrong || pick.number & 0x700 == 0 {
            return self.pick_vi(pick);
        }
        choose(pick, &[&asked]).unwrap_or_else(|| self.pick_vi(pick))
    }

    pub(super) fn peer_done(&mut self, pick: Pick) -> Checked {
        let vi = self.pick_peer(pick);
        self.oracle.work_on(&self.tables);
        let outcome = vip::connect_peer_done(ViHandle::from_raw(vi));
        self.see_peer("done", vi, outcome)
    }

    /// Waits where that ends: not for a match that nobody asks for.
    pub(super) fn peer_wait(&mut self, pick: Pick) -> Checked {
        let vi = self.pick_peer(pick);
        self.oracle.work_on(&self.tables);
        let endless = |state: &State| state.pool().any(|(waiting, _)| waiting == vi);
        if self.oracle.at_rest(&self.tables).iter().any(endless) {
            return self.peer_done(pick);
        }
        let outcome = vip::connect_peer_wait(ViHandle::from_raw(vi));
        if outcome == Err(VipError::NotDone) {
            // Not an answer of this call (VIPL 3.3.8).
            return self.certain(|| "peer wait".into(), &outcome, &Verdict::default());
        }
        self.see_peer("wait", vi, outcome)
    }

    fn see_peer(&mut self, call: &str, vi: u64, outcome: vipl::Result<ViAttributes>) -> Checked {
        if !self.tables.vis.contains_key(&vi) {
            return self.unknown_vi("ask after a peer request", vi, &outcome);
        }
        let text = format!("peer {call} of {vi:#x} -> {outcome:?}");
        self.note(|| text.clone());
        let tables = &self.tables;
        let met = self.oracle.states().iter().find_map(|state| {
            state.peer_told(tables, vi, &outcome)?;
            match &state.vis[&vi].peer {
                Some(Peer {
                    stage: Stage::Met(met),
                    ..
                }) => Some(met.clone()),
                Some(_) | None => None,
            }
        });
        self.oracle.see(
            || text,
            |state| state.peer_told(tables, vi, &outcome).into_iter().collect(),
        )?;
        let Some(met) = met else { return Ok(()) };
        self.count(match met {
            Met::Connected(_) => "peers: connected".into(),
            Met::Conflict(_) => "peers: conflict".into(),
            Met::Expired => "peers: time-out".into(),
            Met::Nowhere => "peers: no such host".into(),
        });
        // It is told once.
        let again = vip::connect_peer_done(ViHandle::from_raw(vi));
        self.see_peer("done", vi, again)
    }

    pub(super) fn idle_vis(&self) -> Vec<u64> {
        let vis = self.oracle.any().vis.iter();
        let idle = vis.filter(|(_, vi)| vi.state == ViState::Idle);
        idle.map(|(handle, _)| *handle).collect()
    }
}
