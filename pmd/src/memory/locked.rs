//! Which pages of the process are locked into memory for registered regions, and how often.
//!
//! The kernel does not count: one munlock(2) undoes any number of mlock(2). Regions may
//! overlap, on one NIC and on several, so the process counts.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::memory::pages;

static LOCKED: Mutex<Coverage> = Mutex::new(Coverage {
    steps: BTreeMap::new(),
});

/// Keeps everybody from locking and unlocking.
pub(crate) fn hold() -> MutexGuard<'static, Coverage> {
    LOCKED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why pages are not locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotLocked {
    /// Locking splits mappings, and those that it made are half of what the process may have, which
    /// is this many (`vm.max_map_count`).
    Mappings(u64),
    /// mlock(2) failed with this error number.
    System(i32),
}

/// Locks pages into memory.
pub(crate) fn lock(base: u64, end: u64) -> Result<(), NotLocked> {
    let mut locked = hold();
    let max_mappings = *MAX_MAPPINGS;
    // Each step lies between two mappings. At the limit the program could map nothing any more: no
    // memory, no thread, no library.
    if locked.steps.len() as u64 >= max_mappings / 2 {
        return Err(NotLocked::Mappings(max_mappings));
    }
    pages::lock(base, end).map_err(NotLocked::System)?;
    locked.add(base, end);
    Ok(())
}

/// How many mappings this process may have.
static MAX_MAPPINGS: LazyLock<u64> = LazyLock::new(|| {
    /// As kernels have it that were not told otherwise.
    const DEFAULT: u64 = 65530;
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count");
    text.ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(DEFAULT)
});

/// Undoes one [`lock`] of the same pages: those that no other one covers are unlocked.
pub(crate) fn unlock(base: u64, end: u64) {
    hold().remove(base, end, pages::unlock);
}

/// How many regions cover each page: from each key to the next one, so many.
pub(crate) struct Coverage {
    steps: BTreeMap<u64, u32>,
}

impl Coverage {
    fn add(&mut self, base: u64, end: u64) {
        self.step_at(base);
        self.step_at(end);
        for (_, count) in self.steps.range_mut(base..end) {
            *count += 1;
        }
        self.join_at(end);
        self.join_at(base);
    }

    /// Calls `free` for the parts that nothing covers any more.
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

    /// How many regions cover what is just below this address.
    pub(crate) fn count_below(&self, at: u64) -> u32 {
        self.steps
            .range(..at)
            .next_back()
            .map_or(0, |(_, count)| *count)
    }

    /// Makes a step of no height here, if there is none.
    fn step_at(&mut self, at: u64) {
        let below = self.count_below(at);
        self.steps.entry(at).or_insert(below);
    }

    /// Removes the step here if it has no height.
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

    /// Pages that the model looks at.
    const PAGES: u64 = 24;

    proptest! {
        #[test]
        fn pages_are_freed_when_their_last_region_goes(
            regions in proptest::collection::vec((0..PAGES - 1, 1u64..10), 1..24),
            order in proptest::collection::vec(any::<prop::sample::Index>(), 24),
        ) {
            let mut live: Vec<(u64, u64)> = regions
                .into_iter()
                .map(|(base, pages)| (base, (base + pages).min(PAGES)))
                .collect();
            let mut coverage = Coverage { steps: BTreeMap::new() };
            for &(base, end) in &live {
                coverage.add(base, end);
            }
            for index in order.iter().take(live.len()) {
                let (base, end) = live.swap_remove(index.index(live.len()));
                let mut freed = vec![false; PAGES as usize];
                coverage.remove(base, end, |from, to| {
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
            prop_assert!(coverage.steps.is_empty(), "{:?}", coverage.steps);
        }
    }
}
