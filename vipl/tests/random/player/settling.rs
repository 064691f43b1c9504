//! Waits until the provider has done all that it must, and looks at everything; takes everything down.

use std::collections::BTreeMap;
use std::thread;
use std::time::Instant;

use vipl::{MemoryHandle, PtagHandle, ViHandle, ViState, provider as vip};

use super::{Checked, PATIENCE, Player};
use crate::arena::Arena;
use crate::model::{State, Told, Verdict, completed_so};
use crate::oracle::Violation;
use crate::program::{Pick, Side};

/// Turns of each NIC that a peer request and its answers need, and more.
const TURNS: u32 = 6;

impl Player {
    /// Polls until what there is to see is what must be at the end of all that is under way.
    pub(super) fn settle(&mut self) -> Checked {
        self.oracle.work_on(&self.tables);
        let mut ends = self.ends();
        let deadline = Instant::now() + PATIENCE;
        loop {
            // Before the look: who stood still until then looks once more.
            let is_last = Instant::now() >= deadline;
            if self.listen()? {
                ends = self.ends();
            }
            let Err(Violation(wrong)) = self.come_to_rest(&ends) else {
                return self.settle_clients();
            };
            if is_last {
                return Err(Violation(format!("not at rest: {wrong}")));
            }
            thread::yield_now();
        }
    }

    /// How everything may be at the end: nothing is under way, and every handler that must be called was called.
    fn ends(&self) -> Vec<State> {
        let mut ends = self.oracle.at_rest(&self.tables);
        ends.retain(|state| state.called.is_empty());
        ends
    }

    /// Has both ends take what is on its way to them. A query of a VI takes no turn while another thread may.
    fn take_turns(&self) -> Checked {
        for _ in 0..TURNS {
            for nic in [0, 1].into_iter().filter_map(|end| self.any_nic(end)) {
                vip::autodiscovery(nic, 1)
                    .map_err(|error| Violation(format!("discover -> {error:?}")))?;
            }
        }
        Ok(())
    }

    /// Lets both ends work, and asks for the state of every VI.
    fn poll(&self) -> Checked<Vec<(u64, ViState)>> {
        let state_of = |vi: &u64| {
            let info = vip::query_vi(ViHandle::from_raw(*vi));
            info.map(|info| (*vi, info.state))
                .map_err(|error| Violation(format!("query VI {vi:#x} -> {error:?}")))
        };
        self.tables.vis.keys().map(state_of).collect()
    }

    /// Is this what there is to see?
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
                    Some(done) if !done.lost => completed_so(posted, done, status, &control),
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

    /// Is this what there is to see and to hear?
    fn compare_all(&self, state: &State, found: &[(u64, ViState)]) -> Checked {
        self.compare(state, found)?;
        self.compare_told(state)
    }

    /// Every asynchronous error that must be told, as often as it must, and no other.
    fn compare_told(&self, state: &State) -> Checked {
        let mut heard = self.heard.lock().expect("no handler panics").clone();
        heard.sort_unstable();
        let told = state.told.iter();
        let must: Vec<Told> = told
            .flat_map(|(told, times)| (0..*times).map(|_| *told))
            .collect();
        if heard == must {
            Ok(())
        } else {
            Err(Violation(format!(
                "asynchronous errors {heard:x?}, must be {must:x?}"
            )))
        }
    }

    /// Is more told than was heard, for the first time? It may be on its way to a handler, on a thread of its own.
    fn may_be_late(&self, state: &State) -> bool {
        let heard = self.heard.lock().expect("no handler panics");
        let mut rest = state.told.clone();
        let all_told = heard.iter().all(|told| take_told(&mut rest, told));
        all_told && !rest.is_empty() && !state.late
    }

