//! The notify requests of a queue, and the slot for its notify thread, which calls the queue's handlers.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use vi_types::{CallError, Limit, LimitOf, LimitReached, Outcome, QueueKind, ResourceError};

use crate::handler_thread::in_handler;
use crate::nic_shared::NicShared;
use crate::reap::CqEntry;
use crate::sync::Ordering;
use crate::sys;

/// A descriptor that was taken off its queue for a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Returned {
    /// Its address.
    pub address: u64,
    /// Its status word.
    pub status: u32,
    /// The value that it was posted with.
    pub context: usize,
}

/// Called with the handle of the NIC, and with a descriptor taken off the queue, or with `None` when
/// the queue became empty.
pub type QueueHandler = Handler<Option<Returned>>;

/// Called with the handle of the NIC and an entry taken off the completion queue.
pub type CqHandler = Handler<CqEntry>;

/// A handler of a queue, called with the handle of the NIC and what was taken off the queue.
pub type Handler<F> = Box<dyn FnOnce(u64, F) + Send>;

/// A queue, named by a handle that may become stale.
pub trait Source: Copy + Send + Sync + 'static {
    /// What is taken off the queue.
    type Found: Copy + Send + 'static;

    /// Returns the NIC of the queue.
    fn nic(&self) -> &'static NicShared;
    /// Returns whether the handle is not stale.
    fn is_live(&self) -> bool;
    /// Checks whether the queue accepts a request now.
    fn admit(&self) -> Outcome<()>;
}

/// The result of polling a queue for the first request.
pub enum PollResult<F> {
    /// There is no completion.
    Pending,
    /// A completion was taken.
    Completed {
        /// The argument of the first handler.
        first: F,
        /// The argument for all other handlers, if the queue became empty.
        others: Option<F>,
    },
    /// The queue was destroyed.
    QueueEnded,
}

/// The next step of the notify thread.
pub enum Step<F> {
    /// Call a handler.
    Call(Handler<F>, F),
    /// Check the requests again.
    Recheck,
}

/// The requests, in order.
struct Requests<F> {
    /// Handlers to call with completions.
    pending: VecDeque<Handler<F>>,
    /// Handlers to call with this argument, before the pending ones: the queue had become empty.
    due: VecDeque<(Handler<F>, F)>,
    ended: bool,
}

/// The requests of a queue, which it shares with its notify thread.
pub struct Notifier<F> {
    nic: &'static NicShared,
    requests: Mutex<Requests<F>>,
    /// Signals the first request, or that the queue is destroyed.
    changed: Condvar,
}

