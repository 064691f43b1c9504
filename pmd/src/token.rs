//! Who may touch what: the turn of a NIC, and the two ends of a queue.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

use crate::sync::{AtomicBool, AtomicU32, Ordering};

/// A value that one thread at a time may use. Not a lock that anyone sleeps in:
/// the data path tries and goes on, control calls spin and yield.
pub(crate) struct Token<T> {
    held: AtomicBool,
    /// Control calls that wait; the data path lets them in first.
    wanted: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is reached only through a `Held`, of which one exists at a time:
// `held` is swapped to true (Acquire) before and stored false (Release) after.
unsafe impl<T: Send> Sync for Token<T> {}

impl<T> Token<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            held: AtomicBool::new(false),
            wanted: AtomicU32::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// The value, if nobody has it and no control call wants it.
    #[inline]
    pub(crate) fn try_hold(&self) -> Option<Held<'_, T>> {
        if self.wanted.load(Ordering::Relaxed) != 0 || self.held.load(Ordering::Relaxed) {
            return None;
        }
        self.take()
    }

    #[inline]
    fn take(&self) -> Option<Held<'_, T>> {
        // Acquire: partner of the Release store in `Held::drop`.
        if self.held.swap(true, Ordering::Acquire) {
            None
        } else {
            Some(Held { token: self })
        }
    }

    /// The value, as soon as whoever has it lets go; ahead of `try_hold` of others.
    pub(crate) fn hold(&self) -> Held<'_, T> {
        if let Some(held) = self.take() {
            return held;
        }
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let mut spins = 0u32;
        loop {
            if !self.held.load(Ordering::Relaxed) {
                if let Some(held) = self.take() {
                    self.wanted.fetch_sub(1, Ordering::Relaxed);
                    return held;
                }
            }
            spins += 1;
            if spins % 64 == 0 {
                std::thread::yield_now();
            } else {
                core::hint::spin_loop();
            }
        }
    }

    /// The value, from someone who waits for another end of a queue shortly.
    #[inline]
    pub(crate) fn spin_hold(&self) -> Held<'_, T> {
        match self.take() {
            Some(held) => held,
            None => self.hold(),
        }
    }
}

/// The right to use the value until dropped.
pub(crate) struct Held<'a, T> {
    token: &'a Token<T>,
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
        // Release: partner of the Acquire swap in `take`.
        self.token.held.store(false, Ordering::Release);
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
        assert!(token.try_hold().is_none());
        let control = {
            let token = Arc::clone(&token);
            std::thread::spawn(move || *token.hold() += 1)
        };
        while token.wanted.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        drop(held);
        control.join().unwrap();
        assert_eq!(*token.try_hold().unwrap(), 1);
    }

    #[test]
    fn counts_of_many_threads_add_up() {
        let token = Arc::new(Token::new(0u64));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let token = Arc::clone(&token);
                std::thread::spawn(move || {
                    for _ in 0..10_000 {
                        *token.spin_hold() += 1;
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(*token.hold(), 40_000);
    }
}
