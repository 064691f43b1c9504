//! A slot: one local VI that is connected repeatedly to its peer, and the state that its threads share.
//!
//! Each of the four tasks has its own lock, so that two threads can post and reap on one VI concurrently. Lock order:
//! that of [`Slot::lock_all`].

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread;

use e2e::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use vipl::{Buffer, Completed, Descriptor, Nic, Ptag, Vi};

use crate::accounting::Wire;
use crate::header::PeerMemory;
use crate::pattern::Rng;
use crate::plan::SlotConfig;
use crate::reap::SendReap;
use crate::receive::{ReceivePost, ReceiveReap};
use crate::source::Read;
use crate::transmit::SendPost;
use e2e::failure::Failure;

/// Maximum number of data segments of a descriptor.
pub(crate) const MAX_SEGMENTS: usize = 5;

/// Locks a mutex, also after a panic, since the program fails anyway. It spins on `try_lock`: ThreadSanitizer sees the
/// synchronization only in inlined code, and the futex path of `lock` is not inlined.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    loop {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => thread::yield_now(),
        }
    }
}

/// The NIC of the program.
pub(crate) struct NicContext {
    pub(crate) nic: Nic,
    pub(crate) ptag: Ptag,
    pub(crate) wire: Wire,
}

impl NicContext {
    /// Creates a descriptor with random segments of a new region, which has space for the longest message.
    pub(crate) fn descriptor(
        &self,
        config: &SlotConfig,
        rng: &mut Rng,
    ) -> Result<Descriptor, Failure> {
        let mut descriptor = self
            .nic
            .create_descriptors(1, MAX_SEGMENTS, &self.ptag)?
            .pop()
            .ok_or("no descriptor was created")?;
        self.attach_memory(&mut descriptor, config, rng)?;
        Ok(descriptor)
    }

    /// Replaces the memory of a descriptor; the old memory is deregistered.
    pub(crate) fn attach_memory(
        &self,
        descriptor: &mut Descriptor,
        config: &SlotConfig,
        rng: &mut Rng,
    ) -> Result<(), Failure> {
        while descriptor.pop().is_some() {}
        let region = self
            .nic
            .create_region(config.max_transfer_bytes, &self.ptag)?;
        let mut rest: Buffer = region.into_buffer();
        for _ in 0..rng.below(MAX_SEGMENTS as u64) {
            let cut = 1 + rng.below(rest.len() as u64 - 1) as usize;
            let next = rest.split_off(cut);
            descriptor
                .push(rest)
                .map_err(|_| "the descriptor has no free segment")?;
            rest = next;
            if rest.len() < 2 {
                break;
            }
        }
        descriptor
            .push(rest)
            .map_err(|_| "the descriptor has no free segment")?;
        Ok(())
    }
}

/// The posted descriptors of a work queue, oldest first.
#[derive(Debug, Default)]
pub(crate) struct PostedQueue {
    queue: Mutex<VecDeque<PostedEntry>>,
}

/// The operation of a posted descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Receive,
    Send,
    /// An RDMA write; with immediate data, it uses a receive descriptor of the peer.
    Write {
        immediate: bool,
    },
    Read(Read),
}

/// The expected result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Success,
    /// The remote side must refuse it.
    Refusal,
}

/// A posted descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PostedEntry {
    /// The address of its first buffer.
    address: usize,
    pub(crate) length_bytes: usize,
    pub(crate) work: Work,
    pub(crate) expected: Expected,
}

impl PostedEntry {
    pub(crate) fn new(
        descriptor: &Descriptor,
        length_bytes: usize,
        work: Work,
        expected: Expected,
    ) -> Self {
        Self {
            address: address(descriptor),
            length_bytes,
            work,
            expected,
        }
    }
}

fn address(descriptor: &Descriptor) -> usize {
    descriptor.buffer(0).as_ptr().addr()
}

impl PostedQueue {
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.queue).is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.queue).len()
    }

    /// Whether an operation is posted that the remote side must refuse.
    pub(crate) fn has_unexpected(&self) -> bool {
        let is_unexpected = |entry: &PostedEntry| entry.expected == Expected::Refusal;
        lock(&self.queue).back().is_some_and(is_unexpected)
    }

    /// Removes all entries; the descriptors are destroyed with their VI.
    pub(crate) fn clear(&self) {
        lock(&self.queue).clear();
    }

    /// Adds an entry; called before the post, since another thread may reap the descriptor immediately.
    pub(crate) fn push(&self, entry: PostedEntry) {
        lock(&self.queue).push_back(entry);
    }

    /// Removes the oldest entry; fails if it is not that of this descriptor.
    pub(crate) fn take(&self, completed: &Completed) -> Result<PostedEntry, Failure> {
        let found = address(&completed.descriptor);
        match lock(&self.queue).pop_front() {
            Some(entry) if entry.address == found => Ok(entry),
            next => Err(format!("{found:#x} completed out of order: {next:x?} was next").into()),
        }
    }
}

