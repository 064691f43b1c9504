//! How the two ends of a connection are joined, for tests that hold for each way: in this thread
//! and for as long as a closure runs.

use std::cell::Cell;

/// Where the first two nodes of a net are, and what carries their messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Two engines on one wire.
    Wire,
    /// One engine that plays both ends; frames go through its port.
    Port,
    /// One engine that plays both ends, without frames of messages.
    Shortcut,
}

thread_local! {
    static WAY: Cell<Way> = const { Cell::new(Way::Wire) };
}

/// Puts back what was there before, also when a test panics.
struct Restore(Way);

impl Drop for Restore {
    fn drop(&mut self) {
        WAY.set(self.0);
    }
}

/// How ends are joined now.
pub(crate) fn way() -> Way {
    WAY.get()
}

/// Runs this with ends that are joined in this way.
pub(crate) fn joined_by<T>(way: Way, run: impl FnOnce() -> T) -> T {
    let _restore = Restore(WAY.replace(way));
    run()
}

/// Runs this once for each way.
pub(crate) fn each_way(run: impl Fn()) {
    for way in [Way::Wire, Way::Port, Way::Shortcut] {
        joined_by(way, &run);
    }
}
