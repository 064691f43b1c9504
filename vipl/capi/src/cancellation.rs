//! Disables thread cancellation during calls.

use core::ffi::c_int;
use core::ptr::null_mut;

/// `PTHREAD_CANCEL_DISABLE` of pthread.h on Linux.
const DISABLE: c_int = 1;

unsafe extern "C" {
    /// Missing in the `libc` crate for Linux.
    fn pthread_setcancelstate(state: c_int, old_state: *mut c_int) -> c_int;
}

/// Defers pthread_cancel(3) of this thread while it exists. The system calls of this library are cancellation points,
/// and forced unwinding from them through Rust frames would abort the process.
pub(crate) struct CancellationDisabled {
    old_state: c_int,
}

impl CancellationDisabled {
    pub(crate) fn new() -> Self {
        let mut old_state = DISABLE;
        // SAFETY: a local integer is written.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut old_state) };
        Self { old_state }
    }
}

impl Drop for CancellationDisabled {
    fn drop(&mut self) {
        // SAFETY: a state that the first call returned; nothing is written.
        unsafe { pthread_setcancelstate(self.old_state, null_mut()) };
    }
}
