//! A pool of a fixed number of equally sized buffers in one mapping.

use std::io;
use std::sync::Arc;

use crate::mapping::Mapping;
use crate::mbuf::{MAX_CAPACITY_BYTES, Mbuf};

/// Alignment of each buffer: two cache lines, which the adjacent-line prefetcher fetches together.
const BUFFER_ALIGN_BYTES: usize = 128;

/// Parameters of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MempoolConfig {
    /// Number of buffers, at least 1.
    pub(crate) buffers: u32,
    /// Capacity of each buffer in bytes, at least 1.
    pub(crate) buffer_bytes: u32,
    /// Requests huge pages; falls back to ordinary pages if none are free.
    pub(crate) huge_pages: bool,
    /// Upper 8 bits of every cookie, for owners of several pools.
    pub(crate) tag: u8,
}

/// Maximum number of buffers in one pool.
pub(crate) const MAX_BUFFERS: u32 = 1 << 16;

/// A pool of buffers that one thread at a time allocates from and frees to.
///
/// Both are O(1) and LIFO, so that a lightly used pool stays in the cache. All
/// memory is mapped and zeroed when the pool is created. The mapping is reference
/// counted: a holder of [`Mempool::mapping`] keeps buffers valid that outlive the
/// pool. Not part of the public interface: the port that owns the pool ensures that.
#[derive(Debug)]
pub(crate) struct Mempool {
    mapping: Arc<Mapping>,
    stride_bytes: usize,
    config: MempoolConfig,
    free: Vec<u32>,
    #[cfg(debug_assertions)]
    generations: Box<[u8]>,
}

impl Mempool {
    /// Maps the memory of a pool.
    ///
    /// # Errors
    /// `InvalidInput` for zero buffers or bytes, more than [`MAX_BUFFERS`] buffers,
    /// or buffers larger than [`MAX_CAPACITY_BYTES`]; otherwise the error of mmap(2).
    pub(crate) fn new(config: MempoolConfig) -> io::Result<Self> {
        let stride_bytes = (config.buffer_bytes as usize).next_multiple_of(BUFFER_ALIGN_BYTES);
        let len_bytes = stride_bytes
            .checked_mul(config.buffers as usize)
            .filter(|&len_bytes| len_bytes > 0)
            .filter(|_| config.buffers <= MAX_BUFFERS && config.buffer_bytes <= MAX_CAPACITY_BYTES)
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let mapping = if config.huge_pages {
            Mapping::anonymous_huge(len_bytes)?
        } else {
            Mapping::anonymous(len_bytes)?
        };
        Ok(Self {
            mapping: Arc::new(mapping),
            stride_bytes,
            config,
            free: (0..config.buffers).rev().collect(),
            #[cfg(debug_assertions)]
            generations: vec![0; config.buffers as usize].into_boxed_slice(),
        })
    }

    /// Allocates an empty buffer; `None` if all are in use.
    #[inline]
    pub(crate) fn alloc(&mut self) -> Option<Mbuf> {
        let index = self.free.pop()?;
        let offset_bytes = index as usize * self.stride_bytes;
        // SAFETY: `index < buffers`, since the free list holds only such indices,
        // so the offset lies in the mapping.
        let data = unsafe { self.mapping.as_ptr().add(offset_bytes) };
        // SAFETY: the buffer's bytes stay mapped while the pool or a holder of
        // its mapping exists, which the port that lends the buffer ensures; the
        // index left the free list, so no other handle of this buffer exists; mmap
        // zeroed it, so every byte is initialised.
        Some(unsafe { Mbuf::from_raw(data, 0, self.config.buffer_bytes, self.cookie(index)) })
    }

    /// Frees a buffer; returns false for a buffer of another pool, which is leaked and never
    /// put into the free list.
    #[inline]
    pub(crate) fn free(&mut self, mbuf: Mbuf) -> bool {
        let index = Self::index_of(&mbuf);
        if !self.owns(&mbuf) {
            return false;
        }
        debug_assert_eq!(
            mbuf.cookie(),
            self.cookie(index),
            "a buffer was freed with the cookie of an earlier allocation"
        );
        #[cfg(debug_assertions)]
        {
            let generation = &mut self.generations[index as usize];
            *generation = generation.wrapping_add(1);
        }
        self.free.push(index);
        true
    }

    /// Returns whether the buffer belongs to this pool.
    #[inline]
    pub(crate) fn owns(&self, mbuf: &Mbuf) -> bool {
        let index = Self::index_of(mbuf);
        let offset_bytes = index as usize * self.stride_bytes;
        let start = self.mapping.as_ptr().as_ptr().wrapping_add(offset_bytes);
        index < self.config.buffers && mbuf.bytes().as_ptr() == start.cast_const()
    }

    /// Leaks the mapping if buffers are allocated. To be called before dropping a pool whose
    /// buffers may still be in use.
    pub(crate) fn leak_if_in_use(&self) {
        if self.in_use() > 0 {
            core::mem::forget(Arc::clone(&self.mapping));
        }
    }

    /// Returns the index of the buffer in its pool, below [`MempoolConfig::buffers`].
    #[inline]
    pub(crate) fn index_of(mbuf: &Mbuf) -> u32 {
        mbuf.cookie() & 0xFFFF
    }

