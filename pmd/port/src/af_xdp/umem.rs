//! The port's buffers: one mapping divided into chunks, which the kernel identifies
//! by their offset in it.
//!
//! The first chunks are for received frames: the kernel or the caller owns
//! them. The others are for frames to send: free, or owned by the caller or the
//! kernel. A chunk is always used for the same direction, so that neither direction
//! can starve the other.

use core::mem::ManuallyDrop;

use crate::mapping::Mapping;
use crate::mbuf::Mbuf;

/// Current owner of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Kernel,
    Caller,
    Free,
}

/// Result of returning a buffer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Returned {
    /// A chunk for received frames: this address is to be passed to the kernel.
    Receive(u64),
    /// A chunk for frames to send, which is free again.
    Send,
    /// Not a buffer of this port.
    Foreign,
}

/// The chunks.
#[derive(Debug)]
pub(super) struct Umem {
    memory: ManuallyDrop<Mapping>,
    chunk_bytes: u32,
    rx_chunks: u32,
    max_frame_bytes: u32,
    owners: Box<[Owner]>,
    /// Free chunks for sending; the last one was used last.
    free: Vec<u32>,
    lent: u32,
    /// Chunks for sending that the kernel has.
    under_way: u32,
}

impl Umem {
    /// Divides a mapping, as long as all chunks together, that is used by no other code.
    /// Frames to send have at most `max_frame_bytes`, which fit into a chunk.
    pub(super) fn new(
        memory: Mapping,
        chunk_bytes: u32,
        (rx_chunks, tx_chunks): (u32, u32),
        max_frame_bytes: u32,
    ) -> Self {
        let chunks = rx_chunks + tx_chunks;
        debug_assert!(memory.len() >= chunks as usize * chunk_bytes as usize);
        debug_assert!(max_frame_bytes <= chunk_bytes);
        let mut owners = vec![Owner::Kernel; rx_chunks as usize];
        owners.resize(chunks as usize, Owner::Free);
        Self {
            memory: ManuallyDrop::new(memory),
            chunk_bytes,
            rx_chunks,
            max_frame_bytes,
            owners: owners.into_boxed_slice(),
            free: (rx_chunks..chunks).rev().collect(),
            lent: 0,
            under_way: 0,
        }
    }

    pub(super) fn memory(&self) -> &Mapping {
        &self.memory
    }

    /// Returns the number of frames to send that the kernel has.
    pub(super) fn under_way(&self) -> u32 {
        self.under_way
    }

    pub(super) fn chunk_bytes(&self) -> u32 {
        self.chunk_bytes
    }

    /// Returns the address of a chunk: its offset in bytes.
    #[inline]
    pub(super) fn address(&self, index: u32) -> u64 {
        u64::from(index) * u64::from(self.chunk_bytes)
    }

    /// Returns the index of the chunk that contains an address.
    #[inline]
    pub(super) fn index_of(&self, address: u64) -> u64 {
        address / u64::from(self.chunk_bytes)
    }

    /// Lends a buffer for a frame to send; `None` if all are in use.
    #[inline]
    pub(super) fn lend_empty(&mut self) -> Option<Mbuf> {
        let index = self.free.pop()?;
        self.owners[index as usize] = Owner::Caller;
        self.lent += 1;
        Some(self.mbuf(index, 0, 0, self.max_frame_bytes))
    }

    /// Lends a frame that the kernel wrote at an address; `None` if the address is not
    /// in a receive chunk that the kernel owns.
    #[inline]
    pub(super) fn lend_received(&mut self, address: u64, len_bytes: u32) -> Option<Mbuf> {
        let index = u32::try_from(self.index_of(address)).ok()?;
        let offset_bytes = (address % u64::from(self.chunk_bytes)) as u32;
        let room_bytes = self.chunk_bytes - offset_bytes;
        if index >= self.rx_chunks
            || len_bytes > room_bytes
            || self.owners[index as usize] != Owner::Kernel
        {
            return None;
        }
        self.owners[index as usize] = Owner::Caller;
        self.lent += 1;
        Some(self.mbuf(index, offset_bytes, len_bytes, room_bytes))
    }

