//! Counts how often each page of the process is locked into memory for registered regions.
//!
//! The kernel does not count: one munlock(2) undoes any number of mlock(2). Regions may
//! overlap, on one NIC and on several, so this process counts.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use vi_types::ResourceError;

use crate::memory::pages;

static LOCK_COUNTS: Mutex<LockCounts> = Mutex::new(LockCounts {
    steps: BTreeMap::new(),
});

/// Locks the table of lock counts: no other thread locks or unlocks pages meanwhile.
pub(crate) fn lock_counts() -> MutexGuard<'static, LockCounts> {
    LOCK_COUNTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reason why pages could not be locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockError {
    /// Locking splits mappings, and locked regions account for half of the limit of the process, which
    /// is this number of mappings (`vm.max_map_count`).
    Mappings(u64),
    /// mlock(2) failed with this error number.
    System(i32),
}

impl From<LockError> for ResourceError {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Mappings(max_mappings) => Self::LockMappings(max_mappings),
            LockError::System(number) => Self::Lock(number),
        }
    }
}

/// Locks pages into memory.
pub(crate) fn lock(base: u64, end: u64) -> Result<(), LockError> {
    let mut counts = lock_counts();
    let max_mappings = *MAX_MAPPINGS;
    // Each step lies between two mappings. At the limit of the kernel the program could not map
    // memory, start a thread or load a library.
    if counts.steps.len() as u64 >= max_mappings / 2 {
        return Err(LockError::Mappings(max_mappings));
    }
    pages::lock(base, end).map_err(LockError::System)?;
    counts.add(base, end);
    Ok(())
}

/// Maximum number of mappings of this process.
static MAX_MAPPINGS: LazyLock<u64> = LazyLock::new(|| {
    /// Default of the kernel.
    const DEFAULT: u64 = 65530;
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count");
    text.ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(DEFAULT)
});

/// Undoes one [`lock`] of the same pages; unlocks those that no other region covers.
pub(crate) fn unlock(base: u64, end: u64) {
    lock_counts().remove(base, end, pages::unlock);
}

/// Number of regions that lock each page, as a step function: a count applies from its key to the next one.
pub(crate) struct LockCounts {
    steps: BTreeMap<u64, u32>,
}

impl LockCounts {
    fn add(&mut self, base: u64, end: u64) {
        self.step_at(base);
        self.step_at(end);
        for (_, count) in self.steps.range_mut(base..end) {
            *count += 1;
        }
        self.join_at(end);
        self.join_at(base);
    }

    /// Calls `free` for the ranges whose count drops to zero.
    fn remove(&mut self, base: u64, end: u64, mut free: impl FnMut(u64, u64)) {
        self.step_at(base);
        self.step_at(end);
        let mut free_from = None;
        for (&at, count) in self.steps.range_mut(base..end) {
            *count = count.saturating_sub(1);
            match (*count, free_from) {
                (0, None) => free_from = Some(at),
                (1.., Some(from)) => {
                    free(from, at);
                    free_from = None;
                }
                _ => {}
            }
        }
        if let Some(from) = free_from {
            free(from, end);
        }
        self.join_at(end);
        self.join_at(base);
    }

    /// Returns the number of regions that cover the page just below this address.
    pub(crate) fn count_below(&self, at: u64) -> u32 {
        self.steps
            .range(..at)
            .next_back()
            .map_or(0, |(_, count)| *count)
    }

    /// Inserts a step of height zero here, unless there is a step.
    fn step_at(&mut self, at: u64) {
        let below = self.count_below(at);
        self.steps.entry(at).or_insert(below);
    }

    /// Removes the step here if its height is zero.
    fn join_at(&mut self, at: u64) {
        if self.steps.get(&at) == Some(&self.count_below(at)) {
            self.steps.remove(&at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Pages of the model.
    const PAGES: u64 = 24;

    proptest! {
        #[test]
        fn pages_are_unlocked_with_their_last_region(
            regions in proptest::collection::vec((0..PAGES - 1, 1u64..10), 1..24),
            order in proptest::collection::vec(any::<prop::sample::Index>(), 24),
        ) {
            let mut live: Vec<(u64, u64)> = regions
                .into_iter()
                .map(|(base, pages)| (base, (base + pages).min(PAGES)))
                .collect();
            let mut counts = LockCounts { steps: BTreeMap::new() };
            for &(base, end) in &live {
                counts.add(base, end);
            }
            for index in order.iter().take(live.len()) {
                let (base, end) = live.swap_remove(index.index(live.len()));
                let mut freed = vec![false; PAGES as usize];
                counts.remove(base, end, |from, to| {
                    for page in from..to {
                        assert!(!core::mem::replace(&mut freed[page as usize], true), "freed twice");
                    }
                });
                for page in 0..PAGES {
                    let covered = live.iter().any(|&(base, end)| (base..end).contains(&page));
                    let expected = (base..end).contains(&page) && !covered;
                    prop_assert_eq!(freed[page as usize], expected, "page {}", page);
                }
            }
            prop_assert!(counts.steps.is_empty(), "{:?}", counts.steps);
        }
    }
}
