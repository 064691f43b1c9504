//! The calls that have a handler called when something completes (VIPL 3.5.9 to 3.5.12).
//!
//! Handlers run on a thread of their queue's own, one after the other, in the order of the
//! requests. A handler may make any call. Whoever ends the queue (with its VI, or by closing the
//! NIC) cancels the requests, and waits for the handler that is being called, unless it is called
//! from a handler itself.

use pmd::notify;
use pmd::work::Queue;

use super::{entry, failed};
use crate::types::{CqEntry, CqHandle, NicHandle, RawDescriptor, Result, Returned, ViHandle};

/// Has `handler` called with what comes off a work queue, as the poll loop's side tells it.
pub(crate) fn queue_notify(
    vi: ViHandle,
    queue: Queue,
    handler: impl FnOnce(NicHandle, Option<notify::Returned>) + Send + 'static,
) -> Result<()> {
    let handler = move |nic, found| handler(NicHandle::from_raw(nic), found);
    let vi = vi.into_raw();
    let asked = notify::notify(vi, queue, Box::new(handler));
    asked.map_err(|error| match queue {
        Queue::Send => failed("VipSendNotify", vi, error),
        Queue::Receive => failed("VipRecvNotify", vi, error),
    })
}

/// What the poll loop's side calls in place of `handler`.
fn without_context(
    handler: impl FnOnce(NicHandle, Option<Returned>) + Send + 'static,
) -> impl FnOnce(NicHandle, Option<notify::Returned>) + Send + 'static {
    move |nic, found| {
        let returned = found.map(|found| Returned {
            descriptor: found.address as *mut RawDescriptor,
            status: found.status,
        });
        handler(nic, returned);
    }
}

/// Has `handler` called once, with the next descriptor that comes off the send queue
/// (VIPL 3.5.9); with `None` if the queue becomes empty before it is its turn.
///
/// # Errors
/// `InvalidParameter` for a stale handle, `DescriptorError` if nothing is posted,
/// `ErrorResource` if the queue reports to a completion queue, if `max_notifies_per_queue`
/// handlers wait already, if `max_notify_threads` other queues have a thread, or if none can be
/// started.
pub fn send_notify(
    vi: ViHandle,
    handler: impl FnOnce(NicHandle, Option<Returned>) + Send + 'static,
) -> Result<()> {
    queue_notify(vi, Queue::Send, without_context(handler))
}

/// Has `handler` called once, with the next descriptor that comes off the receive queue
/// (VIPL 3.5.10); with `None` if the queue becomes empty before it is its turn.
///
/// # Errors
/// As for [`send_notify`].
pub fn recv_notify(
    vi: ViHandle,
    handler: impl FnOnce(NicHandle, Option<Returned>) + Send + 'static,
) -> Result<()> {
    queue_notify(vi, Queue::Receive, without_context(handler))
}

/// Has `handler` called once, with the next entry that comes off the completion queue
/// (VIPL 3.5.11). The descriptor stays on its work queue.
///
/// # Errors
/// `InvalidParameter` for a stale handle, `ErrorResource` if `max_notifies_per_queue` handlers
/// wait already, `max_notify_threads` other queues have a thread, or none can be started.
pub fn cq_notify(
    cq: CqHandle,
    handler: impl FnOnce(NicHandle, CqEntry) + Send + 'static,
) -> Result<()> {
    let handler = move |nic, found| handler(NicHandle::from_raw(nic), entry(found));
    let cq = cq.into_raw();
    let asked = notify::cq_notify(cq, Box::new(handler));
    asked.map_err(|error| failed("VipCQNotify", cq, error))
}
