//! Huge pages that are there for a while.

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many the kernel keeps, used or not.
const COUNT: &str = "/proc/sys/vm/nr_hugepages";

/// Who counts on what was there before is alone.
static ONE: Mutex<()> = Mutex::new(());

/// Pages of the host's that are given back when this is dropped. One of these at a time: others wait.
#[derive(Debug)]
pub struct HugePages {
    before: u64,
    _one: MutexGuard<'static, ()>,
}

fn count() -> u64 {
    let text = fs::read_to_string(COUNT).unwrap_or_else(|e| panic!("{COUNT}: {e}"));
    text.trim().parse().expect("a number")
}

impl HugePages {
    /// Has the kernel keep so many more pages of the usual huge size.
    ///
    /// # Panics
    /// If it does not: it wants root of the host, and memory in one piece.
    pub fn reserve(more: u64) -> Self {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        // Put back also when there are too few.
        let this = Self {
            before: count(),
            _one: one,
        };
        let wanted = this.before + more;
        let asked = fs::write(COUNT, wanted.to_string());
        assert!(
            asked.is_ok() && count() >= wanted,
            "{} of {wanted} huge pages are there ({asked:?}): this needs root of the host, and {more} free pages of \
             {COUNT}'s size",
            count()
        );
        this
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if let Err(error) = fs::write(COUNT, self.before.to_string()) {
            eprintln!("{COUNT} was {} and stays {}: {error}", self.before, count());
        }
    }
}
