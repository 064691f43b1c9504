//! Handling of fork(2) in a program with an open NIC (vipl-semantics 7, rule 20).
//!
//! The child has a copy of the parent's memory and none of its threads, and shares the rings of the
//! parent's port. The NIC remains with the parent: in the child every handle created before the
//! fork is stale, so that its calls, drops and exit do not access a ring. The child may open NICs
//! of its own.

use std::cell::{Cell, RefCell};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::attach::shared_files;
use crate::device;
use crate::memory::page_locks::{self, LockCounts};
use crate::memory::shared_allocator;
use crate::open::OpenError;
use crate::sys;

/// Serializes opening and closing of devices, and fork(2).
static OPEN_CLOSE: Mutex<()> = Mutex::new(());

thread_local! {
    /// Whether this thread holds `OPEN_CLOSE`, through an [`OpenCloseLock`].
    static HOLDS_LOCK: Cell<bool> = const { Cell::new(false) };
    /// Locks that this thread holds from before a fork until after it.
    static FORK_LOCKS: RefCell<Option<ForkLocks>> = const { RefCell::new(None) };
}

/// Lock for opening or closing a NIC.
pub(crate) struct OpenCloseLock {
    _guard: MutexGuard<'static, ()>,
}

impl OpenCloseLock {
    pub(crate) fn acquire() -> Self {
        let guard = OPEN_CLOSE.lock().unwrap_or_else(PoisonError::into_inner);
        HOLDS_LOCK.set(true);
        Self { _guard: guard }
    }
}

impl Drop for OpenCloseLock {
    fn drop(&mut self) {
        HOLDS_LOCK.set(false);
    }
}

/// Locks held during a fork, so that the child finds them free and their data consistent.
struct ForkLocks {
    _open_close: Option<MutexGuard<'static, ()>>,
    _lock_counts: MutexGuard<'static, LockCounts>,
    _allocator: shared_allocator::AllocatorLock,
    _shared_files: shared_files::Lock,
}

/// Installs the fork handlers, once.
pub(crate) fn install_handlers() -> Result<(), OpenError> {
    static INSTALLED: OnceLock<Result<(), String>> = OnceLock::new();
    INSTALLED
        .get_or_init(|| {
            // Its lock is the last in the lock order: it is taken under the locks of this module.
            pmd_port::fork::install_handlers()
                .and_then(|()| sys::at_fork(before_fork, after_fork_in_parent, after_fork_in_child))
                .map_err(|e| e.to_string())
        })
        .clone()
        .map_err(|e| OpenError::new(format!("pthread_atfork: {e}")))
}

extern "C" fn before_fork() {
    let open_close = if HOLDS_LOCK.get() {
        None
    } else {
        Some(OPEN_CLOSE.lock().unwrap_or_else(PoisonError::into_inner))
    };
    let locks = ForkLocks {
        _open_close: open_close,
        _lock_counts: page_locks::lock_counts(),
        _allocator: shared_allocator::lock(),
        _shared_files: shared_files::lock(),
    };
    // A thread that forks while its thread-locals are being destroyed does not hold the locks.
    let _destroyed = FORK_LOCKS.try_with(|held| *held.borrow_mut() = Some(locks));
}

extern "C" fn after_fork_in_parent() {
    let _destroyed = FORK_LOCKS.try_with(|held| held.borrow_mut().take());
}

extern "C" fn after_fork_in_child() {
    device::mark_all_inherited();
    // Released before one of the locks is taken again.
    drop(FORK_LOCKS.try_with(|held| held.borrow_mut().take()));
    shared_files::clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocator_is_locked_during_a_fork() {
        // As fork(2) does in the parent.
        before_fork();
        assert!(shared_allocator::is_locked());
        after_fork_in_parent();
        drop(crate::memory::SharedMemory::allocate(1).unwrap());
    }
}
