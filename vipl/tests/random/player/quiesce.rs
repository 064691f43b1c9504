//! Waits for quiescent points and checks the whole state there; teardown of a program.

use std::collections::BTreeMap;
use std::thread;
use std::time::Instant;

use vi_types::QueueKind;
use vipl::{MemoryHandle, PtagHandle, ViHandle, ViState, provider as vip};

use super::{Checked, DIRECT, Player, RENDEZVOUS, TIMEOUT};
use crate::arena::Arena;
use crate::model::{AsyncError, State, Verdict, completion_matches};
use crate::oracle::Violation;
use crate::program::Pick;

/// Polls of each NIC: more than a peer request and its responses need.
const POLLS: u32 = 6;

impl Player {
    /// Polls until the observed state is one of the expected quiescent states.
    pub(super) fn quiesce(&mut self) -> Checked {
        self.oracle.explore(&self.tables);
        let mut ends = self.expected_states();
        let deadline = Instant::now() + TIMEOUT;
        loop {
            // Read before the check: a thread that was descheduled until the deadline checks once more.
            let is_last = Instant::now() >= deadline;
            if self.check_handler_calls()? {
                ends = self.expected_states();
            }
            let Err(Violation(mismatch)) = self.check_quiescent(&ends) else {
                return self.finish_clients();
            };
            if is_last {
                return Err(Violation(format!("not quiescent: {mismatch}")));
            }
            thread::yield_now();
        }
    }

    /// Returns the possible quiescent states in which all expected handler calls were made.
    fn expected_states(&self) -> Vec<State> {
        let mut ends = self.oracle.quiescent(&self.tables);
        ends.retain(|state| state.expected_calls.is_empty());
        ends
    }

    /// Polls both NICs. A query of a VI does not poll while another thread may.
    fn poll_both(&self) -> Checked {
        for _ in 0..POLLS {
            for nic in [0, 1].into_iter().filter_map(|end| self.any_nic(end)) {
                vip::autodiscovery(nic, 1)
                    .map_err(|error| Violation(format!("discover -> {error:?}")))?;
            }
        }
        Ok(())
    }

    /// Polls both NICs and queries the state of each VI.
    fn query_vi_states(&self) -> Checked<Vec<(u64, ViState)>> {
        let state_of = |vi: &u64| {
            let info = vip::query_vi(ViHandle::from_raw(*vi));
            info.map(|info| (*vi, info.state))
                .map_err(|error| Violation(format!("query VI {vi:#x} -> {error:?}")))
        };
        self.tables.vis.keys().map(state_of).collect()
    }

    /// Compares states of VIs and descriptors in memory with a state.
    fn compare(&self, state: &State, found: &[(u64, ViState)]) -> Checked {
        for (vi, found) in found {
            let must = state.vis[vi].state;
            if *found != must {
                return Err(Violation(format!(
                    "VI {vi:#x} is {found:?}, must be {must:?}"
                )));
            }
        }
        for (vi, found) in &state.vis {
            let arena = &self.arenas[self.tables.vis[vi].end];
            for item in found.send.items.iter().chain(&found.recv.items) {
                let posted = &item.posted.0;
                let mut control = [0; 32];
                control.copy_from_slice(&arena.read(posted.address, 32));
                let status =
                    u32::from_le_bytes([control[28], control[29], control[30], control[31]]);
                let fits = match &item.done {
                    Some(done) if !done.lost => completion_matches(posted, done, status, &control),
                    Some(_) | None => control == posted.control,
                };
                if !fits {
                    let done = &item.done;
                    return Err(Violation(format!(
                        "VI {vi:#x}: descriptor {:#x} has {control:x?}, was posted as {:x?}, must be completed: {done:x?}",
                        posted.address, posted.control,
                    )));
                }
            }
        }
        Ok(())
    }

    /// As [`Self::compare`], and compares the asynchronous errors.
    fn compare_all(&self, state: &State, found: &[(u64, ViState)]) -> Checked {
        self.compare(state, found)?;
        self.compare_async_errors(state)
    }

