//! The boundary of exported calls and handlers: stops panics, exceptions and thread cancellation.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cancellation::CancellationDisabled;
use crate::types::VipReturn;

/// Whether a caught panic has been logged.
static REPORTED: AtomicBool = AtomicBool::new(false);
/// Whether a call that failed because memory is exhausted has been logged.
static REPORTED_LOW: AtomicBool = AtomicBool::new(false);

/// Runs the body of the exported function `call` and converts its result to a `VIP_RETURN`.
///
/// A panic in the body is a bug of this library: the call returns `VIP_ERROR_RESOURCE`, and the first
/// panic is logged. Cancellation of the thread is deferred until after the call.
pub(crate) fn guarded(call: &'static str, body: impl FnOnce() -> vipl::Result<()>) -> VipReturn {
    let _during_call = CancellationDisabled::new();
    guarded_data_path(call, body)
}

/// As [`guarded`], for a call that creates objects or waits. It fails immediately when memory is exhausted, so that the
/// reserve remains for calls that release objects.
pub(crate) fn guarded_new(
    call: &'static str,
    body: impl FnOnce() -> vipl::Result<()>,
) -> VipReturn {
    if vipl::reserve::is_low() || vipl::reserve::is_system_out_of_memory() {
        // Relaxed: as below.
        if !REPORTED_LOW.swap(true, Ordering::Relaxed) {
            log::error!(
                "{call}: out of memory: calls that create objects fail until memory is freed"
            );
        }
        return VipReturn::ErrorResource;
    }
    guarded(call, body)
}

/// As [`guarded`], for posting and polling: no cost without a panic, and cancellation is not
/// disabled.
#[inline]
pub(crate) fn guarded_data_path(
    call: &'static str,
    body: impl FnOnce() -> vipl::Result<()>,
) -> VipReturn {
    // State that a panic leaves inconsistent belongs to the provider, whose locks are poisoned.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => VipReturn::Success,
        Ok(Err(error)) => error.into(),
        Err(_) => report_panic(call),
    }
}

/// As [`guarded`], for a call with another return type; returns `on_panic` after a panic.
pub(crate) fn guarded_or<T>(call: &'static str, on_panic: T, body: impl FnOnce() -> T) -> T {
    let _during_call = CancellationDisabled::new();
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(_) => {
            report_panic(call);
            on_panic
        }
    }
}

#[cold]
fn report_panic(call: &'static str) -> VipReturn {
    // Relaxed: the flag publishes no other data.
    if !REPORTED.swap(true, Ordering::Relaxed) {
        log::error!("{call}: internal error contained: the call fails; please report it");
    }
    VipReturn::ErrorResource
}

/// Calls a handler that the program registered with `registered_by`. The handler must return: if it
/// exits by a C++ exception or pthread_exit(3), the process is aborted with a message.
pub(crate) fn run_handler(registered_by: &'static str, handler: impl FnOnce()) {
    let abort = AbortOnUnwind(registered_by);
    handler();
    core::mem::forget(abort);
}

/// Aborts the process when it is dropped, which happens only when a handler unwinds.
struct AbortOnUnwind(&'static str);

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        vipl::stderr::write_line(format_args!(
            "vipl: error: {}: the handler exited by an exception or by pthread_exit; \
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
    fn guarded_converts_results_to_return_codes() {
        assert_eq!(guarded("a", || Ok(())), VipReturn::Success);
        assert_eq!(guarded("b", || Err(VipError::NoMatch)), VipReturn::NoMatch);
    }

    #[test]
    fn guarded_converts_a_panic_to_error_resource() {
        assert_eq!(
            guarded("c", || panic!("deliberate, part of a test")),
            VipReturn::ErrorResource
        );
        assert!(REPORTED.load(Ordering::Relaxed));
        let result = guarded_or("d", 1, || panic!("deliberate, part of a test"));
        assert_eq!(result, 1);
        assert_eq!(guarded_or("e", 1, || 2), 2);
    }
}
