//! Memory kept for when the system gives no more: small allocations then come from here, so that a call can fail with an
//! error where Rust would end the program.
//!
//! What is large is allocated fallibly, by the code that wants it. What is small is not: it comes from the reserve if
//! the system has none, and whoever makes something new asks [`is_low`] first.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The system's allocator, with the reserve behind it. For `#[global_allocator]`.
#[derive(Debug)]
pub struct ReserveAllocator;

/// So many blocks of one size; a bit of `taken` for each.
#[repr(align(4096))]
struct Blocks<const BYTES: usize, const COUNT: usize, const WORDS: usize> {
    memory: UnsafeCell<[[u8; BYTES]; COUNT]>,
    taken: [AtomicU64; WORDS],
    count: AtomicU32,
}

// SAFETY: a block is the caller's alone from `take` to `give_back`, which the bits of `taken` arrange.
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

    /// A block for this layout, if one is free and large enough.
    fn take(&self, layout: Layout) -> Option<*mut u8> {
        if layout.size() > BYTES || layout.align() > BYTES.min(4096) {
            return None;
        }
        for (word, taken) in self.taken.iter().enumerate() {
            let mut bits = taken.load(Ordering::Relaxed);
            while bits != u64::MAX {
                let bit = bits.trailing_ones();
                // Acquire: partner of the Release in `give_back`: the block's last owner is done with it.
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

    /// The number of a block of these.
    fn index_of(&self, block: *mut u8) -> Option<usize> {
        let offset = (block as usize).wrapping_sub(self.base() as usize);
        (offset < BYTES * COUNT).then_some(offset / BYTES)
    }

    /// Takes a block back; false if it is none of these.
    fn give_back(&self, block: *mut u8) -> bool {
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

/// True if the reserve is used up by half: nothing new should be made.
#[must_use]
pub fn is_low() -> bool {
    TINY.is_low() || SMALL.is_low() || MIDDLE.is_low() || LARGE.is_low()
}

/// True if the system has no memory even for something small. Some of what the C library makes for a thread, when that
/// uses a local of its own for the first time, ends the program then.
#[must_use]
pub fn is_needed() -> bool {
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

fn give_back(block: *mut u8) -> bool {
    TINY.give_back(block)
        || SMALL.give_back(block)
        || MIDDLE.give_back(block)
        || LARGE.give_back(block)
}

fn is_of_reserve(block: *mut u8) -> bool {
    TINY.index_of(block).is_some()
        || SMALL.index_of(block).is_some()
        || MIDDLE.index_of(block).is_some()
        || LARGE.index_of(block).is_some()
}

// SAFETY: a block comes from the system's allocator or from the reserve and goes back to where it came from, which its
// address tells; a block of the reserve is at least as large and as aligned as asked for. Nothing here unwinds.
unsafe impl GlobalAlloc for ReserveAllocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: passed on from our caller.
        let block = unsafe { System.alloc(layout) };
        if block.is_null() { take(layout) } else { block }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: passed on from our caller.
        let block = unsafe { System.alloc_zeroed(layout) };
        if !block.is_null() {
            return block;
        }
        let block = take(layout);
        if !block.is_null() {
            // SAFETY: of at least this size, and ours.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if !give_back(block) {
            // SAFETY: not of the reserve, so of the system's allocator.
            unsafe { System.dealloc(block, layout) };
        }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if !is_of_reserve(block) {
            // SAFETY: of the system's allocator; the rest is passed on from our caller.
            let moved = unsafe { System.realloc(block, layout, bytes) };
            if !moved.is_null() {
                return moved;
            }
        }
        // SAFETY: of a size that our caller vouches for, and of an alignment that was valid before.
        let wanted = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
        // SAFETY: as in `alloc`.
        let moved = unsafe { self.alloc(wanted) };
        if !moved.is_null() {
            // SAFETY: two blocks, each of at least this many bytes.
            unsafe { core::ptr::copy_nonoverlapping(block, moved, layout.size().min(bytes)) };
            // SAFETY: passed on from our caller, who has the other block now.
            unsafe { self.dealloc(block, layout) };
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_given_out_once_until_they_are_given_back() {
        let blocks: Blocks<64, 64, 1> = Blocks::new();
        let layout = Layout::new::<[u64; 8]>();
        let mut taken: Vec<_> = (0..64).map(|_| blocks.take(layout).unwrap()).collect();
        assert_eq!(blocks.take(layout), None);
        assert!(blocks.is_low());
        assert!(taken.iter().all(|block| block.addr().is_multiple_of(64)));
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), 64);
        assert!(blocks.give_back(taken[7]));
        assert_eq!(blocks.take(layout), Some(taken[7]));
        assert!(
            !blocks.give_back(core::ptr::dangling_mut()),
            "of the system"
        );
        for block in taken {
            assert!(blocks.give_back(block));
        }
        assert!(!blocks.is_low());
    }

    #[test]
    fn take_refuses_what_is_larger_or_more_aligned_than_a_block() {
        let blocks: Blocks<64, 64, 1> = Blocks::new();
        assert_eq!(blocks.take(Layout::new::<[u8; 65]>()), None);
        let aligned = Layout::from_size_align(8, 128).unwrap();
        assert_eq!(blocks.take(aligned), None);
    }
}
