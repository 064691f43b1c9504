//! Notify handlers, called for completions (VIPL 3.5.9 to 3.5.12).
//!
//! A queue gets a thread of its own with its first request; the thread calls one handler for each
//! completion, in the order of the requests, and ends with the queue. A queue without requests has
//! no thread.
//!
//! ```text
//!          a request              a completion, or the queue is empty
//!   idle ------------> waiting -------------------------------------> calling
//!     ^                   ^                                              |
//!     |                   +------------- more requests ------------------+
//!     +--------------------------------- no requests --------------------+
//!
//!   The queue is destroyed: in any state the thread ends, after the current call.
//! ```
//!
//! The call that destroys the queue waits for that handler, so that data of the handler may be freed
//! afterwards; unless it is made from a handler itself, which would wait for its own end, or for
//! another handler that waits for it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::device::Device;
use crate::nic_handle;
use crate::progress::wait;
use crate::queue_calls::{self, CqEntry, Done};
use crate::sync::Ordering;
use crate::vi::{CqShared, ViShared, cq_of, vi_of};
use crate::waiters::Event;

mod slot;

use slot::PushResult;
pub(crate) use slot::{EndedNotifier, NotifySlot, ViNotify, join_ended};
use vi_types::{CallError, Limit, LimitOf, LimitReached, Outcome, QueueKind, ResourceError};

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

type Handler<F> = Box<dyn FnOnce(u64, F) + Send>;

/// The result of polling a queue for the first request.
pub(crate) enum PollResult<F> {
    Pending,
    Completed {
        first: F,
        /// The argument for all other handlers, if the queue became empty.
        others: Option<F>,
    },
    /// The queue was destroyed.
    QueueEnded,
}

/// A queue, named by a handle that may become stale.
pub(crate) trait Source: Copy + Send + Sync + 'static {
    type Found: Copy + Send + 'static;

    fn device(&self) -> &'static Device;
    /// The NIC handle to which the queue belongs.
    fn nic(&self) -> u64;
    fn is_live(&self) -> bool;
    /// Checks whether the queue accepts a request now.
    fn admit(&self) -> Outcome<()>;
    fn poll(&self) -> PollResult<Self::Found>;
    /// The event after which [`Source::poll`] may return a completion.
    fn event(&self) -> Event;
}

/// A work queue of a VI.
#[derive(Clone, Copy)]
pub(crate) struct WorkSource {
    vi: &'static ViShared,
    handle: u64,
    nic: u64,
    queue: QueueKind,
}

impl Source for WorkSource {
    type Found = Option<Returned>;

    fn event(&self) -> Event {
        self.vi.event(self.queue)
    }

    fn device(&self) -> &'static Device {
        self.vi.device
    }

    fn nic(&self) -> u64 {
        self.nic
    }

    fn is_live(&self) -> bool {
        self.vi.is_live(self.handle)
    }

    fn admit(&self) -> Outcome<()> {
        if self.vi.queue(self.queue).is_empty() {
            return Err(CallError::QueueEmpty);
        }
        Ok(())
    }

    fn poll(&self) -> PollResult<Self::Found> {
        let (done, emptied) =
            match queue_calls::reap_and_check_empty(self.vi, self.handle, self.queue) {
                Ok(found) => found,
                Err(_gone) => return PollResult::QueueEnded,
            };
        let first = match done {
            Done::NotDone => return PollResult::Pending,
            Done::Empty => None,
            Done::Completed {
                descriptor,
                status,
                context,
            } => Some(Returned {
                address: descriptor as u64,
                status,
                context,
            }),
        };
        PollResult::Completed {
            first,
            others: emptied.then_some(None),
        }
    }
}

/// A completion queue.
#[derive(Clone, Copy)]
pub(crate) struct CqSource {
    cq: &'static CqShared,
    handle: u64,
    nic: u64,
}

impl Source for CqSource {
    type Found = CqEntry;

    fn event(&self) -> Event {
        self.cq.event()
    }

    fn device(&self) -> &'static Device {
        self.cq.device
    }

    fn nic(&self) -> u64 {
        self.nic
    }

    fn is_live(&self) -> bool {
        self.cq.is_live(self.handle)
    }

    fn admit(&self) -> Outcome<()> {
        Ok(())
    }

    fn poll(&self) -> PollResult<CqEntry> {
        match queue_calls::take(self.cq, self.handle) {
            Ok(None) => PollResult::Pending,
            Ok(Some(first)) => PollResult::Completed {
                first,
                others: None,
            },
            Err(_gone) => PollResult::QueueEnded,
        }
    }
}

/// The requests, in order.
struct Requests<F> {
    /// Handlers to call with completions.
    pending: VecDeque<Handler<F>>,
    /// Handlers to call with this argument, before the pending ones: the queue had become empty.
    due: VecDeque<(Handler<F>, F)>,
    ended: bool,
}

