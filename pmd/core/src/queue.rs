//! Work queues: a ring of slots for posted descriptors, until they are reaped.
//!
//! ```text
//!    reaped          completed          posted
//!      |  to be reaped  |  to be processed |   free
//! ```
//! The poster writes a slot and publishes `posted`; the poller reads it, writes its status and
//! publishes `completed`; the reaper takes it and publishes `reaped`. Each index has one writer at a
//! time, so each slot has one owner. A poster that is also the poller can put a descriptor on an idle queue that is
//! complete already ([`IdleSlot`]).

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed};

use crossbeam_utils::CachePadded;
use pmd_port::mapping::LossFlag;

use crate::biased_lock::BiasedLock;
use crate::descriptor::{DataSegment, control};
use crate::memory::Access;
use crate::memory::backing::{InlineBuffer, MappedAddress};
use crate::sync::{AtomicU32, Ordering};

mod idle_slot;
mod segment_pool;

pub use idle_slot::IdleSlot;
use segment_pool::Spill;
pub use segment_pool::{SegmentPool, descriptor_units};

/// The number of data segments stored in the slot itself.
pub(crate) const INLINE_SEGMENTS: usize = 4;

/// A posted descriptor: parsed and copied once. All-zero bytes are a valid slot.
#[derive(Default)]
pub struct Slot {
    /// The address of the program's descriptor; with `loss_flag`, the local address of an application's data, as found
    /// in the epoch.
    pub address: u64,
    /// Remote address of an RDMA operation.
    pub remote_address: u64,
    /// Region of the program's descriptor; of an application's, the number of its inline buffer.
    pub handle: u32,
    /// Control field as posted.
    pub control: u16,
    /// Number of data segments.
    pub segments: u16,
    /// Sum of the lengths of the data segments.
    pub length_bytes: u32,
    /// Immediate data as posted.
    pub immediate: u32,
    /// Remote memory handle of an RDMA operation.
    pub remote_handle: u32,
    /// Error bits found while parsing.
    pub fault: u32,
    /// The status word, valid from completion on.
    pub status: u32,
    /// The epoch of the region table in which descriptor and segments were found valid.
    pub epoch: u32,
    /// The loss flag of the mapping that contains an application's data.
    loss_flag: Option<LossFlag>,
    inline: [DataSegment; INLINE_SEGMENTS],
    /// Segments beyond [`INLINE_SEGMENTS`]. For this program's own descriptors grown once and kept for
    /// the slot's next uses; for an application's lent by its [`SegmentPool`] until completion.
    spill: Option<Spill>,
}

impl Slot {
    /// Returns storage for `count` data segments, to be filled by the poster.
    #[inline]
    pub fn segments_mut(&mut self, count: usize) -> &mut [DataSegment] {
        self.segments = count as u16;
        if count <= INLINE_SEGMENTS {
            return &mut self.inline[..count];
        }
        self.spilled(count)
    }

    #[cold]
    fn spilled(&mut self, count: usize) -> &mut [DataSegment] {
        let spill = self.spill.get_or_insert_default();
        if spill.len() < count {
            spill.reserve_exact(count - spill.len());
            spill.resize(count, DataSegment::default());
        }
        &mut spill[..count]
    }

    /// Begins a new descriptor, whose data segments were not checked yet.
    #[inline]
    pub fn begin(&mut self, address: u64, handle: u32) {
        (self.address, self.handle, self.loss_flag) = (address, handle, None);
    }

    /// Stores where the only data segment of an application's valid descriptor is mapped, if it is.
    #[inline]
    pub(crate) fn set_mapped_address(&mut self, mapped: Option<MappedAddress>) {
        self.address = mapped.map_or(0, |mapped| mapped.address);
        self.loss_flag = mapped.map(|mapped| mapped.loss_flag);
    }

    /// Has the data of an application's send read from an inline buffer, which contains all of it.
    #[inline]
    pub fn send_from(&mut self, buffer: &InlineBuffer) {
        self.handle = buffer.number;
        self.set_mapped_address(Some(buffer.memory));
    }

    /// Has the data of an application's receive, which is completed next, passed to it in an inline buffer.
    #[inline]
    pub fn receive_in(&mut self, buffer: &InlineBuffer) {
        self.handle = buffer.number;
    }

    /// Returns the number of the inline buffer of an application's descriptor; 0 without one.
    #[inline]
    pub fn inline_buffer(&self) -> u32 {
        self.handle
    }

    /// Returns the local address of `bytes` bytes of an application's data from an offset on, if they
    /// were found mapped in the epoch of the slot.
    #[inline]
    pub fn mapped_address(&self, offset_bytes: u32, bytes: u32) -> Option<u64> {
        let end_bytes = offset_bytes.checked_add(bytes)?;
        let is_mapped = end_bytes <= self.length_bytes && !self.loss_flag?.is_lost();
        is_mapped.then_some(self.address + u64::from(offset_bytes))
    }

