//! What is done with all devices of the process.

use std::sync::OnceLock;

use super::DEVICES;

/// In a process that was forked: no device is ours. Takes no lock, since a thread that is
/// not here any more may hold it.
pub(crate) fn disown_all() {
    for device in DEVICES.iter().map_while(OnceLock::get) {
        device.disown();
    }
}

/// Wakes the threads that call error handlers.
pub(crate) fn wake_event_threads() {
    // Those of a parent are not here, and may have had their locks.
    for device in DEVICES.iter().map_while(OnceLock::get) {
        if device.is_ours() {
            device.events.wake();
        }
    }
}
