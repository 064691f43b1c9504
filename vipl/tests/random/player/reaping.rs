//! Collection of completed descriptors and of entries of completion queues.

use vi_types::QueueKind;
use vipl::{CqHandle, Done, Timeout, ViHandle, VipError, provider as vip};

use super::{Checked, Player};
use crate::arena::Allocation;
use crate::model::{Bytes, Completion, DoneResult, Posted, State};
use crate::oracle::Violation;
use crate::program::Pick;

impl Player {
    pub(super) fn done(&mut self, pick: Pick, kind: QueueKind, wait: bool) -> Checked {
        let vi = self.pick_vi(pick);
        if !self.tables.vis.contains_key(&vi) {
            let outcome = call_done(vi, kind, wait);
            return self.unknown_vi("done", vi, &outcome);
        }
        self.done_of(vi, kind, wait)
    }

    /// Makes a Done or Wait call on a work queue.
    pub(super) fn done_of(&mut self, vi: u64, kind: QueueKind, wait: bool) -> Checked {
        self.oracle.explore(&self.tables);
        let outcome = call_done(vi, kind, wait);
        let call = if wait { "wait" } else { "done" };
        self.note(|| format!("{call} {kind:?} of {vi:#x} -> {outcome:x?}"));
        if wait {
            let verdict = State::may_wait(&self.tables, vi, kind);
            if verdict.fits(&Err::<(), _>(VipError::ErrorResource)) {
                return self.check_result(|| "wait".into(), &outcome, &verdict);
            }
        }
        let result = match outcome {
            Ok(Done::Empty) => DoneResult::Empty,
            Ok(Done::NotDone) if !wait => DoneResult::Pending,
            Err(VipError::Timeout) if wait => DoneResult::Pending,
            Ok(Done::Completed { descriptor, status }) => {
                self.completed(vi, descriptor as u64, status)
            }
            Ok(Done::NotDone) | Err(_) => {
                return Err(Violation(format!("{call} {kind:?} -> {outcome:?}")));
            }
        };
        let before = self.oracle.states().iter().find_map(|state| {
            state.reaped(vi, kind, &result)?;
            let head = state.vis[&vi].queue(kind).items.front()?;
            Some((head.posted.clone(), head.done.clone()?))
        });
        self.oracle.observe(
            || format!("{call} {kind:?} of {vi:#x} -> {result:x?}"),
            |state| state.reaped(vi, kind, &result).into_iter().collect(),
        )?;
        match (result, before) {
            (DoneResult::Completed { .. }, Some((posted, completion))) => {
                self.check_returned(vi, &posted.0, &completion)
            }
            _ => Ok(()),
        }
    }

    /// A returned descriptor, with its control segment in memory.
    pub(super) fn completed(&self, vi: u64, address: u64, status: u32) -> DoneResult {
        let arena = &self.arenas[self.tables.vis[&vi].end];
        let mut control = [0; 32];
        if arena.contains(address, 32) {
            control.copy_from_slice(&arena.read(address, 32));
        }
        DoneResult::Completed {
            address,
            status,
            control,
        }
    }

    /// Checks a returned descriptor and its buffers, and frees their memory.
    pub(super) fn check_returned(
        &mut self,
        vi: u64,
        posted: &Posted,
        completion: &Completion,
    ) -> Checked {
        let facts = &self.tables.vis[&vi];
        let end = facts.end;
        self.count(result_name(
            facts.attributes.reliability,
            posted,
            completion,
        ));
        self.expect_placed(end, posted, completion);
        let arena = &mut self.arenas[end];
        for segment in &posted.segments {
            let length = segment.length as usize;
            let placed = is_target(posted) && completion.errors == 0;
            if placed && arena.contains(segment.address, segment.length.into()) {
                arena.check(segment.address, length)?;
            }
        }
        for (end, allocation) in self.allocations.remove(&posted.id).into_iter().flatten() {
            self.arenas[end].free(allocation);
        }
        Ok(())
    }

