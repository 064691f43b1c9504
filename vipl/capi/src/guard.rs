//! The fence between C and Rust: no panic crosses it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::types::VipReturn;

/// Whether a contained panic has been logged already.
static REPORTED: AtomicBool = AtomicBool::new(false);

/// Runs the body of the export `call` and turns its outcome into a `VIP_RETURN`.
///
/// A panic inside is a bug of this library: the caller gets `VIP_ERROR_RESOURCE`, and the first one
/// is logged. Costs nothing as long as nothing panics.
#[inline]
pub(crate) fn guarded(call: &'static str, body: impl FnOnce() -> vipl::Result<()>) -> VipReturn {
    // Whatever a panic leaves half done belongs to the provider, whose own locks know about it.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => VipReturn::Success,
        Ok(Err(error)) => error.into(),
        Err(_) => contained(call),
    }
}

/// The same for an export that answers something else: `otherwise`, after a panic.
pub(crate) fn guarded_or<T>(call: &'static str, otherwise: T, body: impl FnOnce() -> T) -> T {
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
