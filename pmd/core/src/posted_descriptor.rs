//! Posted descriptors: parsed when they are posted (VIPL 5), and their data segments walked.
//!
//! A descriptor is copied into its slot of the queue, unless it can be sent without one ([`OneSegmentSend`]). What was
//! read is checked, so that it does not matter if the application changes the descriptor meanwhile. Posting reports
//! no error of a descriptor: it is stored in its slot, and the poller reports it in queue order. Only a descriptor that
//! cannot be read is refused (Post Descriptor Error, VIPL 3.8.1).

use vi_types::status;

use crate::descriptor::{
    ALIGNMENT_BYTES, CONTROL_BYTES, ControlSegment, DataSegment, SEGMENT_BYTES, control,
};
use crate::memory::backing::MappedAddress;
use crate::memory::table::{RegionTable, RegionView};
use crate::memory::{Access, TagCheck, copy};
use crate::queue::Slot;
use crate::sync::{AtomicBool, Ordering};

mod one_segment;

pub use one_segment::OneSegmentSend;

/// The rules by which a posted descriptor is checked.
#[derive(Clone, Copy)]
pub struct PostRules<'a> {
    /// Registered memory of the NIC.
    pub regions: &'a RegionTable,
    /// Tag that descriptor and buffers must have.
    pub tag: TagCheck,
    /// Segments of a descriptor.
    pub max_segments: u32,
    /// Longest message in bytes.
    pub max_transfer_bytes: u32,
    /// Receives are truncated to their registered memory (`protection = "lenient"`).
    pub(crate) clips_receives: bool,
    /// RDMA reads can be posted; loaded for a read only.
    pub reads: &'a AtomicBool,
}

/// The descriptor's own memory is not readable, or not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

/// A descriptor's control segment, read once, and the location of its segments.
pub struct Header {
    address: u64,
    handle: u32,
    control: ControlSegment,
    readable: bool,
    /// The descriptor's region.
    region: RegionView,
    /// The epoch of the region table before the first check.
    epoch: u32,
}

impl Header {
    /// Reads the control segment and clears its status.
    ///
    /// # Safety
    /// A region that `handle` names stays mapped while it is registered.
    #[inline]
    pub unsafe fn read(
        rules: &PostRules<'_>,
        address: u64,
        handle: u32,
    ) -> Result<Self, Unreadable> {
        let epoch = rules.regions.epoch();
        // One lookup of the region serves both checks. The poller compares the epoch before it uses the memory.
        let region = rules.regions.view(handle).ok_or(Unreadable)?;
        let inside = |bytes| region.allows(rules.tag, address, bytes, Access::Write);
        if !address.is_multiple_of(ALIGNMENT_BYTES) || !inside(CONTROL_BYTES) {
            return Err(Unreadable);
        }
        let pointer = address as *mut ControlSegment;
        // SAFETY: 32 aligned bytes inside a registered, mapped region.
        let control = unsafe { read_control(pointer) };
        let bytes = CONTROL_BYTES + u64::from(control.segment_count) * SEGMENT_BYTES;
        let readable = inside(bytes);
        if !readable && u32::from(control.segment_count) <= rules.max_segments {
            return Err(Unreadable);
        }
        // SAFETY: inside the same 32 bytes.
        let word = unsafe { &raw mut (*pointer).status };
        // SAFETY: as above; the region is writable (`Access::Write`).
        unsafe { word.write_volatile(0) };
        Ok(Self {
            address,
            handle,
            control,
            readable,
            region,
            epoch,
        })
    }

    /// The control field.
    #[inline]
    pub fn control(&self) -> u16 {
        self.control.control
    }

    /// # Safety
    /// As for [`Header::read`], and `index < segment_count` of a readable descriptor.
    #[inline]
    unsafe fn segment(&self, index: usize) -> DataSegment {
        let at = self.address + CONTROL_BYTES + index as u64 * SEGMENT_BYTES;
        // SAFETY: 16 aligned bytes inside the checked range of the descriptor.
        unsafe { read_segment(at as *const DataSegment) }
    }

    fn begin(&self, slot: &mut Slot) {
        slot.begin(self.address, self.handle);
        slot.control = self.control.control;
        slot.immediate = self.control.immediate_data;
        slot.length_bytes = 0;
        slot.remote_address = 0;
        slot.remote_handle = 0;
        slot.fault = 0;
        slot.status = 0;
        slot.epoch = self.epoch.wrapping_sub(1);
        slot.segments_mut(0);
    }

