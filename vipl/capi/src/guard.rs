//! The fence between C and Rust: no panic crosses it, and no exception or cancellation of a thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cancellation::CancellationDisabled;
use crate::types::VipReturn;

/// Whether a contained panic has been logged already.
static REPORTED: AtomicBool = AtomicBool::new(false);
/// Whether it has been logged that a call was refused for want of memory.
static REPORTED_LOW: AtomicBool = AtomicBool::new(false);

/// Runs the body of the export `call` and turns its outcome into a `VIP_RETURN`.
///
/// A panic inside is a bug of this library: the caller gets `VIP_ERROR_RESOURCE`, and the first one
/// is logged. A thread that is cancelled meanwhile ends at a cancellation point after the call.
pub(crate) fn guarded(call: &'static str, body: impl FnOnce() -> vipl::Result<()>) -> VipReturn {
    let _whole_call = CancellationDisabled::new();
    guarded_data_path(call, body)
}

/// As [`guarded`], for an export that makes something new, or waits for it. Without memory it fails at once, as long as
/// there is still enough for the calls that end something.
pub(crate) fn guarded_new(
    call: &'static str,
    body: impl FnOnce() -> vipl::Result<()>,
) -> VipReturn {
    if vipl::reserve::is_low() || vipl::reserve::is_needed() {
        // Relaxed: as below.
        if !REPORTED_LOW.swap(true, Ordering::Relaxed) {
            log::error!("{call}: no memory is left; nothing new is made until some is freed");
        }
        return VipReturn::ErrorResource;
    }
    guarded(call, body)
}

/// As [`guarded`], for posting and for taking what is done: it costs nothing as long as nothing
/// panics, and leaves it to the program to disable cancellation.
#[inline]
pub(crate) fn guarded_data_path(
    call: &'static str,
    body: impl FnOnce() -> vipl::Result<()>,
) -> VipReturn {
    // Whatever a panic leaves half done belongs to the provider, whose own locks know about it.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => VipReturn::Success,
        Ok(Err(error)) => error.into(),
        Err(_) => contained(call),
    }
}

/// The same for an export that answers something else: `otherwise`, after a panic.
pub(crate) fn guarded_or<T>(call: &'static str, otherwise: T, body: impl FnOnce() -> T) -> T {
    let _whole_call = CancellationDisabled::new();
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(answer) => answer,
        Err(_) => {
            contained(call);
            otherwise
        }
    }
}

#[cold]
fn contained(call: &'static str) -> VipReturn {
    // Relaxed: a flag of its own, nothing is published with it.
    if !REPORTED.swap(true, Ordering::Relaxed) {
        log::error!("{call}: internal error contained, an error returned");
    }
    VipReturn::ErrorResource
}

/// Calls a handler that the program has given to `registered_by`. It must return: left by a C++
/// exception or by pthread_exit(3) it ends the process, with a line that says so.
pub(crate) fn run_handler(registered_by: &'static str, handler: impl FnOnce()) {
    let left = HandlerLeft(registered_by);
    handler();
    core::mem::forget(left);
}

/// Dropped only while a handler is being left by unwinding, which ends here.
struct HandlerLeft(&'static str);

impl Drop for HandlerLeft {
    fn drop(&mut self) {
        vipl::stderr::write_line(format_args!(
            "vipl: error: a handler given to {} was left by an exception or by pthread_exit; \
             a handler must return",
            self.0
        ));
        std::process::abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vipl::VipError;

    #[test]
    fn outcomes_become_return_codes() {
        assert_eq!(guarded("a", || Ok(())), VipReturn::Success);
        assert_eq!(guarded("b", || Err(VipError::NoMatch)), VipReturn::NoMatch);
    }

    #[test]
    fn a_panic_becomes_error_resource() {
        assert_eq!(
            guarded("c", || panic!("deliberate, part of a test")),
            VipReturn::ErrorResource
        );
        assert!(REPORTED.load(Ordering::Relaxed));
        let answer = guarded_or("d", 1, || panic!("deliberate, part of a test"));
        assert_eq!(answer, 1);
        assert_eq!(guarded_or("e", 1, || 2), 2);
    }
}
