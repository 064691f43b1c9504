//! What the NIC reports by itself.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use vipl::{ErrorCode, ErrorDescriptor, ViHandle};

use crate::slot::lock;

/// How often a thread that waits looks again, should nobody wake it.
const LOOK: Duration = Duration::from_millis(100);

/// The reports so far.
#[derive(Clone, Default)]
pub(crate) struct Events(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    /// Losses of connections that nobody has waited for.
    losses: HashMap<ViHandle, u32>,
    all_losses: u64,
    refused_writes: u64,
    other: Vec<String>,
    /// Threads that wait for a loss.
    waiting: Vec<Thread>,
}

impl Events {
    /// For the error handler.
    pub(crate) fn note(&self, error: &ErrorDescriptor) {
        let mut seen = lock(&self.0);
        match (error.code, error.vi) {
            (ErrorCode::ConnLost, Some(vi)) => {
                *seen.losses.entry(vi).or_default() += 1;
                seen.all_losses += 1;
            }
            (ErrorCode::RdmawProt, Some(_)) => seen.refused_writes += 1,
            // The end of a connection cuts the write that is on its way.
            (ErrorCode::RdmawAbort, Some(_)) => {}
            (_, _) => seen.other.push(format!("{error:?}")),
        }
        for thread in seen.waiting.drain(..) {
            thread.unpark();
        }
    }

    /// Waits until the loss of this VI's connection is reported. False if it is not in time.
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
            thread::park_timeout(left.min(LOOK));
        }
    }

    /// Forgets a VI that is gone.
    pub(crate) fn forget(&self, vi: ViHandle) {
        lock(&self.0).losses.remove(&vi);
    }

    /// Losses of connections, refused writes, and what nothing in this program causes.
    pub(crate) fn totals(&self) -> (u64, u64, Vec<String>) {
        let seen = lock(&self.0);
        (seen.all_losses, seen.refused_writes, seen.other.clone())
    }
}
