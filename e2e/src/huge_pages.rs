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
    added: u64,
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
        let before = count();
        let asked = fs::write(COUNT, (before + more).to_string());
        // Given back also when there are too few.
        let this = Self {
            added: count().saturating_sub(before),
            _one: one,
        };
        assert_eq!(
            this.added, more,
            "huge pages added ({asked:?}): this needs root of the host, and that many free pages of {COUNT}'s size"
        );
        this
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let now = count();
        if let Err(error) = fs::write(COUNT, now.saturating_sub(self.added).to_string()) {
            eprintln!("{COUNT} stays {now}: {error}");
        }
    }
}
