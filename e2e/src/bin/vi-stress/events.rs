//! What the NIC reports by itself.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vipl::{ErrorCode, ErrorDescriptor, ViHandle};

use crate::slot::lock;

/// The reports so far.
#[derive(Clone, Default)]
pub(crate) struct Events(Arc<(Mutex<Seen>, Condvar)>);

#[derive(Default)]
struct Seen {
    /// Losses of connections that nobody has waited for.
    losses: HashMap<ViHandle, u32>,
    all_losses: u64,
    refused_writes: u64,
    other: Vec<String>,
}

impl Events {
    /// For the error handler.
    pub(crate) fn note(&self, error: &ErrorDescriptor) {
        let (seen, news) = &*self.0;
        let mut seen = lock(seen);
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
        news.notify_all();
    }

    /// Waits until the loss of this VI's connection is reported. False if it is not in time.
    pub(crate) fn await_loss(&self, vi: ViHandle, limit: Duration) -> bool {
        let (seen, news) = &*self.0;
        let deadline = Instant::now() + limit;
        let mut seen = lock(seen);
        loop {
            if let Some(losses) = seen.losses.get_mut(&vi).filter(|losses| **losses > 0) {
                *losses -= 1;
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            seen = news
                .wait_timeout(seen, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Forgets a VI that is gone.
    pub(crate) fn forget(&self, vi: ViHandle) {
        lock(&self.0.0).losses.remove(&vi);
    }

    /// Losses of connections, refused writes, and what nothing in this program causes.
    pub(crate) fn totals(&self) -> (u64, u64, Vec<String>) {
        let seen = lock(&self.0.0);
        (seen.all_losses, seen.refused_writes, seen.other.clone())
    }
}
