//! Every interleaving of the two sides of a ring, explored by loom.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p pmd-port --test loom_ring --release`.
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use pmd_port::ring::spsc;

/// Explores all interleavings with up to three preemptions; without such a bound the number of
/// interleavings of polling loops is unbounded.
fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Values are pushed and popped one by one, over more laps than one.
#[test]
fn values_arrive_once_and_in_order() {
    explore(|| {
        let (mut producer, mut consumer) = spsc(2);
        let sender = thread::spawn(move || {
            for value in 0..4u32 {
                let mut value = value;
                while let Err(refused) = producer.push(value) {
                    value = refused;
                    thread::yield_now();
                }
            }
        });
        for expected in 0..4 {
            let value = loop {
                match consumer.pop() {
                    Some(value) => break value,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(value, expected);
        }
        sender.join().expect("the sender ends");
        assert_eq!(consumer.pop(), None);
    });
}

/// A batch is published as a whole, and its slots are released as a whole.
#[test]
fn batches_arrive_once_and_in_order() {
    explore(|| {
        let (mut producer, mut consumer) = spsc(2);
        let sender = thread::spawn(move || {
            let mut values = 0..4u32;
            while !values.is_empty() {
                if producer.push_batch(&mut values) == 0 {
                    thread::yield_now();
                }
            }
        });
        let mut next = 0;
        while next < 4 {
            let taken = consumer.pop_batch(2, |value| {
                assert_eq!(value, next);
                next += 1;
            });
            if taken == 0 {
                thread::yield_now();
            }
        }
        sender.join().expect("the sender ends");
    });
}

/// Whichever side is dropped first, the values left in the ring are dropped exactly once.
#[test]
fn remaining_values_are_dropped_once() {
    explore(|| {
        let value = Arc::new(());
        let (mut producer, mut consumer) = spsc(2);
        let pushed = Arc::clone(&value);
        let sender = thread::spawn(move || {
            let again = Arc::clone(&pushed);
            assert!(producer.push(pushed).is_ok());
            assert!(producer.push(again).is_ok());
        });
        drop(consumer.pop());
        drop(consumer);
        sender.join().expect("the sender ends");
        assert_eq!(Arc::strong_count(&value), 1);
    });
}
