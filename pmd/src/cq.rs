//! Completion queues: which work queue completed something.
//!
//! The poller adds entries, one consumer at a time takes them. An entry stays until
//! it is taken, also when its descriptor was reaped directly (VIPL 3.5.7, 7.1). The
//! ring holds at least as many entries as descriptors can be posted on all attached
//! work queues, so that a full one has entries whose descriptor was reaped; these
//! are dropped and counted, and the entry of a completed descriptor always has room.

use core::cell::UnsafeCell;

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicU32, Ordering};
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

/// Memory for the entries of a ring.
pub(crate) struct Room(Vec<UnsafeCell<Entry>>);

impl Room {
    /// Room for so many entries, rounded up to a power of two; `None` if there is no memory.
    pub(crate) fn new(entries: u32) -> Option<Self> {
        let capacity = entries.max(1).next_power_of_two() as usize;
        let mut room = Vec::new();
        room.try_reserve_exact(capacity).ok()?;
        room.resize_with(capacity, UnsafeCell::default);
        Some(Self(room))
    }

    /// Reports whether this many entries fit.
    pub(crate) fn holds(&self, entries: u32) -> bool {
        entries as usize <= self.0.len()
    }
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
}

// SAFETY: the vector is replaced only by calls whose caller holds the NIC's turn
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
        }
    }

    /// Forgets everything; from now on the ring is of this size.
    ///
    /// # Safety
    /// The caller holds the NIC's turn.
    pub(crate) unsafe fn reset(&self, room: Room) {
        let mut end = self.take_end.hold();
        end.taken = 0;
        self.added.store(0, Ordering::Relaxed);
        self.taken.store(0, Ordering::Relaxed);
        // SAFETY: both ends are ours: the turn and the take end.
        let entries = unsafe { &mut *self.entries.get() };
        *entries = room.0;
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
        let mut bigger = Vec::with_capacity(capacity);
        bigger.resize_with(capacity, UnsafeCell::default);
        self.move_into(&mut end, entries, Room(bigger));
    }

    /// Gives the ring this size; what is in it stays in its order, and has to fit
    /// ([`CompletionRing::len`]). Gives back the old memory, so that the caller can free it
    /// without the turn.
    ///
    /// # Safety
    /// The caller holds the NIC's turn.
    pub(crate) unsafe fn resize(&self, room: Room) -> Room {
        let mut end = self.take_end.hold();
        // SAFETY: both ends are ours: the turn and the take end.
        let entries = unsafe { &mut *self.entries.get() };
        self.move_into(&mut end, entries, room)
    }

    /// Entries in the ring; at most so many until the caller gives the turn back.
    ///
    /// # Safety
    /// The caller holds the NIC's turn.
    pub(crate) unsafe fn len(&self) -> u32 {
        let added = self.added.load(Ordering::Relaxed);
        added.wrapping_sub(self.taken.load(Ordering::Relaxed))
    }

    fn move_into(
        &self,
        end: &mut TakeEnd,
        entries: &mut Vec<UnsafeCell<Entry>>,
        mut room: Room,
    ) -> Room {
        let mask = entries.len().wrapping_sub(1) as u32;
        let added = self.added.load(Ordering::Relaxed);
        let count = added.wrapping_sub(end.taken);
        debug_assert!(count as usize <= room.0.len(), "what is in the ring fits");
        for (n, place) in (0..count).zip(&mut room.0) {
            *place.get_mut() = *entries[(end.taken.wrapping_add(n) & mask) as usize].get_mut();
        }
        end.taken = 0;
        self.taken.store(0, Ordering::Relaxed);
        // Release: partner of the Acquire load in `has_entry`, whose look at `taken` must not
        // be older: the two could be equal by chance, and a thread go to sleep over entries.
        self.added.store(count, Ordering::Release);
        Room(core::mem::replace(entries, room.0))
    }

    /// Adds an entry. False if the ring is full.
    ///
    /// # Safety
    /// The caller holds the NIC's turn.
    #[inline]
    pub(crate) unsafe fn add(&self, entry: Entry) -> bool {
        // SAFETY: the turn keeps those away who replace it; the taker has a shared reference too.
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
        // SAFETY: the take end, which `end` shows, keeps those away who replace it; the poller
        // has a shared reference too.
        let entries = unsafe { &*self.entries.get() };
        let entry = entries[at as usize & (entries.len() - 1)].get();
        // SAFETY: the poller does not write entries between `taken` and `added`.
        let entry = unsafe { *entry };
        end.taken = at.wrapping_add(1);
        // Release: partner of the Acquire load in `add`.
        self.taken.store(end.taken, Ordering::Release);
        Some(entry)
    }

    /// Drops the entries that are not to be kept, and gives their number.
    ///
    /// # Safety
    /// The caller holds the NIC's turn.
    #[cold]
    pub(crate) unsafe fn compact(&self, keep: impl Fn(&Entry) -> bool) -> u32 {
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
        added.wrapping_sub(to)
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
        unsafe { ring.reset(Room::new(3).unwrap()) };
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
    fn a_ring_grows_and_shrinks_around_its_entries() {
        let ring = CompletionRing::new();
        // SAFETY: as in `add`.
        unsafe { ring.reset(Room::new(8).unwrap()) };
        // Round the corner: what is in the ring does not begin at its first place.
        assert!((0..6).all(|n| add(&ring, n)));
        assert!((0..6).all(|n| take(&ring) == Some(entry(n))));
        assert!((6..14).all(|n| add(&ring, n)));
        assert!((6..12).all(|n| take(&ring) == Some(entry(n))));
        for capacity in [32, 8, 4, 2] {
            // SAFETY: as in `add`.
            assert_eq!(unsafe { ring.len() }, 2);
            // SAFETY: as in `add`.
            let old = unsafe { ring.resize(Room::new(capacity).unwrap()) };
            assert!(!old.0.is_empty());
            let free = (0..64).take_while(|_| add(&ring, 99)).count();
            assert_eq!(
                free as u32,
                capacity - 2,
                "{capacity} places, two are taken"
            );
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
    fn a_discarded_ring_holds_nothing_until_it_is_reset() {
        let ring = CompletionRing::new();
        // SAFETY: as in `add`.
        unsafe { ring.reset(Room::new(1).unwrap()) };
        assert!(add(&ring, 0));
        // SAFETY: as in `add`.
        unsafe { ring.discard() };
        assert_eq!(take(&ring), None);
        assert!(!add(&ring, 1), "no room");
        // SAFETY: as in `add`.
        let dropped = unsafe { ring.compact(|_| false) };
        assert_eq!(dropped, 0);
        // SAFETY: as in `add`.
        unsafe { ring.reset(Room::new(1).unwrap()) };
        assert!(add(&ring, 2));
        assert_eq!(take(&ring), Some(entry(2)));
    }
}
