//! The rings by which the kernel and this process pass chunks to each other.
//!
//! A ring is an array of entries and two indices that only increase, one stored by
//! the producer of entries, one by the consumer; the slot of an entry is its
//! index modulo the length, a power of two. Each side keeps a private copy of its
//! own index until it publishes it.

use core::marker::PhantomData;
use core::ptr::NonNull;

use libc::xdp_ring_offset;

use crate::mapping::Mapping;
use crate::sync::mapped::{AtomicU32, Ordering};

/// The memory of a ring.
#[derive(Debug)]
struct Ring<T> {
    memory: Mapping,
    producer: NonNull<u32>,
    consumer: NonNull<u32>,
    flags: NonNull<u32>,
    entries: NonNull<T>,
    mask: u32,
    entry: PhantomData<T>,
}

// SAFETY: the words are accessed atomically and the entries according to the indices;
// nothing depends on the thread that uses the ring.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// # Safety
    /// The offsets lie in the mapping: those of the words aligned to four
    /// bytes, that of `len` entries, a power of two, aligned to their type.
    /// The memory is touched through this value and by the kernel only.
    unsafe fn new(memory: Mapping, offsets: &xdp_ring_offset, len: u32) -> Self {
        let at = |offset_bytes: u64| {
            // SAFETY: the caller's promise.
            unsafe { memory.as_ptr().add(offset_bytes as usize) }
        };
        Self {
            producer: at(offsets.producer).cast(),
            consumer: at(offsets.consumer).cast(),
            flags: at(offsets.flags).cast(),
            entries: at(offsets.desc).cast(),
            mask: len - 1,
            entry: PhantomData,
            memory,
        }
    }

    #[inline]
    fn word(&self, address: NonNull<u32>) -> &AtomicU32 {
        debug_assert!(self.memory.contains(address.as_ptr().cast()));
        // SAFETY: mapped while `self` exists and aligned (obligation of `new`), and only
        // accessed atomically, by this process and the kernel.
        unsafe { AtomicU32::from_ptr(address.as_ptr()) }
    }

    #[inline]
    fn entry(&self, index: u32) -> NonNull<T> {
        // SAFETY: the mask keeps the index below the length, and that many
        // entries are mapped (obligation of `new`).
        unsafe { self.entries.add((index & self.mask) as usize) }
    }
}

/// Returns the memory size of a ring of `len` entries.
pub(super) fn ring_bytes<T>(offsets: &xdp_ring_offset, len: u32) -> usize {
    offsets.desc as usize + len as usize * size_of::<T>()
}

/// The producer's end of a ring whose consumer is the kernel.
///
/// The number of entries in flight never exceeds the length: the owner ensures
/// that, with rings that are longer than the number of its chunks.
#[derive(Debug)]
pub(super) struct Producer<T> {
    ring: Ring<T>,
    next: u32,
}

impl<T: Copy> Producer<T> {
    /// # Safety
    /// `memory` is a ring of `len` entries of this type at these offsets that
    /// the kernel consumes, and is used by no other code.
    pub(super) unsafe fn new(memory: Mapping, offsets: &xdp_ring_offset, len: u32) -> Self {
        // SAFETY: the caller's promise; the kernel aligns its words and entries.
        let ring = unsafe { Ring::new(memory, offsets, len) };
        // Relaxed: only this process stores the index.
        let next = ring.word(ring.producer).load(Ordering::Relaxed);
        Self { ring, next }
    }

