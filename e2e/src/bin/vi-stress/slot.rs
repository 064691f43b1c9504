//! A slot: one VI of ours and its peer, connected again and again, and what the threads that serve it share.
//!
//! Each of the four duties has a lock of its own, so that two threads may post and reap on one VI at the same time.
//! Whoever needs more than one takes them in the order of [`Slot::all`].

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread;

use e2e::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use vipl::{Buffer, Completed, Descriptor, Nic, Ptag, RemoteBuffer, Vi};

use crate::Failure;
use crate::pattern::Rng;
use crate::plan::Shape;
use crate::receive::{ReceivePost, ReceiveReap};
use crate::transmit::{SendPost, SendReap};

/// Data segments of a descriptor, at most.
pub(crate) const MAX_SEGMENTS: usize = 5;

/// Locks, also after a panic: the program fails anyway. By trying, since a data-race check sees the lock change
/// hands only where it is inlined, and the way into the kernel is not.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    loop {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => thread::yield_now(),
        }
    }
}

/// What the program is made of.
pub(crate) struct Place {
    pub(crate) nic: Nic,
    pub(crate) ptag: Ptag,
}

impl Place {
    /// A descriptor whose segments are cut at random from a region of its own, with room for the longest message.
    pub(crate) fn descriptor(&self, shape: &Shape, rng: &mut Rng) -> Result<Descriptor, Failure> {
        let mut descriptor = self
            .nic
            .create_descriptors(1, MAX_SEGMENTS, &self.ptag)?
            .pop()
            .ok_or("no descriptor was made")?;
        self.furnish(&mut descriptor, shape, rng)?;
        Ok(descriptor)
    }

    /// Gives a descriptor other memory. What it had is deregistered.
    pub(crate) fn furnish(
        &self,
        descriptor: &mut Descriptor,
        shape: &Shape,
        rng: &mut Rng,
    ) -> Result<(), Failure> {
        while descriptor.pop().is_some() {}
        let region = self
            .nic
            .create_region(shape.max_transfer_bytes, &self.ptag)?;
        let mut rest: Buffer = region.into_buffer();
        for _ in 0..rng.below(MAX_SEGMENTS as u64) {
            let cut = 1 + rng.below(rest.len() as u64 - 1) as usize;
            let next = rest.split_off(cut);
            descriptor
                .push(rest)
                .map_err(|_| "a descriptor without room")?;
            rest = next;
            if rest.len() < 2 {
                break;
            }
        }
        descriptor
            .push(rest)
            .map_err(|_| "a descriptor without room")?;
        Ok(())
    }
}

/// What is posted on a work queue, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Posted {
    queue: Mutex<VecDeque<Ticket>>,
}

/// One posted descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// Where its first buffer is.
    address: usize,
    pub(crate) length_bytes: usize,
    /// It takes a receive descriptor of the peer.
    pub(crate) is_message: bool,
    pub(crate) is_write: bool,
}

impl Ticket {
    pub(crate) fn new(
        descriptor: &Descriptor,
        length_bytes: usize,
        is_message: bool,
        is_write: bool,
    ) -> Self {
        Self {
            address: address(descriptor),
            length_bytes,
            is_message,
            is_write,
        }
    }
}

fn address(descriptor: &Descriptor) -> usize {
    descriptor.buffer(0).as_ptr().addr()
}

impl Posted {
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.queue).is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        lock(&self.queue).len()
    }

    /// The descriptors go down with their VI.
    pub(crate) fn clear(&self) {
        lock(&self.queue).clear();
    }

    /// Before the descriptor is posted: whoever reaps may have it at once.
    pub(crate) fn push(&self, ticket: Ticket) {
        lock(&self.queue).push_back(ticket);
    }

    /// The oldest ticket, which must be this descriptor's.
    pub(crate) fn take(&self, completed: &Completed) -> Result<Ticket, Failure> {
        let found = address(&completed.descriptor);
        match lock(&self.queue).pop_front() {
            Some(ticket) if ticket.address == found => Ok(ticket),
            expected => {
                Err(format!("{found:#x} came back out of order: {expected:x?} was next").into())
            }
        }
    }
}

