//! Handling of fork(2) in a program with an open NIC (vipl-semantics 7, rule 20).
//!
//! The child has a copy of the parent's memory and none of its threads, and shares the rings of the
//! parent's port. The NIC remains with the parent: in the child every handle created before the
//! fork is stale, so that its calls, drops and exit do not access a ring. The child may open NICs
//! of its own.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::io;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::memory::page_locks::{self, LockCounts};
use crate::sys;

/// Callbacks of a module around fork(2).
pub struct ForkHooks {
    /// Acquires the module's locks before a fork; the result is dropped after it, in the parent and in the child. So
    /// the child finds them free and their data consistent.
    pub lock: fn() -> Box<dyn Any>,
    /// Called in the child, after all locks are released.
    pub in_child: fn(),
}

/// Number of modules that can have callbacks.
const MAX_HOOKS: usize = 8;

/// Registered callbacks, without a lock that a forked child could inherit.
static HOOKS: [OnceLock<&'static ForkHooks>; MAX_HOOKS] = [const { OnceLock::new() }; MAX_HOOKS];

/// Serializes opening and closing of devices, and fork(2).
static OPEN_CLOSE: Mutex<()> = Mutex::new(());

thread_local! {
    /// Whether this thread holds `OPEN_CLOSE`, through an [`OpenCloseLock`].
    static HOLDS_LOCK: Cell<bool> = const { Cell::new(false) };
    /// Locks that this thread holds from before a fork until after it.
    static FORK_LOCKS: RefCell<Option<ForkLocks>> = const { RefCell::new(None) };
}

/// Lock for opening or closing a NIC.
pub struct OpenCloseLock {
    _guard: MutexGuard<'static, ()>,
}

impl OpenCloseLock {
    /// Acquires the lock.
    pub fn acquire() -> Self {
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

/// Locks held during a fork. `_open_close` is the first in the lock order; the others are not held together elsewhere.
struct ForkLocks {
    _open_close: Option<MutexGuard<'static, ()>>,
    _lock_counts: MutexGuard<'static, LockCounts>,
    _of_modules: Vec<Box<dyn Any>>,
}

/// Registers the callbacks of a module, and installs the fork handlers; repeated calls have no effect.
///
/// # Errors
/// Those of pthread_atfork(3).
pub fn register(hooks: &'static ForkHooks) -> io::Result<()> {
    let mut slots = HOOKS.iter();
    let is_own = |slot: &OnceLock<_>| core::ptr::eq(*slot.get_or_init(|| hooks), hooks);
    assert!(slots.any(is_own), "more than {MAX_HOOKS} modules");
    install_handlers()
}

/// Installs the fork handlers, once.
fn install_handlers() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), String>> = OnceLock::new();
    INSTALLED
        .get_or_init(|| {
            // Its lock is the last in the lock order: it is taken under the locks of this module.
            pmd_port::fork::install_handlers()
                .and_then(|()| sys::at_fork(before_fork, after_fork_in_parent, after_fork_in_child))
                .map_err(|e| format!("pthread_atfork: {e}"))
        })
        .clone()
        .map_err(io::Error::other)
}

fn hooks() -> impl Iterator<Item = &'static ForkHooks> {
    HOOKS.iter().map_while(OnceLock::get).copied()
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
        _of_modules: hooks().map(|hooks| (hooks.lock)()).collect(),
    };
    // A thread that forks while its thread-locals are being destroyed does not hold the locks.
    let _destroyed = FORK_LOCKS.try_with(|held| *held.borrow_mut() = Some(locks));
}

extern "C" fn after_fork_in_parent() {
    let _destroyed = FORK_LOCKS.try_with(|held| held.borrow_mut().take());
}

extern "C" fn after_fork_in_child() {
    // Released before one of the locks is taken again.
    drop(FORK_LOCKS.try_with(|held| held.borrow_mut().take()));
    for hooks in hooks() {
        (hooks.in_child)();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{SharedMemory, shared_allocator};

    #[test]
    fn allocator_is_locked_during_a_fork() {
        drop(SharedMemory::allocate(1).unwrap());
        // As fork(2) does in the parent.
        before_fork();
        assert!(shared_allocator::is_locked());
        after_fork_in_parent();
        drop(SharedMemory::allocate(1).unwrap());
    }
}
