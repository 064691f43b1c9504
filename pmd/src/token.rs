//! Who may touch what: the turn of a NIC, and the two ends of a queue.
//!
//! A token is biased towards the thread that uses it again and again: that thread
//! enters and leaves with plain stores, so that its stores to other cores' cache
//! lines need not drain first, as an atomic exchange would demand. Whoever else
//! wants it takes the exchange `held`, ends the bias, and makes the kernel order
//! that against the owner's entry (an asymmetric barrier).
//!
//! ```text
//!  owner (fast):  my busy = true;  light barrier;  owner still me?  -> in  ...  my busy = false
//!  other (slow):  held = true;  owner = nobody; heavy barrier;   not busy?        -> in
//!                                                               else held = false, again
//! ```
//! Either the owner sees that its bias ended, or the other sees that it is busy. Each
//! `busy` flag belongs to one thread for ever: a thread that was stopped between its two
//! looks may set and clear its flag long after another one became the owner.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

use crate::sync::{
    AtomicBool, AtomicU32, AtomicU64, Ordering, heavy_barrier, light_barrier, spin_loop,
    thread_number, yield_now,
};

/// Uses in a row, by one thread, after which it becomes the owner; doubled with each
/// bias that was ended, up to the limit.
const FIRST_STREAK: u32 = if cfg!(loom) { 1 } else { 16 };
const LAST_STREAK: u32 = 4096;

/// Threads that can ever own one token; others use `held` every time.
const SEATS: usize = if cfg!(loom) { 2 } else { 4 };
/// Thread numbers are multiples of this, so that the seat fits beside them.
const SEAT_MASK: u64 = 7;

/// Stands for a thread that never becomes the owner; no thread has this number.
const GUEST: u64 = 0;

/// What only the holder of `held` touches.
struct Bias {
    last: u64,
    streak: u32,
    needed: u32,
    /// Who has which seat; 0 for nobody yet.
    seats: [u64; SEATS],
}

impl Bias {
    /// The seat of a thread, for ever; `None` if all are taken by others.
    fn seat_of(&mut self, thread: u64) -> Option<u64> {
        let at = self.seats.iter().position(|t| *t == thread || *t == 0)?;
        self.seats[at] = thread;
        Some(at as u64)
    }
}

const _: () = assert!(SEATS as u64 <= SEAT_MASK + 1);

/// A value that one thread at a time may use. Not a lock that anyone sleeps in:
/// the data path tries and goes on, control calls spin and yield.
pub(crate) struct Token<T> {
    /// The thread that may enter without `held`, and its seat; 0 for none.
    owner: AtomicU64,
    /// For each seat: its thread is inside, or about to look whether it may be.
    busy: [AtomicBool; SEATS],
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
    pub(crate) fn new(value: T) -> Self {
        Self {
            owner: AtomicU64::new(0),
            busy: core::array::from_fn(|_| AtomicBool::new(false)),
            held: AtomicBool::new(false),
            wanted: AtomicU32::new(0),
            bias: UnsafeCell::new(Bias {
                last: 0,
                streak: 0,
                needed: FIRST_STREAK,
                seats: [0; SEATS],
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
        if self.wanted.load(Ordering::Relaxed) != 0
            || self.held.load(Ordering::Relaxed)
            || self.owner_is_inside()
        {
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

    /// As [`Token::try_hold`], for a thread that stands in for others and must not become
    /// the owner: they would have to end its bias, which is a system call.
    pub(crate) fn try_hold_as_guest(&self) -> Option<Held<'_, T>> {
        if self.wanted.load(Ordering::Relaxed) != 0
            || self.held.load(Ordering::Relaxed)
            || self.owner_is_inside()
        {
            return None;
        }
        self.take(GUEST)
    }

    /// As [`Token::hold`], for such a thread.
    pub(crate) fn hold_as_guest(&self) -> Held<'_, T> {
        self.hold_slowly(GUEST)
    }

    /// Control calls that wait.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn waiting(&self) -> u32 {
        self.wanted.load(Ordering::Relaxed)
    }

    /// In, if this thread is the owner and its bias stands.
    #[inline]
    fn enter_as_owner(&self, me: u64) -> Option<Held<'_, T>> {
        let owner = self.owner.load(Ordering::Relaxed);
        if owner & !SEAT_MASK != me {
            return None;
        }
        let busy = self.busy.get((owner & SEAT_MASK) as usize)?;
        // A thread that is inside already waits for itself, as with any lock.
        if busy.load(Ordering::Relaxed) {
            return None;
        }
        busy.store(true, Ordering::Relaxed);
        // Partner: the heavy barrier in `settle`.
        light_barrier();
        if self.owner.load(Ordering::Acquire) == owner {
            return Some(Held {
                token: self,
                busy: Some(busy),
            });
        }
        busy.store(false, Ordering::Release);
        None
    }

    /// True while the owner is inside: trying would end its bias for nothing.
    fn owner_is_inside(&self) -> bool {
        let owner = self.owner.load(Ordering::Relaxed);
        owner != 0
            && self
                .busy
                .get((owner & SEAT_MASK) as usize)
                .is_some_and(|busy| busy.load(Ordering::Relaxed))
    }

    /// In through `held`, if that is free and no owner is inside.
    #[cold]
    fn take(&self, me: u64) -> Option<Held<'_, T>> {
        // Acquire: partner of the Release store in `give_back`.
        if self.held.swap(true, Ordering::Acquire) {
            return None;
        }
        if !self.settle(me) {
            self.held.store(false, Ordering::Release);
            return None;
        }
        Some(Held {
            token: self,
            busy: None,
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
                yield_now();
            } else {
                spin_loop();
            }
        }
    }

