//! A biased lock: protects the backend of a NIC, and the producer and consumer of a queue.
//!
//! The lock is biased towards the thread that takes it repeatedly, its owner: that thread locks and
//! unlocks with plain stores, so that its stores to other cores' cache lines need not drain first,
//! as an atomic exchange would require. Any other thread exchanges the flag `held`, ends the bias,
//! and has the kernel order that against the owner's entry (an asymmetric barrier).
//!
//! ```text
//!  owner (fast):  own busy = true;  light barrier;  owner unchanged? -> locked ... own busy = false
//!  other (slow):  held = true;  owner = none;  heavy barrier;  no busy flag? -> locked
//!                                                              else held = false, retry
//! ```
//! Either the owner sees that its bias ended, or the other thread sees the busy flag. Each `busy`
//! flag belongs to one thread for good: a thread that was preempted between its two loads of `owner`
//! may set and clear its flag long after another one became the owner.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

use crate::sync::{
    AtomicBool, AtomicU32, AtomicU64, Ordering, heavy_barrier, light_barrier, spin_loop,
    thread_number, yield_now,
};

/// Consecutive locks by one thread after which it becomes the owner; doubled with each ended bias, up
/// to [`LAST_STREAK`].
const FIRST_STREAK: u32 = if cfg!(loom) { 1 } else { 16 };
const LAST_STREAK: u32 = 4096;

/// The number of threads that can ever own one lock; others use `held` every time.
const OWNER_SLOTS: usize = if cfg!(loom) { 2 } else { 4 };
/// The low bits of a thread number, which are zero and hold the owner's slot.
const SLOT_MASK: u64 = 7;

/// The thread number of a lock that never gives a bias; no thread has this number.
const UNBIASED: u64 = 0;

/// State that is accessed only by the holder of `held`.
struct Bias {
    last: u64,
    streak: u32,
    needed: u32,
    /// The thread of each owner slot; 0 for a free one.
    slots: [u64; OWNER_SLOTS],
}

impl Bias {
    /// Returns the slot of a thread, which it keeps; `None` if other threads have all.
    fn slot_of(&mut self, thread: u64) -> Option<u64> {
        let at = self.slots.iter().position(|t| *t == thread || *t == 0)?;
        self.slots[at] = thread;
        Some(at as u64)
    }
}

const _: () = assert!(OWNER_SLOTS as u64 <= SLOT_MASK + 1);

/// A biased lock around a value. No thread sleeps in it: the data path only tries, control calls spin
/// and yield.
pub struct BiasedLock<T> {
    /// The thread that may lock without `held`, and its slot; 0 for none.
    owner: AtomicU64,
    /// For each owner slot: its thread holds the lock, or is about to check whether it may.
    busy: [AtomicBool; OWNER_SLOTS],
    held: AtomicBool,
    /// The number of control calls that wait; the data path gives them priority.
    wanted: AtomicU32,
    bias: UnsafeCell<Bias>,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is reached only through a `BiasedGuard`, of which one exists at a time: the
// protocol above admits either the owner or one holder of `held`. `bias` is accessed
// only by the holder of `held`.
unsafe impl<T: Send> Sync for BiasedLock<T> {}

impl<T> BiasedLock<T> {
    /// Creates a lock that is biased towards no thread.
    pub fn new(value: T) -> Self {
        Self {
            owner: AtomicU64::new(0),
            busy: core::array::from_fn(|_| AtomicBool::new(false)),
            held: AtomicBool::new(false),
            wanted: AtomicU32::new(0),
            bias: UnsafeCell::new(Bias {
                last: 0,
                streak: 0,
                needed: FIRST_STREAK,
                slots: [0; OWNER_SLOTS],
            }),
            value: UnsafeCell::new(value),
        }
    }

    /// Locks, if no thread holds the lock and no control call waits for it.
    #[inline]
    pub fn try_lock(&self) -> Option<BiasedGuard<'_, T>> {
        let me = thread_number();
        if let Some(held) = self.enter_as_owner(me) {
            return Some(held);
        }
        if self.wanted.load(Ordering::Relaxed) != 0
            || self.held.load(Ordering::Relaxed)
            || self.is_held_by_owner()
        {
            return None;
        }
        self.take(me)
    }

