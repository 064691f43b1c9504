//! Completion queues: rings of entries that name the work queue of each completion.
//!
//! The poller adds entries, one consumer at a time takes them. An entry stays until it is taken, also
//! when its descriptor was reaped directly (VIPL 3.5.7, 7.1). The ring holds at least as many entries
//! as descriptors can be posted on all attached work queues, so that a full ring has entries whose
//! descriptor was reaped; these are dropped and counted, and the entry of a completed descriptor
//! always has room.

use core::cell::UnsafeCell;

use crossbeam_utils::CachePadded;

use crate::biased_lock::BiasedLock;
use crate::sync::{AtomicU32, Ordering};

/// An entry of a completion queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingEntry {
    /// Handle of the VI.
    pub vi: u64,
    /// Sequence number of the descriptor on its queue.
    pub sequence: u32,
    /// The descriptor was on the receive queue.
    pub receive: bool,
}

/// The memory for the entries of a ring.
pub struct RingStorage(Vec<UnsafeCell<RingEntry>>);

impl RingStorage {
    /// Allocates memory for `entries` entries, rounded up to a power of two; `None` if there is none.
    pub fn new(entries: u32) -> Option<Self> {
        let capacity = entries.max(1).next_power_of_two() as usize;
        let mut memory = Vec::new();
        memory.try_reserve_exact(capacity).ok()?;
        memory.resize_with(capacity, UnsafeCell::default);
        Some(Self(memory))
    }

    /// Returns true if this many entries fit.
    pub fn holds(&self, entries: u32) -> bool {
        entries as usize <= self.0.len()
    }
}

/// The consumer side of a completion queue.
#[derive(Default)]
pub struct TakeEnd {
    taken: u32,
}

/// The ring of a completion queue.
pub struct CompletionRing {
    entries: UnsafeCell<Vec<UnsafeCell<RingEntry>>>,
    added: CachePadded<AtomicU32>,
    taken: CachePadded<AtomicU32>,
    pub(crate) take_end: CachePadded<BiasedLock<TakeEnd>>,
}

// SAFETY: the vector is replaced only by calls whose caller holds the NIC's backend lock
// and the take end; entries are written by the poller (backend lock) and read by the consumer
// (take end), each entry published by `added` (Release) and released by `taken`.
unsafe impl Sync for CompletionRing {}

impl CompletionRing {
    /// Creates a ring without entries or memory for them.
    pub(crate) fn new() -> Self {
        Self {
            entries: UnsafeCell::new(Vec::new()),
            added: CachePadded::new(AtomicU32::new(0)),
            taken: CachePadded::new(AtomicU32::new(0)),
            take_end: CachePadded::new(BiasedLock::new(TakeEnd::default())),
        }
    }

    /// Drops all entries, and gives the ring this memory.
    ///
    /// # Safety
    /// The caller holds the NIC's backend lock.
    pub unsafe fn reset(&self, storage: RingStorage) {
        let mut end = self.take_end.lock();
        end.taken = 0;
        self.added.store(0, Ordering::Relaxed);
        self.taken.store(0, Ordering::Relaxed);
        // SAFETY: both ends are ours: the backend lock and the take end.
        let entries = unsafe { &mut *self.entries.get() };
        *entries = storage.0;
    }

    /// Drops all entries and frees the memory. The ring is full until the next `reset`.
    ///
    /// # Safety
    /// The caller holds the NIC's backend lock.
    pub unsafe fn discard(&self) {
        let mut end = self.take_end.lock();
        end.taken = 0;
        self.added.store(0, Ordering::Relaxed);
        self.taken.store(0, Ordering::Relaxed);
        // SAFETY: both ends are ours: the backend lock and the take end.
        let entries = unsafe { &mut *self.entries.get() };
        *entries = Vec::new();
    }

    /// Grows the ring to at least `capacity` entries; keeps the entries.
    ///
    /// # Safety
    /// The caller holds the NIC's backend lock.
    pub unsafe fn reserve(&self, capacity: u32) {
        let mut end = self.take_end.lock();
        let capacity = capacity.max(1).next_power_of_two() as usize;
        // SAFETY: both ends are ours: the backend lock and the take end.
        let entries = unsafe { &mut *self.entries.get() };
        if capacity <= entries.len() {
            return;
        }
        let mut bigger = Vec::with_capacity(capacity);
        bigger.resize_with(capacity, UnsafeCell::default);
        self.move_into(&mut end, entries, RingStorage(bigger));
    }

