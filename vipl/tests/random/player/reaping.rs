//! Descriptors and entries of completion queues taken back.

use vipl::{CqHandle, Done, Timeout, ViHandle, VipError, provider as vip};

use super::{Checked, Player};
use crate::arena::Lent;
use crate::model::{Bytes, Completion, Posted, Seen, State};
use crate::oracle::Violation;
use crate::program::{Pick, Side};

impl Player {
    pub(super) fn done(&mut self, pick: Pick, side: Side, wait: bool) -> Checked {
        let vi = self.pick_vi(pick);
        if !self.tables.vis.contains_key(&vi) {
            let outcome = look(vi, side, wait);
            return self.unknown_vi("done", vi, &outcome);
        }
        self.done_of(vi, side, wait)
    }

    /// Looks at a work queue, and takes its head off if it is complete.
    pub(super) fn done_of(&mut self, vi: u64, side: Side, wait: bool) -> Checked {
        self.oracle.work_on(&self.tables);
        let outcome = look(vi, side, wait);
        let call = if wait { "wait" } else { "done" };
        self.note(|| format!("{call} {side:?} of {vi:#x} -> {outcome:x?}"));
        if wait {
            let verdict = State::may_wait(&self.tables, vi, side);
            if verdict.fits(&Err::<(), _>(VipError::ErrorResource)) {
                return self.certain(|| "wait".into(), &outcome, &verdict);
            }
        }
        let seen = match outcome {
            Ok(Done::Empty) => Seen::Empty,
            Ok(Done::NotDone) if !wait => Seen::Pending,
            Err(VipError::Timeout) if wait => Seen::Pending,
            Ok(Done::Completed { descriptor, status }) => {
                self.completed(vi, descriptor as u64, status)
            }
            Ok(Done::NotDone) | Err(_) => {
                return Err(Violation(format!("{call} {side:?} -> {outcome:?}")));
            }
        };
        let before = self.oracle.states().iter().find_map(|state| {
            state.reaped(vi, side, &seen)?;
            let head = state.vis[&vi].queue(side).items.front()?;
            Some((head.posted.clone(), head.done.clone()?))
        });
        self.oracle.see(
            || format!("{call} {side:?} of {vi:#x} -> {seen:x?}"),
            |state| state.reaped(vi, side, &seen).into_iter().collect(),
        )?;
        match (seen, before) {
            (Seen::Completed { .. }, Some((posted, completion))) => {
                self.came_back(vi, &posted.0, &completion)
            }
            _ => Ok(()),
        }
    }

    /// A descriptor that came off a queue, as it stands in memory.
    pub(super) fn completed(&self, vi: u64, address: u64, status: u32) -> Seen {
        let arena = &self.arenas[self.tables.vis[&vi].end];
        let mut control = [0; 32];
        if arena.holds(address, 32) {
            control.copy_from_slice(&arena.read(address, 32));
        }
        Seen::Completed {
            address,
            status,
            control,
        }
    }

    /// A descriptor is the program's again, with its buffers: they hold what they must.
    pub(super) fn came_back(
        &mut self,
        vi: u64,
        posted: &Posted,
        completion: &Completion,
    ) -> Checked {
        let facts = &self.tables.vis[&vi];
        let end = facts.end;
        self.count(reached(facts.attributes.reliability, posted, completion));
        self.place(end, posted, completion);
        let arena = &mut self.arenas[end];
        for segment in &posted.segments {
            let length = segment.length as usize;
            let placed = is_target(posted) && completion.errors == 0;
            if placed && arena.holds(segment.address, segment.length.into()) {
                arena.check(segment.address, length)?;
            }
        }
        for (end, lent) in self.lent.remove(&posted.id).into_iter().flatten() {
            self.arenas[end].take_back(lent);
        }
        Ok(())
    }

