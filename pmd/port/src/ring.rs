//! A bounded lock-free ring from one producer thread to one consumer thread.
//!
//! Each side keeps its own index and a copy of the other side's index, and reads
//! the shared index only when the copy shows a full or empty ring, so that a
//! stream moves one cache line per burst and not one per value.

use core::fmt;
use core::mem::MaybeUninit;

use crossbeam_utils::CachePadded;

use crate::sync::{Arc, AtomicUsize, Ordering, UnsafeCell};

/// Maximum capacity of a ring.
pub const CAPACITY_MAX: usize = 1 << 30;

/// State shared by producer and consumer. Indices count values since the ring was created
/// and wrap around; slot `i` of the array holds value `i` modulo its length.
struct Shared<T> {
    /// Number of values published. Stored by the producer.
    tail: CachePadded<AtomicUsize>,
    /// Number of values consumed. Stored by the consumer.
    head: CachePadded<AtomicUsize>,
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

// SAFETY: a slot is written by the producer before the Release store of `tail`
// that publishes it and read by the consumer after the matching Acquire load
// (and returned by `head`), so no slot is ever accessed from two threads at once;
// values are only moved through, which T: Send allows.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as for Send.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    #[inline]
    fn slot(&self, index: usize) -> &UnsafeCell<MaybeUninit<T>> {
        // The length is a power of two, so the mask is a remainder and in bounds.
        &self.slots[index & (self.slots.len() - 1)]
    }

    /// Moves a value into its slot.
    ///
    /// # Safety
    /// The caller is the producer, and the slot of `index` holds no value.
    #[inline]
    unsafe fn write(&self, index: usize, value: T) {
        self.slot(index).with_mut(|slot| {
            // SAFETY: the slot is the producer's alone until it is published
            // (obligation of the caller), and holds nothing that would leak.
            unsafe { slot.write(MaybeUninit::new(value)) }
        });
    }

    /// Moves a value out of its slot.
    ///
    /// # Safety
    /// The caller is the consumer, and the slot of `index` holds a published
    /// value that is not read again.
    #[inline]
    unsafe fn read(&self, index: usize) -> T {
        self.slot(index).with(|slot| {
            // SAFETY: the slot is the consumer's alone until it is released
            // (obligation of the caller).
            let value = unsafe { slot.read() };
            // SAFETY: a published slot holds a value (obligation of the caller).
            unsafe { value.assume_init() }
        })
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // Relaxed: both sides are dropped; dropping the last Arc ordered their stores before this.
        let tail = self.tail.load(Ordering::Relaxed);
        let mut head = self.head.load(Ordering::Relaxed);
        while head != tail {
            // SAFETY: neither side exists any more; the slots between head and
            // tail hold published values, and each is read once.
            drop(unsafe { self.read(head) });
            head = head.wrapping_add(1);
        }
    }
}

/// Creates a ring for at least `capacity` values, rounded up to a power of two.
///
/// # Panics
/// If `capacity` is above [`CAPACITY_MAX`].
pub fn spsc<T: Send>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    spsc_from(capacity, 0)
}

/// As [`spsc`], with indices that start at `start`.
fn spsc_from<T: Send>(capacity: usize, start: usize) -> (Producer<T>, Consumer<T>) {
    assert!(capacity <= CAPACITY_MAX, "a ring for {capacity} values");
    let shared = Arc::new(Shared {
        tail: CachePadded::new(AtomicUsize::new(start)),
        head: CachePadded::new(AtomicUsize::new(start)),
        slots: (0..capacity.next_power_of_two())
            .map(|_| UnsafeCell::new(MaybeUninit::uninit()))
            .collect(),
    });
    let producer = Producer {
        shared: Arc::clone(&shared),
        tail: start,
        head_seen: start,
    };
    let consumer = Consumer {
        shared,
        head: start,
        tail_seen: start,
    };
    (producer, consumer)
}

/// The producer side of a ring.
pub struct Producer<T> {
    shared: Arc<Shared<T>>,
    tail: usize,
    /// Last head index read from the consumer.
    head_seen: usize,
}

impl<T: Send> Producer<T> {
    /// Returns the capacity of the ring in values.
    pub fn capacity(&self) -> usize {
        self.shared.slots.len()
    }

    /// Returns the number of values that can be pushed; reads the consumer's index only if
    /// the known count is 0.
    #[inline]
    pub fn room(&mut self) -> usize {
        match self.room_seen() {
            0 => self.refresh_head(),
            room => room,
        }
    }

    #[inline]
    fn room_seen(&self) -> usize {
        self.capacity() - self.tail.wrapping_sub(self.head_seen)
    }

