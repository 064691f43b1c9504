//! Disables checks, per thread, while a closure runs.

use std::cell::Cell;
use std::fmt::Debug;

/// A check of received frames that tests can disable.
pub trait Check: Copy + Debug {
    /// Returns its number among the checks of the crate, less than 32.
    fn number(self) -> u32;
}

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

fn bit(check: impl Check) -> u32 {
    1 << check.number()
}

/// Reports whether this check is disabled.
pub fn skips(check: impl Check) -> bool {
    DISABLED.get() & bit(check) != 0
}

/// Reports whether no check is disabled.
pub fn all_enabled() -> bool {
    DISABLED.get() == 0
}

/// Runs a closure with these checks disabled.
pub fn with_disabled<T>(checks: &[impl Check], run: impl FnOnce() -> T) -> T {
    let all = checks.iter().fold(0, |all, check| all | bit(*check));
    let _restore = Restore(DISABLED.replace(all));
    run()
}
