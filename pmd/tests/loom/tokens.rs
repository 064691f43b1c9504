//! One holder at a time, through every way in and every change of owner.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::explore;
use crate::token::{Held, Token, Unbias};

/// What the token guards: loom fails the model when two threads are at it, or one does not see what another did.
type Guarded = Arc<Token<UnsafeCell<u32>>>;

fn guarded() -> Guarded {
    Arc::new(Token::new(UnsafeCell::new(0)))
}

fn add(held: Held<'_, UnsafeCell<u32>>) {
    // SAFETY: the token lets one thread in; that it does is what loom checks here.
    held.with_mut(|value| unsafe { *value += 1 });
}

fn total(token: &Token<UnsafeCell<u32>>) -> u32 {
    // SAFETY: as in `add`.
    token.hold().with(|value| unsafe { *value })
}

/// In the models a thread becomes the owner with its first use: the second entry of each thread is the fast one,
/// unless the other has ended the bias.
#[test]
fn two_threads_that_both_want_to_own_it() {
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
fn an_owner_and_a_guest() {
    explore(3, || {
        let token = guarded();
        add(token.hold());
        let guest = {
            let token = Arc::clone(&token);
            thread::spawn(move || {
                let mut entered = 0;
                if let Some(held) = token.try_hold_as_guest() {
                    add(held);
                    entered += 1;
                }
                add(token.hold_as_guest());
                entered + 1
            })
        };
        add(token.hold());
        add(token.hold());
        let entered = guest.join().expect("the guest ends");
        assert_eq!(total(&token), 3 + entered);
    });
}

#[test]
fn whoever_only_tries_gets_in_alone_or_not_at_all() {
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
fn an_owner_a_thread_that_tries_and_a_guest() {
    explore(2, || {
        let token = guarded();
        add(token.hold());
        let other = {
            let token = Arc::clone(&token);
            thread::spawn(move || token.try_hold().map(add).is_some())
        };
        let guest = {
            let token = Arc::clone(&token);
            thread::spawn(move || add(token.hold_as_guest()))
        };
        add(token.hold());
        let entered = u32::from(other.join().expect("the other thread ends"));
        guest.join().expect("the guest ends");
        assert_eq!(total(&token), 3 + entered);
    });
}

#[test]
fn an_owner_and_one_who_ends_biases_before_it_enters() {
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
