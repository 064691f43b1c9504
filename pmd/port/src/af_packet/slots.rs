//! The slots of a mapped ring, which are passed between the kernel and this process.
//!
//! A ring consists of blocks, a block of slots, a slot of a `tpacket2_hdr` and
//! a frame behind it. `tp_status`, the first word, defines the owner of the slot;
//! only the owner accesses the other fields and the frame.

use core::mem::{offset_of, size_of};
use core::ptr::NonNull;

use libc::tpacket2_hdr;

use crate::sync::mapped::{AtomicU32, Ordering};

/// Size of a block: a multiple of every page size, and small enough to be
/// allocated contiguously.
const BLOCK_BYTES: u32 = 65_536;
/// Alignment of slots: a cache line.
const SLOT_ALIGN_BYTES: u32 = 64;

/// Offset of a frame to send in its slot.
pub(super) const TX_FRAME_OFFSET_BYTES: u32 =
    (libc::TPACKET2_HDRLEN - size_of::<libc::sockaddr_ll>()) as u32;
/// Maximum offset of a received frame in its slot: the kernel aligns the byte
/// after the Ethernet header, for which it reserves 16 bytes, and not the frame.
pub(super) const RX_FRAME_OFFSET_BYTES: u32 =
    (libc::TPACKET2_HDRLEN + 16).next_multiple_of(libc::TPACKET_ALIGNMENT) as u32;

/// Division of a ring into blocks and slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    slot_bytes: u32,
    slots_per_block: u32,
    blocks: u32,
}

impl Geometry {
    /// Computes a geometry of at least `slots` slots of at least `slot_bytes` bytes, less than a block.
    pub(super) fn new(slots: u32, slot_bytes: u32) -> Self {
        let slot_bytes = slot_bytes.next_multiple_of(SLOT_ALIGN_BYTES);
        let slots_per_block = BLOCK_BYTES / slot_bytes;
        Self {
            slot_bytes,
            slots_per_block,
            blocks: slots.div_ceil(slots_per_block),
        }
    }

    pub(super) fn slots(&self) -> u32 {
        self.blocks * self.slots_per_block
    }

    pub(super) fn slot_bytes(&self) -> u32 {
        self.slot_bytes
    }

    pub(super) fn ring_bytes(&self) -> usize {
        self.blocks as usize * BLOCK_BYTES as usize
    }

    /// Returns the ring request for the kernel.
    pub(super) fn request(&self) -> libc::tpacket_req {
        libc::tpacket_req {
            tp_block_size: BLOCK_BYTES,
            tp_block_nr: self.blocks,
            tp_frame_size: self.slot_bytes,
            tp_frame_nr: self.slots(),
        }
    }

    #[inline]
    fn offset_bytes(&self, index: u32) -> usize {
        debug_assert!(index < self.slots());
        let block = (index / self.slots_per_block) as usize;
        let slot = (index % self.slots_per_block) as usize;
        block * BLOCK_BYTES as usize + slot * self.slot_bytes as usize
    }

    /// Returns the index after `index`, wrapping to the first slot.
    #[inline]
    pub(super) fn after(&self, index: u32) -> u32 {
        let next = index + 1;
        if next == self.slots() { 0 } else { next }
    }

    /// Returns the index before `index`, wrapping to the last slot.
    #[inline]
    pub(super) fn before(&self, index: u32) -> u32 {
        index.checked_sub(1).unwrap_or(self.slots() - 1)
    }
}

/// The header of a received frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct RxHeader {
    /// Length of the frame on the wire.
    pub(super) len_bytes: u32,
    /// Bytes of the frame that are in the slot.
    pub(super) kept_bytes: u32,
    /// Offset of the frame in the slot.
    pub(super) offset_bytes: u16,
    /// Tag control information and EtherType of a tag that the kernel removed
    /// from the frame.
    pub(super) vlan: Option<(u16, u16)>,
}

/// The slots of one ring in the mapping.
#[derive(Debug)]
pub(super) struct Slots {
    start: NonNull<u8>,
    geometry: Geometry,
}

// SAFETY: the slots are shared with the kernel only, and with the holders of
// lent Mbufs as `Mbuf::from_raw` requires; nothing depends on the thread that
// uses them.
unsafe impl Send for Slots {}

impl Slots {
    /// Wraps the slots of a ring that starts at `start`.
    ///
    /// # Safety
    /// `geometry.ring_bytes()` bytes from `start`, which is page-aligned, are a
    /// ring of the kernel with this geometry, stay mapped while the value
    /// exists, and are accessed through this value only.
    pub(super) unsafe fn new(start: NonNull<u8>, geometry: Geometry) -> Self {
        Self { start, geometry }
    }

    #[inline]
    pub(super) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the address `offset_bytes` after the start of a slot.
    #[inline]
    pub(super) fn address(&self, index: u32, offset_bytes: u32) -> NonNull<u8> {
        debug_assert!(offset_bytes < self.geometry.slot_bytes);
        let offset_bytes = self.geometry.offset_bytes(index) + offset_bytes as usize;
        // SAFETY: index and offset are within the geometry (obligation of the
        // callers in this module's siblings), hence within the mapping.
        unsafe { self.start.add(offset_bytes) }
    }