    /// Drops the segments and their storage, for a descriptor that is to fail.
    #[cold]
    pub fn forget_segments(&mut self) {
        self.segments = 0;
        self.spill = None;
    }

    /// Returns the access that a send-queue operation needs to its data segments.
    #[inline]
    pub fn access(&self) -> Access {
        if self.control & control::OP_MASK == control::OP_RDMA_READ {
            Access::Write
        } else {
            Access::Read
        }
    }

    /// Returns the data segments.
    #[inline]
    pub fn data(&self) -> &[DataSegment] {
        let count = self.segments as usize;
        if count <= INLINE_SEGMENTS {
            return &self.inline[..count];
        }
        self.spill.as_ref().map_or(&[], |spill| &spill[..count])
    }
}

/// The producer side of a work queue.
#[derive(Default)]
pub struct PostEnd {
    posted: u32,
}

/// The consumer side of a work queue.
#[derive(Default)]
pub struct ReapEnd {
    reaped: u32,
}

/// A send or receive queue.
pub struct WorkQueue {
    slots: Box<[UnsafeCell<Slot>]>,
    /// For each slot, a value of the poster that is returned by the reap. Separate from the slots,
    /// because the poller does not read them.
    contexts: Box<[UnsafeCell<usize>]>,
    mask: u32,
    /// The most descriptors that may be posted at a time; at most the number of slots.
    limit: u32,
    posted: CachePadded<AtomicU32>,
    completed: CachePadded<AtomicU32>,
    reaped: CachePadded<AtomicU32>,
    /// The lock of the posting threads.
    pub post_end: CachePadded<BiasedLock<PostEnd>>,
    /// The lock of the reaping threads.
    pub reap_end: CachePadded<BiasedLock<ReapEnd>>,
}

// SAFETY: a slot is reached by one thread at a time, and its context with it: by the poster between
// `completed`..`posted + 1` under `post_end`, by the poller (who holds the NIC's backend lock)
// between `completed` and `posted`, by the reaper between `reaped` and `completed`
// under `reap_end`; each index is published with Release and read with Acquire.
unsafe impl Sync for WorkQueue {}

/// The result of a reap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaped {
    /// The head was complete and is off the queue.
    Done {
        /// Address of the descriptor.
        address: u64,
        /// Its status word.
        status: u32,
        /// The value that it was posted with.
        context: usize,
    },
    /// The head is not complete.
    Pending,
    /// Nothing is posted.
    Empty,
}

/// Allocates `count` zeroed elements; `None` if there is no memory.
fn zeroed_slice<T>(count: usize) -> Option<Box<[MaybeUninit<T>]>> {
    let layout = Layout::array::<MaybeUninit<T>>(count).ok()?;
    assert_ne!(layout.size(), 0);
    // SAFETY: the layout is not empty.
    let memory = NonNull::new(unsafe { alloc_zeroed(layout) })?;
    let slice = NonNull::slice_from_raw_parts(memory.cast::<MaybeUninit<T>>(), count);
    // SAFETY: from the global allocator, with the layout of this slice, and with no other owner.
    Some(unsafe { Box::from_raw(slice.as_ptr()) })
}

impl WorkQueue {
    /// Creates a queue for `depth` descriptors; `None` if there is no memory. The system commits the
    /// memory of slots when they are first used.
    pub fn new(depth: u32) -> Option<Self> {
        let limit = depth.max(1);
        let depth = limit.max(2).next_power_of_two();
        let slots = zeroed_slice::<UnsafeCell<Slot>>(depth as usize)?;
        let contexts = zeroed_slice::<UnsafeCell<usize>>(depth as usize)?;
        Some(Self {
            // SAFETY: integers, `DataSegment`s of integers, an `Option<Box>` and an `Option` of a
            // transparent reference are all valid as zero bytes.
            slots: unsafe { slots.assume_init() },
            // SAFETY: integers are valid as zero bytes.
            contexts: unsafe { contexts.assume_init() },
            mask: depth - 1,
            limit,
            posted: CachePadded::new(AtomicU32::new(0)),
            completed: CachePadded::new(AtomicU32::new(0)),
            reaped: CachePadded::new(AtomicU32::new(0)),
            post_end: CachePadded::new(BiasedLock::new(PostEnd::default())),
            reap_end: CachePadded::new(BiasedLock::new(ReapEnd::default())),
        })
    }

    #[inline]
    fn slot(&self, index: u32) -> *mut Slot {
        self.slots[(index & self.mask) as usize].get()
    }

