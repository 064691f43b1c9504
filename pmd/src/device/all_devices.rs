//! Operations on all devices of the process.

use super::all;

/// Marks all devices as inherited, in a forked child. Takes no lock, since a thread that does
/// not exist in the child may have held it.
pub(crate) fn mark_all_inherited() {
    all().for_each(|device| device.mark_inherited());
}

/// Wakes the threads that call error handlers.
pub(crate) fn wake_event_threads() {
    // Threads of the parent do not exist in a forked child, and may have held their locks.
    for device in all().filter(|device| device.is_ours()) {
        device.shared.events.wake();
    }
}
