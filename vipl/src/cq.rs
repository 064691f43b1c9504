//! Completion queues: one place to learn of the completions of many work queues [VIPL 3.6].

use std::fmt;
use std::sync::Arc;

use crate::nic::NicShared;
use crate::{CqEntry, CqHandle, Result, Timeout, provider};

struct CqShared {
    handle: CqHandle,
    /// Keeps the NIC open for as long as the queue lives.
    _nic: Arc<NicShared>,
}

impl Drop for CqShared {
    fn drop(&mut self) {
        if let Err(error) = provider::destroy_cq(self.handle) {
            log::warn!("a completion queue was not destroyed: {error}");
        }
    }
}

/// A completion queue.
///
/// Clones are the same queue; the VIs that report to it keep it, and it is destroyed with the last of them. An entry
/// says on which queue of which VI a descriptor has completed; that descriptor is then taken with
/// [`Vi::send_done`](crate::Vi::send_done) or [`Vi::recv_done`](crate::Vi::recv_done). It stays until it is taken, also
/// when its descriptor was taken without it, so that these find nothing, or when its VI is dropped [VIPL 7.1, 7.5].
///
/// A queue holds as many entries as were asked for, or as descriptors can be posted on its work queues, if those are
/// more. A full one drops entries of descriptors that were taken, never of others.
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

    /// The provider's handle of this queue.
    pub fn handle(&self) -> CqHandle {
        self.shared.handle
    }

    /// Takes the oldest entry; never waits [VIPL 3.5.7].
    ///
    /// # Errors
    /// [`VipError::NotDone`](crate::VipError::NotDone) when there is none.
    #[inline]
    pub fn done(&self) -> Result<CqEntry> {
        provider::cq_done(self.shared.handle)
    }

    /// Takes the oldest entry, and waits for one when there is none [VIPL 3.5.8].
    ///
    /// # Errors
    /// [`VipError::Timeout`](crate::VipError::Timeout) when none came in time.
    pub fn wait(&self, timeout: Timeout) -> Result<CqEntry> {
        provider::cq_wait(self.shared.handle, timeout)
    }

    /// Has `handler` called once, with the next entry, on a thread of this queue's own [VIPL 3.5.11]. Several handlers
    /// are called in the order in which they were given, one entry each. The descriptor stays on its work queue.
    ///
    /// A handler may make any call, this one included. Those that were not called when the queue is destroyed are
    /// dropped; a handler that owns a clone of this queue keeps it from that.
    ///
    /// # Errors
    /// [`VipError::ErrorResource`](crate::VipError::ErrorResource) when `max_notifies_per_queue` handlers wait already,
    /// `max_notify_threads` other queues of the NIC have a thread, or none can be started.
    pub fn notify(&self, handler: impl FnOnce(CqEntry) + Send + 'static) -> Result<()> {
        provider::cq_notify(self.shared.handle, move |_nic, entry| handler(entry))
    }

    /// Changes how many entries this queue holds at least, while it is used [VIPL 3.6.3]. What is in it stays.
    ///
    /// # Errors
    /// [`VipError::InvalidParameter`](crate::VipError::InvalidParameter) for no entries,
    /// [`VipError::ErrorResource`](crate::VipError::ErrorResource) for more than `max_cq_entries`, or when there is no
    /// memory for them.
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
