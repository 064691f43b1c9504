//! The rings by which the kernel and this process hand chunks to each other.
//!
//! A ring is an array of entries and two indices that only grow, one moved by
//! whoever puts entries in, one by whoever takes them out; an entry's place is
//! its index modulo the length, a power of two. Each side keeps its own index
//! for itself until it publishes it.

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

// SAFETY: the words are accessed atomically and the entries as the indices say;
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
        // SAFETY: mapped while `self` lives and aligned, as `new` was promised, and only
        // accessed atomically, by us and the kernel.
        unsafe { AtomicU32::from_ptr(address.as_ptr()) }
    }

    #[inline]
    fn entry(&self, index: u32) -> NonNull<T> {
        // SAFETY: the mask keeps the index below the length, and so many
        // entries are mapped, as `new` was promised.
        unsafe { self.entries.add((index & self.mask) as usize) }
    }
}

/// How much memory a ring of `len` entries takes.
pub(super) fn ring_bytes<T>(offsets: &xdp_ring_offset, len: u32) -> usize {
    offsets.desc as usize + len as usize * size_of::<T>()
}

/// The end of a ring at which this process puts entries in.
///
/// There are never more of them under way than the ring is long: that is for
/// the owner to see to, whose rings are longer than it has chunks to hand over.
#[derive(Debug)]
pub(super) struct Producer<T> {
    ring: Ring<T>,
    next: u32,
}

impl<T: Copy> Producer<T> {
    /// # Safety
    /// `memory` is a ring of `len` entries of this type at these offsets that
    /// the kernel takes entries from, and used by nobody else.
    pub(super) unsafe fn new(memory: Mapping, offsets: &xdp_ring_offset, len: u32) -> Self {
        // SAFETY: the caller's promise; the kernel aligns its words and entries.
        let ring = unsafe { Ring::new(memory, offsets, len) };
        // Relaxed: the index is ours alone to move.
        let next = ring.word(ring.producer).load(Ordering::Relaxed);
        Self { ring, next }
    }

    /// Puts an entry in; the kernel sees it after [`Producer::publish`].
    #[inline]
    pub(super) fn push(&mut self, entry: T) {
        debug_assert!(self.unread() <= self.ring.mask, "the ring is full");
        // SAFETY: the entry is mapped, and the kernel has taken what was in it,
        // since no more than the ring's length is under way.
        unsafe { self.ring.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
    }

    /// Shows the kernel everything that was put in.
    #[inline]
    pub(super) fn publish(&self) {
        // Release: partner is the kernel's acquiring load of the index before it
        // reads entries, and the chunks that they name.
        self.ring
            .word(self.ring.producer)
            .store(self.next, Ordering::Release);
    }

    /// How many entries the kernel did not take yet.
    #[inline]
    pub(super) fn unread(&self) -> u32 {
        self.next.wrapping_sub(self.taken())
    }

    /// How many entries the kernel ever took, modulo 2^32.
    #[inline]
    pub(super) fn taken(&self) -> u32 {
        // Acquire: partner is the kernel's releasing store behind its reading of
        // entries, which come before what we write there next.
        self.ring.word(self.ring.consumer).load(Ordering::Acquire)
    }

    /// True if the kernel looks at the ring in a system call only.
    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        // Relaxed: a hint without data. Who sees it too early looks again with the next
        // burst, as long as entries are unread; before a sleep nobody relies on it.
        self.ring.word(self.ring.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// The end of a ring at which this process takes entries out.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    ring: Ring<T>,
    next: u32,
    /// What is known of the kernel's index.
    end: u32,
}

impl<T: Copy> Consumer<T> {
    /// # Safety
    /// `memory` is a ring of `len` entries of this type at these offsets that
    /// the kernel puts entries in, and used by nobody else.
    pub(super) unsafe fn new(memory: Mapping, offsets: &xdp_ring_offset, len: u32) -> Self {
        // SAFETY: the caller's promise; the kernel aligns its words and entries.
        let ring = unsafe { Ring::new(memory, offsets, len) };
        // Relaxed: the index is ours alone to move.
        let next = ring.word(ring.consumer).load(Ordering::Relaxed);
        Self {
            ring,
            next,
            end: next,
        }
    }

    /// Takes the oldest entry; its place is the kernel's again after [`Consumer::release`].
    #[inline]
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.next == self.end {
            // Acquire: partner is the kernel's releasing store behind the entries
            // and the frames that they name.
            self.end = self.ring.word(self.ring.producer).load(Ordering::Acquire);
            if self.next == self.end {
                return None;
            }
        }
        // SAFETY: mapped, and written by the kernel before it moved its index over it; it
        // does not write there again before we move ours.
        let entry = unsafe { self.ring.entry(self.next).read() };
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Gives the kernel the places of everything that was taken.
    #[inline]
    pub(super) fn release(&self) {
        // Release: partner is the kernel's load of the index before it writes
        // entries; our reading of them comes before.
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

    /// A word of the ring, as the kernel has it.
    fn word<'a>(start: NonNull<u8>, offset_bytes: u64) -> &'a AtomicU32 {
        let address = start.as_ptr().wrapping_add(offset_bytes as usize).cast();
        // SAFETY: offsets are those of aligned words in the page, which lives as long as the ring under test.
        unsafe { AtomicU32::from_ptr(address) }
    }

    #[test]
    fn the_kernel_takes_what_was_published_in_order() {
        let (memory, start) = memory();
        // Near the end of what an index can say.
        // Relaxed here and below: one thread.
        word(start, 0).store(u32::MAX - 2, Ordering::Relaxed);
        word(start, 64).store(u32::MAX - 2, Ordering::Relaxed);
        // SAFETY: the page is long enough; the test is the kernel.
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
    fn entries_are_taken_once_and_given_back_when_released() {
        let (memory, start) = memory();
        // SAFETY: the page is long enough; the test is the kernel.
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
    fn a_ring_is_as_long_as_its_entries() {
        assert_eq!(ring_bytes::<u64>(&OFFSETS, LEN), 192 + 32);
        assert_eq!(ring_bytes::<libc::xdp_desc>(&OFFSETS, LEN), 192 + 64);
    }
}
