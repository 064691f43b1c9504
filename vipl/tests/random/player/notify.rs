//! Notify calls, and checks of handler calls.

use vi_types::QueueKind;
use vipl::{CqEntry, CqHandle, NicHandle, Returned, ViHandle, VipError, provider as vip};

use super::{Checked, Player};
use crate::model::{DoneResult, ExpectedCall, HandlerArgument, NotifyQueue, Verdict};
use crate::oracle::Violation;
use crate::program::Pick;

/// The argument of a handler call, as the provider passed it.
#[derive(Clone, Copy, Debug)]
pub(super) enum RawArgument {
    /// Address and status word.
    Descriptor(Option<(u64, u32)>),
    Entry(CqEntry),
}

/// A handler call: number of the handler, NIC handle, and argument.
pub(super) type HandlerCall = (u64, NicHandle, RawArgument);

impl Player {
    pub(super) fn notify(&mut self, pick: Pick, kind: QueueKind, times: u32) -> Checked {
        let (vi, kind) = self.pick_queue(pick, kind);
        for _ in 0..times {
            self.notify_of(vi, kind)?;
        }
        Ok(())
    }

    /// Selects a work queue, mostly one with posted descriptors and without a completion queue.
    fn pick_queue(&self, pick: Pick, kind: QueueKind) -> (u64, QueueKind) {
        let fits = |vi: &u64, kind: QueueKind| {
            let facts = &self.tables.vis[vi];
            let cq = match kind {
                QueueKind::Send => facts.send_cq,
                QueueKind::Receive => facts.recv_cq,
            };
            cq.is_none() && !self.oracle.any().vis[vi].queue(kind).items.is_empty()
        };
        let kinds = [QueueKind::Send, QueueKind::Receive];
        let all = self.tables.vis.keys();
        let all = all.flat_map(|vi| kinds.map(|kind| (*vi, kind)));
        let fitting: Vec<(u64, QueueKind)> = all.filter(|(vi, kind)| fits(vi, *kind)).collect();
        if pick.invalid || fitting.is_empty() || pick.number & 0x3000 == 0 {
            return (self.pick_vi(pick), kind);
        }
        fitting[pick.number as usize % fitting.len()]
    }

    fn notify_of(&mut self, vi: u64, kind: QueueKind) -> Checked {
        let (id, handler_calls) = (self.next_id(), self.handler_calls.clone());
        let handler = move |nic, found: Option<Returned>| {
            let found = found.map(|found| (found.descriptor as u64, found.status));
            let call = (id, nic, RawArgument::Descriptor(found));
            handler_calls.lock().expect("no handler panics").push(call);
        };
        self.check_handler_calls()?;
        self.oracle.explore(&self.tables);
        let handle = ViHandle::from_raw(vi);
        let outcome = match kind {
            QueueKind::Send => vip::send_notify(handle, handler),
            QueueKind::Receive => vip::recv_notify(handle, handler),
        };
        if !self.tables.vis.contains_key(&vi) {
            return self.unknown_vi("notify", vi, &outcome);
        }
        self.check_notify(NotifyQueue::Work(vi, kind), id, &outcome)
    }

    pub(super) fn cq_notify(&mut self, pick: Pick) -> Checked {
        let cq = self.pick_cq(pick);
        let (id, handler_calls) = (self.next_id(), self.handler_calls.clone());
        let handler = move |nic, entry| {
            let call = (id, nic, RawArgument::Entry(entry));
            handler_calls.lock().expect("no handler panics").push(call);
        };
        self.check_handler_calls()?;
        self.oracle.explore(&self.tables);
        let outcome = vip::cq_notify(CqHandle::from_raw(cq), handler);
        if !self.tables.cqs.contains_key(&cq) {
            let verdict = Verdict::default().refuse_if(true, VipError::InvalidParameter);
            return self.check_result(|| format!("notify of no CQ {cq:#x}"), &outcome, &verdict);
        }
        self.check_notify(NotifyQueue::Cq(cq), id, &outcome)
    }

