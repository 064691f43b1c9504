//! Descriptors of sends, RDMA operations and receives, which own their buffers [VIPL 5].
//!
//! A [`Descriptor`] lives in registered memory of its own and owns the [`Buffer`]s of its data segments. Posting moves
//! it into a work queue, together with all memory that the provider will access; its completion moves it back. Neither
//! allocates: a descriptor is created once and posted repeatedly.

use std::fmt;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use vi_core::descriptor::{AddressSegment, ControlSegment, DataSegment, control};

use crate::memory::{Buffer, RemoteBuffer};
use crate::nic::Ptag;
use crate::{MemoryHandle, RawDescriptor, VipError};

mod status;

pub use status::{CompletedOperation, Status};

const CONTROL_BYTES: usize = size_of::<ControlSegment>();
const SEGMENT_BYTES: usize = size_of::<DataSegment>();
/// Alignment of posted descriptors.
const DESCRIPTOR_ALIGN_BYTES: usize = 64;

const _: () = assert!(
    CONTROL_BYTES == 32 && SEGMENT_BYTES == 16 && size_of::<AddressSegment>() == SEGMENT_BYTES
);
const _: () = assert!(align_of::<RawDescriptor>() <= DESCRIPTOR_ALIGN_BYTES);

/// The operation of a descriptor on a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Sends its bytes to the receive descriptor at the head of the peer's queue.
    Send,
    /// Writes its bytes into the peer's memory; the peer's program is notified only by immediate data.
    RdmaWrite(RemoteBuffer),
    /// Reads from the peer's memory into its buffers, as many bytes as they use; the peer's program is not involved.
    /// Not supported at unreliable delivery, where it completes with a format error.
    RdmaRead(RemoteBuffer),
}

/// A data segment: the first `used_bytes` of a buffer.
struct Segment {
    buffer: Buffer,
    used_bytes: usize,
}

/// The contents of a descriptor, at a fixed heap address. While the descriptor is posted, that address is the context
/// of its work queue slot. Registered memory holds no pointer to it, so no RDMA write can change which owner is found.
struct Owner {
    /// Registered memory with the raw descriptor.
    slot: Buffer,
    operation: Operation,
    immediate: Option<u32>,
    fence: bool,
    /// Its capacity is `max_segments`, so that pushing never allocates.
    segments: Vec<Segment>,
    max_segments: usize,
}

/// A posted descriptor, as passed to a work queue.
pub(crate) struct Posted {
    /// The raw descriptor.
    pub(crate) raw: NonNull<RawDescriptor>,
    /// Handle of the region that contains it.
    pub(crate) handle: MemoryHandle,
    /// Address of its owner, for [`Descriptor::from_context`].
    pub(crate) context: usize,
}

/// A descriptor that belongs to the program: not posted, or completed and taken back.
///
/// Created by [`Nic::create_descriptors`](crate::Nic::create_descriptors).
///
/// ```
/// use pmd::config::{Network, NicConfig};
/// use vipl::{Nic, VipError};
///
/// // A private shared-memory segment; `Nic::open("VINIC0")` opens the segment that all programs share.
/// let segment = format!("doc-{}", std::process::id());
/// let nic = Nic::open_with(&NicConfig { network: Network::segment(segment), ..NicConfig::default() })?;
/// let ptag = nic.create_ptag()?;
/// let vi = nic.vi(&ptag).build()?;
/// let mut descriptor = nic.create_descriptors(1, 1, &ptag)?.remove(0);
/// descriptor.push(nic.create_region(4096, &ptag)?.into_buffer()).unwrap();
/// descriptor.buffer_mut(0)[..5].copy_from_slice(b"hello");
/// descriptor.set_used_bytes(0, 5);
///
/// // Posting moves the descriptor and its buffer to the provider; its completion returns them.
/// vi.post_recv(descriptor)?;
/// assert_eq!(vi.recv_done().unwrap_err(), VipError::NotDone);
/// vi.disconnect()?;
/// let completed = vi.recv_done()?.expect("a receive was posted");
/// assert!(completed.status.is_flushed());
/// assert_eq!(completed.descriptor.buffer(0).len(), 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Descriptor {
    owner: Box<Owner>,
}

impl Descriptor {
    /// Returns the size in bytes of one descriptor's registered memory.
    pub(crate) fn slot_bytes(max_segments: usize) -> usize {
        // One segment more than the data segments: an RDMA operation begins with an address segment.
        let descriptor_bytes = CONTROL_BYTES + (max_segments + 1) * SEGMENT_BYTES;
        descriptor_bytes.max(size_of::<RawDescriptor>())
    }

