//! Client and server connections: requests, responses, disconnects.

use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use vi_types::QueueKind;
use vipl::{
    ConnHandle, Discriminator, HostAddress, NetAddress, Timeout, ViAttributes, ViHandle, ViState,
    VipError, provider as vip,
};

use super::{Checked, Player, TIMEOUT, choose};
use crate::model::{Request, Tables, Verdict, ViFacts};
use crate::oracle::Violation;
use crate::program::{Fault, Pick};

/// A thread that waits for the response to a client request.
pub(super) struct ClientThread {
    vi: u64,
    thread: JoinHandle<vipl::Result<ViAttributes>>,
    /// No further request is made.
    is_over: Arc<Mutex<bool>>,
}

impl ClientThread {
    /// Makes a request, and repeats it while no server is listening.
    fn start(vi: u64, local: NetAddress, remote: NetAddress) -> Self {
        let is_over = Arc::new(Mutex::new(false));
        let over = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            loop {
                let handle = ViHandle::from_raw(vi);
                let outcome = vip::connect_request(handle, &local, &remote, Timeout::Infinite);
                let again = outcome == Err(VipError::NoMatch) && !*over.lock().expect("no panic");
                if !again {
                    return outcome;
                }
                thread::yield_now();
            }
        });
        Self {
            vi,
            thread,
            is_over,
        }
    }

    pub(super) fn outcome(self) -> vipl::Result<ViAttributes> {
        *self.is_over.lock().expect("no panic") = true;
        self.thread.join().expect("the client does not panic")
    }
}

impl Player {
    pub(super) fn address(&mut self, of: &str) -> NetAddress {
        let text = format!("{of} {}", self.next_id());
        NetAddress {
            host: HostAddress(self.host),
            discriminator: Discriminator::new(text.as_bytes()).expect("short enough"),
        }
    }

    /// Makes a wait call without a request: with a valid address, or with the address of another host (VIPL 3.3.1).
    pub(super) fn connect_wait_without_request(
        &mut self,
        end: usize,
        nic: Pick,
        fault: Fault,
    ) -> Checked {
        let (end, nic) = self.pick_nic(end, nic);
        let mut local = self.address("unused");
        if fault == Fault::Address {
            local.host.0[3] ^= 1;
        }
        if fault == Fault::NoListener {
            // Peers do not match servers (VIPL 3.3).
            local.discriminator = self.peer_address(0).discriminator;
        }
        let verdict = self
            .tables
            .on_nic(end, nic.into_raw())
            .refuse_if(fault == Fault::Address, VipError::InvalidParameter);
        let verdict = match verdict == Verdict::default() {
            true => verdict.refuse_if(true, VipError::Timeout),
            false => verdict,
        };
        let outcome = vip::connect_wait(nic, &local, Timeout::Immediate);
        self.check_result(|| format!("connect wait at end {end}"), &outcome, &verdict)
    }

    pub(super) fn request(&mut self, pick: Pick, end: usize, nic: Pick, fault: Fault) -> Checked {
        // It must be certain whether the VI is Idle: a request without a server call would wait for ever.
        self.quiesce()?;
        if !pick.invalid && self.idle_vis().is_empty() {
            self.reset_any()?;
        }
        let vi = self.pick_idle_vi(pick);
        let idle =
            |vi: &u64| self.oracle.any().vis.get(vi).map(|vi| vi.state) == Some(ViState::Idle);
        let end = self.serving_end(end, vi);
        let (end, nic) = self.pick_nic(end, nic);
        let open = self.tables.end_of_nic(nic.into_raw()).is_some();
        if fault != Fault::None || !idle(&vi) || !open {
            return self.request_with_error(vi, fault);
        }
        let (local, remote) = (self.address("client"), self.address("server"));
        let client = ClientThread::start(vi, local, remote);
        let outcome = vip::connect_wait(nic, &remote, Timeout::After(TIMEOUT));
        self.check_result(
            || format!("request of {vi:#x} to end {end}"),
            &outcome,
            &Verdict::default(),
        )?;
        let Ok(found) = outcome else { return Ok(()) };
        let attributes = self.tables.vis[&vi].attributes;
        let must = ViAttributes {
            ptag: None,
            ..attributes
        };
        if found.remote != local || found.attributes != must {
            return Err(Violation(format!("{found:?}, must be {local:?} {must:?}")));
        }
        let conn = found.conn.into_raw();
        self.oracle.apply(|state| state.start_connect(vi, conn));
        self.client_threads.insert(conn, client);
        let request = Request {
            end,
            nic: nic.into_raw(),
            client: vi,
            attributes,
        };
        self.tables.requests.insert(conn, request);
        Ok(())
    }