    /// Returns the [`MempoolConfig::tag`] of the buffer's pool.
    #[inline]
    pub(crate) fn tag_of(mbuf: &Mbuf) -> u8 {
        (mbuf.cookie() >> 24) as u8
    }

    #[inline]
    fn cookie(&self, index: u32) -> u32 {
        #[cfg(debug_assertions)]
        let generation = self.generations[index as usize];
        #[cfg(not(debug_assertions))]
        let generation = 0u8;
        u32::from(self.config.tag) << 24 | u32::from(generation) << 16 | index
    }

    /// Returns the mapping of the buffers, for owners that must keep it mapped.
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Returns the parameters of the pool.
    pub(crate) fn config(&self) -> &MempoolConfig {
        &self.config
    }

    /// Returns the number of allocated buffers.
    #[inline]
    pub(crate) fn in_use(&self) -> u32 {
        self.config.buffers - self.free.len() as u32
    }

    /// Returns the number of free buffers.
    #[inline]
    pub(crate) fn available(&self) -> u32 {
        self.free.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn config(buffers: u32, buffer_bytes: u32) -> MempoolConfig {
        MempoolConfig {
            buffers,
            buffer_bytes,
            huge_pages: false,
            tag: 0xA5,
        }
    }

    #[test]
    fn buffers_are_zeroed_aligned_and_disjoint() {
        let mut pool = Mempool::new(config(9, 200)).expect("a small pool");
        let mut lent: Vec<Mbuf> = std::iter::from_fn(|| pool.alloc()).collect();
        assert_eq!(lent.len(), 9);
        assert_eq!((pool.in_use(), pool.available()), (9, 0));
        for (mark, mbuf) in (1u8..).zip(&mut lent) {
            assert_eq!((mbuf.len(), mbuf.capacity()), (0, 200));
            assert_eq!(mbuf.bytes().as_ptr().align_offset(BUFFER_ALIGN_BYTES), 0);
            assert_eq!(Mempool::tag_of(mbuf), 0xA5);
            assert!(mbuf.buffer_mut().iter().all(|&byte| byte == 0));
            mbuf.buffer_mut().fill(mark);
            mbuf.set_len(200);
        }
        for (mark, mbuf) in (1u8..).zip(lent) {
            assert!(mbuf.bytes().iter().all(|&byte| byte == mark));
            pool.free(mbuf);
        }
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn alloc_returns_the_last_freed_buffer() {
        let mut pool = Mempool::new(config(4, 64)).expect("a small pool");
        let first = pool.alloc().expect("one of four");
        let second = pool.alloc().expect("one of four");
        let index = Mempool::index_of(&first);
        pool.free(second);
        pool.free(first);
        let again = pool.alloc().expect("one of four");
        assert_eq!(Mempool::index_of(&again), index);
        pool.free(again);
    }

    #[test]
    fn free_of_a_foreign_buffer_is_rejected() {
        let mut ours = Mempool::new(config(2, 64)).expect("a small pool");
        let mut theirs = Mempool::new(config(8, 64)).expect("a small pool");
        let lent: Vec<Mbuf> = std::iter::from_fn(|| theirs.alloc()).collect();
        for mbuf in lent {
            assert!(!ours.owns(&mbuf));
            assert!(!ours.free(mbuf));
        }
        assert_eq!(ours.available(), 2);
    }

    #[test]
    fn pool_without_buffers_or_bytes_is_rejected() {
        for (buffers, buffer_bytes) in [(0, 64), (4, 0)] {
            let error = Mempool::new(config(buffers, buffer_bytes)).expect_err("an empty pool");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn huge_pages_fall_back_to_ordinary_pages() {
        let pool = Mempool::new(MempoolConfig {
            huge_pages: true,
            ..config(16, 2172)
        });
        let pool = pool.expect("with or without huge pages");
        assert!(pool.mapping().len() >= 16 * 2176);
    }

    proptest! {
        /// Whatever the order of allocations and frees, an allocated buffer keeps its bytes.
        #[test]
        fn lent_buffers_keep_their_bytes(ops in prop::collection::vec((any::<bool>(), any::<usize>()), 1..300)) {
            let mut pool = Mempool::new(config(7, 48)).expect("a small pool");
            let mut lent: Vec<(u64, Mbuf)> = Vec::new();
            for (serial, (take, pick)) in (0u64..).zip(ops) {
                if take {
                    match pool.alloc() {
                        Some(mut mbuf) => {
                            mbuf.buffer_mut()[..8].copy_from_slice(&serial.to_le_bytes());
                            mbuf.set_len(8);
                            lent.push((serial, mbuf));
                        }
                        None => prop_assert_eq!(lent.len(), 7),
                    }
                } else if !lent.is_empty() {
                    let (mark, mbuf) = lent.swap_remove(pick % lent.len());
                    prop_assert_eq!(mbuf.bytes(), &mark.to_le_bytes());
                    pool.free(mbuf);
                }
                prop_assert_eq!(pool.in_use() as usize, lent.len());
            }
        }
    }
}
