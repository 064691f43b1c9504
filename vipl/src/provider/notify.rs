//! Completion handlers of work queues and completion queues (VIPL 3.5.9 to 3.5.12).
//!
//! Handlers run on the handler thread of their queue, one after the other, in the order of
//! registration. A handler may make any call. A call that destroys the queue (VipDestroyVi,
//! VipDestroyCQ, VipCloseNic) cancels the registered handlers and waits for a running one, unless
//! it is made from a handler.

use pmd::notify;
use vi_core::notify_slot;
use vi_types::QueueKind;

use super::failed;
use crate::types::{CqEntry, CqHandle, NicHandle, RawDescriptor, Result, Returned, ViHandle};

/// Registers `handler` for the next descriptor that a work queue completes, with its context.
pub(crate) fn queue_notify(
    vi: ViHandle,
    queue: QueueKind,
    handler: impl FnOnce(NicHandle, Option<notify_slot::Returned>) + Send + 'static,
) -> Result<()> {
    let handler = move |nic, found| handler(NicHandle::from_raw(nic), found);
    let vi = vi.into_raw();
    let registered = notify::notify(vi, queue, Box::new(handler));
    registered.map_err(|error| match queue {
        QueueKind::Send => failed("VipSendNotify", vi, error),
        QueueKind::Receive => failed("VipRecvNotify", vi, error),
    })
}

/// Wraps `handler` in a handler that drops the context.
fn without_context(
    handler: impl FnOnce(NicHandle, Option<Returned>) + Send + 'static,
) -> impl FnOnce(NicHandle, Option<notify_slot::Returned>) + Send + 'static {
    move |nic, found| {
        let returned = found.map(|found| Returned {
            descriptor: found.address as *mut RawDescriptor,
            status: found.status,
        });
        handler(nic, returned);
    }
}

/// Registers `handler` to be called once, with the next completed descriptor of the send queue
/// (VIPL 3.5.9), or with `None` if the queue becomes empty first.
///
/// # Errors
/// `InvalidParameter` for a stale handle, `DescriptorError` if nothing is posted,
/// `ErrorResource` if the queue reports to a completion queue, if `max_notifies_per_queue`
/// handlers are registered already, if `max_notify_threads` other queues have a handler thread, or
/// if the thread cannot be started.
pub fn send_notify(
    vi: ViHandle,
    handler: impl FnOnce(NicHandle, Option<Returned>) + Send + 'static,
) -> Result<()> {
    queue_notify(vi, QueueKind::Send, without_context(handler))
}

/// Registers `handler` to be called once, with the next completed descriptor of the receive queue
/// (VIPL 3.5.10), or with `None` if the queue becomes empty first.
///
/// # Errors
/// As for [`send_notify`].
pub fn recv_notify(
    vi: ViHandle,
    handler: impl FnOnce(NicHandle, Option<Returned>) + Send + 'static,
) -> Result<()> {
    queue_notify(vi, QueueKind::Receive, without_context(handler))
}

/// Registers `handler` to be called once, with the next entry of the completion queue
/// (VIPL 3.5.11). The descriptor stays on its work queue.
///
/// # Errors
/// `InvalidParameter` for a stale handle, `ErrorResource` if `max_notifies_per_queue` handlers
/// are registered already, `max_notify_threads` other queues have a handler thread, or the thread
/// cannot be started.
pub fn cq_notify(
    cq: CqHandle,
    handler: impl FnOnce(NicHandle, CqEntry) + Send + 'static,
) -> Result<()> {
    let handler = move |nic, found| handler(NicHandle::from_raw(nic), found);
    let cq = cq.into_raw();
    let registered = notify::cq_notify(cq, Box::new(handler));
    registered.map_err(|error| failed("VipCQNotify", cq, error))
}