    /// Creates the handle of a chunk that the caller now owns and that has no other handle.
    #[inline]
    fn mbuf(&self, index: u32, offset_bytes: u32, len_bytes: u32, room_bytes: u32) -> Mbuf {
        let offset_bytes = self.address(index) as usize + offset_bytes as usize;
        // SAFETY: the offset is in the chunk, and the chunk in the mapping.
        let data = unsafe { self.memory.as_ptr().add(offset_bytes) };
        // SAFETY: the range is in the chunk, which stays mapped until the port has the
        // buffer back (ensured by drop); neither the kernel nor another handle accesses it,
        // according to its owner; mmap zeroed it, so every byte is initialised.
        unsafe { Mbuf::from_raw(data, len_bytes, room_bytes, index) }
    }

    /// Returns the same buffer without its first bytes, which are fewer than the frame's length.
    pub(super) fn without_front(&self, mbuf: Mbuf, bytes: u32) -> Mbuf {
        let index = mbuf.cookie();
        let start = self.memory.as_ptr().as_ptr() as usize + self.address(index) as usize;
        let offset_bytes = (mbuf.bytes().as_ptr() as usize - start) as u32 + bytes;
        let len_bytes = mbuf.len() as u32 - bytes;
        self.mbuf(
            index,
            offset_bytes,
            len_bytes,
            self.chunk_bytes - offset_bytes,
        )
    }

    /// Returns the chunk of a buffer, if the caller owns it.
    #[inline]
    fn lent_index(&self, mbuf: &Mbuf) -> Option<u32> {
        let index = mbuf.cookie();
        if self.owners.get(index as usize) != Some(&Owner::Caller) {
            return None;
        }
        let start = self.memory.as_ptr().as_ptr() as usize + self.address(index) as usize;
        let offset_bytes = (mbuf.bytes().as_ptr() as usize).checked_sub(start)?;
        (offset_bytes < self.chunk_bytes as usize).then_some(index)
    }

    /// Returns whether the buffer was lent for a frame to send.
    #[inline]
    pub(super) fn is_to_send(&self, mbuf: &Mbuf) -> bool {
        self.lent_index(mbuf)
            .is_some_and(|index| index >= self.rx_chunks)
    }

    /// Passes a buffer for which [`Umem::is_to_send`] is true from the caller to the kernel
    /// for sending; returns its address.
    #[inline]
    pub(super) fn submit(&mut self, mbuf: &Mbuf) -> u64 {
        let index = mbuf.cookie();
        debug_assert!(self.is_to_send(mbuf));
        self.owners[index as usize] = Owner::Kernel;
        self.lent -= 1;
        self.under_way += 1;
        self.address(index)
    }

    /// Frees a chunk whose frame the kernel has sent.
    #[inline]
    pub(super) fn reclaim(&mut self, address: u64) {
        let Ok(index) = u32::try_from(self.index_of(address)) else {
            return;
        };
        if index >= self.rx_chunks
            && let Some(owner) = self.owners.get_mut(index as usize)
            && *owner == Owner::Kernel
        {
            *owner = Owner::Free;
            self.under_way -= 1;
            self.free.push(index);
        }
    }

