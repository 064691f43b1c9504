//! VIs: connection endpoints with a send queue and a receive queue [VIPL 3.2, 3.3, 3.5].

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use pmd::queue_calls::{self, WhenFull};
use vi_core::notify_slot;
use vi_core::reap::Done;
use vi_types::QueueKind;

use crate::cq::CompletionQueue;
use crate::descriptor::{Completed, Descriptor, PostError, Posted, Status};
use crate::nic::{NicShared, Ptag};
use crate::{
    ConnectionOptions, NegotiatedOptions, NetAddress, NicHandle, ReliabilityLevel, Result, Timeout,
    ViAttributes, ViHandle, ViInfo, ViState, VipError, provider,
};

mod change;

pub use change::ViChange;

/// The default transfer size of a VI, which every NIC supports.
const DEFAULT_TRANSFER_BYTES: u64 = 64 * 1024;

/// A builder of a VI, returned by [`Nic::vi`](crate::Nic::vi).
#[derive(Debug)]
#[must_use = "nothing is created before `build`"]
pub struct ViBuilder {
    nic: Arc<NicShared>,
    ptag: Ptag,
    reliability: ReliabilityLevel,
    max_transfer_bytes: u64,
    rdma_write: bool,
    rdma_read: bool,
    send_cq: Option<CompletionQueue>,
    recv_cq: Option<CompletionQueue>,
}

impl ViBuilder {
    pub(crate) fn new(nic: Arc<NicShared>, ptag: Ptag) -> Self {
        Self {
            nic,
            ptag,
            reliability: ReliabilityLevel::ReliableDelivery,
            max_transfer_bytes: DEFAULT_TRANSFER_BYTES,
            rdma_write: false,
            rdma_read: false,
            send_cq: None,
            recv_cq: None,
        }
    }

    /// Sets the reliability level; reliable delivery by default. It must be the same at both ends of a connection.
    pub fn reliability(mut self, level: ReliabilityLevel) -> Self {
        self.reliability = level;
        self
    }

    /// Sets the maximum message length in bytes; 64 KiB by default. It must be the same at both ends of a connection.
    pub fn max_transfer_bytes(mut self, bytes: u64) -> Self {
        self.max_transfer_bytes = bytes;
        self
    }

    /// Sets whether the peer may write into this program's memory over this VI; off by default.
    pub fn rdma_write(mut self, enabled: bool) -> Self {
        self.rdma_write = enabled;
        self
    }

    /// Sets whether the peer may read this program's memory over this VI; off by default, not at unreliable delivery.
    pub fn rdma_read(mut self, enabled: bool) -> Self {
        self.rdma_read = enabled;
        self
    }

    /// Reports completions of the send queue to `cq`; [`Vi::send_wait`] is an error then.
    pub fn send_cq(mut self, cq: &CompletionQueue) -> Self {
        self.send_cq = Some(cq.clone());
        self
    }

    /// Reports completions of the receive queue to `cq`; [`Vi::recv_wait`] is an error then.
    pub fn recv_cq(mut self, cq: &CompletionQueue) -> Self {
        self.recv_cq = Some(cq.clone());
        self
    }

    /// Creates the VI, idle [VIPL 3.2.1].
    ///
    /// # Errors
    /// [`VipError::InvalidReliabilityLevel`], [`VipError::InvalidMtu`] and [`VipError::InvalidRdmaRead`] for attributes
    /// that this NIC does not support (reads: at that level), [`VipError::InvalidParameter`] for a queue or a tag of
    /// another NIC, [`VipError::ErrorResource`] when `max_vi` VIs exist already.
    pub fn build(self) -> Result<Vi> {
        let attributes = ViAttributes {
            reliability: self.reliability.bit(),
            max_transfer_bytes: self.max_transfer_bytes,
            qos: 0,
            ptag: Some(self.ptag.handle()),
            rdma_write: self.rdma_write,
            rdma_read: self.rdma_read,
        };
        let send_cq = self.send_cq.as_ref().map(CompletionQueue::handle);
        let recv_cq = self.recv_cq.as_ref().map(CompletionQueue::handle);
        let handle = provider::create_vi(self.nic.handle(), &attributes, send_cq, recv_cq)?;
        Ok(Vi {
            handle,
            ptag: self.ptag,
            _send_cq: self.send_cq,
            _recv_cq: self.recv_cq,
            _nic: self.nic,
        })
    }
}

