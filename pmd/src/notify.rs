//! Handlers that are called when something completes (VIPL 3.5.9 to 3.5.12).
//!
//! A queue gets a thread of its own with its first request; the thread calls one handler for
//! each completion, in the order of the requests, and ends with the queue. Nothing of this is
//! made for a queue that is never asked.
//!
//! ```text
//!          a request              a completion, or the queue is empty
//!   idle ------------> waiting -------------------------------------> calling
//!     ^                   ^                                              |
//!     |                   +-------- there are more requests -------------+
//!     +---------------------------- there are none ----------------------+
//!
//!   The queue ends: from any of them the thread ends, after the call it is in.
//! ```
//!
//! What ends the queue waits for that call, so that whatever the handler uses may be freed
//! afterwards; unless it is called from a handler itself, which would wait for its own end or
//! for another handler that waits for it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::control::{ControlError, Outcome};
use crate::device::Device;
use crate::instance;
use crate::progress::wait;
use crate::resource_error::{Limit, LimitOf, LimitReached, ResourceError};
use crate::sleepers::Event;
use crate::sync::Ordering;
use crate::vi::{CqShared, ViShared, cq_of, vi_of};
use crate::work::{self, CqEntry, Done, Queue};

mod slot;

use slot::Offered;
pub(crate) use slot::{Ended, NotifySlot, ViNotify, settle};

/// A descriptor that came off its queue for a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Returned {
    /// Its address.
    pub address: u64,
    /// Its status word.
    pub status: u32,
    /// The value that it was posted with.
    pub context: usize,
}

/// Called with the handle of the NIC, and with a descriptor that came off the queue, or with
/// `None` when the queue became empty.
pub type QueueHandler = Handler<Option<Returned>>;

/// Called with the handle of the NIC and an entry that came off the completion queue.
pub type CqHandler = Handler<CqEntry>;

type Handler<F> = Box<dyn FnOnce(u64, F) + Send>;

/// What a look at a queue found for the first of those who asked.
pub(crate) enum Look<F> {
    Nothing,
    Found {
        first: F,
        /// What all the others are called with: the queue became empty.
        others: Option<F>,
    },
    /// The queue ended.
    Gone,
}

/// A queue, for as long as its handle is good.
pub(crate) trait Source: Copy + Send + Sync + 'static {
    type Found: Copy + Send + 'static;

    fn device(&self) -> &'static Device;
    /// The opening of the NIC that the queue belongs to.
    fn nic(&self) -> u64;
    fn is_live(&self) -> bool;
    /// May a handler be asked for now?
    fn admit(&self) -> Outcome<()>;
    fn look(&self) -> Look<Self::Found>;
    /// What a thread sleeps for that looks again and again.
    fn event(&self) -> Event;
}

