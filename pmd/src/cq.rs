//! Completion queues: which work queue completed something.
//!
//! The poller adds entries, one consumer at a time takes them. The ring holds at
//! least as many entries as descriptors can be posted on all attached work
//! queues, so that adding an entry for a completed descriptor cannot fail. Only
//! entries whose descriptor was reaped directly can fill it; they are dropped
//! when they are met, and room is made by dropping them when the ring is full.

use core::cell::UnsafeCell;

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::token::Token;

/// One completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Handle of the VI.
    pub(crate) vi: u64,
    /// Place of the descriptor on its queue.
    pub(crate) sequence: u32,
    /// It was on the receive queue.
    pub(crate) receive: bool,
}

/// The consumer's end.
#[derive(Default)]
pub(crate) struct TakeEnd {
    taken: u32,
}

/// The ring of a completion queue.
pub(crate) struct CompletionRing {
    entries: UnsafeCell<Vec<UnsafeCell<Entry>>>,
    added: CachePadded<AtomicU32>,
    taken: CachePadded<AtomicU32>,
    pub(crate) take_end: CachePadded<Token<TakeEnd>>,
    /// Entries that were dropped although their descriptor was not reaped.
    pub(crate) overruns: AtomicU64,
}

// SAFETY: the vector is replaced only by `reserve`, whose caller holds the NIC's turn
// and the take end; entries are written by the poller (turn) and read by the taker
// (take end), each entry published by `added` (Release) and given back by `taken`.
unsafe impl Sync for CompletionRing {}

impl CompletionRing {
    pub(crate) fn new() -> Self {
        Self {
            entries: UnsafeCell::new(Vec::new()),
            added: CachePadded::new(AtomicU32::new(0)),
            taken: CachePadded::new(AtomicU32::new(0)),
            take_end: CachePadded::new(Token::new(TakeEnd::default())),
            overruns: AtomicU64::new(0),
        }
    }

    /// Forgets everything and makes room for `capacity` entries, rounded up to a power of two.
    ///
    /// # Safety
    /// The caller holds the NIC's turn.
    pub(crate) unsafe fn reset(&self, capacity: u32) {
        let mut end = self.take_end.hold();
        end.taken = 0;
        self.added.store(0, Ordering::Relaxed);
        self.taken.store(0, Ordering::Relaxed);
        self.overruns.store(0, Ordering::Relaxed);
        let capacity = capacity.max(1).next_power_of_two() as usize;
        // SAFETY: both ends are ours: the turn and the take end.
        let entries = unsafe { &mut *self.entries.get() };
        entries.clear();
        entries.resize_with(capacity, UnsafeCell::default);
    }

    /// Forgets everything and gives the memory back. The ring is full until the next `reset`.
    ///
    /// # Safety
    /// The caller holds the NIC's turn.
    pub(crate) unsafe fn discard(&self) {
        let mut end = self.take_end.hold();
        end.taken = 0;
        self.added.store(0, Ordering::Relaxed);
        self.taken.store(0, Ordering::Relaxed);
        // SAFETY: both ends are ours: the turn and the take end.
        let entries = unsafe { &mut *self.entries.get() };
        *entries = Vec::new();
    }

    /// Makes room for at least `capacity` entries; what is in the ring stays.
    ///
    /// # Safety
    /// The caller holds the NIC's turn.
    pub(crate) unsafe fn reserve(&self, capacity: u32) {
        let mut end = self.take_end.hold();
        let capacity = capacity.max(1).next_power_of_two() as usize;
        // SAFETY: both ends are ours: the turn and the take end.
        let entries = unsafe { &mut *self.entries.get() };
        if capacity <= entries.len() {
            return;
        }
        let (taken, added) = (end.taken, self.added.load(Ordering::Relaxed));
        let mask = entries.len().wrapping_sub(1) as u32;
        let mut bigger = Vec::with_capacity(capacity);
        let mut at = taken;
        while at != added {
            bigger.push(UnsafeCell::new(*entries[(at & mask) as usize].get_mut()));
            at = at.wrapping_add(1);
        }
        let count = bigger.len() as u32;
        bigger.resize_with(capacity, UnsafeCell::default);
        *entries = bigger;
        end.taken = 0;
        self.taken.store(0, Ordering::Relaxed);
        self.added.store(count, Ordering::Relaxed);
    }

