//! Releases descriptors that other processes made or share, on a thread that nothing waits for.
//!
//! Closing the last copy of a file runs what its maker asked for: a TCP socket with `SO_LINGER` blocks for as
//! long as its peer reads nothing, a file in user space for as long as its server likes, and a Unix socket
//! closes what was sent to it and not received. A poller, a call of the program and a fork must
//! not wait for that. They drop a [`Descriptor`] that is marked as foreign, and the thread closes it.
//!
//! The queue takes every descriptor, so that a drop never blocks and never fails. It is bounded
//! where descriptors come in: whoever receives more of them from other processes stops while
//! [`is_full`].

use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::fork::{self, Descriptor};
use crate::thread;

/// Descriptors that wait for their release, above which no more are to be received.
pub const LIMIT: usize = 64;

/// Descriptors that wait, in order.
#[derive(Debug)]
struct Queue {
    waiting: VecDeque<Descriptor>,
    /// One of them is being closed.
    is_closing: bool,
    /// The thread of this process runs.
    has_thread: bool,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue {
    waiting: VecDeque::new(),
    is_closing: false,
    has_thread: false,
});

/// Notified when a descriptor is queued.
static QUEUED: Condvar = Condvar::new();

fn queue() -> MutexGuard<'static, Queue> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The queue's lock, held over a fork.
pub(crate) struct Held(MutexGuard<'static, Queue>);

/// Keeps every other thread from the queue.
pub(crate) fn hold() -> Held {
    Held(queue())
}

impl Held {
    /// In a child of fork(2): the thread is the parent's.
    pub(crate) fn in_child(&mut self) {
        self.0.has_thread = false;
        self.0.is_closing = false;
    }
}

/// Starts the thread of this process, unless it runs.
///
/// # Errors
/// The system has no thread or no descriptor left.
pub fn start() -> io::Result<()> {
    fork::watch()?;
    let mut queue = queue();
    if queue.has_thread {
        return Ok(());
    }
    fork::prepare()?;
    queue.waiting.reserve(LIMIT);
    thread::start("fd-release".into(), run)?;
    queue.has_thread = true;
    Ok(())
}

/// Reports whether as many descriptors wait as may: their makers keep the thread from closing them.
pub fn is_full() -> bool {
    let queue = queue();
    queue.waiting.len() + usize::from(queue.is_closing) >= LIMIT
}

/// Queues a descriptor. Where no thread was started it stays open.
pub(crate) fn later(descriptor: Descriptor) {
    queue().waiting.push_back(descriptor);
    QUEUED.notify_one();
}

fn run() {
    let mut queue = queue();
    loop {
        queue.is_closing = false;
        match queue.waiting.pop_front() {
            Some(descriptor) => {
                queue.is_closing = true;
                drop(queue);
                descriptor.close_apart();
                queue = self::queue();
            }
            None => queue = QUEUED.wait(queue).unwrap_or_else(PoisonError::into_inner),
        }
    }
}