    /// Gives the ring this memory; keeps the entries in order, which must fit
    /// ([`CompletionRing::count`]). Returns the old memory, so that the caller can free it without the
    /// lock.
    ///
    /// # Safety
    /// The caller holds the NIC's backend lock.
    pub unsafe fn resize(&self, storage: RingStorage) -> RingStorage {
        let mut end = self.take_end.lock();
        // SAFETY: both ends are ours: the backend lock and the take end.
        let entries = unsafe { &mut *self.entries.get() };
        self.move_into(&mut end, entries, storage)
    }

    /// Returns the number of entries, which does not grow while the caller holds the backend lock.
    ///
    /// # Safety
    /// The caller holds the NIC's backend lock.
    #[inline]
    pub unsafe fn count(&self) -> u32 {
        let added = self.added.load(Ordering::Relaxed);
        added.wrapping_sub(self.taken.load(Ordering::Relaxed))
    }

    fn move_into(
        &self,
        end: &mut TakeEnd,
        entries: &mut Vec<UnsafeCell<RingEntry>>,
        mut storage: RingStorage,
    ) -> RingStorage {
        let mask = entries.len().wrapping_sub(1) as u32;
        let added = self.added.load(Ordering::Relaxed);
        let count = added.wrapping_sub(end.taken);
        debug_assert!(count as usize <= storage.0.len(), "the entries fit");
        for (n, slot) in (0..count).zip(&mut storage.0) {
            *slot.get_mut() = *entries[(end.taken.wrapping_add(n) & mask) as usize].get_mut();
        }
        end.taken = 0;
        self.taken.store(0, Ordering::Relaxed);
        // Release: partner of the Acquire load in `has_entry`, whose load of `taken` must not be
        // older: the two could be equal by chance, and a thread would sleep despite entries.
        self.added.store(count, Ordering::Release);
        RingStorage(core::mem::replace(entries, storage.0))
    }

    /// Adds an entry. Returns false if the ring is full.
    ///
    /// # Safety
    /// The caller holds the NIC's backend lock.
    #[inline]
    pub unsafe fn add(&self, entry: RingEntry) -> bool {
        // SAFETY: the backend lock excludes calls that replace it; the consumer has a shared reference too.
        let entries = unsafe { &*self.entries.get() };
        let at = self.added.load(Ordering::Relaxed);
        // Acquire: partner of the Release store in `take`.
        if at.wrapping_sub(self.taken.load(Ordering::Acquire)) as usize >= entries.len() {
            return false;
        }
        let mask = entries.len() - 1;
        // SAFETY: the consumer reads only entries between `taken` and `added`.
        unsafe { *entries[at as usize & mask].get() = entry };
        // Release: partner of the Acquire load in `take`.
        self.added.store(at.wrapping_add(1), Ordering::Release);
        true
    }

    /// Returns true if [`CompletionRing::take`] would find an entry, without the lock.
    #[inline(always)]
    pub fn has_entry(&self) -> bool {
        // Acquire: partner of the Release store in `add`.
        self.added.load(Ordering::Acquire) != self.taken.load(Ordering::Relaxed)
    }

    /// Takes the oldest entry.
    #[inline]
    pub fn take(&self, end: &mut TakeEnd) -> Option<RingEntry> {
        let at = end.taken;
        // Acquire: partner of the Release store in `add`.
        if at == self.added.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: the take end, which `end` shows, excludes calls that replace it; the poller has a
        // shared reference too.
        let entries = unsafe { &*self.entries.get() };
        let entry = entries[at as usize & (entries.len() - 1)].get();
        // SAFETY: the poller does not write entries between `taken` and `added`.
        let entry = unsafe { *entry };
        end.taken = at.wrapping_add(1);
        // Release: partner of the Acquire load in `add`.
        self.taken.store(end.taken, Ordering::Release);
        Some(entry)
    }