    /// Adds an entry. False if the ring is full.
    ///
    /// # Safety
    /// The caller holds the NIC's turn.
    #[inline]
    pub(crate) unsafe fn add(&self, entry: Entry) -> bool {
        // SAFETY: the turn keeps `reserve` away; the taker has a shared reference too.
        let entries = unsafe { &*self.entries.get() };
        let at = self.added.load(Ordering::Relaxed);
        // Acquire: partner of the Release store in `take`.
        if at.wrapping_sub(self.taken.load(Ordering::Acquire)) as usize >= entries.len() {
            return false;
        }
        let mask = entries.len() - 1;
        // SAFETY: the taker reads only entries between `taken` and `added`.
        unsafe { *entries[at as usize & mask].get() = entry };
        // Release: partner of the Acquire load in `take`.
        self.added.store(at.wrapping_add(1), Ordering::Release);
        true
    }

    /// Whether [`CompletionRing::take`] would find something, without the take end.
    #[inline(always)]
    pub(crate) fn has_entry(&self) -> bool {
        // Acquire: partner of the Release store in `add`.
        self.added.load(Ordering::Acquire) != self.taken.load(Ordering::Relaxed)
    }

    /// Takes the oldest entry.
    #[inline]
    pub(crate) fn take(&self, end: &mut TakeEnd) -> Option<Entry> {
        let at = end.taken;
        // Acquire: partner of the Release store in `add`.
        if at == self.added.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: the take end, which `end` shows, keeps `reserve` away; the poller has a
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

    /// Drops the entries that are no longer wanted; true if that made room.
    ///
    /// # Safety
    /// The caller holds the NIC's turn.
    #[cold]
    pub(crate) unsafe fn compact(&self, keep: impl Fn(&Entry) -> bool) -> bool {
        let end = self.take_end.hold();
        // SAFETY: both ends are ours: the turn and the take end.
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
        to != added
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(n: u32) -> Entry {
        Entry {
            vi: 1,
            sequence: n,
            receive: n.is_multiple_of(2),
        }
    }

    fn add(ring: &CompletionRing, n: u32) -> bool {
        // SAFETY: a single-threaded test needs no turn.
        unsafe { ring.add(entry(n)) }
    }

    fn take(ring: &CompletionRing) -> Option<Entry> {
        ring.take(&mut ring.take_end.hold())
    }

    #[test]
    fn entries_keep_their_order_through_growth_and_compaction() {
        let ring = CompletionRing::new();
        // SAFETY: as in `add`.
        unsafe { ring.reset(3) };
        assert!((0..4).all(|n| add(&ring, n)));
        assert!(!add(&ring, 9), "full");
        assert_eq!(take(&ring), Some(entry(0)));
        assert!(add(&ring, 4));
        // SAFETY: as in `add`.
        unsafe { ring.reserve(8) };
        assert!((5..9).all(|n| add(&ring, n)));
        assert!(!add(&ring, 9), "full");
        // SAFETY: as in `add`.
        let made_room = unsafe { ring.compact(|e| !e.receive) };
        assert!(made_room);
        for n in [1, 3, 5, 7] {
            assert_eq!(take(&ring), Some(entry(n)));
        }
        assert_eq!(take(&ring), None);
    }

    #[test]
    fn a_discarded_ring_holds_nothing_until_it_is_reset() {
        let ring = CompletionRing::new();
        // SAFETY: as in `add`.
        unsafe { ring.reset(1) };
        assert!(add(&ring, 0));
        // SAFETY: as in `add`.
        unsafe { ring.discard() };
        assert_eq!(take(&ring), None);
        assert!(!add(&ring, 1), "no room");
        // SAFETY: as in `add`.
        let made_room = unsafe { ring.compact(|_| true) };
        assert!(!made_room);
        // SAFETY: as in `add`.
        unsafe { ring.reset(1) };
        assert!(add(&ring, 2));
        assert_eq!(take(&ring), Some(entry(2)));
    }
}
