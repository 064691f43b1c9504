//! VIs and completion queues.

use std::sync::{Mutex, PoisonError};

use vi_types::{QueueKind, ViAttributes, ViIndex, ViState};

use crate::biased_lock::{BiasedGuard, Unbias};
use crate::cq::CompletionRing;
use crate::handle::{FIELD_MASK, HandleKind, RawHandle};
use crate::memory::TagCheck;
use crate::nic_shared::NicShared;
use crate::notify_slot::{NotifySlot, ViNotify};
use crate::queue::{PostEnd, ReapEnd, WorkQueue};
use crate::reap::CqEntry;
use crate::sync::{self, AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use crate::waiters::Event;

/// A VI.
pub struct ViShared {
    /// The NIC.
    pub nic: &'static NicShared,
    /// Index of the VI.
    pub index: ViIndex,
    /// The handle while the VI exists, else 0.
    live: AtomicU64,
    generation: AtomicU32,
    nic_handle: AtomicU64,
    state: AtomicU8,
    /// A failed post has broken the VI; the poller moves it to Error.
    pub broken: AtomicBool,
    /// The number of connection calls that wait for their outcome; changed under the backend lock.
    pub connecting: AtomicU32,
    /// Number of the protection tag; 0 for none.
    pub tag: AtomicU32,
    /// Longest message in bytes.
    pub max_transfer_bytes: AtomicU32,
    /// The poller is to be notified of posted receives: the peer waits for them.
    pub notify_receives: AtomicBool,
    /// RDMA reads can be posted; false at Unreliable Delivery.
    pub reads: AtomicBool,
    /// Sends shorter than this many bytes can probably be sent without the send queue: a hint of the poller.
    pub one_step_below_bytes: AtomicU32,
    /// The same of RDMA operations.
    pub one_step_rdma_below_bytes: AtomicU32,
    /// Handle of the completion queue of sends, or 0.
    pub send_cq: AtomicU64,
    /// Handle of the completion queue of receives, or 0.
    pub recv_cq: AtomicU64,
    /// The handle of the VI in the datapath process, or 0.
    pub remote: AtomicU64,
    /// The number of disconnects by this side since the VI was created; for an attached application.
    pub disconnects: AtomicU32,
    /// Attributes, as the consumer gave them.
    pub settings: Mutex<ViAttributes>,
    /// The send queue.
    pub send: WorkQueue,
    /// The receive queue.
    pub recv: WorkQueue,
    /// Boxed, so that the fields of the data path are close together.
    pub notify: Box<ViNotify>,
}

impl ViShared {
    /// Creates a VI; `None` if there is no memory for its queues.
    pub fn new(nic: &'static NicShared, index: u32) -> Option<Self> {
        let depth = nic.limits.max_descriptors_per_queue;
        Some(Self {
            nic,
            index: ViIndex(index),
            live: AtomicU64::new(0),
            generation: AtomicU32::new(0),
            nic_handle: AtomicU64::new(0),
            state: AtomicU8::new(ViState::Idle as u8),
            broken: AtomicBool::new(false),
            connecting: AtomicU32::new(0),
            tag: AtomicU32::new(0),
            max_transfer_bytes: AtomicU32::new(0),
            notify_receives: AtomicBool::new(false),
            reads: AtomicBool::new(false),
            one_step_below_bytes: AtomicU32::new(0),
            one_step_rdma_below_bytes: AtomicU32::new(0),
            send_cq: AtomicU64::new(0),
            recv_cq: AtomicU64::new(0),
            remote: AtomicU64::new(0),
            disconnects: AtomicU32::new(0),
            settings: Mutex::new(ViAttributes::default()),
            send: WorkQueue::new(depth)?,
            recv: WorkQueue::new(depth)?,
            notify: Box::new(ViNotify::new()),
        })
    }

    /// Returns a work queue.
    #[inline]
    pub fn queue(&self, queue: QueueKind) -> &WorkQueue {
        match queue {
            QueueKind::Send => &self.send,
            QueueKind::Receive => &self.recv,
        }
    }

    /// Returns the handle of the completion queue to which a work queue reports, or 0.
    #[inline]
    pub fn cq_handle(&self, receive: bool) -> u64 {
        let cq = if receive {
            &self.recv_cq
        } else {
            &self.send_cq
        };
        cq.load(Ordering::Relaxed)
    }

    /// Returns the event of a completion on a queue that reports to no completion queue.
    #[inline]
    pub fn event(&self, queue: QueueKind) -> Event {
        Event::on_work_queue(self.index.0, queue == QueueKind::Receive)
    }

    /// Returns the check for the protection tag of the VI.
    #[inline]
    pub fn tag_check(&self) -> TagCheck {
        TagCheck::tag(self.tag.load(Ordering::Relaxed))
    }

    /// Returns true if the poller is to be notified of a receive that was just posted.
    #[inline]
    pub fn notifies_receives(&self) -> bool {
        // Partner: the heavy barrier in `Datapath::set_notify_receives`. Either the poller sees the
        // receive, or we see that it requires a notification.
        sync::light_barrier();
        self.notify_receives.load(Ordering::Relaxed)
    }

    /// Reads and clears the mark of a post that broke the VI. The caller holds the backend lock.
    #[inline]
    pub fn take_broken(&self) -> bool {
        // Acquire: partner of the Release store of the thread that posted.
        let is_broken = self.broken.load(Ordering::Acquire);
        if is_broken {
            self.broken.store(false, Ordering::Relaxed);
        }
        is_broken
    }

    /// Makes the object live under a new handle, which is returned.
    pub fn revive(&self, nic_handle: u64) -> u64 {
        let generation = next_generation(&self.generation);
        let handle = RawHandle::pack(HandleKind::Vi, self.nic.number, generation, self.index.0);
        self.nic_handle.store(nic_handle, Ordering::Relaxed);
        self.state.store(ViState::Idle as u8, Ordering::Relaxed);
        self.broken.store(false, Ordering::Relaxed);
        self.disconnects.store(0, Ordering::Relaxed);
        // Release: partner of the Acquire load in `is_live`.
        self.live.store(handle, Ordering::Release);
        handle
    }

    /// Invalidates the handle.
    pub fn retire(&self) {
        self.live.store(0, Ordering::Release);
    }

    /// Reverts [`Self::retire`].
    pub fn resume(&self, handle: u64) {
        self.live.store(handle, Ordering::Release);
    }

    /// Returns whether the VI exists under this handle.
    #[inline]
    pub fn is_live(&self, handle: u64) -> bool {
        self.live.load(Ordering::Acquire) == handle
    }

    /// Returns the handle while the VI exists, else 0.
    #[inline]
    pub fn live_handle(&self) -> u64 {
        self.live.load(Ordering::Acquire)
    }

    /// Returns the NIC handle that created the VI.
    #[inline]
    pub fn nic_handle(&self) -> u64 {
        self.nic_handle.load(Ordering::Relaxed)
    }

    /// Sets the state. The caller holds the backend lock.
    #[inline]
    pub fn set_state(&self, state: ViState) {
        // Release: partner of the Acquire load in `state`.
        self.state.store(state as u8, Ordering::Release);
    }

    /// Returns the state.
    #[inline]
    pub fn state(&self) -> ViState {
        // Only `set_state` writes it.
        ViState::from_number(self.state.load(Ordering::Acquire)).unwrap_or(ViState::Idle)
    }

    /// Locks out all other threads from posting and reaping, until the result is dropped.
    pub fn close_ends(&self) -> ClosedEnds<'_> {
        let mut unbias = Unbias::default();
        self.unbias_ends(&mut unbias);
        drop(unbias);
        ClosedEnds {
            _post: [self.send.post_end.lock(), self.recv.post_end.lock()],
            _reap: [self.send.reap_end.lock(), self.recv.reap_end.lock()],
        }
    }

    /// Collects the biases that [`Self::close_ends`] ends, so that one barrier serves many VIs.
    pub fn unbias_ends<'a>(&'a self, unbias: &mut Unbias<'a>) {
        for queue in [&self.send, &self.recv] {
            unbias.add(&queue.post_end);
            unbias.add(&queue.reap_end);
        }
    }

    /// Returns the attributes.
    pub fn settings(&self) -> ViAttributes {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The locks of all ends of a VI's queues.
pub struct ClosedEnds<'a> {
    _post: [BiasedGuard<'a, PostEnd>; 2],
    _reap: [BiasedGuard<'a, ReapEnd>; 2],
}

fn next_generation(cell: &AtomicU32) -> u32 {
    let mut generation = (cell.load(Ordering::Relaxed) + 1) & FIELD_MASK;
    if generation == 0 {
        generation = 1;
    }
    cell.store(generation, Ordering::Relaxed);
    generation
}

/// A completion queue.
pub struct CqShared {
    /// The NIC.
    pub nic: &'static NicShared,
    index: u32,
    live: AtomicU64,
    generation: AtomicU32,
    nic_handle: AtomicU64,
    /// The number of attached work queues.
    pub attached: AtomicU32,
    /// The entries.
    pub ring: CompletionRing,
    /// The notify requests.
    pub notify: Box<NotifySlot<CqEntry>>,
}

impl CqShared {
    /// Creates a completion queue, which is not live.
    pub fn new(nic: &'static NicShared, index: u32) -> Self {
        Self {
            nic,
            index,
            live: AtomicU64::new(0),
            generation: AtomicU32::new(0),
            nic_handle: AtomicU64::new(0),
            attached: AtomicU32::new(0),
            ring: CompletionRing::new(),
            notify: Box::new(NotifySlot::new()),
        }
    }

    /// Makes the object live under a new handle, which is returned.
    pub fn revive(&self, nic_handle: u64) -> u64 {
        let generation = next_generation(&self.generation);
        let handle = RawHandle::pack(HandleKind::Cq, self.nic.number, generation, self.index);
        self.nic_handle.store(nic_handle, Ordering::Relaxed);
        self.attached.store(0, Ordering::Relaxed);
        self.live.store(handle, Ordering::Release);
        handle
    }

    /// Invalidates the handle.
    pub fn retire(&self) {
        self.live.store(0, Ordering::Release);
    }

    /// Returns whether the completion queue exists under this handle.
    #[inline]
    pub fn is_live(&self, handle: u64) -> bool {
        self.live.load(Ordering::Acquire) == handle
    }

    /// Returns the handle while the completion queue exists, else 0.
    #[inline]
    pub fn live_handle(&self) -> u64 {
        self.live.load(Ordering::Acquire)
    }

    /// Returns the NIC handle that created the completion queue.
    #[inline]
    pub fn nic_handle(&self) -> u64 {
        self.nic_handle.load(Ordering::Relaxed)
    }

    /// Returns the event of a new entry.
    #[inline]
    pub fn event(&self) -> Event {
        Event::on_completion_queue(self.index)
    }

    /// Returns the number of entries for all descriptors that can be posted on the attached work queues.
    pub fn needed_entries(&self) -> u32 {
        let depth = self.nic.limits.max_descriptors_per_queue;
        let queues = self.attached.load(Ordering::Relaxed);
        queues.saturating_mul(depth.next_power_of_two())
    }
}
