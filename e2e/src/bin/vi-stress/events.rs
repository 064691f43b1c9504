//! Asynchronous errors that the NIC reports.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use vipl::{ErrorCode, ErrorDescriptor, ViHandle};

use crate::slot::lock;

/// Interval at which a waiting thread checks again, in case of a lost wakeup.
const RECHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Operations of the remote side that this NIC has reported as refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Refusals {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
}

/// The reported errors.
#[derive(Clone, Default)]
pub(crate) struct Events(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    /// Connection losses that `await_loss` has not returned yet.
    losses: HashMap<ViHandle, u32>,
    all_losses: u64,
    refusals: Refusals,
    other: Vec<String>,
    /// Threads in `await_loss`.
    waiting: Vec<Thread>,
}

impl Events {
    /// Records an error; called by the error handler.
    pub(crate) fn record(&self, error: &ErrorDescriptor) {
        let mut seen = lock(&self.0);
        match (error.code, error.vi) {
            (ErrorCode::ConnLost, Some(vi)) => {
                *seen.losses.entry(vi).or_default() += 1;
                seen.all_losses += 1;
            }
            (ErrorCode::RdmawProt, Some(_)) => seen.refusals.writes += 1,
            (ErrorCode::RdmarProt, Some(_)) => seen.refusals.reads += 1,
            // The end of a connection aborts a write in flight.
            (ErrorCode::RdmawAbort, Some(_)) => {}
            (_, _) => seen.other.push(format!("{error:?}")),
        }
        for thread in seen.waiting.drain(..) {
            thread.unpark();
        }
    }

    /// Waits until the loss of a VI's connection is reported. Returns false after the limit.
    pub(crate) fn await_loss(&self, vi: ViHandle, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            let mut seen = lock(&self.0);
            if let Some(losses) = seen.losses.get_mut(&vi).filter(|losses| **losses > 0) {
                *losses -= 1;
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            seen.waiting.push(thread::current());
            drop(seen);
            thread::park_timeout(left.min(RECHECK_INTERVAL));
        }
    }

    /// Removes a destroyed VI.
    pub(crate) fn forget(&self, vi: ViHandle) {
        lock(&self.0).losses.remove(&vi);
    }

    /// Returns connection losses, refusals, and errors that no operation of this program explains.
    pub(crate) fn totals(&self) -> (u64, Refusals, Vec<String>) {
        let seen = lock(&self.0);
        (seen.all_losses, seen.refusals, seen.other.clone())
    }
}