/// Returns the completed descriptor that was posted with this context; `None` without a context, for descriptors that
/// were posted by the calls of [`provider`].
#[inline]
fn completed_from(context: usize, status: u32) -> Option<Completed> {
    let context = NonZeroUsize::new(context)?;
    // SAFETY: only `Vi::post` sets a context, for either queue; a descriptor is taken off its queue once, when the
    // provider has finished with it.
    let descriptor = unsafe { Descriptor::from_context(context) };
    Some(Completed::new(descriptor, Status::from_raw(status)))
}

/// Wraps `handler` in a handler that recovers the descriptor from its context.
fn with_completed(
    handler: impl FnOnce(Option<Completed>) + Send + 'static,
) -> impl FnOnce(NicHandle, Option<notify_slot::Returned>) + Send + 'static {
    move |_nic, returned| {
        handler(returned.and_then(|returned| completed_from(returned.context, returned.status)));
    }
}

/// A Virtual Interface.
///
/// All methods take `&self` and may be called from any thread; each queue returns its descriptors in the order of
/// posting. Dropping a VI disconnects it, drops the descriptors in its queues with their buffers, and destroys it.
pub struct Vi {
    handle: ViHandle,
    ptag: Ptag,
    // Dropped after the VI is destroyed, which uses them.
    _send_cq: Option<CompletionQueue>,
    _recv_cq: Option<CompletionQueue>,
    _nic: Arc<NicShared>,
}

impl Vi {
    /// Returns the provider's handle of this VI, as in completion queue entries and error descriptors.
    pub fn handle(&self) -> ViHandle {
        self.handle
    }

    /// Returns state, attributes and whether the queues are empty [VIPL 3.7.3].
    ///
    /// # Errors
    /// [`VipError::InvalidParameter`] when the NIC was closed by its handle.
    pub fn info(&self) -> Result<ViInfo> {
        provider::query_vi(self.handle)
    }

    /// Returns the state of the VI.
    ///
    /// # Errors
    /// As [`Self::info`].
    pub fn state(&self) -> Result<ViState> {
        self.info().map(|info| info.state)
    }

    /// Requests a connection to the listener at `remote` and returns the attributes of the peer's VI [VIPL 3.3.4].
    /// `local` names the client to the server.
    ///
    /// # Errors
    /// [`VipError::NoMatch`] immediately when the host has no listener for the discriminator, [`VipError::Reject`] when
    /// the server rejects the request, [`VipError::Timeout`] when the server or its host does not respond within
    /// `timeout`, [`VipError::NotReachable`] when there is no route to the host (a reliable VI is in [`ViState::Error`]
    /// then), [`VipError::InvalidState`] when the VI is not idle, [`VipError::InvalidParameter`] for a zero timeout or
    /// a `local` with another host address.
    pub fn connect(
        &self,
        local: &NetAddress,
        remote: &NetAddress,
        timeout: Timeout,
    ) -> Result<ViAttributes> {
        provider::connect_request(self.handle, local, remote, timeout)
    }

    /// Returns the connection options of this VI, an extension of the VIPL guide [VI/TCP 2.2.1].
    ///
    /// # Errors
    /// [`VipError::InvalidParameter`] when its NIC does not use VI/TCP, or was closed by its handle.
    pub fn connection_options(&self) -> Result<ConnectionOptions> {
        provider::connection_options(self.handle)
    }

    /// Replaces the connection options of this VI.
    ///
    /// # Errors
    /// As [`Self::connection_options`]; [`VipError::InvalidParameter`] also for security information that is too long;
    /// [`VipError::InvalidState`] unless the VI is idle.
    pub fn set_connection_options(&self, options: &ConnectionOptions) -> Result<()> {
        provider::set_connection_options(self.handle, options)
    }

