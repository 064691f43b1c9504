//! The next slot of a work queue on which nothing waits to be processed.

use super::{PostEnd, WorkQueue};
use crate::sync::Ordering;

/// The next slot of a work queue on which nothing waits to be processed. That stays so, since the holder of the post
/// end alone can post.
pub struct IdleSlot<'a> {
    queue: &'a WorkQueue,
    end: &'a mut PostEnd,
}

impl WorkQueue {
    /// Returns the next slot, if it is free and all posted descriptors are complete.
    #[inline]
    pub fn idle_slot<'a>(&'a self, end: &'a mut PostEnd) -> Option<IdleSlot<'a>> {
        // Acquire: partner of the Release store in `complete_head`.
        let is_idle = self.completed.load(Ordering::Acquire) == end.posted;
        (is_idle && !self.is_full(end)).then_some(IdleSlot { queue: self, end })
    }
}

impl IdleSlot<'_> {
    /// Puts a descriptor on the queue that is complete already, with its address and status word. Returns its sequence
    /// number on the queue. [`WorkQueue::reap`] returns `context`.
    ///
    /// # Safety
    /// The caller holds the NIC's backend lock.
    #[inline]
    pub unsafe fn post_complete(self, (address, status): (u64, u32), context: usize) -> u32 {
        let Self { queue, end } = self;
        let at = end.posted;
        debug_assert_eq!(at, queue.completed.load(Ordering::Relaxed), "idle");
        // SAFETY: the slot was reaped, `end` shows that this thread is the poster, and our caller is the poller.
        let slot = unsafe { &mut *queue.slot(at) };
        (slot.address, slot.status) = (address, status);
        // SAFETY: as above, of the slot's context.
        unsafe { *queue.context(at) = context };
        end.posted = at.wrapping_add(1);
        // Release, as in `post`, and before the next store: `completed` is never ahead of `posted`.
        queue.posted.store(end.posted, Ordering::Release);
        // Release: partner of the Acquire load in `reap`.
        queue.completed.store(end.posted, Ordering::Release);
        at
    }
}
