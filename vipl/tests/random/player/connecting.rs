//! Connections made, refused and ended.

use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use vipl::{
    ConnHandle, Discriminator, HostAddress, NetAddress, Timeout, ViAttributes, ViHandle, ViState,
    VipError, provider as vip,
};

use super::{Checked, PATIENCE, Player, choose};
use crate::model::{Request, Tables, Verdict, ViFacts};
use crate::oracle::Violation;
use crate::program::{Mistake, Pick, Side};

/// A client that waits for the answer to its request, on a thread of its own.
pub(super) struct Asking {
    client: u64,
    thread: JoinHandle<vipl::Result<ViAttributes>>,
    /// It does not ask again.
    over: Arc<Mutex<bool>>,
}

impl Asking {
    /// Asks, and asks again for as long as nobody waits there.
    fn start(client: u64, local: NetAddress, remote: NetAddress) -> Self {
        let over = Arc::new(Mutex::new(false));
        let ended = Arc::clone(&over);
        let thread = thread::spawn(move || {
            loop {
                let vi = ViHandle::from_raw(client);
                let outcome = vip::connect_request(vi, &local, &remote, Timeout::Infinite);
                let again = outcome == Err(VipError::NoMatch) && !*ended.lock().expect("no panic");
                if !again {
                    return outcome;
                }
                thread::yield_now();
            }
        });
        Self {
            client,
            thread,
            over,
        }
    }

    pub(super) fn outcome(self) -> vipl::Result<ViAttributes> {
        *self.over.lock().expect("no panic") = true;
        self.thread.join().expect("the client does not panic")
    }
}

impl Player {
    pub(super) fn address(&mut self, of: &str) -> NetAddress {
        let text = format!("{of} {}", self.name());
        NetAddress {
            host: HostAddress(self.host),
            discriminator: Discriminator::new(text.as_bytes()).expect("short enough"),
        }
    }

    /// Waits where nobody asks: not at all, or with an address that is another host's (VIPL 3.3.1).
    pub(super) fn wait_for_nobody(&mut self, end: usize, nic: Pick, mistake: Mistake) -> Checked {
        let (end, nic) = self.pick_nic(end, nic);
        let mut local = self.address("nobody");
        if mistake == Mistake::Address {
            local.host.0[3] ^= 1;
        }
        if mistake == Mistake::Nobody {
            // Peers do not match servers (VIPL 3.3).
            local.discriminator = self.peer_address(0).discriminator;
        }
        let verdict = self
            .tables
            .on_nic(end, nic.into_raw())
            .refuse_if(mistake == Mistake::Address, VipError::InvalidParameter);
        let verdict = match verdict == Verdict::default() {
            true => verdict.refuse_if(true, VipError::Timeout),
            false => verdict,
        };
        let outcome = vip::connect_wait(nic, &local, Timeout::Immediate);
        self.certain(|| format!("connect wait at end {end}"), &outcome, &verdict)
    }

    pub(super) fn request(
        &mut self,
        pick: Pick,
        end: usize,
        nic: Pick,
        mistake: Mistake,
    ) -> Checked {
        // Whether the VI is Idle must be certain: a request that waits for nothing would wait for ever.
        self.settle()?;
        if !pick.wrong && self.idle_vis().is_empty() {
            self.mend_any()?;
        }
        let vi = self.pick_idle_vi(pick);
        let idle =
            |vi: &u64| self.oracle.any().vis.get(vi).map(|vi| vi.state) == Some(ViState::Idle);
        let end = self.serving_end(end, vi);
        let (end, nic) = self.pick_nic(end, nic);
        let open = self.tables.end_of_nic(nic.into_raw()).is_some();
        if mistake != Mistake::None || !idle(&vi) || !open {
            return self.request_in_vain(vi, mistake);
        }
        let (local, remote) = (self.address("client"), self.address("server"));
        let asking = Asking::start(vi, local, remote);
        let outcome = vip::connect_wait(nic, &remote, Timeout::After(PATIENCE));
        self.certain(
            || format!("request of {vi:#x} to end {end}"),
            &outcome,
            &Verdict::default(),
        )?;
        let Ok(found) = outcome else { return Ok(()) };
        let attributes = self.tables.vis[&vi].attributes;
        let told = ViAttributes {
            ptag: None,
            ..attributes
        };
        if found.remote != local || found.attributes != told {
            return Err(Violation(format!("{found:?}, must be {local:?} {told:?}")));
        }
        let conn = found.conn.into_raw();
        self.oracle.change(|state| state.ask(vi, conn));
        self.asking.insert(conn, asking);
        let request = Request {
            end,
            nic: nic.into_raw(),
            client: vi,
            attributes,
        };
        self.tables.requests.insert(conn, request);
        Ok(())
    }

