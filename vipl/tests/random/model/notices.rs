//! Handlers that are called when something completes (VIPL 3.5.9 to 3.5.12).
//!
//! Each request is called once, in the order of the requests of its queue: with the next descriptor or entry that
//! comes off, or with NULL if the queue became empty. What is taken off for a handler is nobody else's.

use vipl::VipError;

use super::calls::{Seen, Verdict, completed_so};
use super::state::{Item, State, cq_of};
use super::tables::Tables;
use crate::program::Side;

/// A queue of which handlers can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Place {
    Work(u64, Side),
    Cq(u64),
}

/// What a handler must be called with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Call {
    Descriptor(Item),
    Emptied,
    Entry(u64, Side),
}

impl Call {
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Descriptor(item) => format!("descriptor #{}", item.posted.0.id),
            Self::Emptied => "NULL".into(),
            Self::Entry(vi, side) => format!("{side:?} of {vi:#x}"),
        }
    }
}

/// What a handler was called with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rung {
    /// A descriptor, or NULL as [`Seen::Empty`].
    Descriptor(Seen),
    Entry(u64, Side),
}

impl State {
    /// VIPL 3.5.9 to 3.5.11.
    pub(crate) fn may_notify(
        &self,
        tables: &Tables,
        place: Place,
        outcome: &vipl::Result<()>,
    ) -> bool {
        let waiting = self.asked.get(&place).map_or(0, |ids| ids.len());
        let called = self.called.get(&place).map_or(0, |calls| calls.len());
        let mut verdict = Verdict::default();
        if let Place::Work(vi, side) = place {
            let attached = cq_of(&tables.vis[&vi], side).is_some();
            let empty = self.vis[&vi].queue(side).items.is_empty();
            verdict = verdict
                .refuse_if(attached, VipError::ErrorResource)
                .refuse_if(empty, VipError::DescriptorError);
        }
        let limit = tables.limits.notifies;
        let full = verdict.clone().refuse_if(true, VipError::ErrorResource);
        // Those whose call is about to begin may count, too.
        (waiting < limit && verdict.fits(outcome))
            || (waiting + called >= limit && full.fits(outcome))
    }

    pub(crate) fn notify(&mut self, place: Place, id: u64) {
        self.asked.entry(place).or_default().push_back(id);
    }

    /// The state after such a call, if there could be one.
    pub(crate) fn rung(&self, place: Place, id: u64, rung: &Rung) -> Option<Self> {
        let (front, call) = self.called.get(&place)?.front()?;
        let fits = match (call, rung) {
            (Call::Emptied, Rung::Descriptor(Seen::Empty)) => true,
            (
                Call::Descriptor(item),
                Rung::Descriptor(Seen::Completed {
                    address,
                    status,
                    control,
                }),
            ) => {
                let posted = &item.posted.0;
                let done = item.done.as_ref()?;
                posted.address == *address && completed_so(posted, done, *status, control)
            }
            (Call::Entry(vi, side), Rung::Entry(of, on)) => (vi, side) == (of, on),
            (_, _) => false,
        };
        if *front != id || !fits {
            return None;
        }
        let mut state = self.clone();
        if let Some(calls) = state.called.get_mut(&place) {
            calls.pop_front();
        }
        state.called.retain(|_, calls| !calls.is_empty());
        Some(state)
    }

    /// Was something taken off this queue for a handler that was not called?
    pub(crate) fn withholds(&self, place: Place) -> bool {
        let calls = self.called.get(&place);
        calls.is_some_and(|calls| calls.iter().any(|(_, call)| *call != Call::Emptied))
    }

    /// Destruction cancels what is pending.
    pub(crate) fn end_place(&mut self, place: Place) {
        self.asked.remove(&place);
        self.called.remove(&place);
    }

    /// The queues of which something was asked take off what is complete.
    pub(super) fn calls_of_handlers(&self) -> Vec<State> {
        let mut next = Vec::new();
        for &place in self.asked.keys() {
            match place {
                Place::Work(vi, side) => next.extend(self.call_of_work(vi, side)),
                Place::Cq(cq) => {
                    next.extend(self.take_entry(cq).into_iter().map(|(entry, mut state)| {
                        state.call_first(place, Call::Entry(entry.vi, entry.side));
                        state
                    }))
                }
            }
        }
        next
    }

    fn call_of_work(&self, vi: u64, side: Side) -> Option<State> {
        let place = Place::Work(vi, side);
        let head = self.vis[&vi].queue(side).items.front();
        if head.is_some_and(|item| item.done.is_none()) {
            return None;
        }
        let mut state = self.clone();
        let queue = state.vi_mut(vi).queue_mut(side);
        if let Some(item) = queue.items.pop_front() {
            state.call_first(place, Call::Descriptor(item));
        }
        if state.vis[&vi].queue(side).items.is_empty() {
            while state.asked.contains_key(&place) {
                state.call_first(place, Call::Emptied);
            }
        }
        Some(state)
    }

    fn call_first(&mut self, place: Place, call: Call) {
        let Some(ids) = self.asked.get_mut(&place) else {
            return;
        };
        if let Some(id) = ids.pop_front() {
            self.called.entry(place).or_default().push_back((id, call));
        }
        self.asked.retain(|_, ids| !ids.is_empty());
    }
}