    /// Is everything as it must be in one of these states? Those that fit are left; they differ in the order of what
    /// is on completion queues.
    fn come_to_rest(&mut self, ends: &[State]) -> Checked {
        let mut wrong = "handlers were not called".to_owned();
        let states = self.poll()?;
        let mut fits = |end: &&State| {
            let compared = self.compare_all(end, &states);
            let told = |Violation(text)| wrong = format!("{text}\nin {end}");
            compared.map_err(told).is_ok()
        };
        if !ends.iter().any(|end| fits(&end)) {
            return Err(Violation(wrong));
        }
        if ends.iter().any(|end| end.pool().next().is_some()) {
            // Whoever asked in vain may have left an answer on its way, which ends the request of another one.
            self.take_turns()?;
        }
        // Now nothing changes any more. Whoever is in the middle of a turn ends it before these return.
        let states = self.poll()?;
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
                self.rest(fitting);
                return Ok(());
            };
            wrong = format!("{text}\nin {tried}");
            fitting.retain(|state| state.written != tried.written);
            for (arena, before) in self.arenas.iter_mut().zip(before.into_iter().flatten()) {
                arena.set_expected(before);
            }
        }
        Err(Violation(wrong))
    }

    fn rest(&mut self, mut states: Vec<State>) {
        self.note(|| "at rest".into());
        for (end, lent) in self.targets.drain(..) {
            self.arenas[end].take_back(lent);
        }
        let told: Vec<u32> = states[0].told.keys().map(|told| told.code).collect();
        for code in told {
            self.count(format!("asynchronous error {code}"));
        }
        let heard = core::mem::take(&mut *self.heard.lock().expect("no handler panics"));
        for state in &mut states {
            state.written.clear();
            state.withdrawn.clear();
            for told in &heard {
                take_told(&mut state.told, told);
            }
            state.late = !state.told.is_empty();
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

    /// What memory must hold in this state.
    fn expect_memory(&mut self, state: &State) {
        for (vi, found) in &state.vis {
            let end = self.tables.vis[vi].end;
            for item in found.send.items.iter().chain(&found.recv.items) {
                if let Some(completion) = &item.done {
                    self.place(end, &item.posted.0, completion);
                }
            }
        }
        for (message, certain) in state.written.values() {
            let Some(target) = message.0.remote else {
                continue;
            };
            let length = message.0.length_bytes;
            for arena in &mut self.arenas {
                if !arena.holds(target.address, length.into()) {
                    continue;
                }
                if *certain {
                    arena.expect(target.address, &message.0.payload);
                } else {
                    arena.adopt(target.address, length as usize);
                }
            }
        }
    }

    /// Everything is taken back, in the order that the guide wants, and nothing is left over.
    pub(super) fn take_down(&mut self) -> Checked {
        self.settle()?;
        let requests: Vec<u64> = self.tables.requests.keys().copied().collect();
        for _ in requests {
            let newest = Pick {
                number: 0x100,
                wrong: false,
            };
            self.reject(newest)?;
        }
        let vis: Vec<u64> = self.tables.vis.keys().copied().collect();
        for vi in &vis {
            self.disconnect_this(*vi)?;
        }
        self.settle()?;
        let cqs: Vec<u64> = self.tables.cqs.keys().copied().collect();
        for cq in &cqs {
            while self.cq_done_of(*cq, false)? {}
        }
        for vi in vis {
            for side in [Side::Send, Side::Receive] {
                while !self.oracle.any().vis[&vi].queue(side).items.is_empty() {
                    self.done_of(vi, side, false)?;
                }
                self.done_of(vi, side, false)?;
            }
            self.destroy_this_vi(vi)?;
        }
        for end in [0, 1] {
            self.take_down_end(end)?;
        }
        Ok(())
    }

    fn take_down_end(&mut self, end: usize) -> Checked {
        let Some(nic) = self.any_nic(end) else {
            return Ok(());
        };
        let counters = vip::counters(nic).unwrap_or_default();
        let overruns = |(name, count): &(String, u64)| name == "cq_overruns" && *count > 0;
        if counters.iter().any(overruns) {
            self.count("completion queue full".into());
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
            self.certain(
                || format!("deregister {handle:#x}"),
                &outcome,
                &Verdict::default(),
            )?;
        }
        for (tag, _) in core::mem::take(&mut self.tables.ends[end].tags) {
            let outcome = vip::destroy_ptag(nic, PtagHandle::from_raw(tag));
            self.certain(
                || format!("destroy tag {tag:#x}"),
                &outcome,
                &Verdict::default(),
            )?;
        }
        while let Some(nic) = self.any_nic(end) {
            let outcome = vip::close_nic(nic);
            self.certain(|| "close NIC".into(), &outcome, &Verdict::default())?;
            self.tables.ends[end].nics.remove(0);
        }
        Ok(())
    }
}

/// Takes one away; false if there is none.
fn take_told(rest: &mut BTreeMap<Told, u32>, told: &Told) -> bool {
    let Some(times) = rest.get_mut(told) else {
        return false;
    };
    *times -= 1;
    if *times == 0 {
        rest.remove(told);
    }
    true
}

impl Drop for Player {
    /// A program that failed leaves its NICs open, and threads that wait on them.
    fn drop(&mut self) {
        for end in [0, 1] {
            while let Some(nic) = self.any_nic(end) {
                let closed = vip::close_nic(nic);
                assert!(closed.is_ok() || thread::panicking());
                self.tables.ends[end].nics.remove(0);
            }
        }
        for asking in core::mem::take(&mut self.asking).into_values() {
            let _ended = asking.outcome();
        }
    }
}
