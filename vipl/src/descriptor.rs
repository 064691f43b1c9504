//! Descriptors: what is to be sent, written or received, with the memory for it [VIPL 5].
//!
//! A [`Descriptor`] lives in registered memory of its own and owns the [`Buffer`]s of its data segments. Posting moves
//! it into a work queue, and with it everything the provider will touch; its completion moves it back. Neither
//! allocates: a descriptor is made once and posted again and again.

use std::fmt;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use pmd::descriptor::{AddressSegment, ControlSegment, DataSegment, control};

use crate::memory::{Buffer, RemoteBuffer};
use crate::nic::Ptag;
use crate::{MemoryHandle, RawDescriptor, VipError};

mod status;

pub use status::{CompletedOperation, Status};

const CONTROL_BYTES: usize = size_of::<ControlSegment>();
const SEGMENT_BYTES: usize = size_of::<DataSegment>();
/// What every posted descriptor begins with.
const DESCRIPTOR_ALIGN_BYTES: usize = 64;

const _: () = assert!(
    CONTROL_BYTES == 32 && SEGMENT_BYTES == 16 && size_of::<AddressSegment>() == SEGMENT_BYTES
);
const _: () = assert!(align_of::<RawDescriptor>() <= DESCRIPTOR_ALIGN_BYTES);

/// What a descriptor does when it is posted to a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Sends its bytes to the receive descriptor at the head of the peer's queue.
    Send,
    /// Writes its bytes into the peer's memory; the peer's program learns of it only through immediate data.
    RdmaWrite(RemoteBuffer),
    /// Reads the peer's memory into its buffers, as many bytes as they use; the peer's program takes no part. Not at
    /// unreliable delivery, where it completes with a format error.
    RdmaRead(RemoteBuffer),
}

/// A data segment: the first `used_bytes` of a buffer.
struct Segment {
    buffer: Buffer,
    used_bytes: usize,
}

/// What a descriptor owns. Its box stays at one address for good: while the descriptor is posted, that is the context of
/// its place on the work queue. Nothing in registered memory leads to it, so no RDMA write can change where it is.
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

/// A descriptor as a work queue has it.
pub(crate) struct Posted {
    /// The raw descriptor.
    pub(crate) raw: NonNull<RawDescriptor>,
    /// Of the region that it lies in.
    pub(crate) handle: MemoryHandle,
    /// What leads back to its owner.
    pub(crate) context: usize,
}

/// A descriptor that belongs to the program: not posted, or completed and taken back.
///
/// Made by [`Nic::create_descriptors`](crate::Nic::create_descriptors).
///
/// ```
/// use pmd::config::NicConfig;
/// use vipl::{Nic, VipError};
///
/// // A segment of shared memory of its own; `Nic::open("VINIC0")` is the one that all programs share.
/// let segment = format!("doc-{}", std::process::id());
/// let nic = Nic::open_with(&NicConfig { segment, ..NicConfig::default() })?;
/// let ptag = nic.create_ptag()?;
/// let vi = nic.vi(&ptag).build()?;
/// let mut descriptor = nic.create_descriptors(1, 1, &ptag)?.remove(0);
/// descriptor.push(nic.create_region(4096, &ptag)?.into_buffer()).unwrap();
/// descriptor.buffer_mut(0)[..5].copy_from_slice(b"hello");
/// descriptor.set_used_bytes(0, 5);
///
/// // Posting gives the descriptor and its buffer away; its completion gives them back.
/// vi.post_recv(descriptor)?;
/// assert_eq!(vi.recv_done().unwrap_err(), VipError::NotDone);
/// vi.disconnect()?;
/// let completed = vi.recv_done()?.expect("the queue holds one");
/// assert!(completed.status.is_flushed());
/// assert_eq!(completed.descriptor.buffer(0).len(), 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Descriptor {
    owner: Box<Owner>,
}

impl Descriptor {
    /// The registered memory that one descriptor takes.
    pub(crate) fn slot_bytes(max_segments: usize) -> usize {
        // One more than its data segments: an RDMA operation begins with an address segment.
        let descriptor_bytes = CONTROL_BYTES + (max_segments + 1) * SEGMENT_BYTES;
        descriptor_bytes.max(size_of::<RawDescriptor>())
    }

    /// `slot` is of [`Self::slot_bytes`] bytes and begins on a cache line.
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

    /// Adds a data segment of the whole buffer.
    ///
    /// # Errors
    /// Gives the buffer back when all segments are taken.
    pub fn push(&mut self, buffer: Buffer) -> Result<(), Buffer> {
        if self.owner.segments.len() == self.owner.max_segments {
            return Err(buffer);
        }
        let used_bytes = buffer.len();
        self.owner.segments.push(Segment { buffer, used_bytes });
        Ok(())
    }

    /// Takes the last data segment's buffer away.
    pub fn pop(&mut self) -> Option<Buffer> {
        self.owner.segments.pop().map(|segment| segment.buffer)
    }

    /// The data segments that there are.
    pub fn segment_count(&self) -> usize {
        self.owner.segments.len()
    }

