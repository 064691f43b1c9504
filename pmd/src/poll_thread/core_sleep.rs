//! The sleep of a datapath process's core, and its end by calls of applications.
//!
//! A call of an application changes, under the backend lock, the work of the core: it sets a timer, or
//! leaves something that waits for room. A core that went to sleep before does not know of it.

use std::sync::{Mutex, PoisonError};

use vi_core::sync::{AtomicU64, Ordering};
use vi_core::sys;

use crate::nic_backend::Backend;

/// The core is awake.
const AWAKE: u64 = 0;

/// The sleep state of the core that polls a NIC. Unused for a NIC that this process does not serve.
#[derive(Default)]
pub(crate) struct CoreSleep {
    /// The end of the sleep if no event wakes the core, in nanoseconds of the NIC's clock, or
    /// [`AWAKE`]. Changed under the backend lock, so that a call that holds it afterwards sees this.
    until_ns: AtomicU64,
    /// Wakes the core.
    event: Mutex<Option<sys::EventFd>>,
}

impl CoreSleep {
    /// Sets the event that wakes the core which polls the NIC.
    pub(crate) fn set_waker(&self, event: sys::EventFd) {
        *self.event.lock().unwrap_or_else(PoisonError::into_inner) = Some(event);
    }

    /// Declares that the core, which holds the backend lock, sleeps until then unless an event wakes it.
    pub(crate) fn prepare_sleep(&self, until_ns: u64) {
        self.until_ns.store(until_ns, Ordering::Relaxed);
    }

    /// Declares that the core, which holds the backend lock, is awake.
    pub(crate) fn finish_sleep(&self) {
        self.until_ns.store(AWAKE, Ordering::Relaxed);
    }

    /// Returns true if the core sleeps beyond the time at which there is work. The caller holds the
    /// backend lock.
    pub(crate) fn needs_wake(&self, backend: &Backend) -> bool {
        let until_ns = self.until_ns.load(Ordering::Relaxed);
        let is_sooner = |at_ns| at_ns < until_ns;
        until_ns != AWAKE
            && (backend.has_unsent()
                || backend.has_undelivered()
                || backend.next_timer_ns().is_some_and(is_sooner))
    }

    /// Wakes the core if it sleeps. Not to be called under the backend lock, which the core takes then.
    pub(crate) fn wake(&self) {
        // Relaxed: a caller with work for the core has held the backend lock since.
        if self.until_ns.load(Ordering::Relaxed) != AWAKE
            && let Some(event) = &*self.event.lock().unwrap_or_else(PoisonError::into_inner)
        {
            event.signal();
        }
    }
}
