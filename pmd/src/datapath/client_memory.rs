//! Access to VI memory: in this process, or in an attached application, as the VI's tag selects.

use vi_core::descriptor::DataSegment;
use vi_core::memory::transfer::{RdmaRange, SegmentRange, TransferEnd};
use vi_core::memory::{Access, TagCheck};
use vi_core::posted_descriptor::{self, Cursor};
use vi_core::queue::Slot;

use super::Memory;

impl Memory<'_> {
    /// Copies message bytes out of the data segments of a slot. Returns false if the segments are
    /// too short or not accessible.
    ///
    /// # Safety
    /// The caller holds the backend lock, under which the segments were found valid for [`Access::Read`].
    #[inline(always)]
    pub(super) unsafe fn gather(
        self,
        tag: TagCheck,
        cursor: &mut Cursor,
        slot: &Slot,
        offset_bytes: u32,
        to: &mut [u8],
    ) -> bool {
        if tag.is_client() {
            let from = SegmentRange {
                tag,
                access: Access::Read,
                segments: slot.data(),
                cursor,
                offset_bytes,
            };
            // SAFETY: passed on from our caller.
            return unsafe { self.gather_of_client(from, to) };
        }
        // SAFETY: likewise.
        unsafe { posted_descriptor::gather(cursor, slot, offset_bytes, to) }
    }

    /// Copies message bytes into the data segments of a slot; as [`Self::gather`].
    ///
    /// # Safety
    /// The caller holds the backend lock, under which the segments were found valid for [`Access::Write`].
    #[inline(always)]
    pub(super) unsafe fn scatter(
        self,
        tag: TagCheck,
        cursor: &mut Cursor,
        slot: &Slot,
        offset_bytes: u32,
        payload: &[u8],
    ) -> bool {
        if tag.is_client() {
            let to = SegmentRange {
                tag,
                access: Access::Write,
                segments: slot.data(),
                cursor,
                offset_bytes,
            };
            // SAFETY: passed on from our caller.
            return unsafe { self.scatter_to_client(payload, to) };
        }
        // SAFETY: likewise.
        unsafe { posted_descriptor::scatter(cursor, slot, offset_bytes, payload) }
    }

    /// # Safety
    /// The caller holds the backend lock.
    #[inline(never)]
    unsafe fn gather_of_client(self, from: SegmentRange<'_>, to: &mut [u8]) -> bool {
        let from = TransferEnd::Segments(from);
        let bytes = to.len();
        let to = TransferEnd::Buffer(to.as_mut_ptr().expose_provenance() as u64);
        // SAFETY: under the backend lock; `to` is borrowed mutably and has `bytes` bytes.
        unsafe { self.mover.transfer(self.regions, from, to, bytes) }.is_ok()
    }

    /// # Safety
    /// The caller holds the backend lock.
    #[inline(never)]
    unsafe fn scatter_to_client(self, payload: &[u8], to: SegmentRange<'_>) -> bool {
        let to = TransferEnd::Segments(to);
        let bytes = payload.len();
        let from = TransferEnd::Buffer(payload.as_ptr().expose_provenance() as u64);
        // SAFETY: under the backend lock; `from` has `bytes` bytes and is only read.
        unsafe { self.mover.transfer(self.regions, from, to, bytes) }.is_ok()
    }

    /// Places bytes of an RDMA write in an application's memory, the last bytes last. Returns false
    /// if the memory may not be written or is not accessible.
    ///
    /// # Safety
    /// The caller holds the backend lock.
    #[inline(never)]
    pub(super) unsafe fn place_for_client(
        self,
        (tag, address, handle): (TagCheck, u64, u32),
        payload: &[u8],
    ) -> bool {
        let to = RdmaRange {
            tag,
            handle,
            address,
        };
        // SAFETY: passed on from our caller.
        unsafe { self.mover.place_in_order(self.regions, to, payload) }.is_ok()
    }

    /// Copies out the bytes of an application's memory that a peer reads. Returns false if the
    /// memory may not be read or is not accessible.
    ///
    /// # Safety
    /// The caller holds the backend lock.
    #[inline(never)]
    pub(super) unsafe fn read_of_client(
        self,
        (tag, address, handle): (TagCheck, u64, u32),
        to: &mut [u8],
    ) -> bool {
        let segment = DataSegment {
            address,
            handle,
            length: to.len() as u32,
        };
        let from = SegmentRange {
            tag,
            access: Access::RemoteRead,
            segments: &[segment],
            cursor: &mut Cursor::default(),
            offset_bytes: 0,
        };
        // SAFETY: passed on from our caller.
        unsafe { self.gather_of_client(from, to) }
    }
}
