//! Signal handling in a program whose main thread ends by pthread_exit(3) while a NIC is open.
//!
//! Threads of this crate block external signals, which are for the program's own threads. After the last of these has
//! ended, SIGTERM would not end the process any more. So the threads that call error handlers then adopt the signal
//! mask of the main thread.

use std::sync::{Once, OnceLock};

use crate::sys::{self, SignalMask};

/// Signal mask of the main thread when it ended.
static EXIT_MASK: OnceLock<SignalMask> = OnceLock::new();
/// Wakes the threads that call error handlers.
static WAKE: OnceLock<fn()> = OnceLock::new();

/// Exit hook of the main thread.
extern "C" fn on_exit() {
    if EXIT_MASK.set(SignalMask::of_this_thread()).is_ok()
        && let Some(wake) = WAKE.get()
    {
        wake();
    }
}

/// Installs the exit hook if this is the main thread, once. `wake` wakes the threads that call error handlers.
pub fn install_exit_hook(wake: fn()) {
    static INSTALLED: Once = Once::new();
    if sys::is_main_thread() {
        WAKE.get_or_init(|| wake);
        INSTALLED.call_once(|| {
            if let Err(error) = sys::at_thread_exit(on_exit) {
                log::debug!("main thread: exit hook not installed: {error}");
            }
        });
    }
}

/// Adopts the signal mask of the main thread in this thread, if the main thread has ended.
pub(crate) fn adopt_signal_mask() {
    if let Some(mask) = EXIT_MASK.get() {
        mask.set();
    }
}