    /// Copies the data segments from `first` on, and marks descriptor and segments as valid in this epoch if they are;
    /// the poller checks again only if a region was deregistered since. Returns the sum of the lengths.
    ///
    /// # Safety
    /// As for [`Header::read`].
    #[inline(always)]
    unsafe fn copy_segments(
        &self,
        rules: &PostRules<'_>,
        slot: &mut Slot,
        first: usize,
        access: Access,
    ) -> u64 {
        let count = (self.control.segment_count as usize).saturating_sub(first);
        let (mut sum, mut are_valid) = (0u64, true);
        for (index, segment) in slot.segments_mut(count).iter_mut().enumerate() {
            // SAFETY: `first + index` is below the segment count; checked readable.
            *segment = unsafe { self.segment(first + index) };
            sum += u64::from(segment.length);
            are_valid &= self.is_valid(rules, segment, access);
        }
        if are_valid {
            slot.epoch = self.epoch;
        }
        sum
    }

    /// Returns whether this access to a data segment is allowed.
    #[inline]
    fn is_valid(&self, rules: &PostRules<'_>, s: &DataSegment, access: Access) -> bool {
        let bytes = u64::from(s.length);
        if bytes == 0 {
            true
        } else if s.handle == self.handle {
            // Data in the region of the descriptor, which was looked up.
            self.region.allows(rules.tag, s.address, bytes, access)
        } else {
            (rules.regions).check(s.handle, rules.tag, s.address, bytes, access)
        }
    }

    /// Fills a slot of a send queue.
    ///
    /// # Safety
    /// As for [`Header::read`].
    #[inline]
    pub unsafe fn fill_send(&self, rules: &PostRules<'_>, slot: &mut Slot) {
        self.begin(slot);
        let op = self.control.control & control::OP_MASK;
        if self.too_many_segments(rules) {
            slot.fault = status::LENGTH_ERROR;
            return;
        }
        let known = match op {
            control::OP_SEND_RECV | control::OP_RDMA_WRITE => true,
            control::OP_RDMA_READ => rules.reads.load(Ordering::Relaxed),
            _ => false,
        };
        let rdma = op != control::OP_SEND_RECV;
        if self.control.control & control::RESERVED != 0
            || self.control.reserved != 0
            || !known
            || (rdma && self.control.segment_count == 0)
        {
            slot.fault = status::FORMAT_ERROR;
            return;
        }
        if rdma {
            if op == control::OP_RDMA_READ {
                // Ignored, and no format error (VIPL 5.2).
                slot.control &= !control::IMMEDIATE;
            }
            // SAFETY: there is at least one segment and all of them are readable.
            let remote = unsafe { self.segment(0) };
            slot.remote_address = remote.address;
            slot.remote_handle = remote.handle;
            if remote.length != 0 {
                // The reserved word of an address segment.
                slot.fault = status::FORMAT_ERROR;
                return;
            }
        }
        let access = slot.access();
        // SAFETY: all segments are readable.
        let sum = unsafe { self.copy_segments(rules, slot, usize::from(rdma), access) };
        if sum != u64::from(self.control.length) || sum > u64::from(rules.max_transfer_bytes) {
            slot.fault = status::LENGTH_ERROR;
            return;
        }
        slot.length_bytes = self.control.length;
    }

    /// Fills a slot of a receive queue. Immediate and fence bits are ignored (VIPL 5.2).
    ///
    /// # Safety
    /// As for [`Header::read`].
    #[inline]
    pub(crate) unsafe fn fill_receive(&self, rules: &PostRules<'_>, slot: &mut Slot) {
        self.begin(slot);
        if self.too_many_segments(rules) {
            slot.fault = status::LENGTH_ERROR;
            return;
        }
        if self.control.control & (control::RESERVED | control::OP_MASK) != 0
            || self.control.reserved != 0
        {
            slot.fault = status::FORMAT_ERROR;
            return;
        }
        // SAFETY: all segments are readable.
        let sum = unsafe { self.copy_segments(rules, slot, 0, Access::Write) };
        slot.length_bytes = u32::try_from(sum).unwrap_or(u32::MAX);
        if rules.clips_receives && slot.epoch != self.epoch {
            self.clip(rules, slot);
        }
    }

    /// Truncates a receive at the end of the region of its first segment that exceeds it. Then only a
    /// longer message fails, with a length error, instead of every message with a protection error.
    #[cold]
    fn clip(&self, rules: &PostRules<'_>, slot: &mut Slot) {
        let mut room_bytes = 0u32;
        let mut is_over = false;
        let count = slot.data().len();
        for segment in slot.segments_mut(count) {
            if is_over {
                segment.length = 0;
                continue;
            }
            let (handle, address) = (segment.handle, segment.address);
            let registered = rules
                .regions
                .bytes_from(handle, rules.tag, address, Access::Write);
            let Some(registered @ 1..) = registered.filter(|_| segment.length > 0) else {
                // Without registered memory it stays a protection error.
                continue;
            };
            if registered < u64::from(segment.length) {
                segment.length = registered as u32;
                is_over = true;
            }
            room_bytes = room_bytes.saturating_add(segment.length);
        }
        if is_over {
            slot.length_bytes = room_bytes;
            let is_valid = |s: &DataSegment| self.is_valid(rules, s, Access::Write);
            if slot.data().iter().all(is_valid) {
                slot.epoch = self.epoch;
            }
        }
    }

