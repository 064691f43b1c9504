//! A thread that waits for an event is woken by it, whatever other events occur meanwhile. With a lost wake-up the
//! model does not end, which loom reports.

use loom::sync::Arc;
use loom::thread;

use crate::explore;
use crate::sync::{AtomicU32, Ordering};
use crate::waiters::{Event, Waiters};

/// Two queues of one VI, and a completion queue.
const EVENTS: [Event; 3] = [
    Event::on_work_queue(0, false),
    Event::on_work_queue(0, true),
    Event::on_completion_queue(0),
];

struct Nic {
    waiters: Waiters,
    occurred: [AtomicU32; EVENTS.len()],
}

impl Nic {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            waiters: Waiters::new(),
            occurred: core::array::from_fn(|_| AtomicU32::new(0)),
        })
    }

    fn signal(&self, index: usize) {
        self.occurred[index].store(1, Ordering::Release);
        self.waiters.notify(EVENTS[index]);
    }

    /// Waits as a Wait call does after it has polled.
    fn wait(&self, index: usize) {
        let check = || (self.occurred[index].load(Ordering::Acquire) == 1).then_some(());
        while self
            .waiters
            .sleep(EVENTS[index], None, check, || ())
            .is_none()
        {}
    }
}

/// Runs threads that wait for these events, and threads that each signal these events in order.
fn wait_and_signal(waiters: &'static [usize], signallers: &'static [&'static [usize]]) {
    explore(2, move || {
        let nic = Nic::new();
        let waiting = waiters.iter().map(|index| {
            let nic = Arc::clone(&nic);
            thread::spawn(move || nic.wait(*index))
        });
        let mut threads: Vec<_> = waiting.collect();
        let (own, others) = signallers.split_first().expect("this thread signals");
        for indices in others {
            let nic = Arc::clone(&nic);
            threads.push(thread::spawn(move || {
                indices.iter().for_each(|index| nic.signal(*index));
            }));
        }
        own.iter().for_each(|index| nic.signal(*index));
        for thread in threads {
            thread.join().expect("it ends");
        }
        assert!(!nic.waiters.any());
    });
}

#[test]
fn waiter_is_woken_between_other_events() {
    wait_and_signal(&[0], &[&[1, 0, 2]]);
}

#[test]
fn waiters_of_different_events_are_woken() {
    wait_and_signal(&[0, 1], &[&[1, 0]]);
}

#[test]
fn waiters_of_same_event_are_woken() {
    wait_and_signal(&[2, 2], &[&[2]]);
}

#[test]
fn waiter_is_woken_with_concurrent_notifiers() {
    wait_and_signal(&[0], &[&[1], &[0]]);
}