/// State that the tasks of a slot share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// The connection is established, and sends may be posted.
    pub(crate) is_up: AtomicBool,
    /// A descriptor has failed: the connection ends.
    pub(crate) is_broken: AtomicBool,
    /// No more sends shall be posted.
    pub(crate) is_closing: AtomicBool,
    /// Total number of messages that this side may send.
    pub(crate) granted: AtomicU32,
    /// Writes of this side that the remote side has checked.
    pub(crate) consumed: AtomicU32,
    /// Receives posted on this connection.
    pub(crate) receives_posted: AtomicU32,
    /// Messages of an unreliable connection that were lost and used no receive.
    pub(crate) lost: AtomicU32,
    /// Writes of the remote side that are checked.
    pub(crate) checked: AtomicU32,
    /// Incremented by each post and completion.
    pub(crate) progress: AtomicU64,
    /// Remaining planned messages of this side on this connection.
    pub(crate) quota: AtomicU32,
    /// Memory of the remote side for RDMA.
    pub(crate) peer_memory: Mutex<Option<PeerMemory>>,
}

impl Shared {
    pub(crate) fn count_progress(&self) {
        // Relaxed: a count with no partner, read only to detect stalls.
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    /// Resets the state for a new connection; the caller holds all locks of the slot.
    pub(crate) fn reset(&self, receives_posted: usize, first_granted: u32, quota: u32) {
        // SeqCst here and at all uses: this is the test program, whose performance does not matter.
        self.is_broken.store(false, Ordering::SeqCst);
        self.is_closing.store(false, Ordering::SeqCst);
        self.granted.store(first_granted, Ordering::SeqCst);
        self.consumed.store(0, Ordering::SeqCst);
        self.receives_posted
            .store(receives_posted as u32, Ordering::SeqCst);
        self.lost.store(0, Ordering::SeqCst);
        self.checked.store(0, Ordering::SeqCst);
        self.quota.store(quota, Ordering::SeqCst);
        *lock(&self.peer_memory) = None;
    }
}

/// A slot of this side.
pub(crate) struct Slot {
    pub(crate) config: SlotConfig,
    pub(crate) shared: Shared,
    pub(crate) sends: PostedQueue,
    pub(crate) receives: PostedQueue,
    pub(crate) idle_sends: Mutex<Vec<Descriptor>>,
    pub(crate) idle_receives: Mutex<Vec<Descriptor>>,
    pub(crate) send_post: Mutex<SendPost>,
    pub(crate) send_reap: Mutex<SendReap>,
    pub(crate) receive_post: Mutex<ReceivePost>,
    pub(crate) receive_reap: Mutex<ReceiveReap>,
}

/// The locks of all tasks of a slot.
pub(crate) struct SlotGuards<'a> {
    pub(crate) send_post: MutexGuard<'a, SendPost>,
    pub(crate) send_reap: MutexGuard<'a, SendReap>,
    pub(crate) receive_post: MutexGuard<'a, ReceivePost>,
    pub(crate) receive_reap: MutexGuard<'a, ReceiveReap>,
}

impl SlotGuards<'_> {
    /// Replaces the VI of all tasks; returns the old one.
    pub(crate) fn replace(&mut self, vi: &Arc<Vi>) -> Arc<Vi> {
        self.send_reap.vi = Arc::clone(vi);
        self.receive_post.vi = Arc::clone(vi);
        self.receive_reap.vi = Arc::clone(vi);
        std::mem::replace(&mut self.send_post.vi, Arc::clone(vi))
    }
}

impl Slot {
    /// Locks all tasks.
    pub(crate) fn lock_all(&self) -> SlotGuards<'_> {
        SlotGuards {
            send_post: lock(&self.send_post),
            send_reap: lock(&self.send_reap),
            receive_post: lock(&self.receive_post),
            receive_reap: lock(&self.receive_reap),
        }
    }
}