    fn too_many_segments(&self, rules: &PostRules<'_>) -> bool {
        !self.readable || u32::from(self.control.segment_count) > rules.max_segments
    }
}

/// Reads one field of application memory, which the application may change at any time.
macro_rules! field {
    ($pointer:expr, $field:ident) => {{
        // SAFETY: a field of a segment that is valid by the caller's contract.
        let field = unsafe { &raw const (*$pointer).$field };
        // SAFETY: as above; a race with the application yields some value, which is
        // checked before it is used.
        unsafe { field.read_volatile() }
    }};
}

/// Reads a control segment field by field, each once: the application has just written them one by one, and a wider
/// load would stall until those stores are in the cache. The link to the next descriptor is never read.
///
/// # Safety
/// `at` points to a control segment inside a registered, mapped region.
#[inline(always)]
unsafe fn read_control(at: *const ControlSegment) -> ControlSegment {
    ControlSegment {
        next: 0,
        next_handle: 0,
        segment_count: field!(at, segment_count),
        control: field!(at, control),
        reserved: field!(at, reserved),
        immediate_data: field!(at, immediate_data),
        length: field!(at, length),
        status: 0,
    }
}

/// Reads an address or data segment field by field.
///
/// # Safety
/// `at` points to a segment inside a registered, mapped region.
#[inline(always)]
unsafe fn read_segment(at: *const DataSegment) -> DataSegment {
    DataSegment {
        address: field!(at, address),
        handle: field!(at, handle),
        length: field!(at, length),
    }
}

/// Checks that the data segments of a slot are valid for an access.
#[inline]
pub(crate) fn segments_valid(
    slot: &Slot,
    regions: &RegionTable,
    tag: TagCheck,
    access: Access,
) -> bool {
    slot.data().iter().all(|s| {
        s.length == 0 || regions.check(s.handle, tag, s.address, u64::from(s.length), access)
    })
}

/// As `segments_valid`, for the poller: checks only if a region was deregistered since the last check.
#[inline(always)]
pub fn still_valid(slot: &mut Slot, regions: &RegionTable, tag: TagCheck, access: Access) -> bool {
    let epoch = regions.epoch();
    slot.epoch == epoch || is_valid_in(epoch, slot, regions, tag, access)
}

/// Checks whether descriptor and segments are valid in this epoch.
fn is_valid_in(
    epoch: u32,
    slot: &mut Slot,
    regions: &RegionTable,
    tag: TagCheck,
    access: Access,
) -> bool {
    // The descriptor of an application's submission is in the application's memory.
    let valid = if tag.is_client() && slot.inline_buffer() != 0 {
        segments_valid(slot, regions, tag, access)
    } else if tag.is_client() {
        let (valid, mapped) = find_segments(slot, regions, tag, access);
        slot.set_mapped_address(mapped);
        valid
    } else {
        regions.check(slot.handle, tag, slot.address, CONTROL_BYTES, Access::Write)
            && segments_valid(slot, regions, tag, access)
    };
    if valid {
        slot.epoch = epoch;
    }
    valid
}

/// Checks the data segments of an application's slot; returns also the local address of an only
/// segment that is mapped.
#[inline]
fn find_segments(
    slot: &Slot,
    regions: &RegionTable,
    tag: TagCheck,
    access: Access,
) -> (bool, Option<MappedAddress>) {
    match slot.data() {
        [only] if only.length > 0 => {
            // SAFETY: only the holder of the backend lock has a reference to a posted slot.
            unsafe { regions.find(only, tag, access) }
        }
        _ => (segments_valid(slot, regions, tag, access), None),
    }
}

/// A position in the data segments of a descriptor.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor {
    at_bytes: u32,
    segment: u32,
    inside_bytes: u32,
}

impl Cursor {
    /// Walks `length_bytes` of the segments from `offset_bytes` on: calls `step` with the address of
    /// each piece and its range counted from the begin of the walk. False if they are too short.
    #[inline]
    pub fn walk(
        &mut self,
        segments: &[DataSegment],
        offset_bytes: u32,
        length_bytes: usize,
        mut step: impl FnMut(u64, core::ops::Range<usize>),
    ) -> bool {
        if !self.seek(segments, offset_bytes) {
            return false;
        }
        let mut done = 0usize;
        while done < length_bytes {
            let Some(piece) = self.piece(segments, length_bytes - done) else {
                return false;
            };
            let next = done + piece.length as usize;
            step(piece.address, done..next);
            done = next;
        }
        true
    }

