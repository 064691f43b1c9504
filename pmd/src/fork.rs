//! A program that forks after it opened a NIC (vipl-semantics 7, rule 20).
//!
//! The child has a copy of the parent's memory and none of its threads, and the rings of
//! the parent's port are shared with it. The NIC stays the parent's: in the child every
//! handle made before the fork is stale, so that nothing it calls, drops or leaves behind
//! reaches a ring. It may open NICs of its own.

use std::cell::{Cell, RefCell};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::attach::offers;
use crate::device;
use crate::memory::locked::{self, Coverage};
use crate::memory::shared;
use crate::open::OpenError;
use crate::sys;

/// Opening and closing of any device, one at a time, and no fork in the middle of it.
static OPENING: Mutex<()> = Mutex::new(());

thread_local! {
    /// This thread has `OPENING`, through an [`Opening`].
    static OPENS: Cell<bool> = const { Cell::new(false) };
    /// What this thread holds from before a fork until after it.
    static FORKS: RefCell<Option<Quiet>> = const { RefCell::new(None) };
}

/// The right to open or close a NIC.
pub(crate) struct Opening {
    _one_at_a_time: MutexGuard<'static, ()>,
}

impl Opening {
    pub(crate) fn begin() -> Self {
        let guard = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
        OPENS.set(true);
        Self {
            _one_at_a_time: guard,
        }
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        OPENS.set(false);
    }
}

/// Nobody opens, closes, locks, unlocks, allocates or frees: no other thread has what the child
/// will want.
struct Quiet {
    _opening: Option<MutexGuard<'static, ()>>,
    _locking: MutexGuard<'static, Coverage>,
    _allocating: shared::Quiet,
    _offering: offers::Quiet,
}

/// Has forks noticed from now on.
pub(crate) fn watch() -> Result<(), OpenError> {
    static WATCHED: OnceLock<Result<(), String>> = OnceLock::new();
    WATCHED
        .get_or_init(|| {
            // Its lock is the last one: what it guards is made and ended by who has ours.
            pmd_port::fork::watch()
                .and_then(|()| sys::at_fork(before, in_parent, in_child))
                .map_err(|e| e.to_string())
        })
        .clone()
        .map_err(|e| OpenError::new(format!("forks cannot be noticed: {e}")))
}

extern "C" fn before() {
    let opening = if OPENS.get() {
        None
    } else {
        Some(OPENING.lock().unwrap_or_else(PoisonError::into_inner))
    };
    let quiet = Quiet {
        _opening: opening,
        _locking: locked::hold(),
        _allocating: shared::hold(),
        _offering: offers::hold(),
    };
    // A thread that forks while its locals are being destroyed goes without.
    let _gone = FORKS.try_with(|held| *held.borrow_mut() = Some(quiet));
}

extern "C" fn in_parent() {
    let _gone = FORKS.try_with(|held| held.borrow_mut().take());
}

extern "C" fn in_child() {
    device::disown_all();
    // Its locks are free before one of them is taken again.
    drop(FORKS.try_with(|held| held.borrow_mut().take()));
    offers::forget();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_other_thread_allocates_while_a_thread_forks() {
        // As fork(2) does in the parent.
        before();
        assert!(shared::is_held());
        in_parent();
        drop(crate::memory::SharedMemory::allocate(1).unwrap());
    }
}
