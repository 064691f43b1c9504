//! Whoever sleeps for something wakes when it happens, whatever else happens meanwhile. A model in which somebody sleeps
//! on does not end, which loom reports.

use loom::sync::Arc;
use loom::thread;

use crate::explore;
use crate::sleepers::{Event, Sleepers};
use crate::sync::{AtomicU32, Ordering};

/// Two queues of one VI, and a completion queue.
const EVENTS: [Event; 3] = [
    Event::on_work_queue(0, false),
    Event::on_work_queue(0, true),
    Event::on_completion_queue(0),
];

struct Nic {
    sleepers: Sleepers,
    happened: [AtomicU32; EVENTS.len()],
}

impl Nic {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            sleepers: Sleepers::new(),
            happened: core::array::from_fn(|_| AtomicU32::new(0)),
        })
    }

    fn happens(&self, place: usize) {
        self.happened[place].store(1, Ordering::Release);
        self.sleepers.tell(EVENTS[place]);
    }

    /// As a Wait call does, when it has spun for long enough.
    fn wait(&self, place: usize) {
        let look = || (self.happened[place].load(Ordering::Acquire) == 1).then_some(());
        while self
            .sleepers
            .sleep(EVENTS[place], None, look, || ())
            .is_none()
        {}
    }
}

/// Threads that wait for these, and threads that each let these happen one after the other.
fn wait_and_tell(waiters: &'static [usize], tellers: &'static [&'static [usize]]) {
    explore(2, move || {
        let nic = Nic::new();
        let waiting = waiters.iter().map(|place| {
            let nic = Arc::clone(&nic);
            thread::spawn(move || nic.wait(*place))
        });
        let mut threads: Vec<_> = waiting.collect();
        let (own, others) = tellers.split_first().expect("this thread tells");
        for places in others {
            let nic = Arc::clone(&nic);
            threads.push(thread::spawn(move || {
                places.iter().for_each(|place| nic.happens(*place));
            }));
        }
        own.iter().for_each(|place| nic.happens(*place));
        for thread in threads {
            thread.join().expect("it ends");
        }
        assert!(!nic.sleepers.any());
    });
}

#[test]
fn one_waits_while_something_else_happens_before_and_after() {
    wait_and_tell(&[0], &[&[1, 0, 2]]);
}

#[test]
fn two_wait_for_different_things() {
    wait_and_tell(&[0, 1], &[&[1, 0]]);
}

#[test]
fn two_wait_for_the_same() {
    wait_and_tell(&[2, 2], &[&[2]]);
}

#[test]
fn one_waits_while_two_tell() {
    wait_and_tell(&[0], &[&[1], &[0]]);
}