    /// Creates a descriptor in `slot`, which has [`Self::slot_bytes`] bytes and begins on a cache line.
    pub(crate) fn new(slot: Buffer, max_segments: usize) -> Self {
        debug_assert!(slot.len() >= Self::slot_bytes(max_segments));
        debug_assert!(
            slot.address()
                .addr()
                .get()
                .is_multiple_of(DESCRIPTOR_ALIGN_BYTES)
        );
        let segments = Vec::with_capacity(max_segments);
        let owner = Owner {
            slot,
            operation: Operation::Send,
            immediate: None,
            fence: false,
            segments,
            max_segments,
        };
        Self {
            owner: Box::new(owner),
        }
    }

    /// Appends a data segment of the whole buffer.
    ///
    /// # Errors
    /// Returns the buffer when the descriptor has [`Self::max_segments`] segments already.
    pub fn push(&mut self, buffer: Buffer) -> Result<(), Buffer> {
        if self.owner.segments.len() == self.owner.max_segments {
            return Err(buffer);
        }
        let used_bytes = buffer.len();
        self.owner.segments.push(Segment { buffer, used_bytes });
        Ok(())
    }

    /// Removes the last data segment and returns its buffer.
    pub fn pop(&mut self) -> Option<Buffer> {
        self.owner.segments.pop().map(|segment| segment.buffer)
    }

    /// Returns the number of data segments.
    pub fn segment_count(&self) -> usize {
        self.owner.segments.len()
    }

    /// Returns the maximum number of data segments.
    pub fn max_segments(&self) -> usize {
        self.owner.max_segments
    }

    /// Returns the whole buffer of a data segment.
    ///
    /// # Panics
    /// When there is no such segment.
    pub fn buffer(&self, index: usize) -> &[u8] {
        &self.owner.segments[index].buffer
    }

    /// Returns the whole buffer of a data segment, mutably.
    ///
    /// # Panics
    /// When there is no such segment.
    pub fn buffer_mut(&mut self, index: usize) -> &mut [u8] {
        &mut self.owner.segments[index].buffer
    }

    /// Sets the length of a data segment to the first `used_bytes` of its buffer; 0 is legal.
    ///
    /// # Panics
    /// When there is no such segment or its buffer is shorter.
    pub fn set_used_bytes(&mut self, index: usize, used_bytes: usize) {
        let segment = &mut self.owner.segments[index];
        let buffer_bytes = segment.buffer.len();
        assert!(
            used_bytes <= buffer_bytes,
            "{used_bytes} bytes used of a buffer of {buffer_bytes} bytes"
        );
        segment.used_bytes = used_bytes;
    }

    /// Returns the total length of all data segments in bytes.
    pub fn used_bytes(&self) -> usize {
        self.owner
            .segments
            .iter()
            .map(|segment| segment.used_bytes)
            .sum()
    }

    /// Returns the operation on a send queue. A receive queue ignores it.
    pub fn operation(&self) -> Operation {
        self.owner.operation
    }

    /// Sets the operation on a send queue; [`Operation::Send`] by default.
    pub fn set_operation(&mut self, operation: Operation) {
        self.owner.operation = operation;
    }

    /// Sets the immediate data, 32 bits that are delivered in the peer's receive descriptor. An RDMA write consumes a
    /// receive descriptor of the peer only if it has immediate data; an RDMA read ignores it.
    pub fn set_immediate(&mut self, immediate: Option<u32>) {
        self.owner.immediate = immediate;
    }

    /// Sets the queue fence: the operation waits until all RDMA reads posted before it to the same queue are complete.
    /// Off by default [VIPL 5.2].
    pub fn set_fence(&mut self, fence: bool) {
        self.owner.fence = fence;
    }

    pub(crate) fn ptag(&self) -> &Ptag {
        self.owner.slot.ptag()
    }

    /// Writes the raw descriptor for a send queue.
    pub(crate) fn format_send(&mut self) {
        let owner = &self.owner;
        let (operation, remote) = match owner.operation {
            Operation::Send => (control::OP_SEND_RECV, None),
            Operation::RdmaWrite(remote) => (control::OP_RDMA_WRITE, Some(remote)),
            Operation::RdmaRead(remote) => (control::OP_RDMA_READ, Some(remote)),
        };
        let mut flags = 0;
        if owner.immediate.is_some() {
            flags |= control::IMMEDIATE;
        }
        if owner.fence {
            flags |= control::QFENCE;
        }
        // A length above 32 bits exceeds any transfer size: the provider reports a length error.
        let length = u32::try_from(self.used_bytes()).unwrap_or(u32::MAX);
        self.format(
            operation | flags,
            owner.immediate.unwrap_or(0),
            length,
            remote,
        );
    }

    /// Writes the raw descriptor for a receive queue.
    pub(crate) fn format_recv(&mut self) {
        self.format(control::OP_SEND_RECV, 0, 0, None);
    }

