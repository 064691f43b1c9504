//! The signals of a program whose main thread ends by pthread_exit(3) while a NIC is open.
//!
//! Threads of this crate block the signals that come from outside, which are for the program's own threads. When the last
//! of these is gone, SIGTERM would not end the process any more. So the threads that call error handlers then take the
//! signals that the main thread took.

use std::sync::{Once, OnceLock};

use crate::device;
use crate::sys::{self, SignalMask};

/// What the main thread blocked when it ended.
static LEFT: OnceLock<SignalMask> = OnceLock::new();

/// The main thread ends, and the process does not.
extern "C" fn leave() {
    if LEFT.set(SignalMask::of_this_thread()).is_ok() {
        device::wake_event_threads();
    }
}

/// Has the end of this thread noticed if it is the main thread.
pub(crate) fn watch() {
    static WATCHED: Once = Once::new();
    if sys::is_main_thread() {
        WATCHED.call_once(|| {
            if let Err(error) = sys::at_end_of_this_thread(leave) {
                log::debug!("the end of the main thread is not noticed: {error}");
            }
        });
    }
}

/// Has this thread take the signals that the main thread took, if that has ended.
pub(crate) fn take_signals() {
    if let Some(mask) = LEFT.get() {
        mask.set();
    }
}
