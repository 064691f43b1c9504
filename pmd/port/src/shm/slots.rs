//! The mapped memory of one ring: the consumer's cache line, then fixed-size slots.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use super::layout::{
    Geometry, MAX_FRAME_BYTES, RING_HEADER_BYTES, RingHeader, SLOT_HEADER_BYTES, SLOT_STRIDE_BYTES,
};
use super::sys;
use crate::mapping::Mapping;
use crate::mbuf::Mbuf;
use crate::sync::mapped::AtomicU64;

/// A mapped ring. A position counts slots since the ring was created and never wraps.
#[derive(Debug)]
pub(super) struct Slots {
    map: Mapping,
    first: NonNull<u8>,
    mask: u64,
}

// SAFETY: `first` points into `map`, which is Send and moves along.
unsafe impl Send for Slots {}

impl Slots {
    /// Reserves the memory of the ring of sending slot `sender` in a station's
    /// file and maps it.
    pub(super) fn map(file: &File, geometry: &Geometry, sender: usize) -> io::Result<Self> {
        let stride_bytes = geometry.ring_stride_bytes;
        let offset_bytes = stride_bytes * sender as u64;
        if file.metadata()?.len() < offset_bytes + stride_bytes {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        sys::allocate(file, offset_bytes, stride_bytes)?;
        let map = Mapping::shared(file.as_fd(), offset_bytes, stride_bytes as usize)?;
        sys::populate(&map, geometry.has_huge_rings());
        // SAFETY: in every geometry a ring's header and slots fit in the stride.
        let first = unsafe { map.as_ptr().add(RING_HEADER_BYTES) };
        Ok(Self {
            map,
            first,
            mask: u64::from(geometry.slots_per_ring) - 1,
        })
    }

    /// Returns whether the file was found shorter than the ring.
    pub(super) fn is_lost(&self) -> bool {
        self.map.is_lost()
    }

    /// Returns the number of slots.
    #[inline]
    pub(super) fn count(&self) -> u64 {
        self.mask + 1
    }

    /// Returns the index of the slot of a position.
    #[inline]
    pub(super) fn index(&self, position: u64) -> usize {
        (position & self.mask) as usize
    }

    /// Returns the position before which slots may be overwritten; written by the consumer.
    #[inline]
    pub(super) fn head(&self) -> &AtomicU64 {
        let header = self.map.as_ptr().cast::<RingHeader>();
        // SAFETY: mapped while `self` exists, page-aligned, and made of atomics only.
        let header = unsafe { header.as_ref() };
        &header.head
    }

    #[inline]
    fn slot(&self, position: u64) -> NonNull<u8> {
        let offset = self.index(position) * SLOT_STRIDE_BYTES;
        // SAFETY: the mask keeps the index below the number of slots, all of which
        // are in the mapping.
        unsafe { self.first.add(offset) }
    }

    /// Returns the flag word of a position's slot.
    #[inline]
    pub(super) fn flag(&self, position: u64) -> &AtomicU64 {
        let flag = self.slot(position).cast::<AtomicU64>();
        // SAFETY: mapped while `self` exists, 128-byte aligned, and accessed as an
        // atomic only.
        unsafe { flag.as_ref() }
    }

    /// Returns whether the buffer is that of a position's slot. The low bits of the position suffice.
    #[inline]
    pub(super) fn is_at(&self, position: u64, mbuf: &Mbuf) -> bool {
        let data = self.slot(position).as_ptr().wrapping_add(SLOT_HEADER_BYTES);
        core::ptr::eq(data, mbuf.bytes().as_ptr())
    }

    /// Creates the handle of a position's frame.
    ///
    /// # Safety
    /// The caller owns the position's slot: it is lent by the producer and not yet
    /// published, or published and not yet released by the consumer; no other
    /// handle of it exists in this process; the mapping outlives the handle.
    #[inline]
    pub(super) unsafe fn mbuf(&self, position: u64, len_bytes: u32, cookie: u32) -> Mbuf {
        // SAFETY: a slot is longer than its header.
        let data = unsafe { self.slot(position).add(SLOT_HEADER_BYTES) };
        // SAFETY: header and longest frame fit in a slot; tmpfs memory is zeroed, so
        // initialised; the rest is the caller's obligation. The length is checked
        // by the callers: zero for lent slots, otherwise at most MAX_FRAME_BYTES.
        unsafe { Mbuf::from_raw(data, len_bytes, MAX_FRAME_BYTES as u32, cookie) }
    }

    /// Prefetches the second cache line of a slot whose flag is about to be read: a frame
    /// that was just published is then transferred at once, not line after line.
    #[inline]
    pub(super) fn prefetch_second_line(&self, position: u64) {
        prefetch_for_read(self.slot(position).as_ptr().wrapping_add(64));
    }

    /// Prefetches the cache lines of a slot that will be written soon.
    #[inline]
    pub(super) fn prefetch_for_write(&self, position: u64) {
        let slot = self.slot(position).as_ptr();
        for line in 0..PREFETCHED_LINES {
            prefetch_for_write(slot.wrapping_add(64 * line));
        }
    }
}

/// Number of cache lines of a slot that are prefetched before it is lent: those of a small message's frame.
const PREFETCHED_LINES: usize = 3;

/// Prefetches a cache line for reading.
#[inline]
fn prefetch_for_read(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults and changes nothing but caches.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _no_such_instruction = address;
}

/// Prefetches a cache line for writing.
#[cfg(target_arch = "x86_64")]
#[inline]
fn prefetch_for_write(address: *mut u8) {
    // Not `_mm_prefetch`: without the target feature the compiler makes that a
    // prefetch for reading. Processors without PREFETCHW execute it as a NOP.
    // SAFETY: a prefetch never faults and changes nothing but caches.
    unsafe {
        core::arch::asm!(
            "prefetchw [{0}]",
            in(reg) address,
            options(nostack, preserves_flags, readonly)
        );
    }
}

/// Prefetches a cache line for writing: a no-op, since no such instruction is known here.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn prefetch_for_write(_address: *mut u8) {}
