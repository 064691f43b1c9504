//! Selects how the two sides of a connection are joined, for tests that run with each topology: per
//! thread, while a closure runs.

use std::cell::Cell;

/// Location of the first two nodes of a net, and how their messages are carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    /// Two engines on one wire.
    Wire,
    /// One engine has both sides; frames go through its port.
    Port,
    /// One engine has both sides, and moves messages without frames.
    Shortcut,
}

thread_local! {
    static TOPOLOGY: Cell<Topology> = const { Cell::new(Topology::Wire) };
}

/// Restores the previous value, also when a test panics.
struct Restore(Topology);

impl Drop for Restore {
    fn drop(&mut self) {
        TOPOLOGY.set(self.0);
    }
}

/// Returns the selected topology.
pub(crate) fn topology() -> Topology {
    TOPOLOGY.get()
}

/// Runs a closure with this topology.
pub(crate) fn with_topology<T>(topology: Topology, run: impl FnOnce() -> T) -> T {
    let _restore = Restore(TOPOLOGY.replace(topology));
    run()
}

/// Runs a closure once with each topology.
pub(crate) fn for_each_topology(run: impl Fn()) {
    for topology in [Topology::Wire, Topology::Port, Topology::Shortcut] {
        with_topology(topology, &run);
    }
}