    /// Returns the options that this VI and its peer have negotiated for their connection.
    ///
    /// # Errors
    /// As [`Self::connection_options`]; [`VipError::InvalidState`] unless the VI is connected.
    pub fn negotiated_options(&self) -> Result<NegotiatedOptions> {
        provider::negotiated_options(self.handle)
    }

    /// Returns the user ID of the program that this VI is connected to, or `None` if it is not known; see
    /// [`ConnectionRequest::user`](crate::ConnectionRequest::user).
    ///
    /// # Errors
    /// [`VipError::InvalidState`] unless the VI is connected.
    pub fn peer_user(&self) -> Result<Option<u32>> {
        provider::peer_user(self.handle)
    }

    /// Disconnects the VI, in any state: posted descriptors complete as flushed, and the VI is idle [VIPL 3.3.5].
    ///
    /// # Errors
    /// [`VipError::InvalidParameter`] when the NIC was closed by its handle.
    pub fn disconnect(&self) -> Result<()> {
        provider::disconnect(self.handle)
    }

    /// Posts a send, an RDMA write or an RDMA read [VIPL 3.5.1]. On a VI that is not connected it completes immediately
    /// as flushed.
    ///
    /// # Errors
    /// Returns the descriptor with [`VipError::ErrorResource`] when the queue holds `max_descriptors_per_queue`
    /// descriptors, or the program `max_descriptors` of its quota in the datapath process; with
    /// [`VipError::InvalidPtag`] when its tag differs from this VI's.
    #[inline]
    pub fn post_send(&self, mut descriptor: Descriptor) -> std::result::Result<(), PostError> {
        descriptor.format_send();
        self.post(QueueKind::Send, descriptor)
    }

    /// Posts a receive, also before the VI is connected [VIPL 3.5.4].
    ///
    /// # Errors
    /// As [`Self::post_send`].
    #[inline]
    pub fn post_recv(&self, mut descriptor: Descriptor) -> std::result::Result<(), PostError> {
        descriptor.format_recv();
        self.post(QueueKind::Receive, descriptor)
    }

    #[inline]
    fn post(&self, queue: QueueKind, descriptor: Descriptor) -> std::result::Result<(), PostError> {
        if *descriptor.ptag() != self.ptag {
            return Err(PostError {
                error: VipError::InvalidPtag,
                descriptor,
            });
        }
        let Posted {
            raw,
            handle,
            context,
        } = descriptor.into_posted();
        let (vi, at, region) = (self.handle.into_raw(), raw.as_ptr(), handle.0);
        // SAFETY: the owner keeps the raw descriptor and its buffers allocated, registered or not; it is leaked as the
        // context, so that they are not accessed until the provider returns it.
        let posted = unsafe { queue_calls::post(vi, queue, at, region, WhenFull::Refuse, context) };
        match (posted, NonZeroUsize::new(context)) {
            (Err(error), Some(context)) => Err(PostError {
                error: error.into(),
                // SAFETY: just created by `into_posted`, and not accepted by the provider.
                descriptor: unsafe { Descriptor::from_context(context) },
            }),
            _ => Ok(()),
        }
    }

    /// Takes the descriptor at the head of the send queue if it has completed; never waits [VIPL 3.5.2]. `None` if the
    /// queue is empty.
    ///
    /// # Errors
    /// [`VipError::NotDone`] when the head has not completed.
    #[inline]
    pub fn send_done(&self) -> Result<Option<Completed>> {
        Self::reap(queue_calls::done(self.handle.into_raw(), QueueKind::Send)?)
    }

    /// Takes the descriptor at the head of the receive queue if it has completed; never waits [VIPL 3.5.5]. `None` if
    /// the queue is empty.
    ///
    /// # Errors
    /// As [`Self::send_done`].
    #[inline]
    pub fn recv_done(&self) -> Result<Option<Completed>> {
        Self::reap(queue_calls::done(
            self.handle.into_raw(),
            QueueKind::Receive,
        )?)
    }

