//! Access to VI memory: in this process, or in an attached application, as the VI's tag selects.

use fcvi_frame::frame::Payload;
use vi_core::descriptor::DataSegment;
use vi_core::memory::transfer::{RdmaRange, SegmentRange, TransferEnd};
use vi_core::memory::{Access, TagCheck};
use vi_core::posted_descriptor::{self, Cursor};
use vi_core::queue::Slot;

use super::Memory;
use crate::payload_buffer::PayloadBuffer;

/// Returns bytes of a program's memory as the payload of a frame.
///
/// # Safety
/// They are inside a registered region that the caller found valid under the backend lock, which it
/// holds as long as it uses the payload.
#[inline(always)]
pub(super) unsafe fn payload_at<'a>(address: u64, bytes: u32) -> Payload<'a> {
    let start = core::ptr::with_exposed_provenance(address as usize);
    // SAFETY: guaranteed by the caller: deregistration needs the lock.
    unsafe { Payload::from_raw(start, bytes as usize) }
}

impl Memory<'_> {
    /// Returns message bytes of the data segments of a slot: where they are, if they are in one piece
    /// in this process, else gathered in the buffer. `None`: the segments are too short or not
    /// accessible.
    ///
    /// # Safety
    /// The caller holds the backend lock, under which the segments were found valid for
    /// [`Access::Read`], as long as it uses the payload.
    #[inline(always)]
    pub(super) unsafe fn payload<'b>(
        self,
        tag: TagCheck,
        cursor: &mut Cursor,
        slot: &Slot,
        (offset_bytes, bytes): (u32, u32),
        buffer: &'b mut PayloadBuffer,
    ) -> Option<Payload<'b>> {
        if bytes == 0 {
            return Some(Payload::EMPTY);
        }
        let in_place = if tag.is_client() {
            slot.mapped_address(offset_bytes, bytes)
        } else {
            cursor.contiguous(slot.data(), offset_bytes, bytes)
        };
        if let Some(address) = in_place {
            // SAFETY: inside a segment that the caller found valid.
            return Some(unsafe { payload_at(address, bytes) });
        }
        buffer.fill(bytes as usize, |to| {
            // SAFETY: passed on from our caller.
            unsafe { self.gather(tag, cursor, slot, offset_bytes, to) }
        })
    }

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
