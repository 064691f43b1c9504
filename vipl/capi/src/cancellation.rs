//! Calls during which a thread is not cancelled.

use core::ffi::c_int;
use core::ptr::null_mut;

/// `PTHREAD_CANCEL_DISABLE` of pthread.h on Linux.
const DISABLE: c_int = 1;

unsafe extern "C" {
    /// Not in the `libc` crate for Linux.
    fn pthread_setcancelstate(state: c_int, old_state: *mut c_int) -> c_int;
}

/// As long as this lives, pthread_cancel(3) of this thread has no effect yet. The system calls of this library are
/// cancellation points, and unwinding from there through its frames would end the process.
pub(crate) struct CancellationDisabled {
    before: c_int,
}

impl CancellationDisabled {
    pub(crate) fn new() -> Self {
        let mut before = DISABLE;
        // SAFETY: an integer of this frame is written.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Self { before }
    }
}

impl Drop for CancellationDisabled {
    fn drop(&mut self) {
        // SAFETY: a state that the first call gave; nothing is written.
        unsafe { pthread_setcancelstate(self.before, null_mut()) };
    }
}
