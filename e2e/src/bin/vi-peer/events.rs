//! Asynchronous errors of the NIC, shared by all threads.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vipl::{ErrorCode, ViHandle};

/// An asynchronous error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) vi: Option<ViHandle>,
    pub(crate) code: ErrorCode,
}

/// All reported errors, in order.
#[derive(Clone, Default)]
pub(crate) struct Events(Arc<(Mutex<Vec<Event>>, Condvar)>);

impl Events {
    pub(crate) fn record(&self, event: Event) {
        let (seen, changed) = &*self.0;
        seen.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(event);
        changed.notify_all();
    }

    pub(crate) fn all(&self) -> Vec<Event> {
        let (seen, _) = &*self.0;
        seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the errors of a VI.
    pub(crate) fn of(&self, vi: ViHandle) -> Vec<ErrorCode> {
        let code = |event: &Event| (event.vi == Some(vi)).then_some(event.code);
        self.all().iter().filter_map(code).collect()
    }

    /// Waits until an event fits or the limit expires; returns the number of events that fit.
    pub(crate) fn count(&self, limit: Duration, fits: impl Fn(&Event) -> bool) -> usize {
        let (seen, changed) = &*self.0;
        let deadline = Instant::now() + limit;
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let found = seen.iter().filter(|event| fits(event)).count();
            let left = deadline.saturating_duration_since(Instant::now());
            if found > 0 || left.is_zero() {
                return found;
            }
            seen = changed
                .wait_timeout(seen, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Waits until another event is reported or the limit expires.
    pub(crate) fn watch(&self, limit: Duration) {
        let (seen, changed) = &*self.0;
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let before = seen.len();
        let outcome = changed.wait_timeout_while(seen, limit, |seen| seen.len() == before);
        drop(outcome);
    }
}