    #[inline]
    fn context(&self, index: u32) -> *mut usize {
        self.contexts[(index & self.mask) as usize].get()
    }

    /// Returns true if nothing can be posted before a descriptor is reaped.
    #[inline]
    pub fn is_full(&self, end: &PostEnd) -> bool {
        // Acquire: partner of the Release store in `reap`.
        let reaped = self.reaped.load(Ordering::Acquire);
        end.posted.wrapping_sub(reaped) >= self.limit
    }

    /// Posts what `fill` writes into the next slot. Returns false if the queue is full.
    #[inline]
    pub fn post(&self, end: &mut PostEnd, fill: impl FnOnce(&mut Slot)) -> bool {
        self.post_with(end, 0, |slot| {
            fill(slot);
            true
        })
    }

    /// As [`WorkQueue::post`], unless `fill` returns false: then nothing is posted, and this returns false.
    /// [`WorkQueue::reap`] returns `context`.
    #[inline]
    pub(crate) fn post_with(
        &self,
        end: &mut PostEnd,
        context: usize,
        fill: impl FnOnce(&mut Slot) -> bool,
    ) -> bool {
        if self.is_full(end) {
            return false;
        }
        // SAFETY: the slot was reaped, and `end` shows that this thread is the poster.
        if !fill(unsafe { &mut *self.slot(end.posted) }) {
            return false;
        }
        // SAFETY: as above, of the slot's context.
        unsafe { *self.context(end.posted) = context };
        end.posted = end.posted.wrapping_add(1);
        // Release: partner of the Acquire load in `ahead`.
        self.posted.store(end.posted, Ordering::Release);
        true
    }

