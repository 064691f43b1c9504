//! Calls of applications that wait in a datapath process, each for events of the objects that it concerns.
//!
//! An application can have many calls that wait. An event wakes those that wait for its object, and one poll wakes a
//! limited number: neither the poll thread nor the backend lock is busy with calls that find nothing. All state is
//! protected by the backend lock, under which events occur and calls check for them; so no event is missed.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use vi_core::sync::{AtomicBool, AtomicU32, Ordering, futex_wait, futex_wake};
use vi_core::waiters::Event;
use vi_types::{HostAddress, ViIndex};

/// Calls that are woken in one poll.
const WAKES_PER_POLL: usize = 16;

/// What a call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Object {
    /// The outcome of a connection call on this VI, or the end of the VI.
    Connection(ViIndex),
    /// A connection request for this listener.
    Listener(u64),
    /// The ports of this host.
    Host(HostAddress),
    /// The end of this NIC handle.
    NicHandle(u64),
}

impl Object {
    /// The event for a thread of a program that polls its NIC itself.
    pub(crate) fn event(self) -> Event {
        match self {
            Self::Connection(vi) => Event::CONTROL.or(Event::on_connection(vi.0)),
            Self::Listener(number) => Event::CONTROL.or(Event::on_listener(number)),
            Self::Host(_) | Self::NicHandle(_) => Event::CONTROL,
        }
    }
}

/// A call that waits.
#[derive(Debug, Default)]
pub(crate) struct WaitingCall {
    /// 1 once it is woken: the futex on which its thread sleeps.
    is_woken: AtomicU32,
    /// It is to be woken, or was. Accessed under the backend lock.
    is_due: AtomicBool,
}

impl WaitingCall {
    /// Sleeps until the call is woken, or for this time; may return early.
    pub(crate) fn sleep(&self, limit: Option<Duration>) {
        let limit_ns = limit.map(|limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
        futex_wait(&self.is_woken, 0, limit_ns, false);
    }

    fn wake(&self) {
        // Relaxed: the thread reads what caused the event under the backend lock.
        self.is_woken.store(1, Ordering::Relaxed);
        futex_wake(&self.is_woken, 1, false);
    }

    /// Waits for the next event.
    pub(crate) fn begin(&self) {
        if self.is_woken.load(Ordering::Relaxed) != 0 {
            self.is_woken.store(0, Ordering::Relaxed);
            self.is_due.store(false, Ordering::Relaxed);
        }
    }
}

/// The calls of applications that wait on one NIC. All are woken when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct CallWaiters {
    waiting: HashMap<Object, Vec<Arc<WaitingCall>>>,
    /// Calls to be woken, in the order of the events.
    due: VecDeque<Arc<WaitingCall>>,
}

impl CallWaiters {
    /// Adds a call that waits for events of these objects.
    pub(crate) fn add(&mut self, objects: &[Object]) -> Arc<WaitingCall> {
        let call = Arc::<WaitingCall>::default();
        for object in objects {
            self.waiting
                .entry(*object)
                .or_default()
                .push(Arc::clone(&call));
        }
        call
    }

    /// Removes a call, which waits no more.
    pub(crate) fn remove(&mut self, objects: &[Object], call: &Arc<WaitingCall>) {
        for object in objects {
            if let Some(calls) = self.waiting.get_mut(object) {
                calls.retain(|other| !Arc::ptr_eq(other, call));
                if calls.is_empty() {
                    self.waiting.remove(object);
                }
            }
        }
    }

    /// Notes an event of an object: the calls that wait for it are woken by [`Self::wake_due`].
    pub(crate) fn notify(&mut self, object: Object) {
        if let Some(calls) = self.waiting.get(&object) {
            make_due(calls, &mut self.due);
        }
    }

    /// Notes an event of all hosts for which `is_known` returns true.
    pub(crate) fn notify_hosts(&mut self, is_known: impl Fn(HostAddress) -> bool) {
        for (object, calls) in &self.waiting {
            if let Object::Host(host) = object
                && is_known(*host)
            {
                make_due(calls, &mut self.due);
            }
        }
    }

    /// Notes an event that concerns all calls.
    #[cold]
    pub(crate) fn notify_all(&mut self) {
        for calls in self.waiting.values() {
            make_due(calls, &mut self.due);
        }
    }

    /// Wakes calls whose event has occurred, at most [`WAKES_PER_POLL`]. True if some are left.
    #[inline]
    pub(crate) fn wake_due(&mut self) -> bool {
        if self.due.is_empty() {
            return false;
        }
        for call in self.due.drain(..self.due.len().min(WAKES_PER_POLL)) {
            call.wake();
        }
        self.has_due()
    }

    /// True if calls are to be woken.
    #[inline]
    pub(crate) fn has_due(&self) -> bool {
        !self.due.is_empty()
    }
}

impl Drop for CallWaiters {
    fn drop(&mut self) {
        self.notify_all();
        while self.wake_due() {}
    }
}

/// Adds calls to those that are to be woken, each once.
fn make_due(calls: &[Arc<WaitingCall>], due: &mut VecDeque<Arc<WaitingCall>>) {
    for call in calls {
        if !call.is_due.swap(true, Ordering::Relaxed) {
            due.push_back(Arc::clone(call));
        }
    }
}

#[cfg(test)]
mod tests;
