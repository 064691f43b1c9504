//! Where the thread of a control channel and the poller meet.

use std::sync::{Condvar, Mutex, MutexGuard};

use super::Wish;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// Bursts may run.
    #[default]
    Free,
    /// They are to stop.
    Asked,
    /// They have stopped.
    Held,
}

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    /// A client is to be started.
    start: bool,
    /// The poller will not look any more, and runs no burst.
    left: bool,
}

/// Asks the poller to hold still, which it does when it looks next.
#[derive(Debug, Default)]
pub(super) struct Meeting {
    state: Mutex<State>,
    changed: Condvar,
}

impl Meeting {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The poller's: what it is to do from now on.
    pub(super) fn look(&self) -> Wish {
        let mut state = self.state();
        if state.phase == Phase::Asked {
            state.phase = Phase::Held;
            self.changed.notify_all();
        }
        Wish {
            hold: state.phase == Phase::Held,
            start: core::mem::take(&mut state.start),
        }
    }

    /// The poller's: it is gone.
    pub(super) fn leave(&self) {
        self.state().left = true;
        self.changed.notify_all();
    }

    /// Waits until no burst runs; none does until [`release`](Self::release).
    pub(super) fn hold(&self) {
        let mut state = self.state();
        state.phase = Phase::Asked;
        while state.phase != Phase::Held && !state.left {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    /// Bursts may run again.
    pub(super) fn release(&self) {
        self.state().phase = Phase::Free;
    }

    /// Has a client started.
    pub(super) fn ask_for_start(&self) {
        self.state().start = true;
    }

    /// It is there, or nobody wants it any more.
    pub(super) fn take_start_back(&self) {
        self.state().start = false;
    }
}