/// What one duty tells another.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// The connection stands, and sends may be posted.
    pub(crate) is_up: AtomicBool,
    /// A descriptor came back without success: the connection ends.
    pub(crate) is_broken: AtomicBool,
    /// The owner wants no more sends.
    pub(crate) is_closing: AtomicBool,
    /// Messages that this side may send, in total.
    pub(crate) granted: AtomicU32,
    /// Writes of this side that the other has checked.
    pub(crate) consumed: AtomicU32,
    /// Receives posted in this connection.
    pub(crate) receives_posted: AtomicU32,
    /// Messages of an unreliable connection that did not arrive, and so took no receive.
    pub(crate) lost: AtomicU32,
    /// Writes of the other side that are checked.
    pub(crate) checked: AtomicU32,
    /// Changes with everything that goes on.
    pub(crate) moves: AtomicU64,
    /// Planned messages that this side may still post in this connection.
    pub(crate) quota: AtomicU32,
    /// Where this side may write.
    pub(crate) peer_window: Mutex<Option<RemoteBuffer>>,
}

impl Shared {
    pub(crate) fn note_move(&self) {
        // Relaxed: a count with no partner, looked at to see whether anything moves at all.
        self.moves.fetch_add(1, Ordering::Relaxed);
    }

    /// For a new connection; the caller has all duties of the slot.
    pub(crate) fn reset(&self, receives_posted: usize, first_granted: u32, quota: u32) {
        // SeqCst here and wherever these are used: this is the program that tests, not the one that is tested.
        self.is_broken.store(false, Ordering::SeqCst);
        self.is_closing.store(false, Ordering::SeqCst);
        self.granted.store(first_granted, Ordering::SeqCst);
        self.consumed.store(0, Ordering::SeqCst);
        self.receives_posted
            .store(receives_posted as u32, Ordering::SeqCst);
        self.lost.store(0, Ordering::SeqCst);
        self.checked.store(0, Ordering::SeqCst);
        self.quota.store(quota, Ordering::SeqCst);
        *lock(&self.peer_window) = None;
    }
}

/// A slot of this side.
pub(crate) struct Slot {
    pub(crate) shape: Shape,
    pub(crate) shared: Shared,
    pub(crate) sends: Posted,
    pub(crate) receives: Posted,
    pub(crate) idle_sends: Mutex<Vec<Descriptor>>,
    pub(crate) idle_receives: Mutex<Vec<Descriptor>>,
    pub(crate) send_post: Mutex<SendPost>,
    pub(crate) send_reap: Mutex<SendReap>,
    pub(crate) receive_post: Mutex<ReceivePost>,
    pub(crate) receive_reap: Mutex<ReceiveReap>,
}

/// All duties of a slot.
pub(crate) struct AllDuties<'a> {
    pub(crate) send_post: MutexGuard<'a, SendPost>,
    pub(crate) send_reap: MutexGuard<'a, SendReap>,
    pub(crate) receive_post: MutexGuard<'a, ReceivePost>,
    pub(crate) receive_reap: MutexGuard<'a, ReceiveReap>,
}

impl AllDuties<'_> {
    /// Has all duties serve another VI; gives the old one.
    pub(crate) fn replace(&mut self, vi: &Arc<Vi>) -> Arc<Vi> {
        self.send_reap.vi = Arc::clone(vi);
        self.receive_post.vi = Arc::clone(vi);
        self.receive_reap.vi = Arc::clone(vi);
        std::mem::replace(&mut self.send_post.vi, Arc::clone(vi))
    }
}

impl Slot {
    pub(crate) fn all(&self) -> AllDuties<'_> {
        AllDuties {
            send_post: lock(&self.send_post),
            send_reap: lock(&self.send_reap),
            receive_post: lock(&self.receive_post),
            receive_reap: lock(&self.receive_reap),
        }
    }
}