/// A work queue of a VI.
#[derive(Clone, Copy)]
pub(crate) struct WorkSource {
    vi: &'static ViShared,
    handle: u64,
    nic: u64,
    queue: Queue,
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
            return Err(ControlError::QueueEmpty);
        }
        Ok(())
    }

    fn look(&self) -> Look<Self::Found> {
        let (done, emptied) = match work::reap_and_tell(self.vi, self.handle, self.queue) {
            Ok(found) => found,
            Err(_gone) => return Look::Gone,
        };
        let first = match done {
            Done::NotDone => return Look::Nothing,
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
        Look::Found {
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

    fn look(&self) -> Look<CqEntry> {
        match work::take(self.cq, self.handle) {
            Ok(None) => Look::Nothing,
            Ok(Some(first)) => Look::Found {
                first,
                others: None,
            },
            Err(_gone) => Look::Gone,
        }
    }
}

/// Who asked, in order.
struct Requests<F> {
    /// To be called with what completes.
    waiting: VecDeque<Handler<F>>,
    /// To be called with this, before any of the waiting: the queue had become empty.
    owed: VecDeque<(Handler<F>, F)>,
    ended: bool,
}

/// What a queue and its thread share.
struct Notifier<S: Source> {
    source: S,
    requests: Mutex<Requests<S::Found>>,
    /// There is a first request, or the queue ended.
    changed: Condvar,
}

/// What the thread does next.
enum Step<F> {
    Call(Handler<F>, F),
    /// Look at the requests again.
    Again,
}

impl<S: Source> Notifier<S> {
    fn new(source: S) -> Self {
        Self {
            source,
            requests: Mutex::new(Requests {
                waiting: VecDeque::new(),
                owed: VecDeque::new(),
                ended: false,
            }),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Requests<S::Found>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request, if the queue has something for it and the limit is not reached.
    fn push(&self, handler: Handler<S::Found>) -> Offered<S> {
        let limit = self.source.device().config.max_notifies_per_queue as usize;
        let mut requests = self.lock();
        // Under the lock: the thread takes things off under it, so both are true at one time.
        if let Err(error) = self.source.admit() {
            return Offered::Refused(handler, error);
        }
        if requests.waiting.len() + requests.owed.len() >= limit {
            let key = Limit::MaxNotifiesPerQueue;
            let reached = LimitReached::all_in_use(key, limit as u64, LimitOf::Queue);
            return Offered::Refused(handler, reached.into());
        }
        requests.waiting.push_back(handler);
        self.changed.notify_one();
        Offered::Queued
    }

    /// The thread, until the queue ends.
    fn run(&self) {
        instance::enter_handlers();
        while let Some((handler, found)) = self.next() {
            let nic = self.source.nic();
            // What the handler owns goes with it, before the next one is called.
            if catch_unwind(AssertUnwindSafe(move || handler(nic, found))).is_err() {
                let line = format_args!("a notify handler panicked");
                self.source.device().log_limited(log::Level::Error, line);
            }
        }
    }

    /// Sleeps until there is a call to make; `None` once the queue ended.
    fn next(&self) -> Option<(Handler<S::Found>, S::Found)> {
        loop {
            // Before the lock: where a handler forked, its holder may not be in the child.
            if !self.source.is_live() {
                return None;
            }
            let mut requests = self.lock();
            while !requests.ended && requests.owed.is_empty() && requests.waiting.is_empty() {
                requests = self
                    .changed
                    .wait(requests)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            if requests.ended {
                return None;
            }
            let owed = requests.owed.pop_front();
            drop(requests);
            if owed.is_some() {
                return owed;
            }
            // Without a limit it does not time out.
            let (device, event) = (self.source.device(), self.source.event());
            if let Ok(Step::Call(handler, found)) = wait(device, event, None, || self.look()) {
                return Some((handler, found));
            }
        }
    }

    /// Takes what completed for the first request. What is taken is also told: who ends the
    /// queue meanwhile waits for the call.
    fn look(&self) -> Option<Step<S::Found>> {
        let mut requests = self.lock();
        let Some(handler) = requests.waiting.pop_front() else {
            // They were cancelled.
            return Some(Step::Again);
        };
        match self.source.look() {
            Look::Nothing => {
                requests.waiting.push_front(handler);
                None
            }
            Look::Gone => {
                requests.waiting.push_front(handler);
                Some(Step::Again)
            }
            Look::Found { first, others } => {
                if let Some(others) = others {
                    let Requests { waiting, owed, .. } = &mut *requests;
                    owed.extend(waiting.drain(..).map(|handler| (handler, others)));
                }
                Some(Step::Call(handler, first))
            }
        }
    }
}

/// A notifier of any kind of queue.
trait Cancel: Send + Sync {
    /// Ends the thread after the call it is in, and drops the requests.
    fn cancel(&self);
}

impl<S: Source> Cancel for Notifier<S> {
    fn cancel(&self) {
        let (waiting, owed) = {
            let mut requests = self.lock();
            requests.ended = true;
            let Requests { waiting, owed, .. } = &mut *requests;
            (core::mem::take(waiting), core::mem::take(owed))
        };
        self.changed.notify_all();
        self.source.device().wake_sleepers();
        // Outside of the lock: they may own things of the program's.
        drop((waiting, owed));
    }
}

/// Has `handler` called with the next descriptor of a work queue that nobody asked for before,
/// on a thread of the queue's own (VIPL 3.5.9, 3.5.10). When the queue becomes empty, those who
/// asked for more are called with `None`; when the VI ends, they are dropped.
pub fn notify(handle: u64, queue: Queue, handler: QueueHandler) -> Outcome<()> {
    let vi = vi_of(handle).ok_or(ControlError::InvalidParameter)?;
    let cq = match queue {
        Queue::Send => &vi.send_cq,
        Queue::Receive => &vi.recv_cq,
    };
    if cq.load(Ordering::Relaxed) != 0 {
        return Err(ResourceError::ReportsToCq.into());
    }
    let nic = vi.instance();
    vi.notify.slot(queue).ask(
        WorkSource {
            vi,
            handle,
            nic,
            queue,
        },
        handler,
    )
}

/// Has `handler` called with the next entry of a completion queue that nobody asked for
/// before, on a thread of the queue's own (VIPL 3.5.11). When the queue ends, it is dropped.
pub fn cq_notify(handle: u64, handler: CqHandler) -> Outcome<()> {
    let cq = cq_of(handle).ok_or(ControlError::InvalidParameter)?;
    let nic = cq.instance();
    cq.notify.ask(CqSource { cq, handle, nic }, handler)
}