    /// Returns `end`, unless only the other endpoint has a VI that could accept a request of `vi`.
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

    /// Disconnects a VI in Error and collects its descriptors, as programs do (VIPL 7.5).
    fn reset_broken(&mut self, fits: impl Fn(&ViFacts) -> bool) -> Checked {
        let state = self.oracle.any();
        let broken =
            |vi: &&u64| state.vis[*vi].state == ViState::Error && fits(&self.tables.vis[*vi]);
        let Some(vi) = self.tables.vis.keys().find(broken).copied() else {
            return Ok(());
        };
        self.reset_vi(vi)
    }

    /// As [`Self::reset_broken`]; without a VI in Error, resets one that waits for a connection.
    pub(super) fn reset_any(&mut self) -> Checked {
        self.reset_broken(|_| true)?;
        if !self.idle_vis().is_empty() {
            return Ok(());
        }
        let state = self.oracle.any();
        let waits = |vi: &&u64| state.vis[*vi].state == ViState::ConnectPending;
        match self.tables.vis.keys().find(waits).copied() {
            Some(vi) => self.reset_vi(vi),
            None => Ok(()),
        }
    }

    fn reset_vi(&mut self, vi: u64) -> Checked {
        self.disconnect_this(vi)?;
        for kind in [QueueKind::Send, QueueKind::Receive] {
            while !self.oracle.any().vis[&vi].queue(kind).items.is_empty() {
                self.done_of(vi, kind, false)?;
            }
        }
        Ok(())
    }

    /// Selects an Idle VI, if one exists and the pick is valid.
    pub(super) fn pick_idle_vi(&self, pick: Pick) -> u64 {
        let idle = self.idle_vis();
        if pick.invalid || idle.is_empty() || pick.number & 0x7000 == 0 {
            return self.pick_vi(pick);
        }
        idle[pick.number as usize % idle.len()]
    }

