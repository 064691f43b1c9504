//! Completion queues: completions of several work queues in one queue [VIPL 3.6].

use std::fmt;
use std::sync::Arc;

use crate::nic::NicShared;
use crate::{CqEntry, CqHandle, Result, Timeout, provider};

struct CqShared {
    handle: CqHandle,
    /// Keeps the NIC open while the queue exists.
    _nic: Arc<NicShared>,
}

impl Drop for CqShared {
    fn drop(&mut self) {
        if let Err(error) = provider::destroy_cq(self.handle) {
            log::warn!("completion queue: destroy failed: {error}");
        }
    }
}

/// A completion queue.
///
/// Clones refer to the same queue. The VIs that report to it own a clone; the queue is destroyed with the last clone.
/// An entry names the VI and the work queue on which a descriptor has completed; the descriptor is then taken with
/// [`Vi::send_done`](crate::Vi::send_done) or [`Vi::recv_done`](crate::Vi::recv_done). An entry stays in the queue
/// until it is taken, also when its descriptor was taken before it, so that these calls find nothing, or when its VI
/// was dropped [VIPL 7.1, 7.5].
///
/// The capacity is the requested number of entries, or the number of descriptors that can be posted on its work queues,
/// if that is more. A full queue drops entries whose descriptors were taken, and no others.
#[derive(Clone)]
pub struct CompletionQueue {
    shared: Arc<CqShared>,
}

impl CompletionQueue {
    pub(crate) fn create(nic: Arc<NicShared>, entries: u64) -> Result<Self> {
        let handle = provider::create_cq(nic.handle(), entries)?;
        Ok(Self {
            shared: Arc::new(CqShared { handle, _nic: nic }),
        })
    }

    /// Returns the provider's handle of this queue.
    pub fn handle(&self) -> CqHandle {
        self.shared.handle
    }

    /// Takes the oldest entry without waiting [VIPL 3.5.7].
    ///
    /// # Errors
    /// [`VipError::NotDone`](crate::VipError::NotDone) when the queue is empty.
    #[inline]
    pub fn done(&self) -> Result<CqEntry> {
        provider::cq_done(self.shared.handle)
    }

    /// Takes the oldest entry; waits for one if the queue is empty [VIPL 3.5.8].
    ///
    /// # Errors
    /// [`VipError::Timeout`](crate::VipError::Timeout) when no entry arrived within the timeout.
    pub fn wait(&self, timeout: Timeout) -> Result<CqEntry> {
        provider::cq_wait(self.shared.handle, timeout)
    }

    /// Registers `handler` to be called once, with the next entry, on this queue's handler thread [VIPL 3.5.11].
    /// Several handlers are called in the order of registration, each with one entry. The descriptor stays on its work
    /// queue.
    ///
    /// A handler may make any call, this one included. Handlers that were not called before the queue is destroyed are
    /// dropped. A handler that owns a clone of this queue prevents its destruction.
    ///
    /// # Errors
    /// [`VipError::ErrorResource`](crate::VipError::ErrorResource) when `max_notifies_per_queue` handlers are
    /// registered already, `max_notify_threads` other queues of the NIC have a handler thread, or the thread cannot be
    /// started.
    pub fn notify(&self, handler: impl FnOnce(CqEntry) + Send + 'static) -> Result<()> {
        provider::cq_notify(self.shared.handle, move |_nic, entry| handler(entry))
    }

    /// Changes the minimum capacity of this queue, also while it is in use [VIPL 3.6.3]. Its entries stay.
    ///
    /// # Errors
    /// [`VipError::InvalidParameter`](crate::VipError::InvalidParameter) for 0 entries,
    /// [`VipError::ErrorResource`](crate::VipError::ErrorResource) for more than `max_cq_entries`, or when memory is
    /// short.
    pub fn resize(&self, entries: u64) -> Result<()> {
        provider::resize_cq(self.shared.handle, entries)
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("CompletionQueue")
            .field(&self.handle())
            .finish()
    }
}
