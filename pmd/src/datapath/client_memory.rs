//! Access to VI memory: in this process, or in an attached application, as the VI's tag selects.

use fcvi_frame::frame::Payload;
use vi_core::descriptor::DataSegment;
use vi_core::memory::table::RegionTable;
use vi_core::memory::transfer::{RdmaRange, SegmentRange, TransferEnd};
use vi_core::memory::{Access, TagCheck, copy};
use vi_core::posted_descriptor::{self, Cursor};
use vi_core::queue::Slot;
use vi_types::QueueKind;

use super::{Memory, ServedApplications, ViPath};
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

/// Copies all data of a message into an inline buffer of the application that posted this receive, which is completed
/// next. Returns false if there is no buffer for it, or the memory of the receive is mapped here, or peers have access
/// to it: they would find the data there later than its completion says.
///
/// # Safety
/// The caller holds the backend lock, and has found the slot, of the receive queue of `path`, valid under it. `bytes`
/// bytes can be read at `from`.
#[inline(never)]
pub(super) unsafe fn receive_inline(
    (path, slot): (&ViPath, &mut Slot),
    served: Option<&mut dyn ServedApplications>,
    regions: &RegionTable,
    from: u64,
    bytes: u32,
) -> bool {
    if bytes == 0 {
        return true;
    }
    let peers_have_access = |s: &DataSegment| regions.peers_have_access(s.handle);
    // SAFETY: found valid by our caller.
    let is_foreign = |s: &DataSegment| unsafe { regions.is_foreign(s.handle) };
    // A completion that waits for space in the ring would be reported too late for a deregistration.
    let is_reported_later = path.pending_completions[QueueKind::Receive as usize];
    if is_reported_later
        || !slot.data().iter().any(is_foreign)
        || slot.data().iter().any(peers_have_access)
    {
        return false;
    }
    let Some((served, client)) = served.zip(path.client) else {
        return false;
    };
    let Some(buffer) = served.inline_buffer(client, bytes) else {
        return false;
    };
    // SAFETY: readable, as the caller promises; the buffer is free and has room for this many bytes.
    unsafe { copy::between(from, buffer.memory.address, bytes as usize) };
    slot.receive_in(&buffer);
    true
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
            if let Some(from) = slot.mapped_address(offset_bytes, to.len() as u32) {
                // SAFETY: found valid by our caller.
                unsafe { copy::read(from, to) };
                return true;
            }
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
