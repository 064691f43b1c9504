//! The slot of a queue for its notify thread, which calls the queue's handlers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use vi_types::{CallError, Limit, LimitOf, LimitReached, Outcome, QueueKind, ResourceError};

use super::{Cancel, Handler, Notifier, Source, WorkSource};
use crate::device::Device;
use crate::nic_handle;
use crate::sync::Ordering;
use crate::sys;

/// Counts a notify thread toward the limit of its NIC until dropped.
struct ThreadCount(&'static Device);

impl ThreadCount {
    fn acquire(device: &'static Device) -> Outcome<Self> {
        let limit = device.config.max_notify_threads;
        let more = |threads| (threads < limit).then_some(threads + 1);
        // Relaxed: a count, which orders nothing.
        match device
            .notify_threads
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
        {
            Ok(_) => Ok(Self(device)),
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
struct Running<S: Source> {
    notifier: Arc<Notifier<S>>,
    thread: JoinHandle<()>,
}

impl<S: Source> Running<S> {
    fn start(source: S) -> Outcome<Self> {
        let device = source.device();
        let count = ThreadCount::acquire(device)?;
        let name = &device.config.name;
        let notifier = Arc::new(Notifier::new(source));
        let run = {
            let notifier = Arc::clone(&notifier);
            move || {
                let _count = count;
                notifier.run();
            }
        };
        match sys::start_thread(format!("notify-{name}"), run) {
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
pub(super) enum PushResult<S: Source> {
    Queued,
    /// The queue is empty, or the limit of pending requests is reached.
    Refused(Handler<S::Found>, CallError),
    /// The queue has no thread yet.
    NoThread(Handler<S::Found>),
}

/// The notifier of a queue, once it has one.
pub(crate) struct NotifySlot<S: Source>(Mutex<Option<Running<S>>>);

impl<S: Source> NotifySlot<S> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Running<S>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a handler. A refused one is dropped outside of the lock: it may own objects of the
    /// program.
    pub(super) fn request(&self, source: S, handler: Handler<S::Found>) -> Outcome<()> {
        self.request_with(source, handler, Running::start)
    }

    /// As [`NotifySlot::request`]; `start` starts a thread. It is called outside of the lock: it may be
    /// slow, and a call that destroys the queue takes the lock while it holds the NIC's backend lock.
    fn request_with(
        &self,
        source: S,
        handler: Handler<S::Found>,
        start: impl FnOnce(S) -> Outcome<Running<S>>,
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
    fn try_push(
        &self,
        source: S,
        handler: Handler<S::Found>,
        new_thread: &mut Option<Running<S>>,
    ) -> Outcome<PushResult<S>> {
        let mut slot = self.lock();
        // Under the lock, which a call that destroys the queue takes after the queue is not live.
        if !source.is_live() {
            return Err(CallError::InvalidParameter);
        }
        if slot.is_none() {
            *slot = new_thread.take();
        }
        Ok(match &*slot {
            Some(running) => running.notifier.push(handler),
            None => match source.admit() {
                Ok(()) => PushResult::NoThread(handler),
                Err(error) => PushResult::Refused(handler, error),
            },
        })
    }

    /// Takes the notifier of a queue that is no longer live, if it has one. The caller may hold the
    /// NIC's backend lock; [`join_ended`] then ends the thread without it.
    pub(crate) fn end(&self) -> Option<EndedNotifier> {
        self.lock().take().map(Running::end)
    }
}

/// The notifier of a destroyed queue.
#[must_use = "its thread runs until `join_ended`"]
pub(crate) struct EndedNotifier {
    notifier: Arc<dyn Cancel>,
    thread: JoinHandle<()>,
}

/// Cancels the requests of destroyed queues, and waits until none of their handlers runs, unless this
/// is called from a handler. The caller holds neither the backend lock nor another lock.
pub(crate) fn join_ended(ended: Vec<EndedNotifier>) {
    for EndedNotifier { notifier, .. } in &ended {
        notifier.cancel();
    }
    if nic_handle::in_handler() {
        return;
    }
    for EndedNotifier { thread, .. } in ended {
        if thread.join().is_err() {
            log::error!("a notify thread panicked");
        }
    }
}

/// The notifiers of a VI's queues.
pub(crate) struct ViNotify {
    send: NotifySlot<WorkSource>,
    recv: NotifySlot<WorkSource>,
}

impl ViNotify {
    pub(crate) const fn new() -> Self {
        Self {
            send: NotifySlot::new(),
            recv: NotifySlot::new(),
        }
    }

    pub(super) fn slot(&self, queue: QueueKind) -> &NotifySlot<WorkSource> {
        match queue {
            QueueKind::Send => &self.send,
            QueueKind::Receive => &self.recv,
        }
    }

    /// As [`NotifySlot::end`], for both.
    pub(crate) fn end(&self) -> impl Iterator<Item = EndedNotifier> {
        [self.send.end(), self.recv.end()].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests;