    /// As [`BiasedLock::try_lock`], also while control calls wait: for a poller that has yielded to them for long.
    /// Their threads may not be running.
    #[cold]
    pub fn try_lock_first(&self) -> Option<BiasedGuard<'_, T>> {
        let me = thread_number();
        if let Some(held) = self.enter_as_owner(me) {
            return Some(held);
        }
        if self.held.load(Ordering::Relaxed) || self.is_held_by_owner() {
            return None;
        }
        self.take(me)
    }

    /// Locks; spins until the holder unlocks.
    #[inline]
    pub fn lock(&self) -> BiasedGuard<'_, T> {
        let me = thread_number();
        match self.enter_as_owner(me) {
            Some(held) => held,
            None => self.lock_slow(me),
        }
    }

    /// As [`BiasedLock::try_lock`], for a thread that acts in place of others and must not become the
    /// owner: they would have to end its bias, which is a system call.
    pub fn try_lock_unbiased(&self) -> Option<BiasedGuard<'_, T>> {
        if self.wanted.load(Ordering::Relaxed) != 0
            || self.held.load(Ordering::Relaxed)
            || self.is_held_by_owner()
        {
            return None;
        }
        self.take(UNBIASED)
    }

    /// As [`BiasedLock::lock`], without becoming the owner.
    #[inline]
    pub fn lock_unbiased(&self) -> BiasedGuard<'_, T> {
        self.lock_slow(UNBIASED)
    }

    /// Returns the number of control calls that wait.
    #[cfg(all(any(test, feature = "testkit"), not(loom)))]
    pub fn waiting(&self) -> u32 {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Locks, if this thread is the owner and its bias is in force.
    #[inline]
    fn enter_as_owner(&self, me: u64) -> Option<BiasedGuard<'_, T>> {
        let owner = self.owner.load(Ordering::Relaxed);
        if owner & !SLOT_MASK != me {
            return None;
        }
        let busy = self.busy.get((owner & SLOT_MASK) as usize)?;
        // A thread that holds the lock deadlocks, as with any lock.
        if busy.load(Ordering::Relaxed) {
            return None;
        }
        busy.store(true, Ordering::Relaxed);
        // Partner: the heavy barrier in `end_bias`.
        light_barrier();
        if self.owner.load(Ordering::Acquire) == owner {
            return Some(BiasedGuard {
                lock: self,
                busy: Some(busy),
            });
        }
        busy.store(false, Ordering::Release);
        None
    }

    /// Returns true while the owner holds the lock: an attempt would only end its bias.
    fn is_held_by_owner(&self) -> bool {
        let owner = self.owner.load(Ordering::Relaxed);
        owner != 0
            && self
                .busy
                .get((owner & SLOT_MASK) as usize)
                .is_some_and(|busy| busy.load(Ordering::Relaxed))
    }

    /// Locks by `held`, if that is free and no owner holds the lock.
    #[cold]
    fn take(&self, me: u64) -> Option<BiasedGuard<'_, T>> {
        // Acquire: partner of the Release store in `release`.
        if self.held.swap(true, Ordering::Acquire) {
            return None;
        }
        if !self.end_bias(me) {
            self.held.store(false, Ordering::Release);
            return None;
        }
        Some(BiasedGuard {
            lock: self,
            busy: None,
        })
    }

    #[cold]
    fn lock_slow(&self, me: u64) -> BiasedGuard<'_, T> {
        if let Some(held) = self.take(me) {
            return held;
        }
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let mut spins = 0u32;
        loop {
            if !self.held.load(Ordering::Relaxed)
                && let Some(held) = self.take(me)
            {
                self.wanted.fetch_sub(1, Ordering::Relaxed);
                return held;
            }
            spins += 1;
            if spins.is_multiple_of(64) {
                yield_now();
            } else {
                spin_loop();
            }
        }
    }

    /// Ends the bias. The caller holds `held`. Returns false while an owner holds the lock.
    fn end_bias(&self, me: u64) -> bool {
        // SAFETY: we hold `held`.
        let bias = unsafe { &mut *self.bias.get() };
        if self.owner.load(Ordering::Relaxed) != 0 {
            self.owner.store(0, Ordering::Relaxed);
            // Partner: the light barrier in `enter_as_owner`.
            heavy_barrier();
            if me != UNBIASED {
                bias.needed = (bias.needed * 2).min(LAST_STREAK);
            }
        }
        // Acquire: partner of the owner's Release store. The thread that ended the bias executed
        // its barrier before it released `held`: a busy owner is seen here. The flag of an earlier
        // owner may be set for a moment; that is waited for as well.
        if self.busy.iter().any(|busy| busy.load(Ordering::Acquire)) {
            return false;
        }
        if me == UNBIASED {
            bias.streak = 0;
        } else if bias.last == me {
            bias.streak += 1;
        } else {
            bias.last = me;
            bias.streak = 1;
        }
        true
    }

    /// Unlocks `held`; a thread with enough consecutive locks becomes the owner.
    #[cold]
    fn release(&self) {
        // SAFETY: we hold `held`.
        let bias = unsafe { &mut *self.bias.get() };
        if bias.streak >= bias.needed {
            bias.streak = 0;
            if let Some(slot) = bias.slot_of(bias.last) {
                self.owner.store(bias.last | slot, Ordering::Relaxed);
            }
        }
        // Release: partner of the Acquire swap in `take`.
        self.held.store(false, Ordering::Release);
    }
}