    /// Drops the entries for which `keep` returns false; returns their number.
    ///
    /// # Safety
    /// The caller holds the NIC's backend lock.
    #[cold]
    pub(crate) unsafe fn compact(&self, keep: impl Fn(&RingEntry) -> bool) -> u32 {
        let end = self.take_end.lock();
        // SAFETY: both ends are ours: the backend lock and the take end.
        let entries = unsafe { &mut *self.entries.get() };
        let mask = entries.len().wrapping_sub(1) as u32;
        let added = self.added.load(Ordering::Relaxed);
        let (mut from, mut to) = (end.taken, end.taken);
        while from != added {
            let entry = *entries[(from & mask) as usize].get_mut();
            if keep(&entry) {
                *entries[(to & mask) as usize].get_mut() = entry;
                to = to.wrapping_add(1);
            }
            from = from.wrapping_add(1);
        }
        self.added.store(to, Ordering::Relaxed);
        added.wrapping_sub(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(n: u32) -> RingEntry {
        RingEntry {
            vi: 1,
            sequence: n,
            receive: n.is_multiple_of(2),
        }
    }

    fn add(ring: &CompletionRing, n: u32) -> bool {
        // SAFETY: a single-threaded test needs no lock.
        unsafe { ring.add(entry(n)) }
    }

    fn take(ring: &CompletionRing) -> Option<RingEntry> {
        ring.take(&mut ring.take_end.lock())
    }

    #[test]
    fn entries_keep_order_through_growth_and_compaction() {
        let ring = CompletionRing::new();
        // SAFETY: as in `add`.
        unsafe { ring.reset(RingStorage::new(3).unwrap()) };
        assert!((0..4).all(|n| add(&ring, n)));
        assert!(!add(&ring, 9), "full");
        assert_eq!(take(&ring), Some(entry(0)));
        assert!(add(&ring, 4));
        // SAFETY: as in `add`.
        unsafe { ring.reserve(8) };
        assert!((5..9).all(|n| add(&ring, n)));
        assert!(!add(&ring, 9), "full");
        // SAFETY: as in `add`.
        let dropped = unsafe { ring.compact(|e| !e.receive) };
        assert_eq!(dropped, 4);
        for n in [1, 3, 5, 7] {
            assert_eq!(take(&ring), Some(entry(n)));
        }
        assert_eq!(take(&ring), None);
    }

    #[test]
    fn resized_ring_keeps_entries() {
        let ring = CompletionRing::new();
        // SAFETY: as in `add`.
        unsafe { ring.reset(RingStorage::new(8).unwrap()) };
        // Wrap around: the entries do not begin at the first slot.
        assert!((0..6).all(|n| add(&ring, n)));
        assert!((0..6).all(|n| take(&ring) == Some(entry(n))));
        assert!((6..14).all(|n| add(&ring, n)));
        assert!((6..12).all(|n| take(&ring) == Some(entry(n))));
        for capacity in [32, 8, 4, 2] {
            // SAFETY: as in `add`.
            assert_eq!(unsafe { ring.count() }, 2);
            // SAFETY: as in `add`.
            let old = unsafe { ring.resize(RingStorage::new(capacity).unwrap()) };
            assert!(!old.0.is_empty());
            let free = (0..64).take_while(|_| add(&ring, 99)).count();
            assert_eq!(free as u32, capacity - 2, "{capacity} slots, two are used");
            // SAFETY: as in `add`.
            assert_eq!(unsafe { ring.compact(|e| e.sequence < 99) }, free as u32);
        }
        assert_eq!(
            [take(&ring), take(&ring)],
            [Some(entry(12)), Some(entry(13))]
        );
        assert_eq!(take(&ring), None);
    }

    #[test]
    fn discarded_ring_is_empty_and_full_until_reset() {
        let ring = CompletionRing::new();
        // SAFETY: as in `add`.
        unsafe { ring.reset(RingStorage::new(1).unwrap()) };
        assert!(add(&ring, 0));
        // SAFETY: as in `add`.
        unsafe { ring.discard() };
        assert_eq!(take(&ring), None);
        assert!(!add(&ring, 1), "no memory");
        // SAFETY: as in `add`.
        let dropped = unsafe { ring.compact(|_| false) };
        assert_eq!(dropped, 0);
        // SAFETY: as in `add`.
        unsafe { ring.reset(RingStorage::new(1).unwrap()) };
        assert!(add(&ring, 2));
        assert_eq!(take(&ring), Some(entry(2)));
    }
}
