//! Temporary reservations of huge pages.

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The number of huge pages that the kernel reserves.
const COUNT: &str = "/proc/sys/vm/nr_hugepages";

/// Serializes changes of [`COUNT`], which are read-modify-write.
static LOCK: Mutex<()> = Mutex::new(());

/// Reserved huge pages, released on drop. At most one exists at a time; others wait.
#[derive(Debug)]
pub struct HugePages {
    added: u64,
    _lock: MutexGuard<'static, ()>,
}

fn count() -> u64 {
    let text = fs::read_to_string(COUNT).unwrap_or_else(|e| panic!("{COUNT}: {e}"));
    text.trim().parse().expect("a number")
}

impl HugePages {
    /// Reserves `more` additional pages of the default huge page size.
    ///
    /// # Panics
    /// The kernel reserves fewer: this needs root of the host and contiguous memory.
    pub fn reserve(more: u64) -> Self {
        let lock = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let before = count();
        let written = fs::write(COUNT, (before + more).to_string());
        // Created before the check, so that drop also releases too few pages.
        let this = Self {
            added: count().saturating_sub(before),
            _lock: lock,
        };
        assert_eq!(
            this.added, more,
            "huge pages reserved ({written:?}): this needs root of the host and enough contiguous free memory"
        );
        this
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let now = count();
        if let Err(error) = fs::write(COUNT, now.saturating_sub(self.added).to_string()) {
            eprintln!("{COUNT}: not restored from {now}: {error}");
        }
    }
}