    /// Returns the slot that contains an arbitrary address, if any.
    #[inline]
    pub(super) fn index_of(&self, address: *const u8) -> Option<u32> {
        let offset_bytes = (address as usize).checked_sub(self.start.as_ptr() as usize)?;
        let block = offset_bytes / BLOCK_BYTES as usize;
        let slot = offset_bytes % BLOCK_BYTES as usize / self.geometry.slot_bytes as usize;
        (block < self.geometry.blocks as usize && slot < self.geometry.slots_per_block as usize)
            .then(|| block as u32 * self.geometry.slots_per_block + slot as u32)
    }

    #[inline]
    fn status_word(&self, index: u32) -> &AtomicU32 {
        let address = self.address(index, offset_of!(tpacket2_hdr, tp_status) as u32);
        // SAFETY: the word is mapped while `self` exists, aligned since slots
        // start on cache lines, and accessed atomically by the process and the kernel.
        unsafe { AtomicU32::from_ptr(address.as_ptr().cast()) }
    }

    /// Reads the status of the slot: its owner and flags.
    #[inline]
    pub(super) fn status(&self, index: u32) -> u32 {
        // Acquire: partner is the kernel's write barrier between the frame and
        // its header, or the end of its reading, and the status.
        self.status_word(index).load(Ordering::Acquire)
    }

    /// Sets the status, which passes the slot to its new owner.
    #[inline]
    pub(super) fn set_status(&self, index: u32, status: u32) {
        // Release: partner is the kernel's read barrier after its read of the
        // status; accesses to the frame and its header here come before.
        self.status_word(index).store(status, Ordering::Release);
    }

    #[inline]
    fn field<T: Copy>(&self, index: u32, offset_bytes: usize) -> T {
        let address = self.address(index, offset_bytes as u32);
        // SAFETY: callers pass offset and integer type of a field of
        // tpacket2_hdr, which is mapped, aligned and, according to the status
        // they read, not written by the kernel now.
        unsafe { address.cast::<T>().read() }
    }

    /// Reads the header of a received frame; only while user space owns the slot.
    #[inline]
    pub(super) fn rx_header(&self, index: u32, status: u32) -> RxHeader {
        let vlan = (status & libc::TP_STATUS_VLAN_VALID != 0).then(|| {
            (
                self.field(index, offset_of!(tpacket2_hdr, tp_vlan_tci)),
                self.field(index, offset_of!(tpacket2_hdr, tp_vlan_tpid)),
            )
        });
        RxHeader {
            len_bytes: self.field(index, offset_of!(tpacket2_hdr, tp_len)),
            kept_bytes: self.field(index, offset_of!(tpacket2_hdr, tp_snaplen)),
            offset_bytes: self.field(index, offset_of!(tpacket2_hdr, tp_mac)),
            vlan,
        }
    }

    /// Reads the length of a frame to send; only while user space owns the slot, or of a
    /// slot that was passed to the kernel, which does not change it.
    #[inline]
    pub(super) fn tx_len_bytes(&self, index: u32) -> u32 {
        self.field(index, offset_of!(tpacket2_hdr, tp_len))
    }

    /// Sets the length of a frame to send; only while user space owns the slot.
    #[inline]
    pub(super) fn set_tx_len_bytes(&mut self, index: u32, len_bytes: u32) {
        let address = self.address(index, offset_of!(tpacket2_hdr, tp_len) as u32);
        // SAFETY: the field is mapped and aligned; user space owns the slot, so
        // the kernel does not read it.
        unsafe { address.cast::<u32>().write(len_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn frame_offsets_match_the_kernel() {
        // The kernel's own arithmetic: header 32 bytes, sockaddr_ll 20.
        assert_eq!(TX_FRAME_OFFSET_BYTES, 32);
        assert_eq!(RX_FRAME_OFFSET_BYTES, 80);
    }

    proptest! {
        #[test]
        fn slots_tile_their_blocks(slots in 1u32..5000, slot_bytes in 100u32..3000) {
            let geometry = Geometry::new(slots, slot_bytes);
            prop_assert!(geometry.slots() >= slots);
            prop_assert!(geometry.slot_bytes() >= slot_bytes);
            prop_assert_eq!(geometry.slot_bytes() as usize % libc::TPACKET_ALIGNMENT, 0);
            // SAFETY: the value is only asked for indices of addresses.
            let ring = unsafe { Slots::new(NonNull::dangling(), geometry) };
            let start = ring.start.as_ptr() as usize;
            for index in 0..geometry.slots() {
                let offset_bytes = geometry.offset_bytes(index);
                let last_byte = offset_bytes + geometry.slot_bytes() as usize - 1;
                prop_assert_eq!(offset_bytes / 65_536, last_byte / 65_536, "one block");
                prop_assert_eq!(ring.index_of((start + offset_bytes) as *const u8), Some(index));
                prop_assert_eq!(ring.index_of((start + last_byte) as *const u8), Some(index));
                prop_assert_eq!(geometry.before(geometry.after(index)), index);
            }
            prop_assert_eq!(ring.index_of((start + geometry.ring_bytes()) as *const u8), None);
        }
    }
}