    /// Compares the number of each received asynchronous error with a state.
    fn compare_async_errors(&self, state: &State) -> Checked {
        let mut received = self
            .received_errors
            .lock()
            .expect("no handler panics")
            .clone();
        received.sort_unstable();
        let errors = state.async_errors.iter();
        let must: Vec<AsyncError> = errors
            .flat_map(|(error, times)| (0..*times).map(|_| *error))
            .collect();
        if received == must {
            Ok(())
        } else {
            Err(Violation(format!(
                "asynchronous errors {received:x?}, must be {must:x?}"
            )))
        }
    }

    /// Returns whether errors are missing that were not missing at the last quiescent point: the handler thread may not
    /// have called the handler yet.
    fn may_be_late(&self, state: &State) -> bool {
        let received = self.received_errors.lock().expect("no handler panics");
        let mut missing = state.async_errors.clone();
        let all_expected = received
            .iter()
            .all(|error| remove_error(&mut missing, error));
        all_expected && !missing.is_empty() && !state.late
    }

    /// Checks that everything is as in one of these states, and keeps the states that fit; they differ in the order of
    /// entries on completion queues.
    fn check_quiescent(&mut self, ends: &[State]) -> Checked {
        let mut mismatch = "handlers were not called".to_owned();
        let states = self.query_vi_states()?;
        let mut fits = |end: &&State| {
            let compared = self.compare_all(end, &states);
            let note = |Violation(text)| mismatch = format!("{text}\nin {end}");
            compared.map_err(note).is_ok()
        };
        if !ends.iter().any(|end| fits(&end)) {
            return Err(Violation(mismatch));
        }
        if ends.iter().any(|end| end.pool().next().is_some()) {
            // A response to a failed peer request may be in transit, which ends the request of another VI.
            self.poll_both()?;
        }
        // No further changes. A poll by another thread ends before these calls return.
        let states = self.query_vi_states()?;
        let fits = |end: &&State| self.compare_all(end, &states).is_ok();
        let late = |end: &&State| self.may_be_late(end) && self.compare(end, &states).is_ok();
        let mut fitting: Vec<State> = ends.iter().filter(fits).cloned().collect();
        if !fitting.is_empty() {
            fitting.extend(ends.iter().filter(late).cloned());
        }
        while let Some(tried) = fitting.first().cloned() {
            let others = fitting.iter().any(|state| state.written != tried.written);
            let before = others.then(|| self.arenas.each_ref().map(Arena::expected));
            self.expect_memory(&tried);
            let Err(Violation(text)) = self.check_memory() else {
                fitting.retain(|state| state.written == tried.written);
                self.finish_quiesce(fitting);
                return Ok(());
            };
            mismatch = format!("{text}\nin {tried}");
            fitting.retain(|state| state.written != tried.written);
            for (arena, before) in self.arenas.iter_mut().zip(before.into_iter().flatten()) {
                arena.set_expected(before);
            }
        }
        Err(Violation(mismatch))
    }

    fn finish_quiesce(&mut self, mut states: Vec<State>) {
        self.note(|| "quiescent".into());
        for (end, allocation) in self.targets.drain(..) {
            self.arenas[end].free(allocation);
        }
        let codes: Vec<u32> = states[0]
            .async_errors
            .keys()
            .map(|error| error.code)
            .collect();
        for code in codes {
            self.count(format!("asynchronous error {code}"));
        }
        let received =
            core::mem::take(&mut *self.received_errors.lock().expect("no handler panics"));
        for state in &mut states {
            state.written.clear();
            state.withdrawn.clear();
            for error in &received {
                remove_error(&mut state.async_errors, error);
            }
            state.late = !state.async_errors.is_empty();
        }
        self.oracle.replace(states);
        self.count_pool();
    }

    fn check_memory(&self) -> Checked {
        for (end, arena) in self.arenas.iter().enumerate() {
            let checked = arena.check_all();
            checked.map_err(|Violation(text)| Violation(format!("memory of end {end}: {text}")))?;
        }
        Ok(())
    }

    /// Sets the expected content of memory in this state.
    fn expect_memory(&mut self, state: &State) {
        for (vi, found) in &state.vis {
            let end = self.tables.vis[vi].end;
            for item in found.send.items.iter().chain(&found.recv.items) {
                if let Some(completion) = &item.done {
                    self.expect_placed(end, &item.posted.0, completion);
                }
            }
        }
        for (message, certain) in state.written.values() {
            let Some(target) = message.0.remote else {
                continue;
            };
            let length = message.0.length_bytes;
            for arena in &mut self.arenas {
                if !arena.contains(target.address, length.into()) {
                    continue;
                }
                if *certain {
                    arena.expect(target.address, &message.0.payload);
                } else {
                    arena.accept_content(target.address, length as usize);
                }
            }
        }
    }