    /// The holder of `held` ends the bias; false while the owner is still inside.
    fn settle(&self, me: u64) -> bool {
        // SAFETY: we hold `held`.
        let bias = unsafe { &mut *self.bias.get() };
        if self.owner.load(Ordering::Relaxed) != 0 {
            self.owner.store(0, Ordering::Relaxed);
            // Partner: the light barrier in `enter_as_owner`.
            heavy_barrier();
            if me != GUEST {
                bias.needed = (bias.needed * 2).min(LAST_STREAK);
            }
        }
        // Acquire: partner of the owner's Release store. Whoever ended the bias, its
        // barrier came before it gave `held` back: an owner inside is seen here. A flag
        // of an earlier owner may be up for a moment; that is waited out as well.
        if self.busy.iter().any(|busy| busy.load(Ordering::Acquire)) {
            return false;
        }
        if me == GUEST {
            bias.streak = 0;
        } else if bias.last == me {
            bias.streak += 1;
        } else {
            bias.last = me;
            bias.streak = 1;
        }
        true
    }

    /// Leaves through `held`; a thread that came often enough in a row becomes the owner.
    #[cold]
    fn give_back(&self) {
        // SAFETY: we hold `held`.
        let bias = unsafe { &mut *self.bias.get() };
        if bias.streak >= bias.needed {
            bias.streak = 0;
            if let Some(seat) = bias.seat_of(bias.last) {
                self.owner.store(bias.last | seat, Ordering::Relaxed);
            }
        }
        // Release: partner of the Acquire swap in `take`.
        self.held.store(false, Ordering::Release);
    }
}

/// Biases of many tokens that end together, when this is dropped: by one barrier, where whoever
/// takes them one after the other causes one for each. Nobody gets into them meanwhile but who is
/// inside already; no token is waited for.
#[derive(Default)]
pub(crate) struct Unbias<'a> {
    /// The `held` of each, which we hold.
    held: Vec<&'a AtomicBool>,
}

impl<'a> Unbias<'a> {
    /// Ends the bias of this token, too, if it is that of another thread.
    pub(crate) fn add<T>(&mut self, token: &'a Token<T>) {
        let owner = token.owner.load(Ordering::Relaxed) & !SEAT_MASK;
        if owner == 0 || owner == thread_number() {
            return;
        }
        // Acquire: as in `take`. Whoever has it sees to the bias.
        if !token.held.swap(true, Ordering::Acquire) {
            token.owner.store(0, Ordering::Relaxed);
            self.held.push(&token.held);
        }
    }
}

impl Drop for Unbias<'_> {
    fn drop(&mut self) {
        if self.held.is_empty() {
            return;
        }
        // As in `settle`, where whoever comes next finds no owner and needs no barrier of its
        // own: ours comes before `held` is given back.
        heavy_barrier();
        for held in &self.held {
            // Release: partner of the Acquire swap in `take`.
            held.store(false, Ordering::Release);
        }
    }
}

/// The right to use the value until dropped.
pub(crate) struct Held<'a, T> {
    token: &'a Token<T>,
    /// The flag of the seat, if this is the owner.
    busy: Option<&'a AtomicBool>,
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
        match self.busy {
            // Release: partner of the Acquire loads in `settle`.
            Some(busy) => busy.store(false, Ordering::Release),
            None => self.token.give_back(),
        }
    }
}