/// The state shared by a queue and its notify thread.
struct Notifier<S: Source> {
    source: S,
    requests: Mutex<Requests<S::Found>>,
    /// Signals the first request, or that the queue is destroyed.
    changed: Condvar,
}

/// The next step of the notify thread.
enum Step<F> {
    Call(Handler<F>, F),
    /// Check the requests again.
    Recheck,
}

impl<S: Source> Notifier<S> {
    fn new(source: S) -> Self {
        Self {
            source,
            requests: Mutex::new(Requests {
                pending: VecDeque::new(),
                due: VecDeque::new(),
                ended: false,
            }),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Requests<S::Found>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request, if the queue accepts it and the limit is not reached.
    fn push(&self, handler: Handler<S::Found>) -> PushResult<S> {
        let limit = self.source.device().config.max_notifies_per_queue as usize;
        let mut requests = self.lock();
        // Under the lock, which the thread takes to reap: so both checks hold at one time.
        if let Err(error) = self.source.admit() {
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

    /// Runs the notify thread until the queue is destroyed.
    fn run(&self) {
        nic_handle::enter_handlers();
        while let Some((handler, found)) = self.next() {
            let nic = self.source.nic();
            // The handler, and what it owns, is dropped before the next one is called.
            if catch_unwind(AssertUnwindSafe(move || handler(nic, found))).is_err() {
                let line = format_args!("a notify handler panicked");
                self.source.device().log_limited(log::Level::Error, line);
            }
        }
    }

    /// Waits for the next handler to call and its argument; `None` once the queue is destroyed.
    fn next(&self) -> Option<(Handler<S::Found>, S::Found)> {
        loop {
            // Before the lock: in a child forked by a handler its holder may not exist.
            if !self.source.is_live() {
                return None;
            }
            let mut requests = self.lock();
            while !requests.ended && requests.due.is_empty() && requests.pending.is_empty() {
                requests = self
                    .changed
                    .wait(requests)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            if requests.ended {
                return None;
            }
            let due = requests.due.pop_front();
            drop(requests);
            if due.is_some() {
                return due;
            }
            // Without a limit the wait does not time out.
            let (device, event) = (self.source.device(), self.source.event());
            let step = wait(device, event, None, || self.poll_source());
            if let Ok(Step::Call(handler, found)) = step {
                return Some((handler, found));
            }
        }
    }

    /// Takes a completion for the first request. The handler is then called in any case: a thread that
    /// destroys the queue meanwhile waits for the call.
    fn poll_source(&self) -> Option<Step<S::Found>> {
        let mut requests = self.lock();
        let Some(handler) = requests.pending.pop_front() else {
            // The requests were cancelled.
            return Some(Step::Recheck);
        };
        match self.source.poll() {
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

/// A notifier of either kind of queue.
trait Cancel: Send + Sync {
    /// Ends the thread after the current call, and drops the requests.
    fn cancel(&self);
}

impl<S: Source> Cancel for Notifier<S> {
    fn cancel(&self) {
        let (pending, due) = {
            let mut requests = self.lock();
            requests.ended = true;
            let Requests { pending, due, .. } = &mut *requests;
            (core::mem::take(pending), core::mem::take(due))
        };
        self.changed.notify_all();
        self.source.device().wake_all_waiters();
        // Outside of the lock: handlers may own objects of the program.
        drop((pending, due));
    }
}

/// Requests a call of `handler` with the next descriptor of a work queue that no earlier request gets,
/// on a thread of the queue (VIPL 3.5.9, 3.5.10). When the queue becomes empty, the handlers of further
/// requests are called with `None`; when the VI is destroyed, they are dropped.
pub fn notify(handle: u64, queue: QueueKind, handler: QueueHandler) -> Outcome<()> {
    let vi = vi_of(handle).ok_or(CallError::InvalidParameter)?;
    let cq = match queue {
        QueueKind::Send => &vi.send_cq,
        QueueKind::Receive => &vi.recv_cq,
    };
    if cq.load(Ordering::Relaxed) != 0 {
        return Err(ResourceError::ReportsToCq.into());
    }
    let nic = vi.nic_handle();
    vi.notify.slot(queue).request(
        WorkSource {
            vi,
            handle,
            nic,
            queue,
        },
        handler,
    )
}

/// Requests a call of `handler` with the next entry of a completion queue that no earlier request gets,
/// on a thread of the queue (VIPL 3.5.11). When the queue is destroyed, it is dropped.
pub fn cq_notify(handle: u64, handler: CqHandler) -> Outcome<()> {
    let cq = cq_of(handle).ok_or(CallError::InvalidParameter)?;
    let nic = cq.nic_handle();
    cq.notify.request(CqSource { cq, handle, nic }, handler)
}
