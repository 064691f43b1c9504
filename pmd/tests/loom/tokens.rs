//! Mutual exclusion of tokens, by every way to lock and through changes of owner.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::explore;
use crate::token::{Held, Token, Unbias};

/// The guarded value: loom fails the model when two threads access it, or one does not see a write of another.
type Guarded = Arc<Token<UnsafeCell<u32>>>;

fn guarded() -> Guarded {
    Arc::new(Token::new(UnsafeCell::new(0)))
}

fn add(held: Held<'_, UnsafeCell<u32>>) {
    // SAFETY: the token admits one thread; that is what loom checks here.
    held.with_mut(|value| unsafe { *value += 1 });
}

fn total(token: &Token<UnsafeCell<u32>>) -> u32 {
    // SAFETY: as in `add`.
    token.hold().with(|value| unsafe { *value })
}

/// In the models a thread becomes the owner with its first lock: the second lock of each thread is on the fast path,
/// unless the other thread has ended the bias.
#[test]
fn two_threads_compete_for_ownership() {
    explore(3, || {
        let token = guarded();
        let other = {
            let token = Arc::clone(&token);
            thread::spawn(move || {
                add(token.hold());
                add(token.hold());
            })
        };
        add(token.hold());
        add(token.hold());
        other.join().expect("the other thread ends");
        assert_eq!(total(&token), 4);
    });
}

#[test]
fn owner_and_unbiased_thread() {
    explore(3, || {
        let token = guarded();
        add(token.hold());
        let unbiased = {
            let token = Arc::clone(&token);
            thread::spawn(move || {
                let mut entered = 0;
                if let Some(held) = token.try_hold_unbiased() {
                    add(held);
                    entered += 1;
                }
                add(token.hold_unbiased());
                entered + 1
            })
        };
        add(token.hold());
        add(token.hold());
        let entered = unbiased.join().expect("the unbiased thread ends");
        assert_eq!(total(&token), 3 + entered);
    });
}

#[test]
fn try_hold_excludes_or_fails() {
    explore(3, || {
        let token = guarded();
        add(token.hold());
        let tries = |token: &Guarded| {
            let mut entered = 0;
            for _ in 0..2 {
                if let Some(held) = token.try_hold() {
                    add(held);
                    entered += 1;
                }
            }
            entered
        };
        let other = {
            let token = Arc::clone(&token);
            thread::spawn(move || tries(&token))
        };
        let entered = tries(&token) + other.join().expect("the other thread ends");
        assert_eq!(total(&token), 1 + entered);
    });
}

#[test]
fn owner_trying_thread_and_unbiased_thread() {
    explore(2, || {
        let token = guarded();
        add(token.hold());
        let other = {
            let token = Arc::clone(&token);
            thread::spawn(move || token.try_hold().map(add).is_some())
        };
        let unbiased = {
            let token = Arc::clone(&token);
            thread::spawn(move || add(token.hold_unbiased()))
        };
        add(token.hold());
        let entered = u32::from(other.join().expect("the other thread ends"));
        unbiased.join().expect("the unbiased thread ends");
        assert_eq!(total(&token), 3 + entered);
    });
}

#[test]
fn owner_and_thread_that_ends_bias_before_it_locks() {
    explore(3, || {
        let token = guarded();
        let owner = {
            let token = Arc::clone(&token);
            thread::spawn(move || {
                add(token.hold());
                add(token.hold());
                add(token.hold());
            })
        };
        let mut unbias = Unbias::default();
        unbias.add(&*token);
        drop(unbias);
        add(token.hold());
        owner.join().expect("the owner ends");
        assert_eq!(total(&token), 4);
    });
}
