//! Packet buffers of a port.
//!
//! An [`Mbuf`] is a handle to memory that belongs to a port: a slot of a shared
//! ring, a frame of a mapped socket ring, or an object of a mempool. The port's
//! `alloc` or `rx_burst` creates it; `tx_burst` or `free` returns it to the *same*
//! port. It has no `Drop`, since the port is not reachable from the buffer. A leaked
//! buffer occupies its slot until the port is closed, and then the memory of the
//! port's buffers until the process exits.

use core::ptr::NonNull;

/// Maximum number of frames in one burst.
pub const BURST: usize = 32;

/// A buffer of a port that holds at most one whole Ethernet frame, without FCS.
///
/// Two machine words, so that it is passed in registers: passed through memory, its
/// loads would wait for the preceding stores into ring slots.
#[derive(Debug)]
#[must_use = "an Mbuf must be returned to its port by tx_burst or free"]
pub struct Mbuf {
    data: NonNull<u8>,
    /// `cookie 32 | capacity 16 | length 16`; capacity and length in bytes.
    word: u64,
}

/// Maximum capacity of an [`Mbuf`] in bytes.
pub const MAX_CAPACITY_BYTES: u32 = 0xFFFF;

// SAFETY: an Mbuf is a unique handle to its memory: its owner is the only code in
// this process that reads or writes those bytes (obligation of `Mbuf::from_raw`,
// upheld by each driver), so it may move between threads.
unsafe impl Send for Mbuf {}

impl Mbuf {
    /// Creates the handle of a buffer; called by drivers only.
    ///
    /// `cookie` is an opaque value of the driver, by which it finds its slot or
    /// pool object again.
    ///
    /// # Safety
    /// `data` points to `capacity_bytes` bytes that stay mapped, readable and
    /// writable until the handle is returned to the driver, even if the port is
    /// dropped before that, and that nothing else in this process accesses until
    /// then; `len_bytes <= capacity_bytes <=` [`MAX_CAPACITY_BYTES`], and the first
    /// `len_bytes` bytes are initialised.
    pub unsafe fn from_raw(
        data: NonNull<u8>,
        len_bytes: u32,
        capacity_bytes: u32,
        cookie: u32,
    ) -> Self {
        debug_assert!(len_bytes <= capacity_bytes && capacity_bytes <= MAX_CAPACITY_BYTES);
        Self {
            data,
            word: u64::from(cookie) << 32
                | u64::from(capacity_bytes as u16) << 16
                | u64::from(len_bytes as u16),
        }
    }

    /// Returns the frame: destination MAC address first, no FCS.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `from_raw` promises that the first `len_bytes` bytes are
        // mapped, initialised and ours.
        unsafe { core::slice::from_raw_parts(self.data.as_ptr(), self.len()) }
    }

    /// Returns the whole buffer for writing a frame; follow with [`Mbuf::set_len`].
    #[inline]
    pub fn buffer_mut(&mut self) -> &mut [u8] {
        // SAFETY: `from_raw` promises `capacity_bytes` bytes that are mapped and
        // ours; drivers hand out memory that was zeroed when it was mapped, so
        // every byte is initialised.
        unsafe { core::slice::from_raw_parts_mut(self.data.as_ptr(), self.capacity()) }
    }

    /// Sets the length of the frame in bytes, limited to the capacity.
    #[inline]
    pub fn set_len(&mut self, len_bytes: usize) {
        debug_assert!(len_bytes <= self.capacity());
        self.word = self.word & !0xFFFF | len_bytes.min(self.capacity()) as u64;
    }

    /// Returns the length of the frame in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        (self.word & 0xFFFF) as usize
    }

    /// Returns whether the buffer holds no frame.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the capacity of the buffer in bytes.
    #[inline]
    pub fn capacity(&self) -> usize {
        (self.word >> 16 & 0xFFFF) as usize
    }

    /// Returns the opaque value that the driver gave the buffer.
    #[inline]
    pub fn cookie(&self) -> u32 {
        (self.word >> 32) as u32
    }
}

/// A FIFO of at most [`BURST`] buffers, without allocation.
#[derive(Debug)]
pub struct MbufBatch {
    slots: [Option<Mbuf>; BURST],
    head: usize,
    tail: usize,
}

impl Default for MbufBatch {
    fn default() -> Self {
        Self::new()
    }
}

