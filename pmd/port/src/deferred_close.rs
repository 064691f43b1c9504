//! Closes descriptors that other processes created or share, on a thread of its own.
//!
//! Closing the last copy of a file runs what its creator requested: a TCP socket with `SO_LINGER` blocks for as
//! long as its peer reads nothing, a FUSE file for as long as its server wants, and a Unix socket closes the
//! descriptors that were sent to it and not received. A poller, an API call and a fork must not wait for
//! that. They drop a [`Descriptor`] that is marked as foreign, and the thread closes it.
//!
//! The queue is unbounded, so that a drop never blocks and never fails. The limit applies where descriptors
//! are received: receivers of descriptors from other processes stop receiving while [`is_full`].

use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::fork::{self, Descriptor};
use crate::thread;

/// Number of queued descriptors from which on no more are to be received.
pub const LIMIT: usize = 64;

/// The queue of descriptors to close, in order.
#[derive(Debug)]
struct Queue {
    waiting: VecDeque<Descriptor>,
    /// One of them is being closed.
    is_closing: bool,
    /// The closing thread of this process runs.
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

/// The locked queue, held across a fork.
pub(crate) struct QueueLock(MutexGuard<'static, Queue>);

/// Locks the queue.
pub(crate) fn lock_queue() -> QueueLock {
    QueueLock(queue())
}

impl QueueLock {
    /// Resets the queue in a forked child, which has no closing thread.
    pub(crate) fn in_child(&mut self) {
        self.0.has_thread = false;
        self.0.is_closing = false;
    }
}

/// Starts the closing thread of this process, unless it runs.
///
/// # Errors
/// The system has no thread or no descriptor left.
pub fn start() -> io::Result<()> {
    fork::install_handlers()?;
    let mut queue = queue();
    if queue.has_thread {
        return Ok(());
    }
    fork::create_placeholder()?;
    queue.waiting.reserve(LIMIT);
    thread::start("fd-release".into(), run)?;
    queue.has_thread = true;
    Ok(())
}

/// Returns whether [`LIMIT`] descriptors are queued: their creators delay the thread.
pub fn is_full() -> bool {
    let queue = queue();
    queue.waiting.len() + usize::from(queue.is_closing) >= LIMIT
}

/// Queues a descriptor. It stays open if no thread was started.
pub(crate) fn enqueue(descriptor: Descriptor) {
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
                descriptor.close_unlocked();
                queue = self::queue();
            }
            None => queue = QUEUED.wait(queue).unwrap_or_else(PoisonError::into_inner),
        }
    }
}
