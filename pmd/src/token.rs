//! Who may touch what: the turn of a NIC, and the two ends of a queue.
//!
//! A token is biased towards the thread that uses it again and again: that thread
//! enters and leaves with plain stores, so that its stores to other cores' cache
//! lines need not drain first, as an atomic exchange would demand. Whoever else
//! wants it takes the exchange `held`, ends the bias, and makes the kernel order
//! that against the owner's entry (an asymmetric barrier).
//!
//! ```text
//!  owner (fast):  busy = true;  light barrier;  owner still me?  -> in  ...  busy = false
//!  other (slow):  held = true;  owner = nobody; heavy barrier;   wait for !busy  -> in
//! ```
//! Either the owner sees that its bias ended, or the other sees that it is busy.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, heavy_barrier, light_barrier};

/// Uses in a row, by one thread, after which it becomes the owner; doubled with each
/// bias that was ended, up to the limit.
const FIRST_STREAK: u32 = 16;
const LAST_STREAK: u32 = 4096;

thread_local! {
    static MARK: u8 = const { 0 };
}

/// A number that no other living thread has; never 0.
#[inline]
fn thread_number() -> u64 {
    MARK.with(|mark| core::ptr::from_ref(mark) as u64)
}

/// What only the holder of `held` touches.
struct Bias {
    last: u64,
    streak: u32,
    needed: u32,
}

/// A value that one thread at a time may use. Not a lock that anyone sleeps in:
/// the data path tries and goes on, control calls spin and yield.
pub(crate) struct Token<T> {
    /// The thread that may enter without `held`; 0 for none.
    owner: AtomicU64,
    /// The owner is inside.
    busy: AtomicBool,
    held: AtomicBool,
    /// Control calls that wait; the data path lets them in first.
    wanted: AtomicU32,
    bias: UnsafeCell<Bias>,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is reached only through a `Held`, of which one exists at a time: the
// protocol above lets either the owner or one holder of `held` in. `bias` is touched
// only by the holder of `held`.
unsafe impl<T: Send> Sync for Token<T> {}

impl<T> Token<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            owner: AtomicU64::new(0),
            busy: AtomicBool::new(false),
            held: AtomicBool::new(false),
            wanted: AtomicU32::new(0),
            bias: UnsafeCell::new(Bias {
                last: 0,
                streak: 0,
                needed: FIRST_STREAK,
            }),
            value: UnsafeCell::new(value),
        }
    }

    /// The value, if nobody has it and no control call wants it.
    #[inline]
    pub(crate) fn try_hold(&self) -> Option<Held<'_, T>> {
        let me = thread_number();
        if let Some(held) = self.enter_as_owner(me) {
            return Some(held);
        }
        if self.wanted.load(Ordering::Relaxed) != 0 || self.held.load(Ordering::Relaxed) {
            return None;
        }
        self.take(me)
    }

    /// The value, as soon as whoever has it lets go.
    #[inline]
    pub(crate) fn hold(&self) -> Held<'_, T> {
        let me = thread_number();
        match self.enter_as_owner(me) {
            Some(held) => held,
            None => self.hold_slowly(me),
        }
    }

    /// In, if this thread is the owner and its bias stands.
    #[inline]
    fn enter_as_owner(&self, me: u64) -> Option<Held<'_, T>> {
        // A thread that is inside already waits for itself, as with any lock.
        if self.owner.load(Ordering::Relaxed) != me || self.busy.load(Ordering::Relaxed) {
            return None;
        }
        self.busy.store(true, Ordering::Relaxed);
        // Partner: the heavy barrier in `end_bias`.
        light_barrier();
        if self.owner.load(Ordering::Acquire) == me {
            return Some(Held {
                token: self,
                as_owner: true,
            });
        }
        self.busy.store(false, Ordering::Release);
        None
    }

    /// In through `held`, if that is free.
    #[cold]
    fn take(&self, me: u64) -> Option<Held<'_, T>> {
        // Acquire: partner of the Release store in `Held::drop`.
        if self.held.swap(true, Ordering::Acquire) {
            return None;
        }
        self.settle(me);
        Some(Held {
            token: self,
            as_owner: false,
        })
    }

    #[cold]
    fn hold_slowly(&self, me: u64) -> Held<'_, T> {
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
                std::thread::yield_now();
            } else {
                core::hint::spin_loop();
            }
        }
    }

    /// The holder of `held` makes sure that no owner is inside, and may become the owner.
    fn settle(&self, me: u64) {
        // SAFETY: we hold `held`.
        let bias = unsafe { &mut *self.bias.get() };
        if self.owner.load(Ordering::Relaxed) != 0 {
            self.end_bias();
            bias.needed = (bias.needed * 2).min(LAST_STREAK);
        }
        if bias.last == me {
            bias.streak += 1;
        } else {
            bias.last = me;
            bias.streak = 1;
        }
    }

    fn end_bias(&self) {
        self.owner.store(0, Ordering::Relaxed);
        // Partner: the light barrier in `enter_as_owner`.
        heavy_barrier();
        let mut spins = 0u32;
        // Acquire: partner of the owner's Release store of `busy`.
        while self.busy.load(Ordering::Acquire) {
            spins += 1;
            if spins.is_multiple_of(64) {
                std::thread::yield_now();
            } else {
                core::hint::spin_loop();
            }
        }
    }

    /// Leaves through `held`; a thread that came often enough in a row becomes the owner.
    #[cold]
    fn give_back(&self) {
        // SAFETY: we hold `held`.
        let bias = unsafe { &mut *self.bias.get() };
        if bias.streak >= bias.needed {
            bias.streak = 0;
            self.owner.store(bias.last, Ordering::Relaxed);
        }
        // Release: partner of the Acquire swap in `take`.
        self.held.store(false, Ordering::Release);
    }
}