    /// What a completed descriptor and its buffers must hold from now on.
    pub(super) fn place(&mut self, end: usize, posted: &Posted, completion: &Completion) {
        let arena = &mut self.arenas[end];
        if !completion.lost {
            // The words in it were compared with what they must be; the link to the next one is open.
            arena.adopt(posted.address, 32);
        }
        if !is_target(posted) {
            return;
        }
        if completion.errors != 0 {
            for (end, lent) in self.lent.get(&posted.id).into_iter().flatten() {
                if matches!(lent, Lent::Lines { .. }) {
                    self.arenas[*end].adopt_lent(*lent);
                }
            }
            return;
        }
        let mut rest: &[u8] = match &completion.placed {
            Some(Bytes(message)) => &message.payload,
            None => &[],
        };
        for segment in &posted.segments {
            if !arena.holds(segment.address, segment.length.into()) {
                continue;
            }
            let (here, behind) = rest.split_at(rest.len().min(segment.length as usize));
            arena.expect(segment.address, here);
            rest = behind;
        }
    }

    pub(super) fn cq_done(&mut self, pick: Pick, wait: bool) -> Checked {
        let cq = self.pick_cq(pick);
        self.cq_done_of(cq, wait).map(|_| ())
    }

    /// Takes an entry; true if there was one.
    pub(super) fn cq_done_of(&mut self, cq: u64, wait: bool) -> Checked<bool> {
        self.oracle.work_on(&self.tables);
        let handle = CqHandle::from_raw(cq);
        let (call, outcome, none) = if wait {
            let outcome = vip::cq_wait(handle, Timeout::Immediate);
            ("wait", outcome, VipError::Timeout)
        } else {
            ("done", vip::cq_done(handle), VipError::NotDone)
        };
        let text = format!("{call} of CQ {cq:#x} -> {outcome:x?}");
        self.note(|| text.clone());
        if !self.tables.cqs.contains_key(&cq) {
            let verdict =
                crate::model::Verdict::default().refuse_if(true, VipError::InvalidParameter);
            self.certain(|| "it is none".into(), &outcome, &verdict)?;
            return Ok(false);
        }
        let seen = match outcome {
            Ok(entry) if entry.recv_queue => Some((entry.vi.into_raw(), Side::Receive)),
            Ok(entry) => Some((entry.vi.into_raw(), Side::Send)),
            Err(error) if error == none => None,
            Err(_) => return Err(Violation(text)),
        };
        if let Some((vi, side)) = seen {
            let taken = |state: &State| {
                let vi = state.vis.get(&vi);
                vi.is_none_or(|vi| vi.queue(side).items.is_empty())
            };
            if self.oracle.states().iter().all(taken) {
                self.count("entry of a taken descriptor".into());
            }
        }
        self.oracle
            .see(|| text, |state| state.entry_taken(cq, seen))?;
        Ok(seen.is_some())
    }
}

/// A row of the error table: level, operation, outcome.
fn reached(level: u16, posted: &Posted, completion: &Completion) -> String {
    let level = match level {
        1 => "UD",
        2 => "RD",
        _ => "RR",
    };
    let operation = match (posted.side, completion.operation) {
        (Side::Send, Some(0)) => "send",
        (Side::Send, Some(2)) => "write",
        (Side::Send, Some(4)) => "read",
        (Side::Send, _) => "undefined",
        (Side::Receive, Some(3)) => "receive by write",
        (Side::Receive, _) => "receive",
    };
    let lost = if completion.lost { ", memory gone" } else { "" };
    let immediate = if completion.immediate.is_some() {
        ", immediate"
    } else {
        ""
    };
    match completion.errors {
        0 => format!("{level} {operation}: success{immediate}{lost}"),
        errors => format!("{level} {operation}: errors {errors:#x}{lost}"),
    }
}

/// Is it told where to place bytes?
fn is_target(posted: &Posted) -> bool {
    posted.side == Side::Receive || posted.is_read()
}

fn look(vi: u64, side: Side, wait: bool) -> vipl::Result<Done> {
    let vi = ViHandle::from_raw(vi);
    match (side, wait) {
        (Side::Send, false) => vip::send_done(vi),
        (Side::Receive, false) => vip::recv_done(vi),
        (Side::Send, true) => vip::send_wait(vi, Timeout::Immediate),
        (Side::Receive, true) => vip::recv_wait(vi, Timeout::Immediate),
    }
}