/// Ends the biases of many locks together, on drop: by one barrier, instead of one for each lock
/// that is locked. Meanwhile no other thread can lock them, though an owner may still hold its lock;
/// no lock is waited for.
#[derive(Default)]
pub struct Unbias<'a> {
    /// The `held` flag of each lock, which we hold.
    held: Vec<&'a AtomicBool>,
}

impl<'a> Unbias<'a> {
    /// Adds a lock, if it is biased towards another thread.
    pub fn add<T>(&mut self, lock: &'a BiasedLock<T>) {
        let owner = lock.owner.load(Ordering::Relaxed) & !SLOT_MASK;
        if owner == 0 || owner == thread_number() {
            return;
        }
        // Acquire: as in `take`. Another holder of `held` ends the bias itself.
        if !lock.held.swap(true, Ordering::Acquire) {
            lock.owner.store(0, Ordering::Relaxed);
            self.held.push(&lock.held);
        }
    }
}

impl Drop for Unbias<'_> {
    fn drop(&mut self) {
        if self.held.is_empty() {
            return;
        }
        // As in `end_bias`: the next thread to lock finds no owner and needs no barrier of its own,
        // as ours precedes the release of `held`.
        heavy_barrier();
        for held in &self.held {
            // Release: partner of the Acquire swap in `take`.
            held.store(false, Ordering::Release);
        }
    }
}

/// The lock guard: gives access to the value, and unlocks on drop.
pub struct BiasedGuard<'a, T> {
    lock: &'a BiasedLock<T>,
    /// The busy flag of the owner's slot, if the owner locked.
    busy: Option<&'a AtomicBool>,
}