    /// This end, unless only the other one has a VI that could accept a request of this one.
    fn serving_end(&self, end: usize, vi: u64) -> usize {
        let Some(facts) = self.tables.vis.get(&vi) else {
            return end;
        };
        let fits = |end: usize| {
            self.idle_vis().iter().any(|other| {
                let other_facts = &self.tables.vis[other];
                let conflicts = Tables::conflicts(&other_facts.attributes, &facts.attributes);
                *other != vi && other_facts.end == end && conflicts == Verdict::default()
            })
        };
        if !fits(end) && fits(1 - end) {
            1 - end
        } else {
            end
        }
    }

    /// Takes a VI that broke back to Idle, and its descriptors off it, as programs do (VIPL 7.5).
    fn mend(&mut self, fits: impl Fn(&ViFacts) -> bool) -> Checked {
        let state = self.oracle.any();
        let broken =
            |vi: &&u64| state.vis[*vi].state == ViState::Error && fits(&self.tables.vis[*vi]);
        let Some(vi) = self.tables.vis.keys().find(broken).copied() else {
            return Ok(());
        };
        self.start_again(vi)
    }

    /// As [`Self::mend`]; where none broke, one that waits to be connected gives up.
    pub(super) fn mend_any(&mut self) -> Checked {
        self.mend(|_| true)?;
        if !self.idle_vis().is_empty() {
            return Ok(());
        }
        let state = self.oracle.any();
        let waits = |vi: &&u64| state.vis[*vi].state == ViState::ConnectPending;
        match self.tables.vis.keys().find(waits).copied() {
            Some(vi) => self.start_again(vi),
            None => Ok(()),
        }
    }

    fn start_again(&mut self, vi: u64) -> Checked {
        self.disconnect_this(vi)?;
        for side in [Side::Send, Side::Receive] {
            while !self.oracle.any().vis[&vi].queue(side).items.is_empty() {
                self.done_of(vi, side, false)?;
            }
        }
        Ok(())
    }

    /// A VI that is Idle, if there is one and the pick is not wrong.
    pub(super) fn pick_idle_vi(&self, pick: Pick) -> u64 {
        let idle = self.idle_vis();
        if pick.wrong || idle.is_empty() || pick.number & 0x7000 == 0 {
            return self.pick_vi(pick);
        }
        idle[pick.number as usize % idle.len()]
    }

    /// A request that must be refused at once (VIPL 3.3.4).
    fn request_in_vain(&mut self, vi: u64, mistake: Mistake) -> Checked {
        let (mut local, mut remote) = (self.address("client"), self.address("nobody"));
        let mut limit = Timeout::After(PATIENCE);
        let mut verdict = Verdict::default();
        match mistake {
            Mistake::Address => {
                local.host.0[3] ^= 1;
                verdict = verdict.refuse_if(true, VipError::InvalidParameter);
            }
            Mistake::Timeout => {
                limit = Timeout::Immediate;
                verdict = verdict.refuse_if(true, VipError::InvalidParameter);
            }
            Mistake::Host => {
                remote.host.0[3] ^= 1;
                verdict = verdict.refuse_if(true, VipError::NotReachable);
            }
            Mistake::None | Mistake::Nobody | Mistake::Attribute => {
                if mistake == Mistake::Nobody {
                    // Clients do not match peers (VIPL 3.3).
                    remote = self.peer_address(0);
                }
                verdict = verdict.refuse_if(true, VipError::NoMatch);
            }
        }
        let known = self.oracle.any().vis.get(&vi).map(|vi| vi.state);
        match known {
            None => verdict = Verdict::default().refuse_if(true, VipError::InvalidParameter),
            Some(ViState::Idle) => {}
            Some(_) => verdict = verdict.refuse_if(true, VipError::InvalidState),
        }
        let outcome = vip::connect_request(ViHandle::from_raw(vi), &local, &remote, limit);
        self.certain(|| format!("request of {vi:#x} in vain"), &outcome, &verdict)?;
        self.oracle.change(|state| state.pass_peer(vi));
        if outcome == Err(VipError::NotReachable) {
            let tables = &self.tables;
            self.oracle.change(|state| state.cannot_reach(tables, vi));
        }
        Ok(())
    }