    /// Sets the expected content of a completed descriptor and its buffers.
    pub(super) fn expect_placed(&mut self, end: usize, posted: &Posted, completion: &Completion) {
        let arena = &mut self.arenas[end];
        if !completion.lost {
            // The fields were checked already; the link to the next one is unspecified.
            arena.accept_content(posted.address, 32);
        }
        if !is_target(posted) {
            return;
        }
        if completion.errors != 0 {
            for (end, allocation) in self.allocations.get(&posted.id).into_iter().flatten() {
                if matches!(allocation, Allocation::Lines { .. }) {
                    self.arenas[*end].accept_allocation(*allocation);
                }
            }
            return;
        }
        let mut rest: &[u8] = match &completion.placed {
            Some(Bytes(message)) => &message.payload,
            None => &[],
        };
        for segment in &posted.segments {
            if !arena.contains(segment.address, segment.length.into()) {
                continue;
            }
            let (placed, remaining) = rest.split_at(rest.len().min(segment.length as usize));
            arena.expect(segment.address, placed);
            rest = remaining;
        }
    }

    pub(super) fn cq_done(&mut self, pick: Pick, wait: bool) -> Checked {
        let cq = self.pick_cq(pick);
        self.cq_done_of(cq, wait).map(|_| ())
    }

    /// Makes a Done or Wait call on a completion queue; returns whether there was an entry.
    pub(super) fn cq_done_of(&mut self, cq: u64, wait: bool) -> Checked<bool> {
        self.oracle.explore(&self.tables);
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
            self.check_result(|| "an invalid CQ handle".into(), &outcome, &verdict)?;
            return Ok(false);
        }
        let result = match outcome {
            Ok(entry) if entry.recv_queue => Some((entry.vi.into_raw(), QueueKind::Receive)),
            Ok(entry) => Some((entry.vi.into_raw(), QueueKind::Send)),
            Err(error) if error == none => None,
            Err(_) => return Err(Violation(text)),
        };
        if let Some((vi, kind)) = result {
            let is_collected = |state: &State| {
                let vi = state.vis.get(&vi);
                vi.is_none_or(|vi| vi.queue(kind).items.is_empty())
            };
            if self.oracle.states().iter().all(is_collected) {
                self.count("entry of a collected descriptor".into());
            }
        }
        self.oracle
            .observe(|| text, |state| state.entry_taken(cq, result))?;
        Ok(result.is_some())
    }
}

/// Name of a result: level, operation, errors.
fn result_name(level: u16, posted: &Posted, completion: &Completion) -> String {
    let level = match level {
        1 => "UD",
        2 => "RD",
        _ => "RR",
    };
    let operation = match (posted.kind, completion.operation) {
        (QueueKind::Send, Some(0)) => "send",
        (QueueKind::Send, Some(2)) => "write",
        (QueueKind::Send, Some(4)) => "read",
        (QueueKind::Send, _) => "undefined",
        (QueueKind::Receive, Some(3)) => "receive by write",
        (QueueKind::Receive, _) => "receive",
    };
    let lost = if completion.lost {
        ", memory deregistered"
    } else {
        ""
    };
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

/// Returns whether data is placed into the segments of the descriptor.
fn is_target(posted: &Posted) -> bool {
    posted.kind == QueueKind::Receive || posted.is_read()
}

fn call_done(vi: u64, kind: QueueKind, wait: bool) -> vipl::Result<Done> {
    let vi = ViHandle::from_raw(vi);
    match (kind, wait) {
        (QueueKind::Send, false) => vip::send_done(vi),
        (QueueKind::Receive, false) => vip::recv_done(vi),
        (QueueKind::Send, true) => vip::send_wait(vi, Timeout::Immediate),
        (QueueKind::Receive, true) => vip::recv_wait(vi, Timeout::Immediate),
    }
}