    /// Adds an entry; the kernel sees it after [`Producer::publish`].
    #[inline]
    pub(super) fn push(&mut self, entry: T) {
        debug_assert!(self.unread() <= self.ring.mask, "the ring is full");
        // SAFETY: the entry is mapped, and the kernel has read its previous value,
        // since no more entries than the ring's length are in flight.
        unsafe { self.ring.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
    }

    /// Publishes all added entries to the kernel.
    #[inline]
    pub(super) fn publish(&self) {
        // Release: partner is the kernel's acquiring load of the index before it
        // reads entries, and the chunks that they refer to.
        self.ring
            .word(self.ring.producer)
            .store(self.next, Ordering::Release);
    }

    /// Returns the number of entries that the kernel did not take yet.
    #[inline]
    pub(super) fn unread(&self) -> u32 {
        self.next.wrapping_sub(self.taken())
    }

    /// Returns the number of entries that the kernel has taken in total, modulo 2^32.
    #[inline]
    pub(super) fn taken(&self) -> u32 {
        // Acquire: partner is the kernel's releasing store after it read the
        // entries, which precedes later writes to them.
        self.ring.word(self.ring.consumer).load(Ordering::Acquire)
    }

    /// Returns whether the kernel processes the ring in a system call only.
    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        // Relaxed: a hint without data. If it is read too early it is read again with the next
        // burst, as long as entries are unread; before a sleep it is not relied on.
        self.ring.word(self.ring.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// The consumer's end of a ring whose producer is the kernel.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    ring: Ring<T>,
    next: u32,
    /// The last known index of the kernel.
    end: u32,
}

impl<T: Copy> Consumer<T> {
    /// # Safety
    /// `memory` is a ring of `len` entries of this type at these offsets that
    /// the kernel produces, and is used by no other code.
    pub(super) unsafe fn new(memory: Mapping, offsets: &xdp_ring_offset, len: u32) -> Self {
        // SAFETY: the caller's promise; the kernel aligns its words and entries.
        let ring = unsafe { Ring::new(memory, offsets, len) };
        // Relaxed: only this process stores the index.
        let next = ring.word(ring.consumer).load(Ordering::Relaxed);
        Self {
            ring,
            next,
            end: next,
        }
    }

    /// Takes the oldest entry; the kernel can reuse its slot after [`Consumer::release`].
    #[inline]
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.next == self.end {
            // Acquire: partner is the kernel's releasing store after the entries
            // and the frames that they refer to.
            self.end = self.ring.word(self.ring.producer).load(Ordering::Acquire);
            if self.next == self.end {
                return None;
            }
        }
        // SAFETY: mapped, and written by the kernel before it moved its index over it; it
        // does not write it again before this process moves its own index.
        let entry = unsafe { self.ring.entry(self.next).read() };
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Releases the slots of all taken entries to the kernel.
    #[inline]
    pub(super) fn release(&self) {
        // Release: partner is the kernel's load of the index before it writes
        // entries; the reads of them here come before.
        self.ring
            .word(self.ring.consumer)
            .store(self.next, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u32 = 4;
    const OFFSETS: xdp_ring_offset = xdp_ring_offset {
        producer: 0,
        consumer: 64,
        desc: 192,
        flags: 128,
    };

    fn memory() -> (Mapping, NonNull<u8>) {
        let memory = Mapping::anonymous(4096).expect("a page");
        let start = memory.as_ptr();
        (memory, start)
    }

    /// Returns a word of the ring, as the kernel accesses it.
    fn word<'a>(start: NonNull<u8>, offset_bytes: u64) -> &'a AtomicU32 {
        let address = start.as_ptr().wrapping_add(offset_bytes as usize).cast();
        // SAFETY: offsets are those of aligned words in the page, which exists as long as the ring under test.
        unsafe { AtomicU32::from_ptr(address) }
    }

    #[test]
    fn published_entries_are_visible_in_order() {
        let (memory, start) = memory();
        // Near the wrap-around of the index.
        // Relaxed here and below: one thread.
        word(start, 0).store(u32::MAX - 2, Ordering::Relaxed);
        word(start, 64).store(u32::MAX - 2, Ordering::Relaxed);
        // SAFETY: the page is long enough; the test acts as the kernel.
        let mut ring = unsafe { Producer::<u64>::new(memory, &OFFSETS, LEN) };
        for round in 0..5u64 {
            for at in 0..u64::from(LEN) {
                ring.push(round * 10 + at);
            }
            let seen = word(start, 0).load(Ordering::Relaxed);
            assert_eq!(seen, word(start, 64).load(Ordering::Relaxed), "not yet");
            ring.publish();
            assert_eq!(ring.unread(), LEN);
            for at in 0..LEN {
                let index = seen.wrapping_add(at);
                // SAFETY: an entry of the page; one thread.
                let entry = unsafe { ring.ring.entry(index).read() };
                assert_eq!(entry, round * 10 + u64::from(at));
            }
            word(start, 64).store(seen.wrapping_add(LEN), Ordering::Relaxed);
            assert_eq!(ring.unread(), 0);
        }
        assert!(!ring.needs_wakeup());
        word(start, 128).store(libc::XDP_RING_NEED_WAKEUP, Ordering::Relaxed);
        assert!(ring.needs_wakeup());
    }

    #[test]
    fn entries_are_taken_once_and_their_slots_released_together() {
        let (memory, start) = memory();
        // SAFETY: the page is long enough; the test acts as the kernel.
        let mut ring = unsafe { Consumer::<u64>::new(memory, &OFFSETS, LEN) };
        assert_eq!(ring.pop(), None);
        for round in 0..5u32 {
            let first = round * LEN;
            for index in first..first + LEN {
                // SAFETY: an entry of the page; one thread.
                unsafe { ring.ring.entry(index).write(u64::from(index)) };
            }
            word(start, 0).store(first + LEN, Ordering::Relaxed);
            for index in first..first + LEN {
                assert_eq!(ring.pop(), Some(u64::from(index)));
            }
            assert_eq!(ring.pop(), None);
            assert_eq!(word(start, 64).load(Ordering::Relaxed), first);
            ring.release();
            assert_eq!(word(start, 64).load(Ordering::Relaxed), first + LEN);
        }
    }

    #[test]
    fn ring_bytes_include_offsets_and_entries() {
        assert_eq!(ring_bytes::<u64>(&OFFSETS, LEN), 192 + 32);
        assert_eq!(ring_bytes::<libc::xdp_desc>(&OFFSETS, LEN), 192 + 64);
    }
}