    /// Waits for the descriptor at the head of the send queue and takes it [VIPL 3.5.3]. `None` if the queue is empty.
    ///
    /// # Errors
    /// [`VipError::Timeout`] when it has not completed within the timeout, [`VipError::ErrorResource`] when the queue
    /// reports to a completion queue.
    pub fn send_wait(&self, timeout: Timeout) -> Result<Option<Completed>> {
        let done = queue_calls::wait_done(self.handle.into_raw(), QueueKind::Send, timeout.limit());
        Self::reap(done?)
    }

    /// Waits for the descriptor at the head of the receive queue and takes it [VIPL 3.5.6]. `None` if the queue is
    /// empty.
    ///
    /// # Errors
    /// As [`Self::send_wait`].
    pub fn recv_wait(&self, timeout: Timeout) -> Result<Option<Completed>> {
        let done =
            queue_calls::wait_done(self.handle.into_raw(), QueueKind::Receive, timeout.limit());
        Self::reap(done?)
    }

    /// Registers `handler` to be called once, with the next completed descriptor of the send queue, on the queue's
    /// handler thread [VIPL 3.5.9]. Several handlers are called in the order of registration, each with one descriptor;
    /// when the queue becomes empty, the remaining handlers are called with `None`.
    ///
    /// A handler may make any call: post, register a handler, disconnect, drop the VI. It may own the VI by an `Arc`,
    /// which keeps the VI until the handler is called; [`Self::disconnect`] completes all posted descriptors, so that
    /// every handler is called. When the VI is dropped, handlers that were not called are dropped, and a running
    /// handler has returned when the drop has, unless the drop is part of a handler. While handlers are registered,
    /// `send_done` and `send_wait` may take descriptors before them.
    ///
    /// # Errors
    /// [`VipError::DescriptorError`] when nothing is posted; [`VipError::ErrorResource`] when the queue reports to a
    /// completion queue, when `max_notifies_per_queue` handlers are registered already, when `max_notify_threads` other
    /// queues of the NIC have a handler thread, or when the thread cannot be started.
    pub fn send_notify(
        &self,
        handler: impl FnOnce(Option<Completed>) + Send + 'static,
    ) -> Result<()> {
        provider::queue_notify(self.handle, QueueKind::Send, with_completed(handler))
    }

    /// As [`Self::send_notify`], for the receive queue [VIPL 3.5.10].
    ///
    /// # Errors
    /// As for [`Self::send_notify`].
    pub fn recv_notify(
        &self,
        handler: impl FnOnce(Option<Completed>) + Send + 'static,
    ) -> Result<()> {
        provider::queue_notify(self.handle, QueueKind::Receive, with_completed(handler))
    }

    /// Takes and drops all completed descriptors of a queue.
    fn drain(&self, queue: QueueKind) {
        while let Ok(Done::Completed {
            status, context, ..
        }) = queue_calls::done(self.handle.into_raw(), queue)
        {
            drop(completed_from(context, status));
        }
    }

    #[inline]
    fn reap(done: Done) -> Result<Option<Completed>> {
        match done {
            Done::Empty => Ok(None),
            Done::NotDone => Err(VipError::NotDone),
            Done::Completed {
                status, context, ..
            } => completed_from(context, status)
                .map(Some)
                .ok_or(VipError::DescriptorError),
        }
    }
}

impl Drop for Vi {
    fn drop(&mut self) {
        if let Err(error) = self.disconnect() {
            log::warn!("VI: disconnect on drop failed: {error}");
        }
        self.drain(QueueKind::Send);
        self.drain(QueueKind::Receive);
        if let Err(error) = provider::destroy_vi(self.handle) {
            log::warn!("VI: destroy on drop failed: {error}");
        }
    }
}

impl fmt::Debug for Vi {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Vi").field(&self.handle).finish()
    }
}
