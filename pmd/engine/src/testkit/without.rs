//! Checks left out, in this thread and for as long as a closure runs.

use std::cell::Cell;

use crate::synonym::Check;

thread_local! {
    /// One bit for each check.
    static LEFT_OUT: Cell<u32> = const { Cell::new(0) };
}

/// Puts back what was there before, also when a test panics.
struct Restore(u32);

impl Drop for Restore {
    fn drop(&mut self) {
        LEFT_OUT.set(self.0);
    }
}

const fn bit(check: Check) -> u32 {
    1 << check as u32
}

pub(crate) fn skips(check: Check) -> bool {
    LEFT_OUT.get() & bit(check) != 0
}

pub(crate) fn nothing_left_out() -> bool {
    LEFT_OUT.get() == 0
}

/// Runs this without these checks.
pub(crate) fn without<T>(checks: &[Check], run: impl FnOnce() -> T) -> T {
    let all = checks.iter().fold(0, |all, check| all | bit(*check));
    let _restore = Restore(LEFT_OUT.replace(all));
    run()
}
