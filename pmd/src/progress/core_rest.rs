//! The sleep of a datapath process's core, and the calls that end it.
//!
//! A call of an application changes under the turn what the core is to do: it sets a timer, or
//! leaves something that waits for room. A core that lay down before knows nothing of it.

use std::sync::{Mutex, PoisonError};

use crate::driver::Driver;
use crate::sync::{AtomicU64, Ordering};
use crate::sys;

/// The core is awake.
const AWAKE: u64 = 0;

/// How the core of a NIC rests. Nothing here is set for a NIC of this program's own.
#[derive(Default)]
pub(crate) struct CoreRest {
    /// Until when it sleeps if nothing comes, by the NIC's clock. Changed under the turn: the
    /// core lies down and gets up in it, so that a call that has it afterwards sees this.
    until_ns: AtomicU64,
    /// What wakes it.
    event: Mutex<Option<sys::Event>>,
}

impl CoreRest {
    /// From now on a core polls the NIC that this wakes.
    pub(crate) fn polled_by(&self, event: sys::Event) {
        *self.event.lock().unwrap_or_else(PoisonError::into_inner) = Some(event);
    }

    /// The core, which holds the turn, sleeps so long unless something comes.
    pub(crate) fn lie_down(&self, until_ns: u64) {
        self.until_ns.store(until_ns, Ordering::Relaxed);
    }

    /// The core, which holds the turn, is awake.
    pub(crate) fn get_up(&self) {
        self.until_ns.store(AWAKE, Ordering::Relaxed);
    }

    /// Does the core sleep through something that is to be done? The caller holds the turn.
    pub(crate) fn oversleeps(&self, driver: &Driver) -> bool {
        let until_ns = self.until_ns.load(Ordering::Relaxed);
        let is_sooner = |at_ns| at_ns < until_ns;
        until_ns != AWAKE && (driver.has_unsent() || driver.next_timer_ns().is_some_and(is_sooner))
    }

    /// Wakes the core if it sleeps. Not under the turn, which it wants then.
    pub(crate) fn rouse(&self) {
        // Relaxed: whoever has something for the core has had the turn since.
        if self.until_ns.load(Ordering::Relaxed) != AWAKE
            && let Some(event) = &*self.event.lock().unwrap_or_else(PoisonError::into_inner)
        {
            event.signal();
        }
    }
}