#[cfg(all(test, not(loom)))]
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
            yield_now();
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
        let owner = token.owner.load(Ordering::Relaxed);
        assert_eq!(owner & !SEAT_MASK, thread_number());
        let other = {
            let token = Arc::clone(&token);
            std::thread::spawn(move || *token.hold() += 1)
        };
        other.join().unwrap();
        assert_eq!(token.owner.load(Ordering::Relaxed), 0);
        assert_eq!(*token.hold(), u64::from(FIRST_STREAK) + 2);
    }

    #[test]
    fn a_thread_stopped_between_its_two_looks_never_touches_another_owners_flag() {
        crate::sync::register_barrier();
        let token = Arc::new(Token::new(0u64));
        let own = |token: &Token<u64>| {
            for _ in 0..=LAST_STREAK {
                *token.hold() += 1;
            }
        };
        own(&token);
        let first = token.owner.load(Ordering::Relaxed);
        // Another thread becomes the owner and stays inside.
        let inside = Arc::new(std::sync::Barrier::new(2));
        let second = {
            let (token, inside) = (Arc::clone(&token), Arc::clone(&inside));
            std::thread::spawn(move || {
                own(&token);
                let held = token.hold();
                assert!(held.busy.is_some());
                inside.wait();
                inside.wait();
                drop(held);
            })
        };
        inside.wait();
        // What the first thread still does when it goes on where it was stopped.
        let flag = &token.busy[(first & SEAT_MASK) as usize];
        flag.store(true, Ordering::Relaxed);
        assert_ne!(token.owner.load(Ordering::Acquire), first);
        flag.store(false, Ordering::Release);
        assert!(token.try_hold().is_none(), "the second one is inside");
        assert!(token.take(thread_number()).is_none(), "and stays alone");
        inside.wait();
        second.join().unwrap();
    }

    #[test]
    fn a_guest_ends_a_bias_and_gets_none() {
        crate::sync::register_barrier();
        let token = Token::new(0u64);
        for _ in 0..=FIRST_STREAK {
            *token.hold() += 1;
        }
        assert_ne!(token.owner.load(Ordering::Relaxed), 0);
        for _ in 0..4 * FIRST_STREAK {
            *token.hold_as_guest() += 1;
            *token.try_hold_as_guest().unwrap() += 1;
        }
        assert_eq!(token.owner.load(Ordering::Relaxed), 0);
        // A visit does not put off the next bias of the thread that comes often.
        for _ in 0..=FIRST_STREAK {
            *token.hold() += 1;
        }
        assert_ne!(token.owner.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn whoever_tries_while_the_owner_is_inside_goes_away_empty_handed() {
        crate::sync::register_barrier();
        let token = Token::new(0u64);
        for _ in 0..=FIRST_STREAK {
            *token.hold() += 1;
        }
        let inside = token.hold();
        assert!(inside.busy.is_some());
        for _ in 0..3 {
            assert!(token.try_hold_as_guest().is_none());
        }
        drop(inside);
        assert!(token.try_hold_as_guest().is_some());
    }

    #[test]
    fn biases_of_others_end_together_and_ones_own_stays() {
        crate::sync::register_barrier();
        let tokens: Vec<_> = (0..5).map(|_| Arc::new(Token::new(0u64))).collect();
        let own = |token: &Token<u64>| {
            for _ in 0..=FIRST_STREAK {
                *token.hold() += 1;
            }
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| tokens[1..].iter().for_each(|token| own(token)));
            other.join().unwrap();
        });
        own(&tokens[0]);
        let owned = |at: usize| tokens[at].owner.load(Ordering::Relaxed) != 0;
        assert!((0..5).all(owned));
        let held = tokens[4].hold();
        assert!(!owned(4));
        let mut unbias = Unbias::default();
        tokens.iter().for_each(|token| unbias.add(token));
        assert_eq!(unbias.held.len(), 3, "mine, and one that is held, are left");
        assert!(tokens[1].try_hold().is_none(), "not before the barrier");
        drop(unbias);
        assert!(owned(0) && !(1..5).any(owned));
        drop(held);
        for token in &tokens {
            *token.try_hold().unwrap() += 1;
            assert_eq!(*token.hold(), u64::from(FIRST_STREAK) + 2);
        }
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
                        for turn in 0..run {
                            let mut held = if turn % 50 == 7 {
                                token.hold_as_guest()
                            } else {
                                token.hold()
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
        assert_eq!(*token.hold(), 4 * (40 * 400 + 160 * 3));
    }
}