    /// A request that waits for its answer, or a handle of none.
    fn pick_request(&self, pick: Pick) -> u64 {
        let held: Vec<u64> = self.tables.requests.keys().copied().collect();
        if pick.wrong || held.is_empty() {
            return choose(pick, &[&self.stale.conns]).unwrap_or(0x4FFF_0000_0100_0001);
        }
        // The newest most often.
        let back = if pick.number & 0x700 == 0 {
            pick.number as usize
        } else {
            0
        };
        held[held.len() - 1 - back % held.len()]
    }

    pub(super) fn accept(&mut self, pick: Pick, vi: Pick) -> Checked {
        // An answer to a client that gave up must not have to wait until that is known.
        self.settle()?;
        let conn = self.pick_request(pick);
        if !vi.wrong
            && let Some(request) = self.tables.requests.get(&conn).cloned()
            && self.fitting_vis(&request).is_empty()
        {
            let fits = |facts: &ViFacts| {
                let conflicts = Tables::conflicts(&facts.attributes, &request.attributes);
                facts.end == request.end && conflicts == Verdict::default()
            };
            self.mend(fits)?;
        }
        let vi = self.pick_for(conn, vi);
        let known = self.tables.requests.get(&conn).cloned();
        let facts = self.tables.vis.get(&vi);
        let fits = known
            .as_ref()
            .zip(facts)
            .is_some_and(|(request, facts)| request.end == facts.end);
        let verdict = if fits {
            self.oracle.any().accept(&self.tables, conn, vi)
        } else {
            Verdict::default().refuse_if(true, VipError::InvalidParameter)
        };
        let outcome = vip::connect_accept(ConnHandle::from_raw(conn), ViHandle::from_raw(vi));
        self.certain(
            || format!("accept {conn:#x} with {vi:#x}"),
            &outcome,
            &verdict,
        )?;
        match (outcome, known) {
            (Ok(()), Some(request)) => self.connected(conn, vi, &request),
            (Err(VipError::Timeout), Some(_)) => {
                self.forget_request(conn);
                Ok(())
            }
            (Ok(()) | Err(_), _) => Ok(()),
        }
    }

    /// The VIs that could accept a request.
    fn fitting_vis(&self, request: &Request) -> Vec<u64> {
        let fits = |vi: &u64| {
            let facts = &self.tables.vis[vi];
            let conflicts = Tables::conflicts(&facts.attributes, &request.attributes);
            facts.end == request.end
                && self.oracle.any().vis[vi].state == ViState::Idle
                && conflicts == Verdict::default()
        };
        self.tables.vis.keys().copied().filter(fits).collect()
    }

    /// A VI that fits a request, if there is one and the pick is not wrong.
    fn pick_for(&self, conn: u64, pick: Pick) -> u64 {
        let Some(request) = self.tables.requests.get(&conn) else {
            return self.pick_vi(pick);
        };
        let fitting = self.fitting_vis(request);
        if pick.wrong || fitting.is_empty() || pick.number & 0x7000 == 0 {
            return self.pick_vi(pick);
        }
        fitting[pick.number as usize % fitting.len()]
    }

    fn forget_request(&mut self, conn: u64) {
        self.tables.requests.remove(&conn);
        self.stale.conns.push(conn);
    }

    fn connected(&mut self, conn: u64, vi: u64, request: &Request) -> Checked {
        self.forget_request(conn);
        let Some(asking) = self.asking.remove(&conn) else {
            return Err(Violation("accepted, but nobody asks".into()));
        };
        let outcome = asking.outcome();
        self.certain(|| "the client".into(), &outcome, &Verdict::default())?;
        let told = ViAttributes {
            ptag: None,
            ..self.tables.vis[&vi].attributes
        };
        if outcome != Ok(told) {
            return Err(Violation(format!("{outcome:?}, must be {told:?}")));
        }
        let link = self.name();
        self.oracle
            .change(|state| state.connect(link, [request.client, vi]));
        Ok(())
    }