impl<F: Copy> Notifier<F> {
    fn new(nic: &'static NicShared) -> Self {
        Self {
            nic,
            requests: Mutex::new(Requests {
                pending: VecDeque::new(),
                due: VecDeque::new(),
                ended: false,
            }),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Requests<F>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request, if the queue accepts it and the limit is not reached.
    fn push(&self, source: &impl Source<Found = F>, handler: Handler<F>) -> PushResult<F> {
        let limit = self.nic.limits.max_notifies_per_queue as usize;
        let mut requests = self.lock();
        // Under the lock, which the thread takes to reap: so both checks hold at one time.
        if let Err(error) = source.admit() {
            return PushResult::Refused(handler, error);
        }
        if requests.pending.len() + requests.due.len() >= limit {
            let key = Limit::MaxNotifiesPerQueue;
            let reached = LimitReached::all_in_use(key, limit as u64, LimitOf::Queue);
            return PushResult::Refused(handler, reached.into());
        }
        requests.pending.push_back(handler);
        self.changed.notify_one();
        PushResult::Queued
    }

    /// Waits for a request. Returns a handler that is due with its argument, or `None` if handlers wait for
    /// completions.
    ///
    /// # Errors
    /// The queue is destroyed.
    pub fn await_request(&self) -> Result<Option<(Handler<F>, F)>, QueueEnded> {
        let is_idle = |requests: &mut Requests<F>| {
            !requests.ended && requests.due.is_empty() && requests.pending.is_empty()
        };
        let requests = self.changed.wait_while(self.lock(), is_idle);
        let mut requests = requests.unwrap_or_else(PoisonError::into_inner);
        match requests.ended {
            true => Err(QueueEnded),
            false => Ok(requests.due.pop_front()),
        }
    }

    /// Takes a completion for the first request. The handler is then called in any case: a thread that
    /// destroys the queue meanwhile waits for the call. `None` if there is no completion.
    pub fn take(&self, poll: impl FnOnce() -> PollResult<F>) -> Option<Step<F>> {
        let mut requests = self.lock();
        let Some(handler) = requests.pending.pop_front() else {
            // The requests were cancelled.
            return Some(Step::Recheck);
        };
        match poll() {
            PollResult::Pending => {
                requests.pending.push_front(handler);
                None
            }
            PollResult::QueueEnded => {
                requests.pending.push_front(handler);
                Some(Step::Recheck)
            }
            PollResult::Completed { first, others } => {
                if let Some(others) = others {
                    let Requests { pending, due, .. } = &mut *requests;
                    due.extend(pending.drain(..).map(|handler| (handler, others)));
                }
                Some(Step::Call(handler, first))
            }
        }
    }
}

/// The queue was destroyed.
#[derive(Debug)]
pub struct QueueEnded;

/// A notifier of either kind of queue.
trait Cancel: Send + Sync {
    /// Ends the thread after the current call, and drops the requests.
    fn cancel(&self);
}

impl<F: Copy + Send> Cancel for Notifier<F> {
    fn cancel(&self) {
        let (pending, due) = {
            let mut requests = self.lock();
            requests.ended = true;
            let Requests { pending, due, .. } = &mut *requests;
            (core::mem::take(pending), core::mem::take(due))
        };
        self.changed.notify_all();
        self.nic.wake_all_waiters();
        // Outside of the lock: handlers may own objects of the program.
        drop((pending, due));
    }
}

/// Counts a notify thread toward the limit of its NIC until dropped.
struct ThreadCount(&'static NicShared);

impl ThreadCount {
    fn acquire(nic: &'static NicShared) -> Outcome<Self> {
        let limit = nic.limits.max_notify_threads;
        let more = |threads| (threads < limit).then_some(threads + 1);
        // Relaxed: a count, which orders nothing.
        match nic
            .notify_threads
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
        {
            Ok(_) => Ok(Self(nic)),
            Err(_) => {
                let key = Limit::MaxNotifyThreads;
                Err(LimitReached::all_in_use(key, limit, LimitOf::Nic).into())
            }
        }
    }
}

impl Drop for ThreadCount {
    fn drop(&mut self) {
        self.0.notify_threads.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A notifier with its thread.
pub struct Running<F> {
    notifier: Arc<Notifier<F>>,
    thread: JoinHandle<()>,
}

impl<F: Copy + Send + 'static> Running<F> {
    fn start<S: Source<Found = F>>(source: S, run: fn(S, &Notifier<F>)) -> Outcome<Self> {
        let nic = source.nic();
        let count = ThreadCount::acquire(nic)?;
        let notifier = Arc::new(Notifier::new(nic));
        let run = {
            let notifier = Arc::clone(&notifier);
            move || {
                let _count = count;
                run(source, &notifier);
            }
        };
        match sys::start_thread(format!("notify-{}", nic.name), run) {
            Ok(thread) => Ok(Self { notifier, thread }),
            Err(error) => Err(ResourceError::thread(&error).into()),
        }
    }

    fn end(self) -> EndedNotifier {
        let Self { notifier, thread } = self;
        EndedNotifier { notifier, thread }
    }
}

/// The result of queueing a handler.
enum PushResult<F> {
    Queued,
    /// The queue is empty, or the limit of pending requests is reached.
    Refused(Handler<F>, CallError),
    /// The queue has no thread yet.
    NoThread(Handler<F>),
}

/// The notifier of a queue, once it has one.
pub struct NotifySlot<F>(Mutex<Option<Running<F>>>);

impl<F: Copy + Send + 'static> NotifySlot<F> {
    /// Creates a slot without a notifier.
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Running<F>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a handler; `run` is what the notify thread of the queue does. A refused handler is dropped outside of
    /// the lock: it may own objects of the program.
    pub fn request<S: Source<Found = F>>(
        &self,
        source: S,
        handler: Handler<F>,
        run: fn(S, &Notifier<F>),
    ) -> Outcome<()> {
        self.request_with(source, handler, |source| Running::start(source, run))
    }

    /// As [`NotifySlot::request`]; `start` starts a thread. It is called outside of the lock: it may be
    /// slow, and a call that destroys the queue takes the lock while it holds the NIC's backend lock.
    fn request_with<S: Source<Found = F>>(
        &self,
        source: S,
        handler: Handler<F>,
        start: impl FnOnce(S) -> Outcome<Running<F>>,
    ) -> Outcome<()> {
        let mut new_thread = None;
        let mut pushed = self.try_push(source, handler, &mut new_thread)?;
        let mut started = Ok(());
        if let PushResult::NoThread(handler) = pushed {
            match start(source) {
                Ok(running) => new_thread = Some(running),
                // Another request may have started a thread nevertheless.
                Err(error) => started = Err(error),
            }
            let again = self.try_push(source, handler, &mut new_thread);
            // The thread is not needed: another request was first, or the queue is destroyed.
            join_ended(new_thread.into_iter().map(Running::end).collect());
            pushed = again?;
        }
        match pushed {
            PushResult::Queued => Ok(()),
            PushResult::Refused(_handler, error) => Err(error),
            PushResult::NoThread(_handler) => started,
        }
    }

    /// Queues a handler if the queue has a thread, or takes `new_thread`.
    fn try_push<S: Source<Found = F>>(
        &self,
        source: S,
        handler: Handler<F>,
        new_thread: &mut Option<Running<F>>,
    ) -> Outcome<PushResult<F>> {
        let mut slot = self.lock();
        // Under the lock, which a call that destroys the queue takes after the queue is not live.
        if !source.is_live() {
            return Err(CallError::InvalidParameter);
        }
        if slot.is_none() {
            *slot = new_thread.take();
        }
        Ok(match &*slot {
            Some(running) => running.notifier.push(&source, handler),
            None => match source.admit() {
                Ok(()) => PushResult::NoThread(handler),
                Err(error) => PushResult::Refused(handler, error),
            },
        })
    }

    /// Takes the notifier of a queue that is no longer live, if it has one. The caller may hold the
    /// NIC's backend lock; [`join_ended`] then ends the thread without it.
    pub fn end(&self) -> Option<EndedNotifier> {
        self.lock().take().map(Running::end)
    }
}

/// The notifier of a destroyed queue.
#[must_use = "its thread runs until `join_ended`"]
pub struct EndedNotifier {
    notifier: Arc<dyn Cancel>,
    thread: JoinHandle<()>,
}

/// Cancels the requests of destroyed queues, and waits until none of their handlers runs, unless this
/// is called from a handler. The caller holds neither the backend lock nor another lock.
pub fn join_ended(ended: Vec<EndedNotifier>) {
    for EndedNotifier { notifier, .. } in &ended {
        notifier.cancel();
    }
    if in_handler() {
        return;
    }
    for EndedNotifier { thread, .. } in ended {
        if thread.join().is_err() {
            log::error!("a notify thread panicked");
        }
    }
}

/// The notifiers of a VI's queues.
pub struct ViNotify {
    send: NotifySlot<Option<Returned>>,
    recv: NotifySlot<Option<Returned>>,
}

impl ViNotify {
    /// Creates slots without notifiers.
    pub(crate) const fn new() -> Self {
        Self {
            send: NotifySlot::new(),
            recv: NotifySlot::new(),
        }
    }

    /// Returns the slot of a work queue.
    pub fn slot(&self, queue: QueueKind) -> &NotifySlot<Option<Returned>> {
        match queue {
            QueueKind::Send => &self.send,
            QueueKind::Receive => &self.recv,
        }
    }

    /// As [`NotifySlot::end`], for both.
    pub fn end(&self) -> impl Iterator<Item = EndedNotifier> {
        [self.send.end(), self.recv.end()].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests;
