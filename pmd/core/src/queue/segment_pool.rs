//! Segment storage for descriptors with more data segments than a slot holds.

use super::{INLINE_SEGMENTS, Slot};
use crate::descriptor::DataSegment;

/// The data segments of one descriptor, boxed: one word in a slot of two cache lines.
#[allow(clippy::box_collection, reason = "one word in a slot")]
pub(super) type Spill = Box<Vec<DataSegment>>;

/// The most unused buffers that are kept for an application's next descriptors. More are allocated when
/// needed, and freed when their descriptors complete.
const MAX_SPARE: usize = 64;
/// The most segments in a buffer that is kept.
const MAX_SPARE_SEGMENTS: usize = 256;

/// A pool of segment buffers, lent to the slots of one application until their descriptors complete.
/// So the total is bounded by the descriptors that the application may have posted, not by the slots
/// that it can reach.
pub struct SegmentPool {
    spare: Vec<Spill>,
}

impl Default for SegmentPool {
    fn default() -> Self {
        Self {
            spare: Vec::with_capacity(MAX_SPARE),
        }
    }
}

impl SegmentPool {
    /// Lends a buffer to a slot that is to be filled with this number of segments.
    #[inline]
    pub fn lend(&mut self, slot: &mut Slot, segments: u16) {
        if usize::from(segments) > INLINE_SEGMENTS && slot.spill.is_none() {
            slot.spill = self.spare.pop();
        }
    }

    /// Takes the buffer of a slot back whose descriptor is complete, whether reported yet or not.
    #[inline]
    pub fn take_back(&mut self, slot: &mut Slot) {
        if usize::from(slot.segments) > INLINE_SEGMENTS {
            self.keep(slot);
        }
    }

    #[inline(never)]
    fn keep(&mut self, slot: &mut Slot) {
        if let Some(spill) = slot.spill.take()
            && self.spare.len() < MAX_SPARE
            && spill.capacity() <= MAX_SPARE_SEGMENTS
        {
            self.spare.push(spill);
        }
    }

    /// Returns the number of unused blocks.
    #[cfg(any(test, feature = "testkit"))]
    pub fn spare(&self) -> usize {
        self.spare.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_reused_and_pool_is_bounded() {
        let mut pool = SegmentPool::default();
        let mut slots: Vec<_> = (0..MAX_SPARE + 10).map(|_| Slot::default()).collect();
        for round in 0..3 {
            for slot in &mut slots {
                pool.lend(slot, 4);
                assert!(slot.spill.is_none(), "the slot itself holds four");
                pool.lend(slot, 9);
                assert_eq!(slot.segments_mut(9).len(), 9);
            }
            assert_eq!(pool.spare(), 0, "round {round}");
            for slot in &mut slots {
                pool.take_back(slot);
                assert!(slot.spill.is_none());
            }
            assert_eq!(pool.spare(), MAX_SPARE);
        }
    }

    #[test]
    fn long_buffers_are_not_kept() {
        let mut pool = SegmentPool::default();
        let mut slot = Slot::default();
        for (segments, spare) in [(100, 1), (MAX_SPARE_SEGMENTS as u16, 1), (257, 0)] {
            pool.lend(&mut slot, segments);
            slot.segments_mut(segments.into());
            pool.take_back(&mut slot);
            assert_eq!(pool.spare(), spare, "{segments} segments");
        }
    }
}
