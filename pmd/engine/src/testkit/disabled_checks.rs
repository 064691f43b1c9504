//! Disables checks, per thread, while a closure runs.

use std::cell::Cell;

use crate::synonym::Check;

thread_local! {
    /// One bit for each check.
    static DISABLED: Cell<u32> = const { Cell::new(0) };
}

/// Restores the previous value, also when a test panics.
struct Restore(u32);

impl Drop for Restore {
    fn drop(&mut self) {
        DISABLED.set(self.0);
    }
}

const fn bit(check: Check) -> u32 {
    1 << check as u32
}

pub(crate) fn skips(check: Check) -> bool {
    DISABLED.get() & bit(check) != 0
}

pub(crate) fn all_enabled() -> bool {
    DISABLED.get() == 0
}

/// Runs a closure with these checks disabled.
pub(crate) fn with_disabled<T>(checks: &[Check], run: impl FnOnce() -> T) -> T {
    let all = checks.iter().fold(0, |all, check| all | bit(*check));
    let _restore = Restore(DISABLED.replace(all));
    run()
}
