//! The state of a NIC's poll thread that other threads use.

use std::sync::OnceLock;
use std::time::Duration;

use pmd_port::WakeSource;
use pmd_port::wake::monotonic_ns;
use vi_core::biased_lock::BiasedLock;
use vi_core::sync::{self, AtomicBool, AtomicU32, Ordering, fence};
use vi_core::sys;

use crate::nic_backend::Backend;

mod core_sleep;

use core_sleep::CoreSleep;

/// The longest sleep on a port that cannot wake a thread.
const BLIND_SLEEP: Duration = Duration::from_millis(1);

/// The state of the NIC's poll thread that other threads use: whether it polls, and how to wake it.
#[derive(Default)]
pub(crate) struct PollThread {
    /// Counts notifications to the poll thread; a futex on which it sleeps while it watches.
    pub(crate) notifications: AtomicU32,
    /// The poll thread drains no doorbells: it sleeps, is about to, or only watches.
    pub(crate) doorbells_unattended: AtomicBool,
    /// The poll thread holds the backend lock, or is about to take it; it checks for doorbells afterwards.
    is_polling: AtomicBool,
    /// Wakes a thread that sleeps on a port's descriptor.
    pub(crate) event: OnceLock<sys::EventFd>,
    /// The sleep of the datapath process's core that polls the NIC.
    pub(crate) core: CoreSleep,
}

impl PollThread {
    /// Called when the program polls: wakes a poll thread that sleeps on the port, if one does.
    #[inline]
    pub(crate) fn wake_if_armed(&self, backend: &mut Backend) {
        if backend.armed().is_some() {
            self.disarm_and_wake(backend);
        }
    }

    #[cold]
    fn disarm_and_wake(&self, backend: &mut Backend) {
        if let Some(source) = backend.armed().take() {
            backend.disarm();
            // No thread has polled while this one slept: the last reading is old.
            backend.refresh_clock();
            self.wake(&source);
        }
    }

    fn wake(&self, source: &WakeSource) {
        match source {
            WakeSource::Futex { word, .. } => {
                word.word().fetch_add(1, Ordering::SeqCst);
                sync::futex_wake(word.word(), i32::MAX, true);
            }
            WakeSource::Fd(_) | WakeSource::Poll => {
                if let Some(event) = self.event.get() {
                    event.signal();
                }
            }
        }
    }

    /// Returns true if a doorbell that was just rung may stay undrained for a while: the holder of
    /// the backend lock may have drained already. If false, the poll thread drains it.
    #[inline]
    pub(crate) fn doorbells_unattended(&self) -> bool {
        // Partner: the heavy barrier in `mark_doorbells_unattended`. Either the thread sees the
        // doorbell, or we see the flag.
        sync::light_barrier();
        self.doorbells_unattended.load(Ordering::Relaxed)
    }

    /// Declares that the poll thread drains no more doorbells. It must check for some after this.
    pub(crate) fn mark_doorbells_unattended(&self) {
        self.doorbells_unattended.store(true, Ordering::Relaxed);
        // Partner: the light barrier in `doorbells_unattended`.
        sync::heavy_barrier();
    }

    /// Returns true if the poll thread holds the backend lock or is about to take it. It then drains the
    /// doorbells rung before this call, and the caller need not wait for it to be scheduled.
    pub(crate) fn is_polling(&self) -> bool {
        // Partner: the fence in `while_polling`. Either the thread sees the doorbell afterwards,
        // or we see that it has finished.
        fence(Ordering::SeqCst);
        self.is_polling.load(Ordering::Relaxed)
    }

    /// Runs `poll`, in which the poll thread takes the backend lock. It must check for doorbells after this.
    pub(crate) fn while_polling<R>(&self, poll: impl FnOnce() -> R) -> R {
        self.is_polling.store(true, Ordering::Relaxed);
        let result = poll();
        self.is_polling.store(false, Ordering::Relaxed);
        // Partner: the fence in `is_polling`.
        fence(Ordering::SeqCst);
        result
    }

    /// Wakes the poll thread, unless it sleeps on the port.
    pub(crate) fn notify(&self) {
        self.notifications.fetch_add(1, Ordering::SeqCst);
        sync::futex_wake(&self.notifications, 1, false);
    }

    /// Wakes the poll thread, also if it sleeps on the port.
    pub(crate) fn interrupt(&self, backend: &BiasedLock<Option<Backend>>) {
        self.notify();
        if let Some(backend) = backend.lock().as_mut() {
            self.wake_if_armed(backend);
        }
    }

    /// Sleeps until the port or the program wakes this thread, for `limit` at most. Returns how long ago the port woke
    /// it, if it did and has recorded it.
    pub(crate) fn sleep_on(&self, source: &WakeSource, limit: Duration) -> Option<Duration> {
        let fd = match source {
            WakeSource::Futex { word, expected } => {
                let (slept_at_ns, limit_ns) = (monotonic_ns(), limit.as_nanos() as u64);
                sync::futex_wait(word.word(), *expected, Some(limit_ns), true);
                // Another process may have written any value.
                let woken_at_ns = word.woken_at_ns().filter(|at| *at >= slept_at_ns)?;
                return monotonic_ns()
                    .checked_sub(woken_at_ns)
                    .map(Duration::from_nanos);
            }
            WakeSource::Fd(fd) => Some(*fd),
            WakeSource::Poll => None,
        };
        let limit = if fd.is_none() {
            limit.min(BLIND_SLEEP)
        } else {
            limit
        };
        if let Some(event) = self.event.get() {
            event.sleep(fd, limit);
        }
        None
    }
}