    /// Makes a request that must fail at once (VIPL 3.3.4).
    fn request_with_error(&mut self, vi: u64, fault: Fault) -> Checked {
        let (mut local, mut remote) = (self.address("client"), self.address("unused"));
        let mut limit = Timeout::After(TIMEOUT);
        let mut verdict = Verdict::default();
        match fault {
            Fault::Address => {
                local.host.0[3] ^= 1;
                verdict = verdict.refuse_if(true, VipError::InvalidParameter);
            }
            Fault::Timeout => {
                limit = Timeout::Immediate;
                verdict = verdict.refuse_if(true, VipError::InvalidParameter);
            }
            Fault::Host => {
                remote.host.0[3] ^= 1;
                verdict = verdict.refuse_if(true, VipError::NotReachable);
            }
            Fault::None | Fault::NoListener | Fault::Attribute => {
                if fault == Fault::NoListener {
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
        let call = || format!("request of {vi:#x} with {fault:?}");
        self.check_result(call, &outcome, &verdict)?;
        self.oracle.apply(|state| state.note_failed_attempt(vi));
        if outcome == Err(VipError::NotReachable) {
            let tables = &self.tables;
            self.oracle.apply(|state| state.cannot_reach(tables, vi));
        }
        Ok(())
    }

    /// Selects a request without a response, or an invalid handle.
    fn pick_request(&self, pick: Pick) -> u64 {
        let pending: Vec<u64> = self.tables.requests.keys().copied().collect();
        if pick.invalid || pending.is_empty() {
            return choose(pick, &[&self.stale.conns]).unwrap_or(0x4FFF_0000_0100_0001);
        }
        // Mostly the newest.
        let back = if pick.number & 0x700 == 0 {
            pick.number as usize
        } else {
            0
        };
        pending[pending.len() - 1 - back % pending.len()]
    }

    pub(super) fn accept(&mut self, pick: Pick, vi: Pick) -> Checked {
        // It must be certain whether the client still waits.
        self.quiesce()?;
        let conn = self.pick_request(pick);
        if !vi.invalid
            && let Some(request) = self.tables.requests.get(&conn).cloned()
            && self.fitting_vis(&request).is_empty()
        {
            let fits = |facts: &ViFacts| {
                let conflicts = Tables::conflicts(&facts.attributes, &request.attributes);
                facts.end == request.end && conflicts == Verdict::default()
            };
            self.reset_broken(fits)?;
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
        self.check_result(
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

    /// Selects a VI that could accept a request, if one exists and the pick is valid.
    fn pick_for(&self, conn: u64, pick: Pick) -> u64 {
        let Some(request) = self.tables.requests.get(&conn) else {
            return self.pick_vi(pick);
        };
        let fitting = self.fitting_vis(request);
        if pick.invalid || fitting.is_empty() || pick.number & 0x7000 == 0 {
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
        let Some(client) = self.client_threads.remove(&conn) else {
            return Err(Violation("accepted without a pending client".into()));
        };
        let outcome = client.outcome();
        self.check_result(|| "the client".into(), &outcome, &Verdict::default())?;
        let must = ViAttributes {
            ptag: None,
            ..self.tables.vis[&vi].attributes
        };
        if outcome != Ok(must) {
            return Err(Violation(format!("{outcome:?}, must be {must:?}")));
        }
        let connection = self.next_id();
        self.oracle
            .apply(|state| state.connect(connection, [request.client, vi]));
        Ok(())
    }

    pub(super) fn reject(&mut self, pick: Pick) -> Checked {
        self.oracle.explore(&self.tables);
        let conn = self.pick_request(pick);
        let known = self.tables.requests.get(&conn).cloned();
        let verdict = Verdict::default().refuse_if(known.is_none(), VipError::InvalidParameter);
        let outcome = vip::connect_reject(ConnHandle::from_raw(conn));
        self.check_result(|| format!("reject {conn:#x}"), &outcome, &verdict)?;
        if known.is_some() {
            self.forget_request(conn);
            self.finish_client(conn, &[VipError::Reject])?;
        }
        Ok(())
    }

    /// Checks the result of the client's call, after the response or after a disconnect of its VI.
    fn finish_client(&mut self, conn: u64, refusals: &[VipError]) -> Checked {
        let Some(client) = self.client_threads.remove(&conn) else {
            return Ok(());
        };
        let vi = client.vi;
        let outcome = client.outcome();
        let text = format!("the client {vi:#x} -> {outcome:?}");
        self.note(|| text.clone());
        let refused = outcome.err();
        self.oracle.observe(
            || text,
            |state| {
                let is_waiting = state
                    .vis
                    .get(&vi)
                    .is_some_and(|vi| vi.connecting == Some(conn));
                let fits = match refused {
                    Some(error) if is_waiting => refusals.contains(&error),
                    // The VI was disconnected, broken or destroyed during the call.
                    Some(VipError::InvalidState | VipError::InvalidParameter) => !is_waiting,
                    Some(_) | None => false,
                };
                let mut after = state.clone();
                if is_waiting {
                    after.fail_connect(vi);
                }
                fits.then_some(after).into_iter().collect()
            },
        )
    }

    /// Finishes the clients whose VIs certainly do not wait any more.
    pub(super) fn finish_clients(&mut self) -> Checked {
        let over: Vec<u64> = self
            .client_threads
            .iter()
            .filter(|(conn, client)| {
                self.oracle.states().iter().all(|state| {
                    let vi = state.vis.get(&client.vi);
                    vi.is_none_or(|vi| vi.connecting != Some(**conn))
                })
            })
            .map(|(conn, _)| *conn)
            .collect();
        for conn in over {
            self.finish_client(conn, &[])?;
        }
        Ok(())
    }

    /// Ends the requests that a closed NIC handle has received, and those of its VIs (VIPL 3.1.2).
    pub(super) fn end_requests_of(&mut self, nic: u64, vis: &[u64]) -> Checked {
        let of_nic = |(_, request): &(&u64, &Request)| request.nic == nic;
        let received: Vec<u64> = self
            .tables
            .requests
            .iter()
            .filter(of_nic)
            .map(|(conn, _)| *conn)
            .collect();
        for conn in received {
            self.forget_request(conn);
            // Unspecified: no response, a rejection, or no listener.
            let refusals = [VipError::Reject, VipError::NotReachable, VipError::NoMatch];
            self.finish_client(conn, &refusals)?;
        }
        let of_vis = |(_, client): &(&u64, &ClientThread)| vis.contains(&client.vi);
        let requested: Vec<u64> = self
            .client_threads
            .iter()
            .filter(of_vis)
            .map(|(conn, _)| *conn)
            .collect();
        for conn in requested {
            self.finish_client(conn, &[])?;
        }
        Ok(())
    }

    pub(super) fn disconnect(&mut self, pick: Pick) -> Checked {
        let vi = self.pick_vi(pick);
        self.disconnect_this(vi)
    }

    pub(super) fn disconnect_this(&mut self, vi: u64) -> Checked {
        self.oracle.explore(&self.tables);
        let outcome = vip::disconnect(ViHandle::from_raw(vi));
        if !self.tables.vis.contains_key(&vi) {
            return self.unknown_vi("disconnect", vi, &outcome);
        }
        self.check_result(
            || format!("disconnect {vi:#x}"),
            &outcome,
            &Verdict::default(),
        )?;
        let tables = &self.tables;
        self.oracle.apply(|state| state.disconnect(tables, vi));
        self.finish_clients()
    }
}