    fn check_notify(&mut self, queue: NotifyQueue, id: u64, outcome: &vipl::Result<()>) -> Checked {
        let text = format!("notify #{id} of {queue:x?} -> {outcome:?}");
        self.note(|| text.clone());
        let tables = &self.tables;
        self.oracle.observe(
            || text,
            |state| {
                let fits = state.may_notify(tables, queue, outcome);
                fits.then(|| state.clone()).into_iter().collect()
            },
        )?;
        match outcome {
            Ok(()) => {
                self.oracle.apply(|state| state.notify(queue, id));
                self.handler_queues.insert(id, queue);
            }
            Err(error) => self.count(format!("notify: {error:?}")),
        }
        Ok(())
    }

    /// Checks the handler calls since the last check; returns whether there was one.
    pub(super) fn check_handler_calls(&mut self) -> Checked<bool> {
        let handler_calls =
            core::mem::take(&mut *self.handler_calls.lock().expect("no handler panics"));
        if handler_calls.is_empty() {
            return Ok(false);
        }
        self.oracle.explore(&self.tables);
        for call in handler_calls {
            self.check_handler_call(call)?;
        }
        Ok(true)
    }

    fn check_handler_call(&mut self, (id, nic, raw): HandlerCall) -> Checked {
        let text = format!("handler #{id} is called with {raw:x?}");
        self.note(|| text.clone());
        let Some(queue) = self.handler_queues.remove(&id) else {
            return Err(Violation(format!(
                "{text}\nits queue is destroyed, or it was called before"
            )));
        };
        let owner = match queue {
            NotifyQueue::Work(vi, _) => self.tables.vis[&vi].nic,
            NotifyQueue::Cq(cq) => self.tables.cqs[&cq].nic,
        };
        if nic.into_raw() != owner {
            return Err(Violation(format!("{text} by {nic:x?}, must be {owner:#x}")));
        }
        let argument = match (raw, queue) {
            (RawArgument::Descriptor(Some((address, status))), NotifyQueue::Work(vi, _)) => {
                HandlerArgument::Descriptor(self.completed(vi, address, status))
            }
            (RawArgument::Entry(entry), _) if entry.recv_queue => {
                HandlerArgument::Entry(entry.vi.into_raw(), QueueKind::Receive)
            }
            (RawArgument::Entry(entry), _) => {
                HandlerArgument::Entry(entry.vi.into_raw(), QueueKind::Send)
            }
            (RawArgument::Descriptor(_), _) => HandlerArgument::Descriptor(DoneResult::Empty),
        };
        let item = self.oracle.states().iter().find_map(|state| {
            state.handler_called(queue, id, &argument)?;
            match &state.expected_calls[&queue].front()?.1 {
                ExpectedCall::Descriptor(item) => Some(item.clone()),
                ExpectedCall::Emptied | ExpectedCall::Entry(_, _) => None,
            }
        });
        self.oracle.observe(
            || format!("{text}, {argument:x?}"),
            |state| {
                state
                    .handler_called(queue, id, &argument)
                    .into_iter()
                    .collect()
            },
        )?;
        self.count(match &argument {
            HandlerArgument::Descriptor(DoneResult::Completed { .. }) => {
                "handler: descriptor".into()
            }
            HandlerArgument::Descriptor(_) => "handler: NULL".into(),
            HandlerArgument::Entry(_, _) => "handler: entry".into(),
        });
        match (item, queue) {
            (Some(item), NotifyQueue::Work(vi, _)) => match &item.done {
                Some(done) => self.check_returned(vi, &item.posted.0, done),
                None => Ok(()),
            },
            (_, _) => Ok(()),
        }
    }

    /// Queues are destroyed: handlers of removed descriptors must have been called, all others are cancelled.
    pub(super) fn end_notify_queues(&mut self, queues: &[NotifyQueue]) -> Checked {
        self.check_handler_calls()?;
        self.oracle.observe(
            || format!("{queues:x?} end: a handler of a removed descriptor was not called"),
            |state| {
                let all_called = !queues
                    .iter()
                    .any(|queue| state.has_uncalled_handler(*queue));
                all_called.then(|| state.clone()).into_iter().collect()
            },
        )?;
        self.handler_queues
            .retain(|_, queue| !queues.contains(queue));
        self.oracle.apply(|state| {
            for queue in queues {
                state.remove_notify_queue(*queue);
            }
        });
        Ok(())
    }
}

/// Both work queues of a VI.
pub(super) fn notify_queues_of(vi: u64) -> [NotifyQueue; 2] {
    [
        NotifyQueue::Work(vi, QueueKind::Send),
        NotifyQueue::Work(vi, QueueKind::Receive),
    ]
}