    /// Returns the oldest descriptor that is not complete. For the poller only.
    ///
    /// # Safety
    /// As for [`WorkQueue::ahead`].
    #[allow(
        clippy::mut_from_ref,
        reason = "the backend lock, which the caller holds, is the unique borrow"
    )]
    #[inline]
    pub unsafe fn head(&self) -> Option<&mut Slot> {
        // SAFETY: passed on from our caller.
        unsafe { self.ahead(0) }
    }

    /// Returns the descriptor `distance` positions behind the oldest that is not complete. For the
    /// poller only.
    ///
    /// # Safety
    /// The caller holds the NIC's backend lock, has no other reference to a slot that is not
    /// complete, and drops this one before it ends or completes the slot.
    #[allow(
        clippy::mut_from_ref,
        reason = "the backend lock, which the caller holds, is the unique borrow"
    )]
    #[inline]
    pub unsafe fn ahead(&self, distance: u32) -> Option<&mut Slot> {
        let completed = self.completed.load(Ordering::Relaxed);
        // Acquire: partner of the Release store in `post`.
        let waiting = self.posted.load(Ordering::Acquire).wrapping_sub(completed);
        if distance >= waiting {
            return None;
        }
        // SAFETY: between `completed` and `posted` the slot is the poller's, and the
        // caller is the only poller.
        Some(unsafe { &mut *self.slot(completed.wrapping_add(distance)) })
    }

    /// Returns the sequence number on this queue of the descriptor `distance` positions behind the
    /// oldest that is not complete. For the poller only.
    #[inline]
    pub fn sequence(&self, distance: u32) -> u32 {
        self.completed
            .load(Ordering::Relaxed)
            .wrapping_add(distance)
    }

    /// Completes the head, whose status is set; returns its sequence number on this queue. For the
    /// poller only.
    #[inline]
    pub fn complete_head(&self) -> u32 {
        let at = self.completed.load(Ordering::Relaxed);
        // Release: partner of the Acquire load in `reap`.
        self.completed.store(at.wrapping_add(1), Ordering::Release);
        at
    }

    /// Returns true if [`WorkQueue::reap`] would find a descriptor, without the lock: the fast check of
    /// a polling program.
    #[inline(always)]
    pub fn has_complete(&self) -> bool {
        // Acquire: partner of the Release store in `complete_head`.
        self.completed.load(Ordering::Acquire) != self.reaped.load(Ordering::Relaxed)
    }

    /// Takes the oldest descriptor off the queue, if it is complete.
    #[inline]
    pub fn reap(&self, end: &mut ReapEnd) -> Reaped {
        let at = end.reaped;
        // Acquire: partner of the Release store in `complete_head`.
        if at == self.completed.load(Ordering::Acquire) {
            return if at == self.posted.load(Ordering::Acquire) {
                Reaped::Empty
            } else {
                Reaped::Pending
            };
        }
        let slot = self.slot(at);
        // SAFETY: between `reaped` and `completed` the slot is the reaper's, and `end`
        // shows that this thread is the reaper.
        let slot = unsafe { &*slot };
        let found = Reaped::Done {
            address: slot.address,
            status: slot.status,
            // SAFETY: as above, of the slot's context.
            context: unsafe { *self.context(at) },
        };
        end.reaped = at.wrapping_add(1);
        // Release: partner of the Acquire load in `post`.
        self.reaped.store(end.reaped, Ordering::Release);
        found
    }

    /// Returns true if exactly one descriptor is posted and not reaped.
    pub(crate) fn holds_one(&self, end: &ReapEnd) -> bool {
        // Acquire: partner of the Release store in `post`.
        self.posted.load(Ordering::Acquire) == end.reaped.wrapping_add(1)
    }

    /// As [`WorkQueue::reap`], but calls `read` with the slot before it is released.
    #[inline]
    pub fn reap_slot<R>(&self, end: &mut ReapEnd, read: impl FnOnce(&Slot) -> R) -> Option<R> {
        let at = end.reaped;
        // Acquire: partner of the Release store in `complete_head`.
        if at == self.completed.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: between `reaped` and `completed` the slot is the reaper's, and `end`
        // shows that this thread is the reaper.
        let found = read(unsafe { &*self.slot(at) });
        end.reaped = at.wrapping_add(1);
        // Release: partner of the Acquire load in `post`.
        self.reaped.store(end.reaped, Ordering::Release);
        Some(found)
    }

    /// Completes and reaps the head: for the poller, where it is the reaper too and nothing else is to
    /// be reaped. The content of the slot is lost; segment storage lent to it is returned to
    /// `segment_pool`. Returns the sequence number of the descriptor on this queue.
    #[inline]
    pub fn retire_head(&self, end: &mut ReapEnd, segment_pool: &mut SegmentPool) -> u32 {
        let at = self.complete_head();
        debug_assert_eq!(at, end.reaped, "nothing else is to be reaped");
        // SAFETY: the slot is complete and not reaped, so the reaper's, and `end` shows that
        // this thread is the reaper.
        segment_pool.take_back(unsafe { &mut *self.slot(at) });
        end.reaped = at.wrapping_add(1);
        // Release: partner of the Acquire load in `post`.
        self.reaped.store(end.reaped, Ordering::Release);
        at
    }

    /// Reaps and discards all complete descriptors, and frees their additional segment storage.
    pub fn clear(&self, end: &mut ReapEnd) {
        // Acquire: partner of the Release store in `complete_head`.
        while end.reaped != self.completed.load(Ordering::Acquire) {
            // SAFETY: between `reaped` and `completed` the slot is the reaper's, and `end`
            // shows that this thread is the reaper.
            unsafe { &mut *self.slot(end.reaped) }.spill = None;
            end.reaped = end.reaped.wrapping_add(1);
            // Release: partner of the Acquire load in `post`.
            self.reaped.store(end.reaped, Ordering::Release);
        }
    }

    /// Returns the number of slots with additional segment storage.
    ///
    /// # Safety
    /// No other thread uses the queue.
    #[cfg(any(test, feature = "testkit"))]
    pub unsafe fn spilled(&self) -> usize {
        // SAFETY: only our caller uses the slots.
        let has_spill = |slot: &&UnsafeCell<Slot>| unsafe { (*slot.get()).spill.is_some() };
        self.slots.iter().filter(has_spill).count()
    }

    /// Returns the number of descriptors that are posted and not complete.
    #[inline]
    pub fn depth(&self) -> u32 {
        let completed = self.completed.load(Ordering::Acquire);
        self.posted.load(Ordering::Acquire).wrapping_sub(completed)
    }

    /// Returns the number of descriptors posted since the queue was created, modulo 2^32.
    #[inline]
    pub fn posted(&self) -> u32 {
        self.posted.load(Ordering::Acquire)
    }

    /// Returns true if all descriptors are complete that were posted when [`WorkQueue::posted`] returned
    /// `posted`.
    #[inline]
    pub fn is_complete_to(&self, posted: u32) -> bool {
        let completed = self.completed.load(Ordering::Acquire);
        completed.wrapping_sub(posted) < u32::MAX / 2
    }

    /// Returns true if every posted descriptor was reaped (VIPL 3.7.3).
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.reaped.load(Ordering::Acquire) == self.posted.load(Ordering::Acquire)
    }

    /// Returns true if this descriptor was reaped.
    #[inline]
    pub(crate) fn was_reaped(&self, sequence: u32) -> bool {
        let reaped = self.reaped.load(Ordering::Acquire);
        reaped.wrapping_sub(sequence).wrapping_sub(1) < u32::MAX / 2
    }
}

#[cfg(test)]
mod tests;
