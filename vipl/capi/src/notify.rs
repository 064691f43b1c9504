//! Completion handlers of work queues and completion queues [VIPL 3.5.9 to 3.5.12].

use core::ffi::c_void;
use core::ptr::null_mut;

use vipl::{CqEntry, NicHandle, Result, Returned, ViHandle, VipError, provider};

use crate::guard::{guarded_new, run_handler};
use crate::nic::Context;
use crate::types::{CqHandlerFn, QueueHandlerFn, RawHandle, VipReturn, handle_to_c};
use crate::vi::{cq_from_c, vi_from_c};

/// Wraps the program's handler of a work queue in a handler of the provider.
fn wrap(
    call: &'static str,
    vi: ViHandle,
    context: *mut c_void,
    handler: QueueHandlerFn,
) -> Result<impl FnOnce(NicHandle, Option<Returned>) + Send + 'static> {
    let function = handler.ok_or(VipError::InvalidParameter)?;
    let context = Context(context);
    Ok(move |nic: NicHandle, returned: Option<Returned>| {
        let descriptor = returned.map_or(null_mut(), |returned| returned.descriptor);
        let (nic, vi) = (handle_to_c(nic.into_raw()), handle_to_c(vi.into_raw()));
        // SAFETY: callable on any thread until the VI is destroyed, as the program guarantees.
        run_handler(call, || unsafe {
            function(context.get(), nic, vi, descriptor)
        });
    })
}

/// Registers a handler for the next completed descriptor of a send queue [VIPL 3.5.9].
///
/// # Safety
/// `handler` is NULL or may be called with `context` from another thread until the VI is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipSendNotify(
    vi_handle: RawHandle,
    context: *mut c_void,
    handler: QueueHandlerFn,
) -> VipReturn {
    guarded_new("VipSendNotify", || {
        let vi = vi_from_c(vi_handle);
        provider::send_notify(vi, wrap("VipSendNotify", vi, context, handler)?)
    })
}

/// Registers a handler for the next completed descriptor of a receive queue [VIPL 3.5.10].
///
/// # Safety
/// As for `VipSendNotify`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipRecvNotify(
    vi_handle: RawHandle,
    context: *mut c_void,
    handler: QueueHandlerFn,
) -> VipReturn {
    guarded_new("VipRecvNotify", || {
        let vi = vi_from_c(vi_handle);
        provider::recv_notify(vi, wrap("VipRecvNotify", vi, context, handler)?)
    })
}

/// Registers a handler for the next entry of a completion queue [VIPL 3.5.11].
///
/// # Safety
/// `handler` is NULL or may be called with `context` from another thread until the completion queue
/// is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipCQNotify(
    cq_handle: RawHandle,
    context: *mut c_void,
    handler: CqHandlerFn,
) -> VipReturn {
    guarded_new("VipCQNotify", || {
        let function = handler.ok_or(VipError::InvalidParameter)?;
        let context = Context(context);
        provider::cq_notify(cq_from_c(cq_handle), move |nic, entry: CqEntry| {
            let (nic, vi) = (
                handle_to_c(nic.into_raw()),
                handle_to_c(entry.vi.into_raw()),
            );
            // SAFETY: callable on any thread until the queue is destroyed, as the program guarantees.
            run_handler("VipCQNotify", || unsafe {
                function(context.get(), nic, vi, entry.recv_queue.into())
            });
        })
    })
}
