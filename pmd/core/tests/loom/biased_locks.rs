//! Mutual exclusion of locks, by every way to lock and through changes of owner.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::biased_lock::{BiasedGuard, BiasedLock, Unbias};
use crate::explore;

/// The guarded value: loom fails the model when two threads access it, or one does not see a write of another.
type Guarded = Arc<BiasedLock<UnsafeCell<u32>>>;

fn guarded() -> Guarded {
    Arc::new(BiasedLock::new(UnsafeCell::new(0)))
}

fn add(held: BiasedGuard<'_, UnsafeCell<u32>>) {
    // SAFETY: the lock admits one thread; that is what loom checks here.
    held.with_mut(|value| unsafe { *value += 1 });
}

fn total(lock: &BiasedLock<UnsafeCell<u32>>) -> u32 {
    // SAFETY: as in `add`.
    lock.lock().with(|value| unsafe { *value })
}

/// In the models a thread becomes the owner with its first lock: the second lock of each thread is on the fast path,
/// unless the other thread has ended the bias.
#[test]
fn two_threads_compete_for_ownership() {
    explore(3, || {
        let lock = guarded();
        let other = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || {
                add(lock.lock());
                add(lock.lock());
            })
        };
        add(lock.lock());
        add(lock.lock());
        other.join().expect("the other thread ends");
        assert_eq!(total(&lock), 4);
    });
}

#[test]
fn owner_and_unbiased_thread() {
    explore(3, || {
        let lock = guarded();
        add(lock.lock());
        let unbiased = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || {
                let mut entered = 0;
                if let Some(held) = lock.try_lock_unbiased() {
                    add(held);
                    entered += 1;
                }
                add(lock.lock_unbiased());
                entered + 1
            })
        };
        add(lock.lock());
        add(lock.lock());
        let entered = unbiased.join().expect("the unbiased thread ends");
        assert_eq!(total(&lock), 3 + entered);
    });
}

#[test]
fn try_hold_excludes_or_fails() {
    explore(3, || {
        let lock = guarded();
        add(lock.lock());
        let tries = |lock: &Guarded| {
            let mut entered = 0;
            for _ in 0..2 {
                if let Some(held) = lock.try_lock() {
                    add(held);
                    entered += 1;
                }
            }
            entered
        };
        let other = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || tries(&lock))
        };
        let entered = tries(&lock) + other.join().expect("the other thread ends");
        assert_eq!(total(&lock), 1 + entered);
    });
}

#[test]
fn owner_trying_thread_and_unbiased_thread() {
    explore(2, || {
        let lock = guarded();
        add(lock.lock());
        let other = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || lock.try_lock().map(add).is_some())
        };
        let unbiased = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || add(lock.lock_unbiased()))
        };
        add(lock.lock());
        let entered = u32::from(other.join().expect("the other thread ends"));
        unbiased.join().expect("the unbiased thread ends");
        assert_eq!(total(&lock), 3 + entered);
    });
}

#[test]
fn owner_and_thread_that_ends_bias_before_it_locks() {
    explore(3, || {
        let lock = guarded();
        let owner = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || {
                add(lock.lock());
                add(lock.lock());
                add(lock.lock());
            })
        };
        let mut unbias = Unbias::default();
        unbias.add(&*lock);
        drop(unbias);
        add(lock.lock());
        owner.join().expect("the owner ends");
        assert_eq!(total(&lock), 4);
    });
}