    /// Reads the consumer's index; returns the number of free slots.
    #[inline]
    fn refresh_head(&mut self) -> usize {
        // Acquire: partner is the Release in `Consumer::release_slots`; the
        // consumer has read the values in the slots that it released.
        self.head_seen = self.shared.head.load(Ordering::Acquire);
        self.room_seen()
    }

    /// Appends a value.
    ///
    /// # Errors
    /// The value, if the ring is full.
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), T> {
        if self.room() == 0 {
            return Err(value);
        }
        // SAFETY: this is the producer, and `room` returned that the slot at `tail` is empty.
        unsafe { self.shared.write(self.tail, value) };
        self.publish(1);
        Ok(())
    }

    /// Appends values of `source` while slots are free, and publishes them together;
    /// returns how many. Values that did not fit stay in `source`.
    #[inline]
    pub fn push_batch(&mut self, source: &mut impl Iterator<Item = T>) -> usize {
        let (mut written, mut room) = (0, self.room_seen());
        loop {
            if written == room {
                room = self.refresh_head();
                if written == room {
                    break;
                }
            }
            let Some(value) = source.next() else { break };
            // SAFETY: this is the producer, and more than `written` slots from
            // `tail` on are empty.
            unsafe { self.shared.write(self.tail.wrapping_add(written), value) };
            written += 1;
        }
        self.publish(written);
        written
    }

    #[inline]
    fn publish(&mut self, count: usize) {
        self.tail = self.tail.wrapping_add(count);
        // Release: partner is the Acquire in `Consumer::waiting`; the slots are
        // written before the consumer reads the new index.
        self.shared.tail.store(self.tail, Ordering::Release);
    }
}

/// The consumer side of a ring.
pub struct Consumer<T> {
    shared: Arc<Shared<T>>,
    head: usize,
    /// Last tail index read from the producer.
    tail_seen: usize,
}

impl<T: Send> Consumer<T> {
    /// Returns the number of values that can be popped; reads the producer's index only if
    /// the known count is 0.
    #[inline]
    pub fn waiting(&mut self) -> usize {
        let waiting = self.tail_seen.wrapping_sub(self.head);
        if waiting > 0 {
            return waiting;
        }
        // Acquire: partner is the Release in `Producer::publish`.
        self.tail_seen = self.shared.tail.load(Ordering::Acquire);
        self.tail_seen.wrapping_sub(self.head)
    }

    /// Removes and returns the oldest value.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.waiting() == 0 {
            return None;
        }
        // SAFETY: this is the consumer, and `waiting` returned that the slot at
        // `head` holds a published value; `release_slots` moves past it.
        let value = unsafe { self.shared.read(self.head) };
        self.release_slots(1);
        Some(value)
    }

    /// Removes at most `max` values, oldest first, and releases their slots together.
    #[inline]
    pub fn pop_batch(&mut self, max: usize, mut take: impl FnMut(T)) -> usize {
        let count = self.waiting().min(max);
        let mut batch = PopGuard {
            consumer: self,
            count: 0,
        };
        while batch.count < count {
            take(batch.next());
        }
        count
    }

    #[inline]
    fn release_slots(&mut self, count: usize) {
        self.head = self.head.wrapping_add(count);
        // Release: partner is the Acquire in `Producer::refresh_head`; the values
        // were read before the producer may overwrite them.
        self.shared.head.store(self.head, Ordering::Release);
    }
}

/// Values read and not yet released: releases their slots on drop, so that a
/// panic in the callback neither loses slots nor drops a value twice.
struct PopGuard<'a, T: Send> {
    consumer: &'a mut Consumer<T>,
    count: usize,
}

impl<T: Send> PopGuard<'_, T> {
    /// Reads the next value, which the caller knows to be published.
    #[inline]
    fn next(&mut self) -> T {
        let index = self.consumer.head.wrapping_add(self.count);
        self.count += 1;
        // SAFETY: `pop_batch` stops at the number of published values, and
        // `count` has moved past this one.
        unsafe { self.consumer.shared.read(index) }
    }
}

impl<T: Send> Drop for PopGuard<'_, T> {
    fn drop(&mut self) {
        if self.count > 0 {
            self.consumer.release_slots(self.count);
        }
    }
}