impl<T> Deref for BiasedGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: one `BiasedGuard` exists at a time, so no other thread reaches the value.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for BiasedGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `self` is borrowed mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for BiasedGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        match self.busy {
            // Release: partner of the Acquire loads in `end_bias`.
            Some(busy) => busy.store(false, Ordering::Release),
            None => self.lock.release(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn one_thread_holds_at_a_time_and_control_has_priority() {
        let lock = Arc::new(BiasedLock::new(0u64));
        let held = lock.try_lock().unwrap();
        let control = {
            let lock = Arc::clone(&lock);
            std::thread::spawn(move || {
                assert!(lock.try_lock().is_none(), "held by another thread");
                *lock.lock() += 1;
            })
        };
        while lock.wanted.load(Ordering::Relaxed) == 0 {
            yield_now();
        }
        drop(held);
        control.join().unwrap();
        assert_eq!(*lock.try_lock().unwrap(), 1);
    }

    #[test]
    fn poller_can_lock_although_a_control_call_waits_but_not_a_held_lock() {
        let lock = BiasedLock::new(0u64);
        // A control call whose thread the kernel does not run.
        lock.wanted.fetch_add(1, Ordering::Relaxed);
        assert!(lock.try_lock().is_none());
        let held = lock.try_lock_first().unwrap();
        assert!(lock.try_lock_first().is_none());
        drop(held);
    }

    #[test]
    fn frequent_thread_becomes_owner_and_others_can_still_lock() {
        crate::sync::register_barrier();
        let lock = Arc::new(BiasedLock::new(0u64));
        for _ in 0..=FIRST_STREAK {
            *lock.lock() += 1;
        }
        let owner = lock.owner.load(Ordering::Relaxed);
        assert_eq!(owner & !SLOT_MASK, thread_number());
        let other = {
            let lock = Arc::clone(&lock);
            std::thread::spawn(move || *lock.lock() += 1)
        };
        other.join().unwrap();
        assert_eq!(lock.owner.load(Ordering::Relaxed), 0);
        assert_eq!(*lock.lock(), u64::from(FIRST_STREAK) + 2);
    }

    #[test]
    fn preempted_former_owner_does_not_touch_flag_of_next_owner() {
        crate::sync::register_barrier();
        let lock = Arc::new(BiasedLock::new(0u64));
        let own = |lock: &BiasedLock<u64>| {
            for _ in 0..=LAST_STREAK {
                *lock.lock() += 1;
            }
        };
        own(&lock);
        let first = lock.owner.load(Ordering::Relaxed);
        // Another thread becomes the owner and keeps the lock.
        let locked = Arc::new(std::sync::Barrier::new(2));
        let second = {
            let (lock, locked) = (Arc::clone(&lock), Arc::clone(&locked));
            std::thread::spawn(move || {
                own(&lock);
                let held = lock.lock();
                assert!(held.busy.is_some());
                locked.wait();
                locked.wait();
                drop(held);
            })
        };
        locked.wait();
        // What the first thread still does when it resumes where it was preempted.
        let flag = &lock.busy[(first & SLOT_MASK) as usize];
        flag.store(true, Ordering::Relaxed);
        assert_ne!(lock.owner.load(Ordering::Acquire), first);
        flag.store(false, Ordering::Release);
        assert!(lock.try_lock().is_none(), "the second thread holds it");
        assert!(lock.take(thread_number()).is_none(), "and it alone");
        locked.wait();
        second.join().unwrap();
    }

    #[test]
    fn unbiased_lock_ends_bias_and_gets_none() {
        crate::sync::register_barrier();
        let lock = BiasedLock::new(0u64);
        for _ in 0..=FIRST_STREAK {
            *lock.lock() += 1;
        }
        assert_ne!(lock.owner.load(Ordering::Relaxed), 0);
        for _ in 0..4 * FIRST_STREAK {
            *lock.lock_unbiased() += 1;
            *lock.try_lock_unbiased().unwrap() += 1;
        }
        assert_eq!(lock.owner.load(Ordering::Relaxed), 0);
        // An unbiased lock does not raise the streak that the next bias needs.
        for _ in 0..=FIRST_STREAK {
            *lock.lock() += 1;
        }
        assert_ne!(lock.owner.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn try_hold_fails_while_owner_holds() {
        crate::sync::register_barrier();
        let lock = BiasedLock::new(0u64);
        for _ in 0..=FIRST_STREAK {
            *lock.lock() += 1;
        }
        let held = lock.lock();
        assert!(held.busy.is_some());
        for _ in 0..3 {
            assert!(lock.try_lock_unbiased().is_none());
        }
        drop(held);
        assert!(lock.try_lock_unbiased().is_some());
    }

    #[test]
    fn unbias_ends_biases_of_other_threads_and_keeps_own() {
        crate::sync::register_barrier();
        let locks: Vec<_> = (0..5).map(|_| Arc::new(BiasedLock::new(0u64))).collect();
        let own = |lock: &BiasedLock<u64>| {
            for _ in 0..=FIRST_STREAK {
                *lock.lock() += 1;
            }
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| locks[1..].iter().for_each(|lock| own(lock)));
            other.join().unwrap();
        });
        own(&locks[0]);
        let owned = |at: usize| locks[at].owner.load(Ordering::Relaxed) != 0;
        assert!((0..5).all(owned));
        let held = locks[4].lock();
        assert!(!owned(4));
        let mut unbias = Unbias::default();
        locks.iter().for_each(|lock| unbias.add(lock));
        assert_eq!(
            unbias.held.len(),
            3,
            "its own, and one that is held, are left"
        );
        assert!(locks[1].try_lock().is_none(), "not before the barrier");
        drop(unbias);
        assert!(owned(0) && !(1..5).any(owned));
        drop(held);
        for lock in &locks {
            *lock.try_lock().unwrap() += 1;
            assert_eq!(*lock.lock(), u64::from(FIRST_STREAK) + 2);
        }
    }

    #[test]
    fn lock_excludes_threads_through_changes_of_owner() {
        crate::sync::register_barrier();
        let lock = Arc::new(BiasedLock::new(0u64));
        let threads: Vec<_> = (0..4u64)
            .map(|seed| {
                let lock = Arc::clone(&lock);
                std::thread::spawn(move || {
                    for round in 0..200u64 {
                        // Long runs, in which a bias forms, and short ones, which end it.
                        let run = if (round + seed).is_multiple_of(5) {
                            400
                        } else {
                            3
                        };
                        for step in 0..run {
                            let mut held = if step % 50 == 7 {
                                lock.lock_unbiased()
                            } else {
                                lock.lock()
                            };
                            let value = *held;
                            spin_loop();
                            *held = value + 1;
                        }
                        yield_now();
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(*lock.lock(), 4 * (40 * 400 + 160 * 3));
    }
}