    /// Takes a buffer back from the caller.
    #[inline]
    pub(super) fn take_back(&mut self, mbuf: &Mbuf) -> Returned {
        let Some(index) = self.lent_index(mbuf) else {
            return Returned::Foreign;
        };
        self.lent -= 1;
        let owner = &mut self.owners[index as usize];
        if index < self.rx_chunks {
            *owner = Owner::Kernel;
            return Returned::Receive(self.address(index));
        }
        *owner = Owner::Free;
        self.free.push(index);
        Returned::Send
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        // Buffers that the caller holds keep the memory mapped.
        if self.lent == 0 {
            // SAFETY: dropped once, here; no lent buffer points into the mapping.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHUNK_BYTES: u32 = 2048;

    fn umem(rx_chunks: u32, tx_chunks: u32) -> Umem {
        let bytes = (rx_chunks + tx_chunks) * CHUNK_BYTES;
        let memory = Mapping::anonymous(bytes as usize).expect("a few pages");
        Umem::new(memory, CHUNK_BYTES, (rx_chunks, tx_chunks), 1514)
    }

    #[test]
    fn received_frame_is_lent_at_its_address() {
        let mut umem = umem(2, 1);
        let mbuf = umem.lend_received(2048 + 256, 60).expect("a frame");
        let start = umem.memory().as_ptr().as_ptr() as usize;
        assert_eq!(mbuf.bytes().as_ptr() as usize - start, 2048 + 256);
        assert_eq!((mbuf.len(), mbuf.capacity()), (60, 2048 - 256));
        assert!(umem.lend_received(2048 + 256, 60).is_none(), "lent already");
        assert!(!umem.is_to_send(&mbuf));
        let shorter = umem.without_front(mbuf, 4);
        assert_eq!((shorter.len(), shorter.capacity()), (56, 2048 - 260));
        assert_eq!(umem.take_back(&shorter), Returned::Receive(2048));
        assert_eq!(umem.take_back(&shorter), Returned::Foreign, "twice");
    }

    #[test]
    fn invalid_addresses_are_rejected() {
        let mut umem = umem(2, 1);
        for (address, len_bytes) in [(2 * 2048, 60), (u64::MAX, 60), (256, 1793)] {
            assert!(umem.lend_received(address, len_bytes).is_none());
        }
        umem.reclaim(u64::MAX);
        umem.reclaim(0);
        umem.reclaim(2 * 2048);
        assert!(umem.lend_empty().is_some());
        assert!(umem.lend_empty().is_none(), "one chunk, and never two");
    }

    #[test]
    fn buffers_of_another_port_are_foreign() {
        let (mut ours, mut theirs) = (umem(1, 1), umem(1, 1));
        let mbuf = theirs.lend_empty().expect("a chunk");
        let _same_number = ours.lend_empty().expect("a chunk");
        assert!(!ours.is_to_send(&mbuf));
        assert_eq!(ours.take_back(&mbuf), Returned::Foreign);
        assert_eq!(theirs.take_back(&mbuf), Returned::Send);
    }

    proptest! {
        /// Whatever happens, every chunk has one owner, keeps its direction, and none is lost.
        #[test]
        fn no_chunk_is_lost(steps in prop::collection::vec((0u8..6, any::<usize>()), 1..300)) {
            const RX_CHUNKS: u32 = 3;
            const TX_CHUNKS: u32 = 5;
            let mut umem = umem(RX_CHUNKS, TX_CHUNKS);
            let mut filled: Vec<u64> = (0..RX_CHUNKS).map(|index| umem.address(index)).collect();
            let (mut received, mut held, mut sending) = (Vec::new(), Vec::new(), Vec::new());
            for (step, pick) in steps {
                match step {
                    0 => held.extend(umem.lend_empty()),
                    1 if !held.is_empty() => {
                        let mbuf: Mbuf = held.swap_remove(pick % held.len());
                        sending.push(umem.submit(&mbuf));
                    }
                    2 if !held.is_empty() => {
                        let mbuf = held.swap_remove(pick % held.len());
                        prop_assert_eq!(umem.take_back(&mbuf), Returned::Send);
                    }
                    3 if !sending.is_empty() => {
                        umem.reclaim(sending.swap_remove(pick % sending.len()));
                    }
                    4 if !filled.is_empty() => {
                        let address = filled.swap_remove(pick % filled.len());
                        let offset_bytes = (pick % 257) as u64;
                        let mbuf = umem.lend_received(address + offset_bytes, 60);
                        prop_assert!(mbuf.is_some());
                        prop_assert!(umem.lend_received(address, 60).is_none(), "lent already");
                        received.extend(mbuf);
                    }
                    5 if !received.is_empty() => {
                        let mbuf: Mbuf = received.swap_remove(pick % received.len());
                        prop_assert!(!umem.is_to_send(&mbuf));
                        let Returned::Receive(address) = umem.take_back(&mbuf) else {
                            panic!("a chunk changed its direction");
                        };
                        prop_assert!(!filled.contains(&address));
                        filled.push(address);
                    }
                    _ => {}
                }
                let elsewhere = held.len() + sending.len();
                prop_assert_eq!(umem.free.len() + elsewhere, TX_CHUNKS as usize);
                prop_assert_eq!(filled.len() + received.len(), RX_CHUNKS as usize);
                prop_assert_eq!(umem.under_way() as usize, sending.len());
                prop_assert_eq!(umem.lent as usize, held.len() + received.len());
                let count = |owner| umem.owners.iter().filter(|&&it| it == owner).count();
                prop_assert_eq!(count(Owner::Kernel), filled.len() + sending.len());
                prop_assert_eq!(count(Owner::Caller), held.len() + received.len());
                prop_assert_eq!(count(Owner::Free), umem.free.len());
            }
            for mbuf in held.iter().chain(&received) {
                umem.take_back(mbuf);
            }
        }
    }
}