impl<T> fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer")
            .field("tail", &self.tail)
            .finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("head", &self.head)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[test]
    fn push_to_a_full_ring_returns_the_value() {
        let (mut producer, mut consumer) = spsc(2);
        assert_eq!(producer.capacity(), 2);
        assert_eq!(producer.push(1), Ok(()));
        assert_eq!(producer.push(2), Ok(()));
        assert_eq!(producer.push(3), Err(3));
        assert_eq!(consumer.pop(), Some(1));
        assert_eq!(producer.push(3), Ok(()));
        assert_eq!(consumer.pop(), Some(2));
        assert_eq!(consumer.pop(), Some(3));
        assert_eq!(consumer.pop(), None);
    }

    #[test]
    fn capacities_are_rounded_up() {
        for (asked, given) in [(0, 1), (1, 1), (3, 4), (256, 256), (257, 512)] {
            assert_eq!(spsc::<u8>(asked).0.capacity(), given);
        }
    }

    #[test]
    fn values_left_in_the_ring_are_dropped_once() {
        let value = Arc::new(());
        let (mut producer, mut consumer) = spsc(8);
        for _ in 0..6 {
            producer.push(Arc::clone(&value)).expect("room for six");
        }
        drop(consumer.pop());
        drop(producer);
        assert_eq!(Arc::strong_count(&value), 6);
        drop(consumer);
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn panic_in_pop_batch_loses_only_the_values_read() {
        let value = Arc::new(());
        let (mut producer, mut consumer) = spsc(4);
        let mut source = (0..4).map(|_| Arc::clone(&value));
        assert_eq!(producer.push_batch(&mut source), 4);
        let taken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut count = 0;
            consumer.pop_batch(4, |_| {
                count += 1;
                assert!(count < 2, "the second value is refused");
            })
        }));
        assert!(taken.is_err());
        assert_eq!(Arc::strong_count(&value), 3);
        assert_eq!(consumer.pop_batch(4, drop), 2);
        assert_eq!(producer.room(), 4);
    }

    #[test]
    fn two_threads_move_a_million_values_in_order() {
        let (mut producer, mut consumer) = spsc(64);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut values = 0..1_000_000u32;
                while !values.is_empty() {
                    if producer.push_batch(&mut values) == 0 {
                        std::thread::yield_now();
                    }
                }
            });
            let mut next = 0u32;
            while next < 1_000_000 {
                let taken = consumer.pop_batch(48, |value| {
                    assert_eq!(value, next);
                    next += 1;
                });
                if taken == 0 {
                    std::thread::yield_now();
                }
            }
        });
    }

    #[derive(Clone, Debug)]
    enum Op {
        Push,
        PushBatch(usize),
        Pop,
        PopBatch(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            Just(Op::Push),
            (0usize..40).prop_map(Op::PushBatch),
            Just(Op::Pop),
            (0usize..40).prop_map(Op::PopBatch),
        ]
    }

    proptest! {
        /// Every sequence of operations behaves as on a queue, also where the
        /// indices wrap around.
        #[test]
        fn ring_matches_queue_model(
            capacity in 0usize..33,
            before_wrap in 0usize..100,
            ops in prop::collection::vec(op(), 1..200),
        ) {
            let (mut producer, mut consumer) =
                spsc_from::<u32>(capacity, 0usize.wrapping_sub(before_wrap));
            let capacity = producer.capacity();
            let mut oracle = VecDeque::new();
            let mut serials = 0u32..;
            for op in ops {
                match op {
                    Op::Push => {
                        let value = serials.next().expect("an endless range");
                        let pushed = producer.push(value);
                        prop_assert_eq!(pushed.is_ok(), oracle.len() < capacity);
                        if pushed.is_ok() {
                            oracle.push_back(value);
                        }
                    }
                    Op::PushBatch(count) => {
                        let values: Vec<u32> = serials.by_ref().take(count).collect();
                        let mut source = values.iter().copied();
                        let pushed = producer.push_batch(&mut source);
                        prop_assert_eq!(pushed, count.min(capacity - oracle.len()));
                        prop_assert_eq!(source.len(), count - pushed);
                        oracle.extend(&values[..pushed]);
                    }
                    Op::Pop => prop_assert_eq!(consumer.pop(), oracle.pop_front()),
                    Op::PopBatch(max) => {
                        let mut taken = Vec::new();
                        let count = consumer.pop_batch(max, |value| taken.push(value));
                        prop_assert_eq!(count, taken.len());
                        prop_assert!(count <= max);
                        // The other side's index is read lazily, so fewer values
                        // may be returned than are published, but never none.
                        prop_assert_eq!(count == 0, max == 0 || oracle.is_empty());
                        let expected: Vec<u32> = oracle.drain(..count).collect();
                        prop_assert_eq!(taken, expected);
                    }
                }
            }
        }
    }
}
