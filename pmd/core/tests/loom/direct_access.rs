//! Deregistration and the end of a connection against direct accesses of another station.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::thread;

use crate::explore;
use crate::gate::{ConnectionWord, Gate};

const KEY: u32 = 7;

/// A region, and the gate of the station that accesses it.
struct Shared {
    gate: Gate,
    key: AtomicU32,
    /// Loom fails the model when two threads access it, or one does not see a write of another.
    memory: UnsafeCell<u32>,
}

/// Accesses the region as `PeerMemory::access` does, if it is there.
fn access(shared: &Shared) -> u32 {
    shared.gate.open(KEY);
    let is_there = shared.key.load(Ordering::Acquire) == KEY;
    if is_there {
        // SAFETY: the gate keeps the region registered; that is what loom checks here.
        shared.memory.with_mut(|memory| unsafe { *memory += 1 });
    }
    shared.gate.close();
    u32::from(is_there)
}

#[test]
fn deregistered_memory_is_not_accessed() {
    explore(4, || {
        let shared = Arc::new(Shared {
            gate: Gate::new(),
            key: AtomicU32::new(KEY),
            memory: UnsafeCell::new(0),
        });
        let user = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || access(&shared) + access(&shared))
        };
        // As `ExportedMemory` does.
        shared.key.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if let Some(observed) = shared.gate.observe() {
            while !shared.gate.has_ended(observed) {
                thread::yield_now();
            }
        }
        // SAFETY: no access is in progress, and none begins.
        let seen = shared.memory.with_mut(|memory| unsafe {
            let seen = *memory;
            *memory = 0;
            seen
        });
        assert_eq!(user.join().expect("the other thread ends"), seen);
    });
}

#[test]
fn send_is_not_taken_if_its_memory_changed_after_the_connection() {
    explore(4, || {
        const CONNECTION: u64 = 5;
        let shared = Arc::new((ConnectionWord::new(CONNECTION), AtomicU32::new(0)));
        let user = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (connection, memory) = &*shared;
                let copied = memory.load(Ordering::Relaxed);
                connection.is_still(CONNECTION).then_some(copied)
            })
        };
        let (connection, memory) = &*shared;
        assert_eq!(connection.close(), CONNECTION);
        // The program, whose send was flushed.
        memory.store(1, Ordering::Relaxed);
        let taken = user.join().expect("the other thread ends");
        assert_ne!(taken, Some(1));
    });
}
