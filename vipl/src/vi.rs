//! A VI: one end of a connection, with its send queue and its receive queue [VIPL 3.2, 3.3, 3.5].

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use pmd::notify;
use pmd::work::{self, Done, Queue, WhenFull};

use crate::cq::CompletionQueue;
use crate::descriptor::{Completed, Descriptor, PostError, Posted, Status};
use crate::nic::{NicShared, Ptag};
use crate::{
    Agreement, NetAddress, NicHandle, ReliabilityLevel, Result, Timeout, ViAttributes, ViChoices,
    ViHandle, ViInfo, ViState, VipError, provider,
};

mod change;

pub use change::ViChange;

/// The transfer size of a VI that asks for none: what every NIC allows.
const DEFAULT_TRANSFER_BYTES: u64 = 64 * 1024;

/// A VI to be, begun by [`Nic::vi`](crate::Nic::vi).
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

    /// The reliability level; reliable delivery unless set. Both ends of a connection must agree.
    pub fn reliability(mut self, level: ReliabilityLevel) -> Self {
        self.reliability = level;
        self
    }

    /// The longest message in bytes; 64 KiB unless set. Both ends of a connection must agree.
    pub fn max_transfer_bytes(mut self, bytes: u64) -> Self {
        self.max_transfer_bytes = bytes;
        self
    }

    /// Whether the peer may write into this program's memory over this VI; not unless set.
    pub fn rdma_write(mut self, enabled: bool) -> Self {
        self.rdma_write = enabled;
        self
    }

    /// Whether the peer may read this program's memory over this VI; not unless set, and not at unreliable delivery.
    pub fn rdma_read(mut self, enabled: bool) -> Self {
        self.rdma_read = enabled;
        self
    }

    /// Reports completions of the send queue to `cq`; that queue can then not be waited on by itself.
    pub fn send_cq(mut self, cq: &CompletionQueue) -> Self {
        self.send_cq = Some(cq.clone());
        self
    }

    /// Reports completions of the receive queue to `cq`; that queue can then not be waited on by itself.
    pub fn recv_cq(mut self, cq: &CompletionQueue) -> Self {
        self.recv_cq = Some(cq.clone());
        self
    }

    /// Creates the VI, idle [VIPL 3.2.1].
    ///
    /// # Errors
    /// [`VipError::InvalidReliabilityLevel`], [`VipError::InvalidMtu`] and [`VipError::InvalidRdmaRead`] for what this
    /// NIC does not support (reads: at that level), [`VipError::InvalidParameter`] for a queue or a tag of another NIC,
    /// [`VipError::ErrorResource`] when there are `max_vi` already.
    pub fn build(self) -> Result<Vi> {
        let attributes = ViAttributes {
            reliability: self.reliability as u16,
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

/// The descriptor that was posted with this context; `None` for one that the calls of the provider posted, which have
/// none.
#[inline]
fn take_back(context: usize, status: u32) -> Option<Completed> {
    let context = NonZeroUsize::new(context)?;
    // SAFETY: only `Vi::post` gives descriptors a context, whatever queue they come from; each comes off its queue once,
    // when the provider has finished with it.
    let descriptor = unsafe { Descriptor::from_context(context) };
    Some(Completed::new(descriptor, Status::from_raw(status)))
}

/// What the provider calls in place of `handler`.
fn give_back_to(
    handler: impl FnOnce(Option<Completed>) + Send + 'static,
) -> impl FnOnce(NicHandle, Option<notify::Returned>) + Send + 'static {
    move |_nic, returned| {
        handler(returned.and_then(|returned| take_back(returned.context, returned.status)));
    }
}

/// A Virtual Interface.
///
/// All methods take `&self` and may be called from any thread; each queue gives its descriptors back in the order in
/// which they were posted. Dropping a VI disconnects it, drops the descriptors that are still in its queues with their
/// buffers, and destroys it.
pub struct Vi {
    handle: ViHandle,
    ptag: Ptag,
    // Dropped after the VI is destroyed, which is what they are kept for.
    _send_cq: Option<CompletionQueue>,
    _recv_cq: Option<CompletionQueue>,
    _nic: Arc<NicShared>,
}

impl Vi {
    /// The handle by which completion queue entries and error descriptors name this VI.
    pub fn handle(&self) -> ViHandle {
        self.handle
    }

    /// State, attributes and whether the queues are empty [VIPL 3.7.3].
    ///
    /// # Errors
    /// [`VipError::InvalidParameter`] when the NIC was closed underneath.
    pub fn info(&self) -> Result<ViInfo> {
        provider::query_vi(self.handle)
    }

    /// The state of the VI.
    ///
    /// # Errors
    /// As [`Self::info`].
    pub fn state(&self) -> Result<ViState> {
        self.info().map(|info| info.state)
    }

    /// Asks the host of `remote` for a connection to whoever waits on its discriminator, under the name `local`, and
    /// gives the attributes of the peer's VI [VIPL 3.3.4].
    ///
    /// # Errors
    /// [`VipError::NoMatch`] at once when nobody waits there, [`VipError::Reject`] when the server does not want it,
    /// [`VipError::Timeout`] when it or its host does not answer, [`VipError::NotReachable`] when there is no way to
    /// the host, by which a reliable VI goes to [`ViState::Error`], [`VipError::InvalidState`] when the VI is not idle,
    /// [`VipError::InvalidParameter`] for a zero timeout or a `local` of another host.
    pub fn connect(
        &self,
        local: &NetAddress,
        remote: &NetAddress,
        timeout: Timeout,
    ) -> Result<ViAttributes> {
        provider::connect_request(self.handle, local, remote, timeout)
    }

    /// What this VI wants of its connections beyond the guide [VI/TCP 2.2.1].
    ///
    /// # Errors
    /// [`VipError::InvalidParameter`] when its NIC does not speak VI/TCP, or was closed underneath.
    pub fn choices(&self) -> Result<ViChoices> {
        provider::choices(self.handle)
    }

    /// Changes what this VI wants of its connections, all of it or nothing.
    ///
    /// # Errors
    /// As [`Self::choices`], also for security information that is too long; [`VipError::InvalidState`] unless
    /// the VI is idle.
    pub fn set_choices(&self, choices: &ViChoices) -> Result<()> {
        provider::set_choices(self.handle, choices)
    }

    /// What this VI and its peer have agreed on for their connection.
    ///
    /// # Errors
    /// As [`Self::choices`]; [`VipError::InvalidState`] unless the VI is connected.
    pub fn agreement(&self) -> Result<Agreement> {
        provider::agreement(self.handle)
    }

    /// Returns the user ID of the program that this VI is connected to, or `None` where it is not known; see
    /// [`ConnectionRequest::user`](crate::ConnectionRequest::user).
    ///
    /// # Errors
    /// [`VipError::InvalidState`] unless the VI is connected.
    pub fn peer_user(&self) -> Result<Option<u32>> {
        provider::peer_user(self.handle)
    }

    /// Ends the connection, in any state: what is still posted completes as flushed, and the VI is idle [VIPL 3.3.5].
    ///
    /// # Errors
    /// [`VipError::InvalidParameter`] when the NIC was closed underneath.
    pub fn disconnect(&self) -> Result<()> {
        provider::disconnect(self.handle)
    }

    /// Posts a send, an RDMA write or an RDMA read [VIPL 3.5.1]. On a VI that is not connected it completes at once as flushed.
    ///
    /// # Errors
    /// Gives the descriptor back with [`VipError::ErrorResource`] when the queue holds `max_descriptors_per_queue`, or
    /// this program as many descriptors as its datapath process allows it (`max_descriptors` of its quota); with
    /// [`VipError::InvalidPtag`] when its tag is not this VI's.
    #[inline]
    pub fn post_send(&self, mut descriptor: Descriptor) -> std::result::Result<(), PostError> {
        descriptor.format_send();
        self.post(Queue::Send, descriptor)
    }

    /// Posts a receive, also before the VI is connected [VIPL 3.5.4].
    ///
    /// # Errors
    /// As [`Self::post_send`].
    #[inline]
    pub fn post_recv(&self, mut descriptor: Descriptor) -> std::result::Result<(), PostError> {
        descriptor.format_recv();
        self.post(Queue::Receive, descriptor)
    }

    #[inline]
    fn post(&self, queue: Queue, descriptor: Descriptor) -> std::result::Result<(), PostError> {
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
        // SAFETY: the raw descriptor and what it describes is memory that its owner keeps alive, registered or not; the
        // owner is given away with it, so that all of it is left alone until the provider gives it back.
        let posted = unsafe { work::post(vi, queue, at, region, WhenFull::Refuse, context) };
        match (posted, NonZeroUsize::new(context)) {
            (Err(error), Some(context)) => Err(PostError {
                error: error.into(),
                // SAFETY: made by `into_posted` just now, and not taken by the provider.
                descriptor: unsafe { Descriptor::from_context(context) },
            }),
            _ => Ok(()),
        }
    }

    /// Takes the descriptor at the head of the send queue when it has completed; never waits [VIPL 3.5.2]. `None` when
    /// the queue is empty.
    ///
    /// # Errors
    /// [`VipError::NotDone`] when the head has not completed.
    #[inline]
    pub fn send_done(&self) -> Result<Option<Completed>> {
        Self::reap(work::done(self.handle.into_raw(), Queue::Send)?)
    }

    /// Takes the descriptor at the head of the receive queue when it has completed; never waits [VIPL 3.5.5]. `None`
    /// when the queue is empty.
    ///
    /// # Errors
    /// As [`Self::send_done`].
    #[inline]
    pub fn recv_done(&self) -> Result<Option<Completed>> {
        Self::reap(work::done(self.handle.into_raw(), Queue::Receive)?)
    }

    /// Waits for the descriptor at the head of the send queue and takes it [VIPL 3.5.3]. `None` when the queue is empty.
    ///
    /// # Errors
    /// [`VipError::Timeout`] when it has not completed in time, [`VipError::ErrorResource`] when the queue reports to a
    /// completion queue.
    pub fn send_wait(&self, timeout: Timeout) -> Result<Option<Completed>> {
        let done = work::wait_done(self.handle.into_raw(), Queue::Send, timeout.limit());
        Self::reap(done?)
    }

    /// Waits for the descriptor at the head of the receive queue and takes it [VIPL 3.5.6]. `None` when the queue is
    /// empty.
    ///
    /// # Errors
    /// As [`Self::send_wait`].
    pub fn recv_wait(&self, timeout: Timeout) -> Result<Option<Completed>> {
        let done = work::wait_done(self.handle.into_raw(), Queue::Receive, timeout.limit());
        Self::reap(done?)
    }

    /// Has `handler` called once, with the next descriptor that the send queue gives back, on a thread of the queue's
    /// own [VIPL 3.5.9]. Several handlers are called in the order in which they were given, one descriptor each; when
    /// the queue becomes empty, those that are left are called with `None`.
    ///
    /// A handler may make any call: post, ask to be called again, disconnect, drop the VI. It may own the VI by an
    /// `Arc`, which keeps the VI until it is called: [`Self::disconnect`] sees to that, since everything posted comes
    /// back. When the VI is dropped, handlers that were not called are dropped; one that is being called has returned
    /// when the drop has, unless that drop is part of a handler. While handlers wait, `send_done` and `send_wait` may
    /// take descriptors from under them.
    ///
    /// # Errors
    /// [`VipError::DescriptorError`] when nothing is posted; [`VipError::ErrorResource`] when the queue reports to a
    /// completion queue, when `max_notifies_per_queue` handlers wait already, when `max_notify_threads` other queues of
    /// the NIC have a thread, or when none can be started.
    pub fn send_notify(
        &self,
        handler: impl FnOnce(Option<Completed>) + Send + 'static,
    ) -> Result<()> {
        provider::queue_notify(self.handle, Queue::Send, give_back_to(handler))
    }

    /// As [`Self::send_notify`], of the receive queue [VIPL 3.5.10].
    ///
    /// # Errors
    /// As for [`Self::send_notify`].
    pub fn recv_notify(
        &self,
        handler: impl FnOnce(Option<Completed>) + Send + 'static,
    ) -> Result<()> {
        provider::queue_notify(self.handle, Queue::Receive, give_back_to(handler))
    }

    /// Drops the descriptors that a queue gives back.
    fn drain(&self, queue: Queue) {
        while let Ok(Done::Completed {
            status, context, ..
        }) = work::done(self.handle.into_raw(), queue)
        {
            drop(take_back(context, status));
        }
    }

    #[inline]
    fn reap(done: Done) -> Result<Option<Completed>> {
        match done {
            Done::Empty => Ok(None),
            Done::NotDone => Err(VipError::NotDone),
            Done::Completed {
                status, context, ..
            } => take_back(context, status)
                .map(Some)
                .ok_or(VipError::DescriptorError),
        }
    }
}

impl Drop for Vi {
    fn drop(&mut self) {
        if let Err(error) = self.disconnect() {
            log::warn!("a VI could not be disconnected when it was dropped: {error}");
        }
        self.drain(Queue::Send);
        self.drain(Queue::Receive);
        if let Err(error) = provider::destroy_vi(self.handle) {
            log::warn!("a VI could not be destroyed when it was dropped: {error}");
        }
    }
}

impl fmt::Debug for Vi {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Vi").field(&self.handle).finish()
    }
}
