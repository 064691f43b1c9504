//! A VI with its descriptors and buffers in registered memory.
//!
//! As in a C program, descriptors are laid out by hand in memory that is registered once, posted by address, and
//! identified by address when they complete. This module contains all `unsafe` code of the program.
//!
//! Memory of an [`Endpoint`], in this order, each part on cache lines of its own:
//!
//! | part | size |
//! | --- | --- |
//! | credit word, written by the peer | 64 |
//! | send descriptors | 64 each |
//! | receive descriptors | 64 each |
//! | send buffers, read by the peer's RDMA reads | `send_stride` each |
//! | receive buffers, written by the peer's sends or RDMA writes, and by local RDMA reads | `recv_stride` each |

mod contents;
mod types;

use core::ptr::NonNull;
use std::alloc::Layout;
use std::sync::Arc;
use std::time::Duration;

use vi_core::descriptor::{AddressSegment, ControlSegment, DataSegment, RawDescriptor, control};
use vi_types::{NetAddress, status};
use vipl::SharedMemory;
use vipl::provider;
use vipl::{
    ConnHandle, Done, MemAttributes, MemoryHandle, NicHandle, Timeout, ViAttributes, ViHandle,
    ViState, VipError,
};

use crate::error::{Error, Result};
use crate::nic::{MemoryKind, Nic};
use crate::sync::{AtomicU8, AtomicU64, Ordering};

pub(crate) use types::sum_of;
pub use types::{
    EndpointLayout, Reaped, RemoteAddress, RemoteMemory, is_flushed, mark_of, status_text,
};

/// One cache line; also the alignment of descriptors.
const LINE_BYTES: usize = 64;

/// Memory is allocated and registered in whole pages.
const PAGE_BYTES: usize = 4096;

const NO_SEGMENT: DataSegment = DataSegment {
    address: 0,
    handle: 0,
    length: 0,
};

const _: () = assert!(size_of::<RawDescriptor>() == LINE_BYTES);