    /// Moves to `offset_bytes`. Returns false if the segments are too short.
    #[inline]
    pub(crate) fn seek(&mut self, segments: &[DataSegment], offset_bytes: u32) -> bool {
        if self.at_bytes == offset_bytes {
            return true;
        }
        *self = Self::default();
        self.skip(segments, offset_bytes)
    }

    /// Returns the next piece within one segment, of 1 to `at_most_bytes` bytes, and moves behind it.
    /// `None`: the segments end here.
    #[inline]
    pub fn piece(&mut self, segments: &[DataSegment], at_most_bytes: usize) -> Option<DataSegment> {
        loop {
            let segment = segments.get(self.segment as usize)?;
            let left = segment.length - self.inside_bytes;
            if left == 0 {
                self.segment += 1;
                self.inside_bytes = 0;
                continue;
            }
            let length = (left as usize).min(at_most_bytes) as u32;
            let address = segment.address + u64::from(self.inside_bytes);
            self.inside_bytes += length;
            self.at_bytes += length;
            return Some(DataSegment {
                address,
                handle: segment.handle,
                length,
            });
        }
    }

    /// Returns the address of the `bytes` bytes from `offset_bytes` on and moves behind them, if they
    /// are in one segment. Else `None`: walk them.
    #[inline]
    pub fn contiguous(
        &mut self,
        segments: &[DataSegment],
        offset_bytes: u32,
        bytes: u32,
    ) -> Option<u64> {
        if !self.seek(segments, offset_bytes) {
            return None;
        }
        let mut segment = segments.get(self.segment as usize)?;
        while self.inside_bytes == segment.length {
            self.segment += 1;
            self.inside_bytes = 0;
            segment = segments.get(self.segment as usize)?;
        }
        if bytes > segment.length - self.inside_bytes {
            return None;
        }
        let address = segment.address + u64::from(self.inside_bytes);
        self.inside_bytes += bytes;
        self.at_bytes += bytes;
        Some(address)
    }

    fn skip(&mut self, segments: &[DataSegment], offset_bytes: u32) -> bool {
        let mut bytes = offset_bytes;
        while bytes > 0 {
            let Some(segment) = segments.get(self.segment as usize) else {
                // As of a walk from the begin.
                *self = Self::default();
                return false;
            };
            if segment.length > bytes {
                self.inside_bytes = bytes;
                break;
            }
            bytes -= segment.length;
            self.segment += 1;
        }
        self.at_bytes = offset_bytes;
        true
    }
}

/// A [`Cursor`] together with the descriptor to which it belongs.
#[derive(Debug, Default)]
pub struct SlotCursor {
    /// The sequence number of the descriptor on its queue.
    sequence: u32,
    cursor: Cursor,
}

impl SlotCursor {
    /// Returns the cursor for this descriptor, reset if it was used for another one since.
    #[inline]
    pub fn of(&mut self, sequence: u32) -> &mut Cursor {
        if self.sequence != sequence {
            self.sequence = sequence;
            self.cursor = Cursor::default();
        }
        &mut self.cursor
    }
}

/// Copies message bytes into the data segments of a slot. Returns false if they are too short.
///
/// # Safety
/// The segments were found valid for [`Access::Write`] under the backend lock, held since.
#[inline]
pub unsafe fn scatter(cursor: &mut Cursor, slot: &Slot, offset_bytes: u32, payload: &[u8]) -> bool {
    if let Some(address) = cursor.contiguous(slot.data(), offset_bytes, payload.len() as u32) {
        // SAFETY: inside a segment that the caller found valid.
        unsafe { copy::write(address, payload) };
        return true;
    }
    cursor.walk(
        slot.data(),
        offset_bytes,
        payload.len(),
        |address, range| {
            // SAFETY: inside a segment that the caller found valid.
            unsafe { copy::write(address, &payload[range]) };
        },
    )
}

/// Copies message bytes out of the data segments of a slot. Returns false if they are too short.
///
/// # Safety
/// The segments were found valid for [`Access::Read`] under the backend lock, held since.
#[inline]
pub unsafe fn gather(cursor: &mut Cursor, slot: &Slot, offset_bytes: u32, to: &mut [u8]) -> bool {
    let length = to.len();
    cursor.walk(slot.data(), offset_bytes, length, |address, range| {
        // SAFETY: inside a segment that the caller found valid.
        unsafe { copy::read(address, &mut to[range]) };
    })
}

#[cfg(test)]
mod tests;