    /// The data segments that there may be.
    pub fn max_segments(&self) -> usize {
        self.owner.max_segments
    }

    /// The whole buffer of a data segment.
    ///
    /// # Panics
    /// When there is no such segment.
    pub fn buffer(&self, index: usize) -> &[u8] {
        &self.owner.segments[index].buffer
    }

    /// The whole buffer of a data segment.
    ///
    /// # Panics
    /// When there is no such segment.
    pub fn buffer_mut(&mut self, index: usize) -> &mut [u8] {
        &mut self.owner.segments[index].buffer
    }

    /// Has the next operation use the first `used_bytes` of a data segment's buffer; 0 is legal.
    ///
    /// # Panics
    /// When there is no such segment or its buffer is shorter.
    pub fn set_used_bytes(&mut self, index: usize, used_bytes: usize) {
        let segment = &mut self.owner.segments[index];
        let buffer_bytes = segment.buffer.len();
        assert!(
            used_bytes <= buffer_bytes,
            "{used_bytes} bytes of a buffer of {buffer_bytes}"
        );
        segment.used_bytes = used_bytes;
    }

    /// The bytes of all data segments that the next operation uses.
    pub fn used_bytes(&self) -> usize {
        self.owner
            .segments
            .iter()
            .map(|segment| segment.used_bytes)
            .sum()
    }

    /// What posting it to a send queue does. A receive queue takes no notice of it.
    pub fn operation(&self) -> Operation {
        self.owner.operation
    }

    /// Sets what posting it to a send queue does; at first that is [`Operation::Send`].
    pub fn set_operation(&mut self, operation: Operation) {
        self.owner.operation = operation;
    }

    /// Sets the 32 bits that go to the peer's receive descriptor along with the next operation. An RDMA write takes a
    /// receive descriptor of the peer only when it has them, an RDMA read has none.
    pub fn set_immediate(&mut self, immediate: Option<u32>) {
        self.owner.immediate = immediate;
    }

    /// Whether the next operation waits until every RDMA read that was posted to the same queue before it is complete;
    /// not unless set [VIPL 5.2].
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
        // More than 32 bits hold is more than any transfer size: the provider finds the lengths in conflict.
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
        // SAFETY: `slot_bytes` made room for every segment that `push` admits.
        let at = unsafe { self.raw_address().byte_add(offset_bytes) };
        // SAFETY: inside the slot as above, which this descriptor owns; aligned to 16, more than any segment asks for.
        unsafe { at.cast::<T>().write(value) };
    }

    fn raw_address(&self) -> NonNull<RawDescriptor> {
        self.owner.slot.address().cast()
    }

    /// Gives the descriptor away to a work queue.
    pub(crate) fn into_posted(self) -> Posted {
        Posted {
            raw: self.raw_address(),
            handle: self.owner.slot.handle(),
            context: Box::into_raw(self.owner).expose_provenance(),
        }
    }

    /// Takes a descriptor back from a work queue.
    ///
    /// # Safety
    /// `context` is of [`Self::into_posted`], is taken back once, and the provider has finished with the descriptor.
    pub(crate) unsafe fn from_context(context: NonZeroUsize) -> Self {
        let owner = core::ptr::with_exposed_provenance_mut::<Owner>(context.get());
        // SAFETY: the caller promises that the box given away by `into_posted` is taken back once.
        let owner = unsafe { Box::from_raw(owner) };
        Self { owner }
    }

    /// The control segment as the provider left it.
    pub(crate) fn control(&self) -> ControlSegment {
        // SAFETY: inside the slot, initialised by `format`; the provider finished with it before it was taken back.
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

/// A descriptor that its work queue has given back.
#[derive(Debug)]
pub struct Completed {
    /// The descriptor, with all its buffers.
    pub descriptor: Descriptor,
    /// How the operation ended.
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

    /// The bytes sent, written, received or read; 0 after an error.
    pub fn length_bytes(&self) -> usize {
        self.length_bytes
    }

    /// The immediate data that came with the message, on a receive without error.
    pub fn immediate(&self) -> Option<u32> {
        self.immediate
    }

    /// The bytes, received or read, that lie in the first data segment: all of them when they fit there.
    pub fn first_bytes(&self) -> &[u8] {
        match self.descriptor.owner.segments.first() {
            Some(segment) => &segment.buffer[..self.length_bytes.min(segment.used_bytes)],
            None => &[],
        }
    }

    /// The descriptor when the operation succeeded.
    ///
    /// # Errors
    /// The completion itself when it did not.
    pub fn ok(self) -> Result<Self, Self> {
        if self.status.is_ok() {
            Ok(self)
        } else {
            Err(self)
        }
    }
}

/// A descriptor that could not be posted, and why.
#[derive(Debug)]
pub struct PostError {
    /// Why not.
    pub error: VipError,
    /// The descriptor, unchanged.
    pub descriptor: Descriptor,
}

impl fmt::Display for PostError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "descriptor not posted: {}", self.error)
    }
}

impl std::error::Error for PostError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<PostError> for VipError {
    fn from(refused: PostError) -> Self {
        refused.error
    }
}

#[cfg(test)]
mod tests;