    fn format(&self, control: u16, immediate_data: u32, length: u32, remote: Option<RemoteBuffer>) {
        let segment_count = (self.owner.segments.len() + usize::from(remote.is_some())) as u16;
        let head = ControlSegment {
            next: 0,
            next_handle: 0,
            segment_count,
            control,
            reserved: 0,
            immediate_data,
            length,
            status: 0,
        };
        self.write_at(0, head);
        let mut offset_bytes = CONTROL_BYTES;
        if let Some(RemoteBuffer { address, handle }) = remote {
            self.write_at(
                offset_bytes,
                AddressSegment {
                    address,
                    handle: handle.0,
                    reserved: 0,
                },
            );
            offset_bytes += SEGMENT_BYTES;
        }
        for Segment { buffer, used_bytes } in &self.owner.segments {
            let length = u32::try_from(*used_bytes).unwrap_or(u32::MAX);
            let segment = DataSegment {
                address: buffer.address_bits(),
                handle: buffer.handle().0,
                length,
            };
            self.write_at(offset_bytes, segment);
            offset_bytes += SEGMENT_BYTES;
        }
    }

    /// Writes one segment of the raw descriptor.
    fn write_at<T: Copy>(&self, offset_bytes: usize, value: T) {
        debug_assert!(offset_bytes + size_of::<T>() <= self.owner.slot.len());
        // SAFETY: `slot_bytes` includes every segment that `push` accepts.
        let at = unsafe { self.raw_address().byte_add(offset_bytes) };
        // SAFETY: inside the slot as above, which this descriptor owns; aligned to 16, more than any segment requires.
        unsafe { at.cast::<T>().write(value) };
    }

    fn raw_address(&self) -> NonNull<RawDescriptor> {
        self.owner.slot.address().cast()
    }

    /// Converts the descriptor into its posted form; [`Self::from_context`] is the inverse.
    pub(crate) fn into_posted(self) -> Posted {
        Posted {
            raw: self.raw_address(),
            handle: self.owner.slot.handle(),
            context: Box::into_raw(self.owner).expose_provenance(),
        }
    }

    /// Recovers a descriptor from the context of its work queue slot.
    ///
    /// # Safety
    /// `context` is of [`Self::into_posted`], is used once, and the provider has finished with the descriptor.
    pub(crate) unsafe fn from_context(context: NonZeroUsize) -> Self {
        let owner = core::ptr::with_exposed_provenance_mut::<Owner>(context.get());
        // SAFETY: the caller guarantees that the box leaked by `into_posted` is recovered once.
        let owner = unsafe { Box::from_raw(owner) };
        Self { owner }
    }

    /// Returns the control segment as the provider wrote it.
    pub(crate) fn control(&self) -> ControlSegment {
        // SAFETY: inside the slot, initialised by `format`; the provider finished with it before it was recovered.
        unsafe { self.raw_address().cast::<ControlSegment>().read() }
    }
}

impl fmt::Debug for Descriptor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Descriptor")
            .field("operation", &self.owner.operation)
            .field("immediate", &self.owner.immediate)
            .field("fence", &self.owner.fence)
            .field("segments", &self.owner.segments.len())
            .field("used_bytes", &self.used_bytes())
            .finish()
    }
}

/// A completed descriptor, taken off its work queue.
#[derive(Debug)]
pub struct Completed {
    /// The descriptor with all its buffers.
    pub descriptor: Descriptor,
    /// The completion status.
    pub status: Status,
    length_bytes: usize,
    immediate: Option<u32>,
}

impl Completed {
    pub(crate) fn new(descriptor: Descriptor, status: Status) -> Self {
        let control = descriptor.control();
        let length_bytes = if status.is_ok() {
            control.length as usize
        } else {
            0
        };
        let immediate =
            (status.is_ok() && status.has_immediate()).then_some(control.immediate_data);
        Self {
            descriptor,
            status,
            length_bytes,
            immediate,
        }
    }

    /// Returns the number of bytes sent, written, received or read; 0 after an error.
    pub fn length_bytes(&self) -> usize {
        self.length_bytes
    }

    /// Returns the immediate data of the message, for a receive without error.
    pub fn immediate(&self) -> Option<u32> {
        self.immediate
    }

    /// Returns the received or read bytes in the first data segment: all of them if they fit there.
    pub fn first_bytes(&self) -> &[u8] {
        match self.descriptor.owner.segments.first() {
            Some(segment) => &segment.buffer[..self.length_bytes.min(segment.used_bytes)],
            None => &[],
        }
    }

    /// Returns `self` if the operation succeeded.
    ///
    /// # Errors
    /// `self`, if the operation failed.
    pub fn ok(self) -> Result<Self, Self> {
        if self.status.is_ok() {
            Ok(self)
        } else {
            Err(self)
        }
    }
}

/// The error of a failed post, with the descriptor.
#[derive(Debug)]
pub struct PostError {
    /// Why the post failed.
    pub error: VipError,
    /// The descriptor, unchanged.
    pub descriptor: Descriptor,
}

impl fmt::Display for PostError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "post failed: {}", self.error)
    }
}

impl std::error::Error for PostError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<PostError> for VipError {
    fn from(failed: PostError) -> Self {
        failed.error
    }
}

#[cfg(test)]
mod tests;
