//! Index of regions by NIC handle, and use counts of protection tags: so that closing a handle or
//! destroying a tag does not search the whole table.

use std::collections::{HashMap, TryReserveError};

/// The table indices of the regions of each NIC handle.
#[derive(Default)]
pub(super) struct NicHandleRegions(HashMap<u64, Vec<u32>>);

impl NicHandleRegions {
    /// Adds a region; returns its position in the list of its NIC handle.
    pub(super) fn add(&mut self, nic_handle: u64, index: u32) -> u32 {
        let indices = self.0.entry(nic_handle).or_default();
        indices.push(index);
        indices.len() as u32 - 1
    }

    /// Reserves memory for one more region of a NIC handle.
    pub(super) fn try_reserve(&mut self, nic_handle: u64) -> Result<(), TryReserveError> {
        self.0.try_reserve(1)?;
        self.0.entry(nic_handle).or_default().try_reserve(1)
    }

    /// Removes the region at a position of the list; returns the region that moved to this
    /// position, if any.
    pub(super) fn remove(&mut self, nic_handle: u64, position: u32) -> Option<u32> {
        let indices = self.0.get_mut(&nic_handle)?;
        indices.swap_remove(position as usize);
        let moved = indices.get(position as usize).copied();
        if indices.is_empty() {
            self.0.remove(&nic_handle);
        }
        moved
    }

    /// Returns any region of a NIC handle.
    pub(super) fn any_of(&self, nic_handle: u64) -> Option<u32> {
        self.0.get(&nic_handle)?.last().copied()
    }

    #[cfg(test)]
    pub(super) fn of(&self, nic_handle: u64) -> Vec<u32> {
        self.0.get(&nic_handle).cloned().unwrap_or_default()
    }
}

/// The number of regions and VIs that use each protection tag.
#[derive(Default)]
pub(super) struct TagUseCounts(HashMap<u32, u32>);

impl TagUseCounts {
    /// Reserves memory for one more tag.
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
