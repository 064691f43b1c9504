//! Where a queue keeps the thread that calls its handlers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::{Cancel, Handler, Notifier, Source, WorkSource};
use crate::control::{ControlError, Outcome};
use crate::device::Device;
use crate::instance;
use crate::resource_error::{Limit, LimitOf, LimitReached, ResourceError};
use crate::sync::Ordering;
use crate::sys;
use crate::work::Queue;

/// A notify thread that counts among those of its NIC until it ends.
struct Counted(&'static Device);

impl Counted {
    fn one_more(device: &'static Device) -> Outcome<Self> {
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

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.notify_threads.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Running<S: Source> {
    notifier: Arc<Notifier<S>>,
    thread: JoinHandle<()>,
}

impl<S: Source> Running<S> {
    fn start(source: S) -> Outcome<Self> {
        let device = source.device();
        let counted = Counted::one_more(device)?;
        let name = &device.config.name;
        let notifier = Arc::new(Notifier::new(source));
        let run = {
            let notifier = Arc::clone(&notifier);
            move || {
                let _counted = counted;
                notifier.run();
            }
        };
        match sys::start_thread(format!("notify-{name}"), run) {
            Ok(thread) => Ok(Self { notifier, thread }),
            Err(error) => Err(ResourceError::thread(&error).into()),
        }
    }

    fn end(self) -> Ended {
        let Self { notifier, thread } = self;
        Ended { notifier, thread }
    }
}

/// What became of a handler that a queue was asked to call.
pub(super) enum Offered<S: Source> {
    Queued,
    /// The queue is empty, or as many wait as may.
    Refused(Handler<S::Found>, ControlError),
    /// The queue has no thread yet.
    NoThread(Handler<S::Found>),
}

/// Where a queue keeps its notifier, once it has one.
pub(crate) struct NotifySlot<S: Source>(Mutex<Option<Running<S>>>);

impl<S: Source> NotifySlot<S> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Running<S>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a handler. A refused one is dropped outside of the lock: it may own things of
    /// the program's.
    pub(super) fn ask(&self, source: S, handler: Handler<S::Found>) -> Outcome<()> {
        self.ask_starting(source, handler, Running::start)
    }

    /// As [`NotifySlot::ask`], with what starts a thread. That happens outside of the lock: the
    /// system may take its time, and whoever ends the queue takes the lock with the NIC's turn.
    fn ask_starting(
        &self,
        source: S,
        handler: Handler<S::Found>,
        start: impl FnOnce(S) -> Outcome<Running<S>>,
    ) -> Outcome<()> {
        let mut fresh = None;
        let mut offered = self.offer(source, handler, &mut fresh)?;
        let mut started = Ok(());
        if let Offered::NoThread(handler) = offered {
            match start(source) {
                Ok(running) => fresh = Some(running),
                // Another request may have started one all the same.
                Err(error) => started = Err(error),
            }
            let again = self.offer(source, handler, &mut fresh);
            // Another request was first, or the queue ended.
            settle(fresh.into_iter().map(Running::end).collect());
            offered = again?;
        }
        match offered {
            Offered::Queued => Ok(()),
            Offered::Refused(_handler, error) => Err(error),
            Offered::NoThread(_handler) => started,
        }
    }

    /// Queues a handler if the queue has a thread, or gets this one.
    fn offer(
        &self,
        source: S,
        handler: Handler<S::Found>,
        fresh: &mut Option<Running<S>>,
    ) -> Outcome<Offered<S>> {
        let mut slot = self.lock();
        // Under the lock, which whoever ends the queue takes when it is not live any more.
        if !source.is_live() {
            return Err(ControlError::InvalidParameter);
        }
        if slot.is_none() {
            *slot = fresh.take();
        }
        Ok(match &*slot {
            Some(running) => running.notifier.push(handler),
            None => match source.admit() {
                Ok(()) => Offered::NoThread(handler),
                Err(error) => Offered::Refused(handler, error),
            },
        })
    }

    /// Ends the notifier of a queue that is not live any more, if it has one. The caller may
    /// hold the NIC's turn; [`settle`] does the rest without it.
    pub(crate) fn end(&self) -> Option<Ended> {
        self.lock().take().map(Running::end)
    }
}

/// The notifier of a queue that ended.
#[must_use = "its thread goes on until `settle`"]
pub(crate) struct Ended {
    notifier: Arc<dyn Cancel>,
    thread: JoinHandle<()>,
}

/// Cancels what was asked of queues that ended, and waits until none of their handlers runs,
/// unless this is called from one. The caller holds no turn and no lock.
pub(crate) fn settle(ended: Vec<Ended>) {
    for Ended { notifier, .. } in &ended {
        notifier.cancel();
    }
    if instance::in_handler() {
        return;
    }
    for Ended { thread, .. } in ended {
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

    pub(super) fn slot(&self, queue: Queue) -> &NotifySlot<WorkSource> {
        match queue {
            Queue::Send => &self.send,
            Queue::Receive => &self.recv,
        }
    }

    /// As [`NotifySlot::end`], for both.
    pub(crate) fn end(&self) -> impl Iterator<Item = Ended> {
        [self.send.end(), self.recv.end()].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests;
