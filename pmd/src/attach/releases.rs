//! Connections that a datapath process rejects, and whose close may block.
//!
//! Before Linux 6.16 a peer can pass descriptors over any connection, and the close of a connection closes those that
//! were not received: a TCP socket that lingers, for as long as its creator wants. Such connections are closed by threads
//! of their own, of which each user has one at most, and a timer interrupts each close that waits. Connections without
//! descriptors are closed at once.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pmd_port::thread;
use vi_core::sys::{self, CallTimer};

use vi_core::control_socket::Socket;

/// Maximum number of connections that wait for their close, in all: descriptors of the process.
pub(crate) const MAX_CONNECTIONS: usize = 256;
/// Number of such connections of a user from which on another one delays the accepting thread.
const MAX_OF_USER: usize = 16;
/// Maximum of that delay; only a close that is not interrupted takes so long.
const DELAY: Duration = Duration::from_millis(100);
/// Maximum number of threads that close connections.
const MAX_THREADS: usize = 8;
/// Time after which a close that waits is interrupted.
pub(super) const INTERVAL: Duration = Duration::from_millis(5);

/// The connections that wait for their close.
pub(super) struct Releases {
    /// Time after which a close that waits is interrupted.
    interval: Duration,
    state: Mutex<State>,
    /// Notified when a connection was added or closed, and at the end.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    users: HashMap<libc::uid_t, OfUser>,
    /// Users with a connection that no thread closes, each once.
    ready: VecDeque<libc::uid_t>,
    /// Connections, including those that are being closed.
    connections: usize,
    threads: usize,
    idle_threads: usize,
    is_stopped: bool,
}

#[derive(Default)]
struct OfUser {
    waiting: VecDeque<Socket>,
    is_closing: bool,
}

impl OfUser {
    fn connections(&self) -> usize {
        self.waiting.len() + usize::from(self.is_closing)
    }
}

impl State {
    /// Returns for how long another connection of this user must wait.
    fn delay(&self, uid: libc::uid_t, begun: Instant) -> Duration {
        let of_user = self.users.get(&uid).map_or(0, OfUser::connections);
        if self.is_stopped {
            Duration::ZERO
        } else if self.connections >= MAX_CONNECTIONS {
            Duration::MAX
        } else if of_user >= MAX_OF_USER {
            DELAY.saturating_sub(begun.elapsed())
        } else {
            Duration::ZERO
        }
    }

    fn add(&mut self, uid: libc::uid_t, socket: Socket) {
        let of_user = self.users.entry(uid).or_default();
        of_user.waiting.push_back(socket);
        if of_user.connections() == 1 {
            self.ready.push_back(uid);
        }
        self.connections += 1;
    }

    /// Takes the next connection to close.
    fn next(&mut self) -> Option<(libc::uid_t, Socket)> {
        let uid = self.ready.pop_front()?;
        let of_user = self.users.get_mut(&uid)?;
        let socket = of_user.waiting.pop_front()?;
        of_user.is_closing = true;
        Some((uid, socket))
    }

    fn finish(&mut self, uid: libc::uid_t) {
        self.connections -= 1;
        if let Some(of_user) = self.users.get_mut(&uid) {
            of_user.is_closing = false;
            if of_user.waiting.is_empty() {
                self.users.remove(&uid);
            } else {
                self.ready.push_back(uid);
            }
        }
    }
}

impl Releases {
    /// Creates the list without connections; `interval`: time after which a close that waits is interrupted.
    pub(super) fn new(interval: Duration) -> Self {
        Self {
            interval,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes a connection of a user. If its close may block, a thread closes it; waits while too many connections are
    /// being closed.
    pub(super) fn close(self: &Arc<Self>, uid: libc::uid_t, socket: Socket) {
        // Nothing more can be sent to it.
        socket.shut_down();
        if !socket.may_hold_descriptors() {
            return;
        }
        let begun = Instant::now();
        let mut state = self.state();
        loop {
            let delay = state.delay(uid, begun);
            if delay.is_zero() {
                break;
            }
            let waited = self.changed.wait_timeout(state, delay.min(DELAY));
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        if state.is_stopped {
            drop(state);
            drop(socket.into_foreign());
            return;
        }
        state.add(uid, socket);
        // Each idle thread takes one of the users, also one that has not noticed it yet.
        if state.ready.len() > state.idle_threads && state.threads < MAX_THREADS {
            state.threads += 1;
            drop(state);
            self.start_thread();
        }
        self.changed.notify_all();
    }

    /// Starts a thread that is counted already. Without any thread, leaves the connections to the deferred-close thread.
    fn start_thread(self: &Arc<Self>) {
        let releases = Arc::clone(self);
        let start = || thread::start("release".to_owned(), move || releases.run());
        let Err(error) = sys::with_signals_blocked(start) else {
            return;
        };
        log::debug!("rejected connections: no thread: {error}");
        let mut left = Vec::new();
        let mut state = self.state();
        state.threads -= 1;
        while state.threads == 0
            && let Some((uid, socket)) = state.next()
        {
            state.finish(uid);
            left.push(socket.into_foreign());
        }
        drop(state);
        drop(left);
    }

    /// Closes connections until [`Self::stop`].
    fn run(&self) {
        let timer = CallTimer::new();
        if let Err(error) = &timer {
            log::warn!("rejected connections: a close that waits is not interrupted: {error}");
        }
        let mut state = self.state();
        loop {
            if let Some((uid, socket)) = state.next() {
                drop(state);
                match &timer {
                    Ok(timer) => timer.interrupt_each(self.interval, || drop(socket)),
                    Err(_) => drop(socket),
                }
                state = self.state();
                state.finish(uid);
                self.changed.notify_all();
            } else if state.is_stopped {
                state.threads -= 1;
                return;
            } else {
                state.idle_threads += 1;
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                state.idle_threads -= 1;
            }
        }
    }

    /// Ends the threads when they have closed all connections.
    pub(super) fn stop(&self) {
        self.state().is_stopped = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
impl Releases {
    /// The number of connections that wait for their close.
    pub(super) fn connections(&self) -> usize {
        self.state().connections
    }
}

#[cfg(test)]
mod tests;