/// Zeroed pages from the heap.
struct Heap {
    base: NonNull<u8>,
    layout: Layout,
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; no copy of the address is left.
        unsafe { std::alloc::dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// Zeroed pages, returned to their allocator on drop.
enum Pages {
    Heap(Heap),
    Shared(SharedMemory),
}

impl Pages {
    fn new(kind: MemoryKind, bytes: usize) -> Result<Self> {
        let out_of_memory = || Error::Usage(format!("cannot allocate {bytes} bytes of buffers"));
        if kind == MemoryKind::Shared {
            return SharedMemory::allocate(bytes)
                .map(Self::Shared)
                .map_err(|_| out_of_memory());
        }
        let layout = Layout::from_size_align(bytes.next_multiple_of(PAGE_BYTES), PAGE_BYTES)
            .map_err(|_| {
                Error::Usage("the size of the buffers exceeds the address space".into())
            })?;
        // SAFETY: the layout is not of size zero: every endpoint has a credit line.
        let raw = unsafe { std::alloc::alloc_zeroed(layout) };
        let base = NonNull::new(raw).ok_or_else(out_of_memory)?;
        Ok(Self::Heap(Heap { base, layout }))
    }

    fn base(&self) -> NonNull<u8> {
        match self {
            Self::Heap(heap) => heap.base,
            Self::Shared(shared) => shared.address(),
        }
    }
}

/// The handle of no region.
const NO_REGION: MemoryHandle = MemoryHandle(0);

/// Zeroed pages, registered until they are dropped: for the program's own descriptors and buffers, and once more for
/// RDMA of peers, so that only the latter has rights that can slow messages down.
struct Memory {
    base: NonNull<u8>,
    length_bytes: usize,
    /// Taken and leaked if deregistration fails.
    pages: Option<Pages>,
    nic: NicHandle,
    handle: MemoryHandle,
    /// The handle that peers use.
    peer_handle: MemoryHandle,
}

impl Memory {
    fn new(nic: &Nic, bytes: usize) -> Result<Self> {
        let pages = Pages::new(nic.memory(), bytes)?;
        let base = pages.base();
        let length = bytes.next_multiple_of(PAGE_BYTES);
        let mut memory = Self {
            base,
            length_bytes: length,
            pages: Some(pages),
            nic: nic.handle(),
            handle: NO_REGION,
            peer_handle: NO_REGION,
        };
        memory.handle = memory.register(nic, false)?;
        memory.peer_handle = memory.register(nic, true)?;
        Ok(memory)
    }

    /// Registers all pages, for RDMA of peers or not.
    fn register(&self, nic: &Nic, for_peers: bool) -> Result<MemoryHandle> {
        let attributes = MemAttributes {
            ptag: Some(nic.ptag()),
            rdma_write: for_peers,
            rdma_read: for_peers,
        };
        let (address, length) = (self.base.as_ptr() as u64, self.length_bytes as u64);
        // SAFETY: `Memory` owns the pages until it is dropped, and its drop deregisters them first.
        let registered =
            unsafe { provider::register_mem(nic.handle(), address, length, &attributes) };
        registered.map_err(|error| Error::call("VipRegisterMem", error))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let address = self.base.as_ptr() as u64;
        for handle in [self.handle, self.peer_handle] {
            // Memory that is still registered may still be written: leak it.
            if handle != NO_REGION && provider::deregister_mem(self.nic, address, handle).is_err() {
                core::mem::forget(self.pages.take());
            }
        }
    }
}

/// A VI with its descriptors and buffers in registered memory.
pub struct Endpoint {
    vi: ViHandle,
    memory: Memory,
    layout: EndpointLayout,
    send_descriptors: usize,
    recv_descriptors: usize,
    send_buffers: usize,
    recv_buffers: usize,
    send_stride: usize,
    recv_stride: usize,
    lost_connections: Arc<AtomicU64>,
    lost_connections_before: u64,
}

impl Endpoint {
    /// Creates the VI and registers its memory; no descriptor is posted yet.
    ///
    /// # Errors
    /// [`Error::Call`] with the call that failed.
    pub fn new(nic: &Nic, layout: &EndpointLayout) -> Result<Self> {
        let stride = |bytes: u32| {
            (bytes as usize)
                .next_multiple_of(LINE_BYTES)
                .max(LINE_BYTES)
        };
        let (send_stride, recv_stride) = (stride(layout.send_bytes), stride(layout.recv_bytes));
        let send_descriptors = LINE_BYTES;
        let recv_descriptors = send_descriptors + layout.send_descriptors as usize * LINE_BYTES;
        let send_buffers = recv_descriptors + layout.recv_descriptors as usize * LINE_BYTES;
        let recv_buffers = send_buffers + layout.send_buffers as usize * send_stride;
        let total = recv_buffers + layout.recv_buffers as usize * recv_stride;
        let memory = Memory::new(nic, total)?;
        let attributes = ViAttributes {
            reliability: layout.level.bit(),
            max_transfer_bytes: u64::from(layout.send_bytes.max(layout.recv_bytes)).max(64 * 1024),
            qos: 0,
            ptag: Some(nic.ptag()),
            rdma_write: true,
            rdma_read: layout.level.is_reliable(),
        };
        let vi = provider::create_vi(nic.handle(), &attributes, None, None)
            .map_err(|error| Error::call("VipCreateVi", error))?;
        Ok(Self {
            vi,
            memory,
            layout: *layout,
            send_descriptors,
            recv_descriptors,
            send_buffers,
            recv_buffers,
            send_stride,
            recv_stride,
            lost_connections: Arc::clone(nic.lost_connections()),
            lost_connections_before: nic.lost_connections().load(Ordering::Relaxed),
        })
    }

    /// Requests a connection from a listener.
    ///
    /// # Errors
    /// The error of the stack: [`VipError::NoMatch`] if there is no listener at `remote`.
    pub fn request(
        &self,
        local: &NetAddress,
        remote: &NetAddress,
        timeout: Timeout,
    ) -> core::result::Result<(), VipError> {
        provider::connect_request(self.vi, local, remote, timeout).map(|_| ())
    }

    /// Connects peer to peer, with a VI that requests this one.
    ///
    /// # Errors
    /// The error of the stack: [`VipError::Timeout`] if the peer sent no request.
    pub fn request_peer(
        &self,
        local: &NetAddress,
        remote: &NetAddress,
        timeout: Timeout,
    ) -> core::result::Result<(), VipError> {
        provider::connect_peer_request(self.vi, local, remote, timeout)?;
        provider::connect_peer_wait(self.vi).map(|_| ())
    }

    /// Accepts a requested connection.
    ///
    /// # Errors
    /// [`Error::Call`] if the connection was not established.
    pub fn accept(&self, conn: ConnHandle) -> Result<()> {
        provider::connect_accept(conn, self.vi)
            .map_err(|error| Error::call("VipConnectAccept", error))
    }

    /// Disconnects; posted descriptors are flushed.
    pub fn disconnect(&self) -> Result<()> {
        provider::disconnect(self.vi).map_err(|error| Error::call("VipDisconnect", error))
    }

    /// Returns whether the VI is connected, as far as the error handler has reported: queries the stack only after some
    /// connection was lost, so that this may be called between post and reap.
    ///
    /// # Errors
    /// As [`Self::is_connected`].
    #[inline]
    pub fn may_be_connected(&self) -> Result<bool> {
        // Relaxed: see the writer of the count, `record_error`.
        if self.lost_connections.load(Ordering::Relaxed) == self.lost_connections_before {
            return Ok(true);
        }
        self.is_connected()
    }

    /// Returns whether the VI is connected.
    ///
    /// # Errors
    /// [`Error::Call`] if the query fails.
    pub fn is_connected(&self) -> Result<bool> {
        provider::query_vi(self.vi)
            .map(|info| info.state == ViState::Connected)
            .map_err(|error| Error::call("VipQueryVi", error))
    }

    /// Returns what the peer needs to write to and read from this endpoint.
    pub fn remote_memory(&self) -> RemoteMemory {
        let base = self.memory.base.as_ptr() as u64;
        RemoteMemory {
            handle: self.memory.peer_handle.0,
            credit_address: base,
            recv_address: base + self.recv_buffers as u64,
            recv_stride_bytes: self.recv_stride as u64,
            send_address: base + self.send_buffers as u64,
            send_stride_bytes: self.send_stride as u64,
        }
    }

    /// Posts receive descriptor `index` with its whole buffer.
    ///
    /// The caller must not repost a descriptor before it was reaped.
    ///
    /// # Errors
    /// [`Error::Call`] if the call fails.
    #[inline]
    pub fn post_recv(&mut self, index: u32) -> Result<()> {
        let buffer = self.recv_buffer(index);
        let bytes = self.layout.recv_bytes;
        let descriptor = RawDescriptor {
            control: control_segment(control::OP_SEND_RECV, 1, bytes, 0),
            segments: [self.local(buffer, bytes), NO_SEGMENT],
        };
        let offset = self.recv_descriptors + index as usize * LINE_BYTES;
        assert!(index < self.layout.recv_descriptors);
        let at = self.write_descriptor(offset, descriptor);
        // SAFETY: the descriptor and its buffer are in registered memory with the VI's tag, which lives until the VI is
        // destroyed; the descriptor is not posted already (contract of this function).
        unsafe { provider::post_recv(self.vi, at, self.memory.handle) }
            .map_err(|error| Error::call("VipPostRecv", error))
    }

    /// Sends the first `bytes` bytes of the buffer of send descriptor `index`.
    ///
    /// # Errors
    /// [`Error::Call`] if the call fails.
    #[inline]
    pub fn post_send(&mut self, index: u32, bytes: u32) -> Result<()> {
        let buffer = self.send_buffer(index);
        let descriptor = RawDescriptor {
            control: control_segment(control::OP_SEND_RECV, 1, bytes, 0),
            segments: [self.local(buffer, bytes), NO_SEGMENT],
        };
        self.post(index, bytes, descriptor)
    }

    /// RDMA-writes the first `bytes` bytes of the buffer of send descriptor `index` to the peer's memory.
    ///
    /// # Errors
    /// [`Error::Call`] if the call fails.
    #[inline]
    pub fn post_write(
        &mut self,
        index: u32,
        bytes: u32,
        target: RemoteAddress,
        immediate: Option<u32>,
    ) -> Result<()> {
        let buffer = self.send_buffer(index);
        let remote = AddressSegment {
            address: target.address,
            handle: target.handle,
            reserved: 0,
        };
        let flags = match immediate {
            Some(_) => control::OP_RDMA_WRITE | control::IMMEDIATE,
            None => control::OP_RDMA_WRITE,
        };
        let descriptor = RawDescriptor {
            control: control_segment(flags, 2, bytes, immediate.unwrap_or(0)),
            segments: [remote.into(), self.local(buffer, bytes)],
        };
        self.post(index, bytes, descriptor)
    }

    /// RDMA-reads `bytes` bytes of the peer's memory into receive buffer `index`, with send descriptor `index`.
    ///
    /// # Errors
    /// [`Error::Call`] if the call fails.
    #[inline]
    pub fn post_read(&mut self, index: u32, bytes: u32, source: RemoteAddress) -> Result<()> {
        assert!(bytes <= self.layout.recv_bytes);
        let buffer = self.recv_buffer(index);
        let remote = AddressSegment {
            address: source.address,
            handle: source.handle,
            reserved: 0,
        };
        let descriptor = RawDescriptor {
            control: control_segment(control::OP_RDMA_READ, 2, bytes, 0),
            segments: [remote.into(), self.local(buffer, bytes)],
        };
        self.post(index, bytes, descriptor)
    }

    #[inline]
    fn post(&mut self, index: u32, bytes: u32, descriptor: RawDescriptor) -> Result<()> {
        assert!(index < self.layout.send_descriptors && bytes <= self.layout.send_bytes);
        let at = self.write_descriptor(
            self.send_descriptors + index as usize * LINE_BYTES,
            descriptor,
        );
        // SAFETY: the descriptor and its buffer are in registered memory with the VI's tag, which lives until the VI is
        // destroyed; callers reap a descriptor before they repost it.
        unsafe { provider::post_send(self.vi, at, self.memory.handle) }
            .map_err(|error| Error::call("VipPostSend", error))
    }

    /// Polls the send queue; the call also runs the NIC's poller.
    ///
    /// # Errors
    /// [`Error::Call`] if the call fails.
    #[inline(always)]
    pub fn reap_send(&mut self) -> Result<Reaped> {
        let done =
            provider::send_done(self.vi).map_err(|error| Error::call("VipSendDone", error))?;
        Ok(self.reaped(done, self.send_descriptors))
    }

    /// Polls the receive queue; the call also runs the NIC's poller.
    ///
    /// # Errors
    /// [`Error::Call`] if the call fails.
    #[inline(always)]
    pub fn reap_recv(&mut self) -> Result<Reaped> {
        let done =
            provider::recv_done(self.vi).map_err(|error| Error::call("VipRecvDone", error))?;
        Ok(self.reaped(done, self.recv_descriptors))
    }

    /// Waits for a descriptor of the receive queue, for `limit` at most.
    ///
    /// # Errors
    /// [`Error::Call`] if the call fails.
    pub fn await_recv(&mut self, limit: Duration) -> Result<Reaped> {
        match provider::recv_wait(self.vi, Timeout::After(limit)) {
            Ok(done) => Ok(self.reaped(done, self.recv_descriptors)),
            Err(VipError::Timeout) => Ok(Reaped::Nothing),
            Err(error) => Err(Error::call("VipRecvWait", error)),
        }
    }

    #[inline(always)]
    fn reaped(&self, done: Done, first: usize) -> Reaped {
        let Done::Completed { descriptor, status } = done else {
            return Reaped::Nothing;
        };
        let offset = descriptor as usize - (self.memory.base.as_ptr() as usize + first);
        let index = (offset / LINE_BYTES) as u32;
        if status & status::ERROR_MASK != 0 {
            return Reaped::Failed { index, status };
        }
        let at = self.pointer(first + index as usize * LINE_BYTES, LINE_BYTES);
        // SAFETY: `pointer` checked the range; the descriptor was written when it was posted, and the stack has
        // returned it.
        let length_bytes = unsafe { at.cast::<RawDescriptor>().as_ref() }
            .control
            .length;
        Reaped::Done {
            index,
            length_bytes,
        }
    }

    /// Reaps all completed and flushed descriptors; returns whether there were any.
    pub fn drain(&mut self) -> Result<bool> {
        let mut any = false;
        while self.reap_send()? != Reaped::Nothing {
            any = true;
        }
        while self.reap_recv()? != Reaped::Nothing {
            any = true;
        }
        Ok(any)
    }

    #[inline]
    fn send_buffer(&self, index: u32) -> usize {
        self.send_buffers + (index % self.layout.send_buffers) as usize * self.send_stride
    }

    #[inline]
    fn recv_buffer(&self, index: u32) -> usize {
        self.recv_buffers + (index % self.layout.recv_buffers) as usize * self.recv_stride
    }

    #[inline]
    fn local(&self, offset: usize, bytes: u32) -> DataSegment {
        DataSegment {
            address: self.memory.base.as_ptr() as u64 + offset as u64,
            handle: self.memory.handle.0,
            length: bytes,
        }
    }

    #[inline]
    fn write_descriptor(&mut self, offset: usize, descriptor: RawDescriptor) -> *mut RawDescriptor {
        let at = self.pointer(offset, LINE_BYTES).cast::<RawDescriptor>();
        // SAFETY: `pointer` checked the range; descriptors are aligned to cache lines; the stack does not access the
        // descriptor until it is posted.
        unsafe { at.write(descriptor) };
        at.as_ptr()
    }

    #[inline]
    fn pointer(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        assert!(offset + bytes <= self.memory.length_bytes);
        // SAFETY: the range is within the allocation.
        unsafe { self.memory.base.add(offset) }
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        let at = self.pointer(offset, 8).as_ptr().cast::<u64>();
        assert!(at.is_aligned());
        // SAFETY: in range and aligned; the stack writes aligned words as a whole, and this program accesses these
        // bytes only through atomics while the peer may write them.
        unsafe { AtomicU64::from_ptr(at) }
    }

    #[inline]
    fn byte(&self, offset: usize) -> &AtomicU8 {
        let at = self.pointer(offset, 1).as_ptr();
        // SAFETY: in range; a byte is always aligned, and is accessed only through atomics while the peer may write it.
        unsafe { AtomicU8::from_ptr(at) }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // Errors are ignored: closing the NIC releases what is left.
        if self.disconnect().is_ok() && self.drain().is_ok() {
            let _ = provider::destroy_vi(self.vi);
        }
    }
}

#[inline]
fn control_segment(
    flags: u16,
    segment_count: u16,
    length: u32,
    immediate_data: u32,
) -> ControlSegment {
    ControlSegment {
        segment_count,
        control: flags,
        immediate_data,
        length,
        ..ControlSegment::default()
    }
}
