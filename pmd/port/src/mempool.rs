//! A fixed number of fixed-size buffers in one mapping.

use std::io;
use std::sync::Arc;

use crate::mapping::Mapping;
use crate::mbuf::{MAX_CAPACITY_BYTES, Mbuf};

/// Buffers start at multiples of this: two cache lines, which the adjacent-line prefetcher takes as one.
const BUFFER_ALIGN_BYTES: usize = 128;

/// What a pool is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MempoolConfig {
    /// How many buffers, at least one.
    pub(crate) buffers: u32,
    /// How long the longest frame is that one buffer holds, at least one byte.
    pub(crate) buffer_bytes: u32,
    /// Ask for huge pages; ordinary ones are taken when there are none.
    pub(crate) huge_pages: bool,
    /// Stands in the upper 8 bits of every cookie, for owners of several pools.
    pub(crate) tag: u8,
}

/// Buffers in one pool, at most.
pub(crate) const MAX_BUFFERS: u32 = 1 << 16;

/// A pool of buffers that one thread at a time allocates from and frees to.
///
/// Both are O(1), and last in is first out, so that a lightly used pool stays
/// in the cache. All memory is mapped and zeroed when the pool is made. The
/// mapping itself is shared: whoever holds [`Mempool::mapping`] keeps buffers
/// alive that outlive the pool. Not for users of the crate: a port is the owner
/// that sees to that.
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
    /// `InvalidInput` for a pool without buffers or bytes, with more than
    /// [`MAX_BUFFERS`], or with buffers larger than an Mbuf can say; else what
    /// mmap(2) says.
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

    /// Takes an empty buffer; `None` if all are in use.
    #[inline]
    pub(crate) fn alloc(&mut self) -> Option<Mbuf> {
        let index = self.free.pop()?;
        let offset_bytes = index as usize * self.stride_bytes;
        // SAFETY: `index < buffers`, since only such indices are ever in the
        // free list, so the offset lies in the mapping.
        let data = unsafe { self.mapping.as_ptr().add(offset_bytes) };
        // SAFETY: the buffer's bytes stay mapped while the pool or a holder of
        // its mapping lives, which the port that lends the buffer sees to; the
        // index left the free list, so nobody else has this buffer; mmap
        // zeroed it, so every byte is initialised.
        Some(unsafe { Mbuf::from_raw(data, 0, self.config.buffer_bytes, self.cookie(index)) })
    }

    /// Takes a buffer back; false for one that is not of this pool, which is given up and never
    /// mixed in.
    #[inline]
    pub(crate) fn free(&mut self, mbuf: Mbuf) -> bool {
        let index = Self::index_of(&mbuf);
        if !self.owns(&mbuf) {
            return false;
        }
        debug_assert_eq!(
            mbuf.cookie(),
            self.cookie(index),
            "a buffer came back with the cookie of an earlier loan"
        );
        #[cfg(debug_assertions)]
        {
            let generation = &mut self.generations[index as usize];
            *generation = generation.wrapping_add(1);
        }
        self.free.push(index);
        true
    }

    /// True if the buffer is one of this pool's.
    #[inline]
    pub(crate) fn owns(&self, mbuf: &Mbuf) -> bool {
        let index = Self::index_of(mbuf);
        let offset_bytes = index as usize * self.stride_bytes;
        let start = self.mapping.as_ptr().as_ptr().wrapping_add(offset_bytes);
        index < self.config.buffers && mbuf.bytes().as_ptr() == start.cast_const()
    }

    /// Keeps the memory mapped for the life of the process if buffers are lent. Whoever drops a
    /// pool whose buffers others may have calls this before.
    pub(crate) fn keep_lent(&self) {
        if self.in_use() > 0 {
            core::mem::forget(Arc::clone(&self.mapping));
        }
    }

    /// Which buffer of its pool this is: below [`MempoolConfig::buffers`].
    #[inline]
    pub(crate) fn index_of(mbuf: &Mbuf) -> u32 {
        mbuf.cookie() & 0xFFFF
    }

    /// The [`MempoolConfig::tag`] of the pool that the buffer came from.
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

    /// The memory of the buffers, for whoever must keep it alive.
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// What the pool was made of.
    pub(crate) fn config(&self) -> &MempoolConfig {
        &self.config
    }

    /// How many buffers are lent out now.
    #[inline]
    pub(crate) fn in_use(&self) -> u32 {
        self.config.buffers - self.free.len() as u32
    }

    /// How many buffers can be taken now.
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
    fn every_buffer_is_lent_once_zeroed_and_apart_from_the_others() {
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
    fn the_last_freed_buffer_is_lent_first() {
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
    fn a_buffer_of_another_pool_is_refused_and_not_mixed_in() {
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
    fn a_pool_of_nothing_is_refused() {
        for (buffers, buffer_bytes) in [(0, 64), (4, 0)] {
            let error = Mempool::new(config(buffers, buffer_bytes)).expect_err("an empty pool");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn huge_pages_are_used_or_done_without() {
        let pool = Mempool::new(MempoolConfig {
            huge_pages: true,
            ..config(16, 2172)
        });
        let pool = pool.expect("with or without huge pages");
        assert!(pool.mapping().len() >= 16 * 2176);
    }

    proptest! {
        /// Whatever the order of loans and returns, a lent buffer keeps its bytes.
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