impl MbufBatch {
    /// Creates an empty batch.
    pub const fn new() -> Self {
        Self {
            slots: [const { None }; BURST],
            head: 0,
            tail: 0,
        }
    }

    /// Appends a buffer; returns it as the error if the batch is full.
    #[inline(always)]
    pub fn push(&mut self, mbuf: Mbuf) -> Result<(), Mbuf> {
        if self.tail == BURST && !self.compact() {
            return Err(mbuf);
        }
        self.slots[self.tail] = Some(mbuf);
        self.tail += 1;
        Ok(())
    }

    /// Moves the remaining buffers to the front; returns false if the batch is full.
    #[cold]
    fn compact(&mut self) -> bool {
        self.slots.rotate_left(self.head);
        self.tail -= self.head;
        self.head = 0;
        self.tail < BURST
    }

    /// Removes and returns the first buffer.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<Mbuf> {
        if self.head == self.tail {
            return None;
        }
        let mbuf = self.slots[self.head].take();
        self.head += 1;
        if self.head == self.tail {
            self.head = 0;
            self.tail = 0;
        }
        mbuf
    }

    /// Returns the last buffer without removing it.
    #[inline(always)]
    pub fn back_mut(&mut self) -> Option<&mut Mbuf> {
        self.slots[self.head..self.tail].last_mut()?.as_mut()
    }

    /// Returns the first buffer without removing it.
    #[inline]
    pub fn front(&self) -> Option<&Mbuf> {
        self.slots[self.head..self.tail].first()?.as_ref()
    }

    /// Iterates over the buffers from first to last.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &Mbuf> {
        self.slots[self.head..self.tail].iter().flatten()
    }

    /// Returns the number of buffers in the batch.
    #[inline]
    pub fn len(&self) -> usize {
        self.tail - self.head
    }

    /// Returns whether the batch is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Returns the number of buffers that can still be added.
    #[inline]
    pub fn room(&self) -> usize {
        BURST - self.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mempool::{Mempool, MempoolConfig};
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn pool() -> Mempool {
        Mempool::new(MempoolConfig {
            buffers: 64,
            buffer_bytes: 64,
            huge_pages: false,
            tag: 0,
        })
        .expect("a small pool")
    }

    #[test]
    fn set_len_bounds_the_frame_bytes() {
        let mut pool = pool();
        let mut mbuf = pool.alloc().expect("a fresh pool");
        assert!(mbuf.is_empty() && mbuf.bytes().is_empty());
        mbuf.buffer_mut()[..3].copy_from_slice(&[1, 2, 3]);
        mbuf.set_len(2);
        assert_eq!((mbuf.len(), mbuf.bytes()), (2, &[1, 2][..]));
        mbuf.set_len(mbuf.capacity());
        assert_eq!(mbuf.bytes().len(), 64);
        pool.free(mbuf);
    }

    proptest! {
        /// A batch is a bounded queue, wherever its first buffer is.
        #[test]
        fn batch_matches_queue_model(pushes in prop::collection::vec(any::<bool>(), 1..200)) {
            let mut pool = pool();
            let (mut batch, mut oracle) = (MbufBatch::new(), VecDeque::new());
            for push in pushes {
                if push {
                    let mbuf = pool.alloc().expect("more buffers than a batch holds");
                    let cookie = mbuf.cookie();
                    match batch.push(mbuf) {
                        Ok(()) => oracle.push_back(cookie),
                        Err(mbuf) => {
                            prop_assert_eq!(oracle.len(), BURST);
                            prop_assert_eq!(mbuf.cookie(), cookie);
                            pool.free(mbuf);
                        }
                    }
                } else {
                    let mbuf = batch.pop();
                    prop_assert_eq!(mbuf.as_ref().map(Mbuf::cookie), oracle.pop_front());
                    mbuf.into_iter().for_each(|mbuf| assert!(pool.free(mbuf)));
                }
                prop_assert_eq!(batch.len(), oracle.len());
                prop_assert_eq!(batch.room(), BURST - oracle.len());
                prop_assert_eq!(batch.is_empty(), oracle.is_empty());
                prop_assert_eq!(batch.front().map(Mbuf::cookie), oracle.front().copied());
                let cookies: Vec<u32> = batch.iter().map(Mbuf::cookie).collect();
                prop_assert_eq!(cookies, Vec::from(oracle.clone()));
            }
        }
    }
}
