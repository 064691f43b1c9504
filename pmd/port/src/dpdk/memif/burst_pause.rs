//! Synchronizes the proxy thread of a control channel with the poller: pauses the poller's bursts.

use std::sync::{Condvar, Mutex, MutexGuard};

use super::ControlRequest;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// Bursts may run.
    #[default]
    Running,
    /// The proxy thread waits until the poller pauses bursts.
    PauseRequested,
    /// No bursts run.
    Paused,
}

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    /// DPDK's client is to be restarted.
    restart_client: bool,
    /// The port is closing: the poller does not poll requests any more, and runs no burst.
    port_closing: bool,
}

/// Requests of the proxy thread to the poller, which polls them at every upkeep.
#[derive(Debug, Default)]
pub(super) struct BurstPause {
    state: Mutex<State>,
    changed: Condvar,
}

impl BurstPause {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns the current request and acknowledges a pause. For the poller, which runs no burst meanwhile.
    pub(super) fn poll_request(&self) -> ControlRequest {
        let mut state = self.state();
        if state.phase == Phase::PauseRequested {
            state.phase = Phase::Paused;
            self.changed.notify_all();
        }
        ControlRequest {
            pause_bursts: state.phase == Phase::Paused,
            restart_client: core::mem::take(&mut state.restart_client),
        }
    }

    /// Reports that the port is closing. For the poller.
    pub(super) fn close(&self) {
        self.state().port_closing = true;
        self.changed.notify_all();
    }

    /// Waits until the poller runs no burst; it runs none until [`resume`](Self::resume).
    pub(super) fn pause(&self) {
        let mut state = self.state();
        state.phase = Phase::PauseRequested;
        while state.phase != Phase::Paused && !state.port_closing {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    /// Lets bursts run again.
    pub(super) fn resume(&self) {
        self.state().phase = Phase::Running;
    }

    /// Requests a restart of DPDK's client.
    pub(super) fn request_client_restart(&self) {
        self.state().restart_client = true;
    }

    /// Cancels the request if it is still pending.
    pub(super) fn cancel_client_restart(&self) {
        self.state().restart_client = false;
    }
}
