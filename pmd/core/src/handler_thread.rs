//! Threads that only call handlers of the program: error handlers and notify handlers.

use std::cell::Cell;

thread_local! {
    static IN_HANDLER: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether the current thread runs a handler: an error handler or a notify handler.
pub fn in_handler() -> bool {
    IN_HANDLER.get()
}

/// Marks the current thread as one that only calls handlers.
pub fn enter_handlers() {
    IN_HANDLER.set(true);
}