    pub(super) fn reject(&mut self, pick: Pick) -> Checked {
        self.oracle.work_on(&self.tables);
        let conn = self.pick_request(pick);
        let known = self.tables.requests.get(&conn).cloned();
        let verdict = Verdict::default().refuse_if(known.is_none(), VipError::InvalidParameter);
        let outcome = vip::connect_reject(ConnHandle::from_raw(conn));
        self.certain(|| format!("reject {conn:#x}"), &outcome, &verdict)?;
        if known.is_some() {
            self.forget_request(conn);
            self.settle_client(conn, &[VipError::Reject])?;
        }
        Ok(())
    }

    /// The answer to a request came, or its VI gave up: what the client's call returned.
    fn settle_client(&mut self, conn: u64, refusals: &[VipError]) -> Checked {
        let Some(asking) = self.asking.remove(&conn) else {
            return Ok(());
        };
        let vi = asking.client;
        let outcome = asking.outcome();
        let text = format!("the client {vi:#x} -> {outcome:?}");
        self.note(|| text.clone());
        let refused = outcome.err();
        self.oracle.see(
            || text,
            |state| {
                let asks = state.vis.get(&vi).is_some_and(|vi| vi.asking == Some(conn));
                let fits = match refused {
                    Some(error) if asks => refusals.contains(&error),
                    // It was disconnected, broken or closed under the call.
                    Some(VipError::InvalidState | VipError::InvalidParameter) => !asks,
                    Some(_) | None => false,
                };
                let mut after = state.clone();
                if asks {
                    after.refuse(vi);
                }
                fits.then_some(after).into_iter().collect()
            },
        )
    }

    /// The clients whose VIs gave up for certain.
    pub(super) fn settle_clients(&mut self) -> Checked {
        let over: Vec<u64> = self
            .asking
            .iter()
            .filter(|(conn, asking)| {
                self.oracle.states().iter().all(|state| {
                    let vi = state.vis.get(&asking.client);
                    vi.is_none_or(|vi| vi.asking != Some(**conn))
                })
            })
            .map(|(conn, _)| *conn)
            .collect();
        for conn in over {
            self.settle_client(conn, &[])?;
        }
        Ok(())
    }

    /// Requests that a closed opening was told of, and those of its VIs (VIPL 3.1.2).
    pub(super) fn end_requests_of(&mut self, nic: u64, vis: &[u64]) -> Checked {
        let of_nic = |(_, request): &(&u64, &Request)| request.nic == nic;
        let told: Vec<u64> = self
            .tables
            .requests
            .iter()
            .filter(of_nic)
            .map(|(conn, _)| *conn)
            .collect();
        for conn in told {
            self.forget_request(conn);
            // Nobody is left to say which: no answer, a refusal, or nobody there.
            let refusals = [VipError::Reject, VipError::NotReachable, VipError::NoMatch];
            self.settle_client(conn, &refusals)?;
        }
        let of_vis = |(_, asking): &(&u64, &Asking)| vis.contains(&asking.client);
        let asked: Vec<u64> = self
            .asking
            .iter()
            .filter(of_vis)
            .map(|(conn, _)| *conn)
            .collect();
        for conn in asked {
            self.settle_client(conn, &[])?;
        }
        Ok(())
    }

    pub(super) fn disconnect(&mut self, pick: Pick) -> Checked {
        let vi = self.pick_vi(pick);
        self.disconnect_this(vi)
    }

    pub(super) fn disconnect_this(&mut self, vi: u64) -> Checked {
        self.oracle.work_on(&self.tables);
        let outcome = vip::disconnect(ViHandle::from_raw(vi));
        if !self.tables.vis.contains_key(&vi) {
            return self.unknown_vi("disconnect", vi, &outcome);
        }
        self.certain(
            || format!("disconnect {vi:#x}"),
            &outcome,
            &Verdict::default(),
        )?;
        let tables = &self.tables;
        self.oracle.change(|state| state.disconnect(tables, vi));
        self.settle_clients()
    }
}
