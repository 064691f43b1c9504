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

/// Returns how many descriptors one with this number of data segments counts as where posted descriptors are limited:
/// one for each `INLINE_SEGMENTS` begun, since it takes memory for more of them (ADR 0053).
#[inline]
pub fn descriptor_units(segments: u16) -> u32 {
    match usize::from(segments) {
        0..=INLINE_SEGMENTS => 1,
        more => more.div_ceil(INLINE_SEGMENTS) as u32,
    }
}

impl Slot {
    /// Returns how many descriptors this one counts as ([`descriptor_units`]).
    #[inline]
    pub fn units(&self) -> u32 {
        descriptor_units(self.segments)
    }
}

/// A pool of segment buffers, lent to the slots of one application until their descriptors complete.
/// So the total is bounded by the descriptors that the application may have posted, not by the slots
/// that it can reach.
pub struct SegmentPool {
    spare: Vec<Spill>,
    /// [`descriptor_units`] beyond one of all slots that have a buffer.
    extra_units: u32,
    #[cfg(any(test, feature = "testkit"))]
    is_out_of_memory: bool,
}

impl Default for SegmentPool {
    fn default() -> Self {
        Self {
            spare: Vec::with_capacity(MAX_SPARE),
            extra_units: 0,
            #[cfg(any(test, feature = "testkit"))]
            is_out_of_memory: false,
        }
    }
}

impl SegmentPool {
    /// Lends a buffer to a slot that is to be filled with this number of segments, which then allocates nothing. Returns
    /// false if there is no memory.
    #[inline]
    pub fn lend(&mut self, slot: &mut Slot, segments: u16) -> bool {
        usize::from(segments) <= INLINE_SEGMENTS || self.lend_long(slot, segments)
    }

    #[inline(never)]
    fn lend_long(&mut self, slot: &mut Slot, segments: u16) -> bool {
        #[cfg(any(test, feature = "testkit"))]
        if self.is_out_of_memory {
            return false;
        }
        let lent = slot.spill.take().or_else(|| self.spare.pop());
        let mut spill = lent.unwrap_or_default();
        let count = usize::from(segments);
        let missing = count.saturating_sub(spill.len());
        if spill.try_reserve_exact(missing).is_err() {
            return false;
        }
        if missing > 0 {
            spill.resize(count, DataSegment::default());
        }
        slot.spill = Some(spill);
        self.extra_units += descriptor_units(segments) - 1;
        true
    }

    /// Returns what the descriptors with a buffer count beyond one each.
    #[inline]
    pub fn extra_units(&self) -> u32 {
        self.extra_units
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
        self.extra_units = self.extra_units.saturating_sub(slot.units() - 1);
        if let Some(spill) = slot.spill.take()
            && self.spare.len() < MAX_SPARE
            && spill.capacity() <= MAX_SPARE_SEGMENTS
        {
            self.spare.push(spill);
        }
    }

    /// Makes [`Self::lend`] fail, or no longer, for descriptors that need a buffer.
    #[cfg(any(test, feature = "testkit"))]
    pub fn set_out_of_memory(&mut self, is_out_of_memory: bool) {
        self.is_out_of_memory = is_out_of_memory;
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
                assert!(pool.lend(slot, 4));
                assert!(slot.spill.is_none(), "the slot itself holds four");
                assert!(pool.lend(slot, 9));
                assert_eq!(slot.segments_mut(9).len(), 9);
            }
            assert_eq!(pool.spare(), 0, "round {round}");
            assert_eq!(pool.extra_units() as usize, 2 * (MAX_SPARE + 10));
            for slot in &mut slots {
                pool.take_back(slot);
                assert!(slot.spill.is_none());
            }
            assert_eq!((pool.spare(), pool.extra_units()), (MAX_SPARE, 0));
        }
    }

    #[test]
    fn descriptor_counts_once_for_each_four_segments() {
        let counts = [0, 1, 4, 5, 8, 9, 256, 65535].map(descriptor_units);
        assert_eq!(counts, [1, 1, 1, 2, 2, 3, 64, 16384]);
    }

    #[test]
    fn lend_fails_without_memory_and_counts_nothing() {
        let (mut pool, mut slot) = (SegmentPool::default(), Slot::default());
        pool.set_out_of_memory(true);
        assert!(pool.lend(&mut slot, 4), "in the slot");
        assert!(!pool.lend(&mut slot, 5));
        assert_eq!((pool.extra_units(), slot.spill.is_none()), (0, true));
        pool.set_out_of_memory(false);
        assert!(pool.lend(&mut slot, 5));
    }

    #[test]
    fn long_buffers_are_not_kept() {
        let mut pool = SegmentPool::default();
        let mut slot = Slot::default();
        for (segments, spare) in [(100, 1), (MAX_SPARE_SEGMENTS as u16, 1), (257, 0)] {
            assert!(pool.lend(&mut slot, segments));
            slot.segments_mut(segments.into());
            pool.take_back(&mut slot);
            assert_eq!(pool.spare(), spare, "{segments} segments");
        }
    }
}
