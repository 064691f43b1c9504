//! Who has which regions, and who uses which tags: so that an opening or a tag ends without a
//! look at what others have.

use std::collections::{HashMap, TryReserveError};

/// The regions of each opening, by their places in the table.
#[derive(Default)]
pub(super) struct Holdings(HashMap<u64, Vec<u32>>);

impl Holdings {
    /// Notes a region; gives where it stands among those of its opening.
    pub(super) fn add(&mut self, instance: u64, place: u32) -> u32 {
        let places = self.0.entry(instance).or_default();
        places.push(place);
        places.len() as u32 - 1
    }

    /// Makes room for one more region of an opening.
    pub(super) fn try_reserve(&mut self, instance: u64) -> Result<(), TryReserveError> {
        self.0.try_reserve(1)?;
        self.0.entry(instance).or_default().try_reserve(1)
    }

    /// Strikes a region out that stands there; gives the one that stands there from now on, if it
    /// is another one.
    pub(super) fn remove(&mut self, instance: u64, at: u32) -> Option<u32> {
        let places = self.0.get_mut(&instance)?;
        places.swap_remove(at as usize);
        let moved = places.get(at as usize).copied();
        if places.is_empty() {
            self.0.remove(&instance);
        }
        moved
    }

    /// One of an opening's regions.
    pub(super) fn any_of(&self, instance: u64) -> Option<u32> {
        self.0.get(&instance)?.last().copied()
    }

    #[cfg(test)]
    pub(super) fn of(&self, instance: u64) -> Vec<u32> {
        self.0.get(&instance).cloned().unwrap_or_default()
    }
}

/// How many regions and VIs have each tag.
#[derive(Default)]
pub(super) struct TagUses(HashMap<u32, u32>);

impl TagUses {
    /// Makes room for one more tag.
    pub(super) fn try_reserve(&mut self) -> Result<(), TryReserveError> {
        self.0.try_reserve(1)
    }

    pub(super) fn add(&mut self, tag: u32) {
        *self.0.entry(tag).or_default() += 1;
    }

    pub(super) fn remove(&mut self, tag: u32) {
        if let Some(uses) = self.0.get_mut(&tag) {
            *uses -= 1;
            if *uses == 0 {
                self.0.remove(&tag);
            }
        }
    }

    pub(super) fn of(&self, tag: u32) -> u32 {
        self.0.get(&tag).copied().unwrap_or(0)
    }
}
