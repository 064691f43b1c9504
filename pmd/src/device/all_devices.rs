//! Operations on all devices of the process.

use std::sync::OnceLock;

use super::DEVICES;

/// Marks all devices as inherited, in a forked child. Takes no lock, since a thread that does
/// not exist in the child may have held it.
pub(super) fn mark_all_inherited() {
    for device in DEVICES.iter().map_while(OnceLock::get) {
        device.mark_inherited();
    }
}

/// Wakes the threads that call error handlers.
pub(super) fn wake_event_threads() {
    // Threads of the parent do not exist in a forked child, and may have held their locks.
    for device in DEVICES.iter().map_while(OnceLock::get) {
        if device.is_ours() {
            device.events.wake();
        }
    }
}
