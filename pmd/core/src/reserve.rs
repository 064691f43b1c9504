//! Memory reserve for when the system is out of memory: small allocations then come from the reserve, so that a call
//! can fail with an error where Rust would abort the program.
//!
//! Large objects are allocated fallibly. Small ones are not: they come from the reserve if
//! the system is out of memory, and calls that create objects check [`is_low`] first.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The system's allocator with the reserve as fallback. For `#[global_allocator]`.
#[derive(Debug)]
pub struct ReserveAllocator;

/// `COUNT` blocks of one size, with a bit of `taken` for each.
#[repr(align(4096))]
struct Blocks<const BYTES: usize, const COUNT: usize, const WORDS: usize> {
    memory: UnsafeCell<[[u8; BYTES]; COUNT]>,
    taken: [AtomicU64; WORDS],
    count: AtomicU32,
}

// SAFETY: the bits of `taken` ensure that a block has one owner from `take` to `release`.
unsafe impl<const BYTES: usize, const COUNT: usize, const WORDS: usize> Sync
    for Blocks<BYTES, COUNT, WORDS>
{
}

impl<const BYTES: usize, const COUNT: usize, const WORDS: usize> Blocks<BYTES, COUNT, WORDS> {
    const SHAPE: () = assert!(BYTES.is_power_of_two() && COUNT == 64 * WORDS);

    const fn new() -> Self {
        let () = Self::SHAPE;
        Self {
            memory: UnsafeCell::new([[0; BYTES]; COUNT]),
            taken: [const { AtomicU64::new(0) }; WORDS],
            count: AtomicU32::new(0),
        }
    }

    fn base(&self) -> *mut u8 {
        self.memory.get().cast()
    }

    /// Allocates a block for this layout, if one is free and large enough.
    fn take(&self, layout: Layout) -> Option<*mut u8> {
        if layout.size() > BYTES || layout.align() > BYTES.min(4096) {
            return None;
        }
        for (word, taken) in self.taken.iter().enumerate() {
            let mut bits = taken.load(Ordering::Relaxed);
            while bits != u64::MAX {
                let bit = bits.trailing_ones();
                // Acquire: partner of the Release in `release`, after the last use by the previous owner.
                let before = taken.fetch_or(1 << bit, Ordering::Acquire);
                if before >> bit & 1 == 0 {
                    self.count.fetch_add(1, Ordering::Relaxed);
                    let index = word * 64 + bit as usize;
                    // SAFETY: the index is below COUNT.
                    return Some(unsafe { self.base().add(index * BYTES) });
                }
                bits = before;
            }
        }
        None
    }

    /// Returns the index of a block, if it is one of these.
    fn index_of(&self, block: *mut u8) -> Option<usize> {
        let offset = (block as usize).wrapping_sub(self.base() as usize);
        (offset < BYTES * COUNT).then_some(offset / BYTES)
    }

    /// Frees a block; returns false if it is not one of these.
    fn release(&self, block: *mut u8) -> bool {
        let Some(index) = self.index_of(block) else {
            return false;
        };
        // Release: partner of the Acquire in `take`.
        self.taken[index / 64].fetch_and(!(1 << (index % 64)), Ordering::Release);
        self.count.fetch_sub(1, Ordering::Relaxed);
        true
    }

    fn is_low(&self) -> bool {
        self.count.load(Ordering::Relaxed) as usize > COUNT / 2
    }
}

static TINY: Blocks<64, 4096, 64> = Blocks::new();
static SMALL: Blocks<512, 1024, 16> = Blocks::new();
static MIDDLE: Blocks<4096, 128, 2> = Blocks::new();
static LARGE: Blocks<65536, 64, 1> = Blocks::new();

/// Returns true if more than half of the reserve is used: no new objects should be created.
#[must_use]
pub fn is_low() -> bool {
    TINY.is_low() || SMALL.is_low() || MIDDLE.is_low() || LARGE.is_low()
}

