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

use std::panic::{AssertUnwindSafe, catch_unwind};

use vi_core::handler_thread::enter_handlers;
use vi_core::nic_shared::NicShared;
use vi_core::notify_slot::{
    CqHandler, Handler, Notifier, PollResult, QueueEnded, QueueHandler, Returned, Source, Step,
};
use vi_core::reap::{self, CqEntry, Done};
use vi_core::sync::Ordering;
use vi_core::waiters::Event;
use vi_types::{CallError, Outcome, QueueKind, ResourceError};

use crate::device::Device;
use crate::lookup::{Cq, Vi, cq_of, vi_of};
use crate::progress::wait;

/// A queue as its notify thread uses it.
trait ThreadSource: Source {
    fn poll(&self) -> PollResult<Self::Found>;
    /// The NIC, and the event after which [`ThreadSource::poll`] may return a completion.
    fn event(&self) -> (&'static Device, Event);
    /// The NIC handle to which the queue belongs.
    fn nic_handle(&self) -> u64;
}

/// A work queue of a VI.
#[derive(Clone, Copy)]
struct WorkSource {
    vi: Vi,
    handle: u64,
    nic_handle: u64,
    queue: QueueKind,
}

impl Source for WorkSource {
    type Found = Option<Returned>;

    fn nic(&self) -> &'static NicShared {
        self.vi.nic
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
}

impl ThreadSource for WorkSource {
    fn nic_handle(&self) -> u64 {
        self.nic_handle
    }

    fn event(&self) -> (&'static Device, Event) {
        (self.vi.device, self.vi.event(self.queue))
    }

    fn poll(&self) -> PollResult<Self::Found> {
        let (done, emptied) = match reap::reap_and_check_empty(&self.vi, self.handle, self.queue) {
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
struct CqSource {
    cq: Cq,
    handle: u64,
    nic_handle: u64,
}

impl Source for CqSource {
    type Found = CqEntry;

    fn nic(&self) -> &'static NicShared {
        self.cq.nic
    }

    fn is_live(&self) -> bool {
        self.cq.is_live(self.handle)
    }

    fn admit(&self) -> Outcome<()> {
        Ok(())
    }
}

impl ThreadSource for CqSource {
    fn nic_handle(&self) -> u64 {
        self.nic_handle
    }

    fn event(&self) -> (&'static Device, Event) {
        (self.cq.device, self.cq.event())
    }

    fn poll(&self) -> PollResult<CqEntry> {
        match reap::take(&self.cq, self.handle) {
            Ok(None) => PollResult::Pending,
            Ok(Some(first)) => PollResult::Completed {
                first,
                others: None,
            },
            Err(_gone) => PollResult::QueueEnded,
        }
    }
}

/// Runs the notify thread until the queue is destroyed.
fn run<S: ThreadSource>(source: S, notifier: &Notifier<S::Found>) {
    enter_handlers();
    while let Ok((handler, found)) = next(source, notifier) {
        let nic = source.nic_handle();
        // The handler, and what it owns, is dropped before the next one is called.
        if catch_unwind(AssertUnwindSafe(move || handler(nic, found))).is_err() {
            let line = format_args!("a notify handler panicked");
            source.nic().log_limited(log::Level::Error, line);
        }
    }
}

/// Waits for the next handler to call and its argument.
fn next<S: ThreadSource>(
    source: S,
    notifier: &Notifier<S::Found>,
) -> Result<(Handler<S::Found>, S::Found), QueueEnded> {
    loop {
        // Before the lock: in a child forked by a handler its holder may not exist.
        if !source.is_live() {
            return Err(QueueEnded);
        }
        if let Some(due) = notifier.await_request()? {
            return Ok(due);
        }
        // Without a limit the wait does not time out.
        let poll = || notifier.take(|| source.poll());
        let (device, event) = source.event();
        let step = wait(device, event, None, poll);
        if let Ok(Step::Call(handler, found)) = step {
            return Ok((handler, found));
        }
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
    let source = WorkSource {
        vi,
        handle,
        nic_handle: vi.nic_handle(),
        queue,
    };
    vi.notify.slot(queue).request(source, handler, run)
}

/// Requests a call of `handler` with the next entry of a completion queue that no earlier request gets,
/// on a thread of the queue (VIPL 3.5.11). When the queue is destroyed, it is dropped.
pub fn cq_notify(handle: u64, handler: CqHandler) -> Outcome<()> {
    let cq = cq_of(handle).ok_or(CallError::InvalidParameter)?;
    let source = CqSource {
        cq,
        handle,
        nic_handle: cq.nic_handle(),
    };
    cq.notify.request(source, handler, run)
}
