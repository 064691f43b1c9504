//! Memory ranges of one system call on a stream.

use alloc::vec::Vec;
use core::ops::Range;

/// A range of memory. It has the layout of an `iovec`, but its address is not a pointer: who reads or writes the
/// memory must know that it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct MemoryRange {
    /// Address of its first byte; its provenance is exposed.
    pub address: usize,
    /// Its length.
    pub bytes: usize,
}

/// Memory ranges, in the order of the bytes of a stream.
#[derive(Clone, Debug, Default)]
pub struct MemoryRanges {
    list: Vec<MemoryRange>,
}

impl MemoryRanges {
    /// Creates a list with room for `ranges`.
    #[must_use]
    pub fn with_capacity(ranges: usize) -> Self {
        Self {
            list: Vec::with_capacity(ranges),
        }
    }

    /// Removes all.
    pub fn clear(&mut self) {
        self.list.clear();
    }

    /// Removes all but the first `ranges`.
    pub fn truncate(&mut self, ranges: usize) {
        self.list.truncate(ranges);
    }

    /// Returns their number.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Checks whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the number of ranges that fit without an allocation.
    #[must_use]
    pub fn room(&self) -> usize {
        self.list.capacity().saturating_sub(self.list.len())
    }

    /// Adds a range.
    pub fn push(&mut self, address: u64, bytes: usize) {
        self.list.push(MemoryRange {
            address: address as usize,
            bytes,
        });
    }

    /// Adds `bytes` bytes to the last range.
    pub(super) fn grow_last(&mut self, bytes: usize) {
        if let Some(last) = self.list.last_mut() {
            last.bytes = last.bytes.saturating_add(bytes);
        }
    }

    pub(super) fn last_bytes(&self) -> usize {
        self.list.last().map_or(0, |last| last.bytes)
    }

    /// Sets the length of the last range.
    pub(super) fn set_last(&mut self, bytes: usize) {
        if let Some(last) = self.list.last_mut() {
            last.bytes = bytes;
        }
    }

    /// Returns the ranges.
    #[must_use]
    pub fn as_slice(&self) -> &[MemoryRange] {
        &self.list
    }

    /// Returns the total number of bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.list.iter().map(|range| range.bytes).sum()
    }

    /// Visits `bytes` bytes from `at` on, range by range: the address, and which of the bytes are at it.
    pub fn walk(&self, at: usize, bytes: usize, mut visit: impl FnMut(u64, Range<usize>)) {
        let (mut skip, mut done) = (at, 0);
        for range in &self.list {
            if let Some(left) = skip.checked_sub(range.bytes) {
                skip = left;
                continue;
            }
            let take = (range.bytes - skip).min(bytes - done);
            visit((range.address + skip) as u64, done..done + take);
            done += take;
            skip = 0;
            if done == bytes {
                break;
            }
        }
    }
}
