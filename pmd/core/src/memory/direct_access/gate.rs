//! What the owner of memory and a station that accesses it tell each other: that an access is in progress, and through
//! which connection.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// The gate of one station slot in the table of another station.
///
/// The station opens it for each access and closes it afterwards; the owner of the memory first takes what may be
/// accessed away, then waits for the gate.
#[cfg_attr(not(loom), repr(C, align(128)))]
#[derive(Debug)]
pub(crate) struct Gate {
    /// Odd while an access is in progress; each change adds one.
    changes: AtomicU64,
    /// The handle of the region that is accessed.
    region: AtomicU32,
    /// The generation of the station that uses the gate.
    generation: AtomicU64,
}

/// An access that was in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Observed {
    pub(crate) changes: u64,
    /// The handle of its region.
    pub(crate) region: u32,
    /// The generation of the station.
    pub(crate) generation: u64,
}

impl Gate {
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self {
            changes: AtomicU64::new(0),
            region: AtomicU32::new(0),
            generation: AtomicU64::new(0),
        }
    }

    /// Takes the gate over for a new station of its slot; the previous one has ended, perhaps during an access.
    pub(crate) fn take_over(&self, generation: u64) {
        self.generation.store(generation, Ordering::Relaxed);
        self.close();
    }

    /// Begins an access to this region: what may be accessed is looked up after this.
    #[inline]
    pub(crate) fn open(&self, region: u32) {
        // Relaxed: published by the store of `changes`.
        self.region.store(region, Ordering::Relaxed);
        // One station at a time, and in it one thread, uses the gate.
        let changes = self.changes.load(Ordering::Relaxed);
        // Release, partner: the Acquire loads below: an owner that finds this access sees what the one before wrote.
        self.changes
            .store(changes.wrapping_add(1) | 1, Ordering::Release);
        // SeqCst, partner: the fence of the owner before `observe`.
        fence(Ordering::SeqCst);
    }

    /// Ends the access.
    #[inline]
    pub(crate) fn close(&self) {
        let changes = self.changes.load(Ordering::Relaxed);
        // Release, partner: the Acquire loads below: the owner sees what was written.
        self.changes
            .store((changes | 1).wrapping_add(1), Ordering::Release);
    }

    /// Returns the access in progress, which may have begun before the owner took something away; the owner has
    /// executed a SeqCst fence since.
    pub(crate) fn observe(&self) -> Option<Observed> {
        // Acquire, partner: the Release store in `close`.
        let changes = self.changes.load(Ordering::Acquire);
        let observed = Observed {
            changes,
            region: self.region.load(Ordering::Relaxed),
            generation: self.generation.load(Ordering::Relaxed),
        };
        // A later access may have another region.
        (changes & 1 == 1 && !self.has_ended(observed)).then_some(observed)
    }

    /// Returns whether an observed access has ended.
    pub(crate) fn has_ended(&self, observed: Observed) -> bool {
        // Acquire, partner: the Release store in `close`.
        self.changes.load(Ordering::Acquire) != observed.changes
    }
}

/// The connection of a VI in the table of its station: a word that both sides know, 0 without one.
#[derive(Debug)]
pub(crate) struct ConnectionWord(AtomicU64);

impl ConnectionWord {
    #[cfg(loom)]
    pub(crate) fn new(connection: u64) -> Self {
        Self(AtomicU64::new(connection))
    }

    /// Lets the peer access memory; what it has to see was written before.
    pub(crate) fn open(&self, connection: u64) {
        // Release, partner: the Acquire load in `is`.
        self.0.store(connection, Ordering::Release);
    }

    /// Ends the access of the peer; returns the connection. Accesses that have begun may be in progress.
    pub(crate) fn close(&self) -> u64 {
        let connection = self.0.swap(0, Ordering::Relaxed);
        // SeqCst, partner: the fence in `Gate::open`, and the Acquire fence in `is_still`.
        fence(Ordering::SeqCst);
        connection
    }

    /// Returns whether this connection may be used.
    #[inline]
    pub(crate) fn is(&self, connection: u64) -> bool {
        // Acquire, partner: the Release store in `open`.
        self.0.load(Ordering::Acquire) == connection
    }

    /// Returns whether this connection could be used until now: nothing that was read before was written after its end.
    #[inline]
    pub(crate) fn is_still(&self, connection: u64) -> bool {
        // Acquire fence, partner: the SeqCst fence in `close`: who has read a byte that was written after it sees that the
        // connection has ended.
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) == connection
    }
}