/// Returns true if the system has no memory even for a small allocation. The C library may then abort the program when
/// a thread uses a thread-local for the first time.
#[must_use]
pub fn is_system_out_of_memory() -> bool {
    const LAYOUT: Layout = Layout::new::<[u64; 64]>();
    // SAFETY: the layout is not empty.
    let block = unsafe { System.alloc(LAYOUT) };
    if block.is_null() {
        return true;
    }
    // SAFETY: allocated just now, with this layout.
    unsafe { System.dealloc(block, LAYOUT) };
    false
}

fn take(layout: Layout) -> *mut u8 {
    TINY.take(layout)
        .or_else(|| SMALL.take(layout))
        .or_else(|| MIDDLE.take(layout))
        .or_else(|| LARGE.take(layout))
        .unwrap_or(core::ptr::null_mut())
}

fn release(block: *mut u8) -> bool {
    TINY.release(block) || SMALL.release(block) || MIDDLE.release(block) || LARGE.release(block)
}

fn is_of_reserve(block: *mut u8) -> bool {
    TINY.index_of(block).is_some()
        || SMALL.index_of(block).is_some()
        || MIDDLE.index_of(block).is_some()
        || LARGE.index_of(block).is_some()
}

// SAFETY: a block comes from the system's allocator or from the reserve and is returned to its origin, by its
// address; a block of the reserve has at least the requested size and alignment. Nothing here unwinds.
unsafe impl GlobalAlloc for ReserveAllocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: guaranteed by the caller.
        let block = unsafe { System.alloc(layout) };
        if block.is_null() { take(layout) } else { block }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: guaranteed by the caller.
        let block = unsafe { System.alloc_zeroed(layout) };
        if !block.is_null() {
            return block;
        }
        let block = take(layout);
        if !block.is_null() {
            // SAFETY: an owned block of at least this size.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if !release(block) {
            // SAFETY: not from the reserve, so from the system's allocator.
            unsafe { System.dealloc(block, layout) };
        }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if !is_of_reserve(block) {
            // SAFETY: from the system's allocator; otherwise guaranteed by the caller.
            let moved = unsafe { System.realloc(block, layout, bytes) };
            if !moved.is_null() {
                return moved;
            }
        }
        // SAFETY: of a size that the caller guarantees, and of an alignment that was valid before.
        let wanted = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
        // SAFETY: as in `alloc`.
        let moved = unsafe { self.alloc(wanted) };
        if !moved.is_null() {
            // SAFETY: two blocks, each of at least this many bytes.
            unsafe { core::ptr::copy_nonoverlapping(block, moved, layout.size().min(bytes)) };
            // SAFETY: guaranteed by the caller, which gets the new block.
            unsafe { self.dealloc(block, layout) };
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_allocated_once_until_they_are_released() {
        let blocks: Blocks<64, 64, 1> = Blocks::new();
        let layout = Layout::new::<[u64; 8]>();
        let mut taken: Vec<_> = (0..64).map(|_| blocks.take(layout).unwrap()).collect();
        assert_eq!(blocks.take(layout), None);
        assert!(blocks.is_low());
        assert!(taken.iter().all(|block| block.addr().is_multiple_of(64)));
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), 64);
        assert!(blocks.release(taken[7]));
        assert_eq!(blocks.take(layout), Some(taken[7]));
        assert!(
            !blocks.release(core::ptr::dangling_mut()),
            "from the system"
        );
        for block in taken {
            assert!(blocks.release(block));
        }
        assert!(!blocks.is_low());
    }

    #[test]
    fn take_fails_for_layouts_beyond_size_or_alignment_of_a_block() {
        let blocks: Blocks<64, 64, 1> = Blocks::new();
        assert_eq!(blocks.take(Layout::new::<[u8; 65]>()), None);
        let aligned = Layout::from_size_align(8, 128).unwrap();
        assert_eq!(blocks.take(aligned), None);
    }
}