    /// Destroys all objects in the order of the guide, and checks that none is left.
    pub(super) fn tear_down(&mut self) -> Checked {
        self.quiesce()?;
        let requests: Vec<u64> = self.tables.requests.keys().copied().collect();
        for _ in requests {
            let newest = Pick {
                number: 0x100,
                invalid: false,
            };
            self.reject(newest)?;
        }
        let vis: Vec<u64> = self.tables.vis.keys().copied().collect();
        for vi in &vis {
            self.disconnect_this(*vi)?;
        }
        self.quiesce()?;
        let cqs: Vec<u64> = self.tables.cqs.keys().copied().collect();
        for cq in &cqs {
            while self.cq_done_of(*cq, false)? {}
        }
        for vi in vis {
            for kind in [QueueKind::Send, QueueKind::Receive] {
                while !self.oracle.any().vis[&vi].queue(kind).items.is_empty() {
                    self.done_of(vi, kind, false)?;
                }
                self.done_of(vi, kind, false)?;
            }
            self.destroy_this_vi(vi)?;
        }
        for end in [0, 1] {
            self.tear_down_end(end)?;
        }
        Ok(())
    }

    fn tear_down_end(&mut self, end: usize) -> Checked {
        let Some(nic) = self.any_nic(end) else {
            return Ok(());
        };
        let counters = vip::counters(nic).unwrap_or_default();
        let counted = |wanted| move |(name, count): &(String, u64)| name == wanted && *count > 0;
        if counters.iter().any(counted("cq_overruns")) {
            self.count("completion queue full".into());
        }
        if counters.iter().any(counted("direct_messages")) {
            self.count(DIRECT.into());
        }
        if counters.iter().any(counted("rendezvous_messages")) {
            self.count(RENDEZVOUS.into());
        }
        let of_end = |end: usize| move |(_, cq): &(&u64, &crate::model::CqFacts)| cq.end == end;
        let cqs: Vec<u64> = self
            .tables
            .cqs
            .iter()
            .filter(of_end(end))
            .map(|(cq, _)| *cq)
            .collect();
        for cq in cqs {
            self.destroy_this_cq(cq)?;
        }
        for (handle, region) in core::mem::take(&mut self.tables.ends[end].regions) {
            let outcome = vip::deregister_mem(nic, region.address, MemoryHandle(handle));
            self.check_result(
                || format!("deregister {handle:#x}"),
                &outcome,
                &Verdict::default(),
            )?;
        }
        for (tag, _) in core::mem::take(&mut self.tables.ends[end].tags) {
            let outcome = vip::destroy_ptag(nic, PtagHandle::from_raw(tag));
            self.check_result(
                || format!("destroy tag {tag:#x}"),
                &outcome,
                &Verdict::default(),
            )?;
        }
        while let Some(nic) = self.any_nic(end) {
            let outcome = vip::close_nic(nic);
            self.check_result(|| "close NIC".into(), &outcome, &Verdict::default())?;
            self.tables.ends[end].nics.remove(0);
        }
        Ok(())
    }
}

/// Removes one error; returns false if there is none.
fn remove_error(errors: &mut BTreeMap<AsyncError, u32>, error: &AsyncError) -> bool {
    let Some(times) = errors.get_mut(error) else {
        return false;
    };
    *times -= 1;
    if *times == 0 {
        errors.remove(error);
    }
    true
}

impl Drop for Player {
    /// A failed program leaves its NICs open, and threads that wait on them.
    fn drop(&mut self) {
        for end in [0, 1] {
            while let Some(nic) = self.any_nic(end) {
                let closed = vip::close_nic(nic);
                assert!(closed.is_ok() || thread::panicking());
                self.tables.ends[end].nics.remove(0);
            }
        }
        for client in core::mem::take(&mut self.client_threads).into_values() {
            let _ended = client.outcome();
        }
    }
}
