//! Notify handlers (VIPL 3.5.9 to 3.5.12).
//!
//! Each handler is called once, in the order of the notify calls on its queue: with the next completed descriptor or
//! entry, or with NULL if the queue becomes empty. A descriptor or entry of a handler is not returned by other calls.

use vi_types::QueueKind;
use vipl::VipError;

use super::calls::{DoneResult, Verdict, completion_matches};
use super::state::{Item, State, cq_of};
use super::tables::Tables;

/// A queue with notify handlers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum NotifyQueue {
    Work(u64, QueueKind),
    Cq(u64),
}

/// The expected argument of a handler call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ExpectedCall {
    Descriptor(Item),
    Emptied,
    Entry(u64, QueueKind),
}

impl ExpectedCall {
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Descriptor(item) => format!("descriptor #{}", item.posted.0.id),
            Self::Emptied => "NULL".into(),
            Self::Entry(vi, kind) => format!("{kind:?} of {vi:#x}"),
        }
    }
}

/// The observed argument of a handler call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HandlerArgument {
    /// A descriptor, or NULL as [`DoneResult::Empty`].
    Descriptor(DoneResult),
    Entry(u64, QueueKind),
}

impl State {
    /// VIPL 3.5.9 to 3.5.11.
    pub(crate) fn may_notify(
        &self,
        tables: &Tables,
        queue: NotifyQueue,
        outcome: &vipl::Result<()>,
    ) -> bool {
        let waiting = self.handlers.get(&queue).map_or(0, |ids| ids.len());
        let called = self
            .expected_calls
            .get(&queue)
            .map_or(0, |calls| calls.len());
        let mut verdict = Verdict::default();
        if let NotifyQueue::Work(vi, kind) = queue {
            let attached = cq_of(&tables.vis[&vi], kind).is_some();
            let empty = self.vis[&vi].queue(kind).items.is_empty();
            verdict = verdict
                .refuse_if(attached, VipError::ErrorResource)
                .refuse_if(empty, VipError::DescriptorError);
        }
        let limit = tables.limits.notifies;
        let full = verdict.clone().refuse_if(true, VipError::ErrorResource);
        // Handlers that are about to be called may count, too.
        (waiting < limit && verdict.fits(outcome))
            || (waiting + called >= limit && full.fits(outcome))
    }

    pub(crate) fn notify(&mut self, queue: NotifyQueue, id: u64) {
        self.handlers.entry(queue).or_default().push_back(id);
    }

    /// Returns the state after this handler call, or `None` if it is not possible.
    pub(crate) fn handler_called(
        &self,
        queue: NotifyQueue,
        id: u64,
        argument: &HandlerArgument,
    ) -> Option<Self> {
        let (front, call) = self.expected_calls.get(&queue)?.front()?;
        let fits = match (call, argument) {
            (ExpectedCall::Emptied, HandlerArgument::Descriptor(DoneResult::Empty)) => true,
            (
                ExpectedCall::Descriptor(item),
                HandlerArgument::Descriptor(DoneResult::Completed {
                    address,
                    status,
                    control,
                }),
            ) => {
                let posted = &item.posted.0;
                let done = item.done.as_ref()?;
                posted.address == *address && completion_matches(posted, done, *status, control)
            }
            (ExpectedCall::Entry(vi, kind), HandlerArgument::Entry(of, on)) => {
                (vi, kind) == (of, on)
            }
            (_, _) => false,
        };
        if *front != id || !fits {
            return None;
        }
        let mut state = self.clone();
        if let Some(calls) = state.expected_calls.get_mut(&queue) {
            calls.pop_front();
        }
        state.expected_calls.retain(|_, calls| !calls.is_empty());
        Some(state)
    }

    /// Returns whether a descriptor or entry was removed from this queue for a handler that was not called.
    pub(crate) fn has_uncalled_handler(&self, queue: NotifyQueue) -> bool {
        let calls = self.expected_calls.get(&queue);
        calls.is_some_and(|calls| calls.iter().any(|(_, call)| *call != ExpectedCall::Emptied))
    }

    /// Destruction of a queue cancels its pending handlers.
    pub(crate) fn remove_notify_queue(&mut self, queue: NotifyQueue) {
        self.handlers.remove(&queue);
        self.expected_calls.remove(&queue);
    }

    /// Returns the states in which a queue with pending handlers removes a completed descriptor or entry.
    pub(super) fn handler_steps(&self) -> Vec<State> {
        let mut next = Vec::new();
        for &queue in self.handlers.keys() {
            match queue {
                NotifyQueue::Work(vi, kind) => next.extend(self.work_queue_call(vi, kind)),
                NotifyQueue::Cq(cq) => {
                    next.extend(self.take_entry(cq).into_iter().map(|(entry, mut state)| {
                        state.assign_call(queue, ExpectedCall::Entry(entry.vi, entry.kind));
                        state
                    }))
                }
            }
        }
        next
    }

    fn work_queue_call(&self, vi: u64, kind: QueueKind) -> Option<State> {
        let queue = NotifyQueue::Work(vi, kind);
        let head = self.vis[&vi].queue(kind).items.front();
        if head.is_some_and(|item| item.done.is_none()) {
            return None;
        }
        let mut state = self.clone();
        let work_queue = state.vi_mut(vi).queue_mut(kind);
        if let Some(item) = work_queue.items.pop_front() {
            state.assign_call(queue, ExpectedCall::Descriptor(item));
        }
        if state.vis[&vi].queue(kind).items.is_empty() {
            while state.handlers.contains_key(&queue) {
                state.assign_call(queue, ExpectedCall::Emptied);
            }
        }
        Some(state)
    }

    fn assign_call(&mut self, queue: NotifyQueue, call: ExpectedCall) {
        let Some(ids) = self.handlers.get_mut(&queue) else {
            return;
        };
        if let Some(id) = ids.pop_front() {
            self.expected_calls
                .entry(queue)
                .or_default()
                .push_back((id, call));
        }
        self.handlers.retain(|_, ids| !ids.is_empty());
    }
}