/// The right to use the value until dropped.
pub(crate) struct Held<'a, T> {
    token: &'a Token<T>,
    as_owner: bool,
}

impl<T> Deref for Held<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: a `Held` exists once at a time, so nobody else reaches the value.
        unsafe { &*self.token.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `self` is borrowed mutably.
        unsafe { &mut *self.token.value.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.as_owner {
            // Release: partner of the Acquire load in `end_bias`.
            self.token.busy.store(false, Ordering::Release);
        } else {
            self.token.give_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn one_holder_at_a_time_and_control_goes_first() {
        let token = Arc::new(Token::new(0u64));
        let held = token.try_hold().unwrap();
        let control = {
            let token = Arc::clone(&token);
            std::thread::spawn(move || {
                assert!(token.try_hold().is_none(), "held by another thread");
                *token.hold() += 1;
            })
        };
        while token.wanted.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        drop(held);
        control.join().unwrap();
        assert_eq!(*token.try_hold().unwrap(), 1);
    }

    #[test]
    fn a_thread_that_comes_often_becomes_the_owner_and_others_still_get_in() {
        crate::sync::register_barrier();
        let token = Arc::new(Token::new(0u64));
        for _ in 0..=FIRST_STREAK {
            *token.hold() += 1;
        }
        assert_eq!(token.owner.load(Ordering::Relaxed), thread_number());
        let other = {
            let token = Arc::clone(&token);
            std::thread::spawn(move || *token.hold() += 1)
        };
        other.join().unwrap();
        assert_eq!(token.owner.load(Ordering::Relaxed), 0);
        assert_eq!(*token.hold(), u64::from(FIRST_STREAK) + 2);
    }

    #[test]
    fn counts_of_many_threads_add_up_through_changes_of_owner() {
        crate::sync::register_barrier();
        let token = Arc::new(Token::new(0u64));
        let threads: Vec<_> = (0..4u64)
            .map(|seed| {
                let token = Arc::clone(&token);
                std::thread::spawn(move || {
                    for round in 0..200u64 {
                        // Long runs, in which a bias forms, and short ones, which end it.
                        let run = if (round + seed).is_multiple_of(5) {
                            400
                        } else {
                            3
                        };
                        for _ in 0..run {
                            let mut held = token.hold();
                            let value = *held;
                            core::hint::spin_loop();
                            *held = value + 1;
                        }
                        std::thread::yield_now();
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(*token.hold(), 4 * (40 * 400 + 160 * 3));
    }
}
