//! Room for the data segments of descriptors that have more of them than a slot holds.

use super::{INLINE_SEGMENTS, Slot};
use crate::descriptor::DataSegment;

/// The segments of one descriptor: one word in a slot of two cache lines.
#[allow(clippy::box_collection, reason = "one word in a slot")]
pub(super) type Spill = Box<Vec<DataSegment>>;

/// Pieces of room that one application keeps for its next descriptors: more of them are made
/// when they are needed, and given back to the system when their descriptors are complete.
const SPARE: usize = 64;
/// Segments in a piece that is kept, at most.
const SPARE_SEGMENTS: usize = 256;

/// Room that the slots of one application have until their descriptors are complete, and no
/// longer: what it has in all follows from the descriptors that it may have under way, not from
/// the slots that it can reach.
pub(crate) struct Spills {
    spare: Vec<Spill>,
}

impl Spills {
    pub(crate) fn new() -> Self {
        Self {
            spare: Vec::with_capacity(SPARE),
        }
    }

    /// Before a slot is filled with so many segments.
    #[inline]
    pub(crate) fn lend(&mut self, slot: &mut Slot, segments: u16) {
        if usize::from(segments) > INLINE_SEGMENTS && slot.spill.is_none() {
            slot.spill = self.spare.pop();
        }
    }

    /// When a slot's descriptor is complete, told or not.
    #[inline]
    pub(crate) fn take_back(&mut self, slot: &mut Slot) {
        if usize::from(slot.segments) > INLINE_SEGMENTS {
            self.keep(slot);
        }
    }

    #[inline(never)]
    fn keep(&mut self, slot: &mut Slot) {
        if let Some(spill) = slot.spill.take()
            && self.spare.len() < SPARE
            && spill.capacity() <= SPARE_SEGMENTS
        {
            self.spare.push(spill);
        }
    }

    #[cfg(test)]
    pub(crate) fn spare(&self) -> usize {
        self.spare.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_goes_from_slot_to_slot_and_no_more_is_kept_than_so_much() {
        let mut spills = Spills::new();
        let mut slots: Vec<_> = (0..SPARE + 10).map(|_| Slot::default()).collect();
        for round in 0..3 {
            for slot in &mut slots {
                spills.lend(slot, 4);
                assert!(slot.spill.is_none(), "it holds four by itself");
                spills.lend(slot, 9);
                assert_eq!(slot.segments_mut(9).len(), 9);
            }
            assert_eq!(spills.spare(), 0, "round {round}");
            for slot in &mut slots {
                spills.take_back(slot);
                assert!(slot.spill.is_none());
            }
            assert_eq!(spills.spare(), SPARE);
        }
    }

    #[test]
    fn room_of_many_segments_is_not_kept() {
        let mut spills = Spills::new();
        let mut slot = Slot::default();
        for (segments, spare) in [(100, 1), (SPARE_SEGMENTS as u16, 1), (257, 0)] {
            spills.lend(&mut slot, segments);
            slot.segments_mut(segments.into());
            spills.take_back(&mut slot);
            assert_eq!(spills.spare(), spare, "{segments} segments");
        }
    }
}
