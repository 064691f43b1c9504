//! Registered memory, which a provider may read and write on behalf of a VI [VIPL 3.4].
//!
//! Two types, which differ in concurrent access:
//!
//! | type | accessed by | access by the program |
//! | --- | --- | --- |
//! | [`MemoryRegion`], split into [`Buffer`]s | the provider, only while a posted descriptor owns the buffer | `&[u8]`, `&mut [u8]` |
//! | [`RdmaRegion`] | a peer, at any time | copies in and out, [`RdmaRegion::load_u64`] |
//!
//! A [`Buffer`] is the only owner of its bytes; posting it (by value, inside a descriptor) transfers them to the
//! provider. The memory is freed when the last buffer of its region is dropped.
//!
//! A [`SharedMemory`](crate::SharedMemory) is a file. No call returns its descriptor, by which safe code could write to
//! memory that is a `&[u8]`:
//!
//! ```compile_fail,E0425
//! let memory = vipl::SharedMemory::allocate(4096)?;
//! vipl::find_memfd(memory.address().as_ptr().addr() as u64, 4096)?;
//! # Ok::<(), std::io::Error>(())
//! ```

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::nic::{NicShared, Ptag};
use crate::sync::{AtomicU64, Ordering};
use crate::{MemAttributes, MemoryHandle, Result, VipError, provider};

mod attributes;
mod pages;
mod words;

use pages::Pages;
use words::{WORD_BYTES, Words};

/// Registration covers whole pages; a region shares no page with unregistered memory.
const PAGE_BYTES: usize = 4096;
/// Alignment of the buffers of a region: each begins on its own cache line.
const BUFFER_ALIGN_BYTES: usize = 64;

/// Access of peers to registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RdmaAccess {
    /// The peer may write into it.
    pub write: bool,
    /// The peer may read from it.
    pub read: bool,
}

/// One allocation and its registration.
pub(crate) struct RegionShared {
    nic: Arc<NicShared>,
    ptag: Ptag,
    address: NonNull<u8>,
    /// Leaked by `drop` if they may still be registered.
    pages: Option<Pages>,
    len_bytes: usize,
    handle: MemoryHandle,
}

// SAFETY: the allocation belongs to this value and is freed by it alone; the bytes are reached through `Buffer`s, each
// the only owner of its range, or through `RdmaRegion`'s atomic accesses.
unsafe impl Send for RegionShared {}
// SAFETY: as above; a shared reference gives the address, never the bytes.
unsafe impl Sync for RegionShared {}

/// Regions of at least this length on a NIC of a segment are memory that other programs can map: each needs a file
/// descriptor.
const MIN_SHARED_BYTES: usize = 64 << 10;

impl RegionShared {
    /// Allocates zeroed whole pages and registers `len_bytes` of them. The pages are memory that other processes can map
    /// if that is of use, and if such memory can be allocated: for an attached NIC all, for a NIC of a segment those
    /// that peers may access or from which they copy sends.
    pub(crate) fn allocate(
        nic: Arc<NicShared>,
        ptag: &Ptag,
        len_bytes: usize,
        access: RdmaAccess,
    ) -> Result<Arc<Self>> {
        let attributes = MemAttributes {
            ptag: Some(ptag.handle()),
            rdma_write: access.write,
            rdma_read: access.read,
        };
        let register = |pages: &Pages| {
            let exposed = pages.address().as_ptr().expose_provenance() as u64;
            // SAFETY: this value owns the range, and `drop` deregisters it before it is freed. The types that contain
            // the region are sound for the access that `attributes` allow meanwhile.
            unsafe { provider::register_mem(nic.handle(), exposed, len_bytes as u64, &attributes) }
        };
        let in_heap = || -> Result<_> {
            let pages = Pages::heap(len_bytes)?;
            let handle = register(&pages)?;
            Ok((pages, handle))
        };
        let is_for_peers = access.write || access.read || len_bytes >= MIN_SHARED_BYTES;
        let is_shared = nic.is_attached() || nic.exports_memory() && is_for_peers;
        let (pages, handle) = if is_shared && len_bytes > 0 {
            let shared = Pages::shared(len_bytes).ok_or(VipError::ErrorResource);
            match shared.and_then(|pages| Ok((register(&pages)?, pages))) {
                Ok((handle, pages)) => (pages, handle),
                // File descriptors may be exhausted; heap memory needs none.
                Err(VipError::ErrorResource) => {
                    let on_heap = in_heap()?;
                    if nic.is_attached() {
                        pages::warn_of_heap();
                    }
                    on_heap
                }
                Err(error) => return Err(error),
            }
        } else {
            in_heap()?
        };
        Ok(Arc::new(Self {
            ptag: ptag.clone(),
            address: pages.address(),
            pages: Some(pages),
            len_bytes,
            handle,
            nic,
        }))
    }

    pub(crate) fn handle(&self) -> MemoryHandle {
        self.handle
    }

    fn ptag(&self) -> &Ptag {
        &self.ptag
    }

    fn address_bits(&self) -> u64 {
        self.address.as_ptr().expose_provenance() as u64
    }
}

impl Drop for RegionShared {
    fn drop(&mut self) {
        match provider::deregister_mem(self.nic.handle(), self.address_bits(), self.handle) {
            Ok(()) => {}
            // In a forked child the registration is the parent's, and the memory is a copy or a mapping of the child.
            Err(_) if self.nic.is_in_forked_child() => {}
            // Also for an unknown handle: the NIC was closed by its handle, or another thread is closing it now, and
            // its registrations may still be in use.
            Err(error) => {
                core::mem::forget(self.pages.take());
                log::error!(
                    "memory region: not freed: deregistration failed: {error} len_bytes={}",
                    self.len_bytes
                );
            }
        }
    }
}

impl fmt::Debug for RegionShared {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Region")
            .field("len_bytes", &self.len_bytes)
            .field("handle", &self.handle)
            .finish()
    }
}

/// Zeroed, page-aligned, registered memory without RDMA access, not yet split into buffers.
///
/// Created by [`Nic::create_region`](crate::Nic::create_region). It is deregistered and freed when it and all its
/// buffers are dropped.
#[derive(Debug)]
pub struct MemoryRegion {
    shared: Arc<RegionShared>,
}

impl MemoryRegion {
    pub(crate) fn new(shared: Arc<RegionShared>) -> Self {
        Self { shared }
    }

    /// Returns the registered length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.shared.len_bytes
    }

    /// Returns the handle of the registration.
    pub fn handle(&self) -> MemoryHandle {
        self.shared.handle
    }

    /// Queries the attributes of this registration [VIPL 3.7.5].
    ///
    /// # Errors
    /// [`VipError::InvalidParameter`] when the NIC was closed by its handle.
    pub fn attributes(&self) -> Result<MemAttributes> {
        provider::query_mem(
            self.shared.nic.handle(),
            self.shared.address_bits(),
            self.shared.handle,
        )
    }

    /// Converts the whole region into one buffer.
    pub fn into_buffer(self) -> Buffer {
        let address = self.shared.address;
        let len_bytes = self.shared.len_bytes;
        Buffer {
            region: self.shared,
            address,
            len_bytes,
        }
    }

    /// Splits the region into as many buffers of `buffer_bytes` as fit, each beginning on a 64-byte boundary.
    ///
    /// # Panics
    /// When `buffer_bytes` is 0.
    pub fn split(self, buffer_bytes: usize) -> Vec<Buffer> {
        assert!(
            buffer_bytes > 0,
            "buffers of a region have at least one byte"
        );
        let stride_bytes = Self::stride_bytes(buffer_bytes);
        let mut rest = self.into_buffer();
        let mut buffers = Vec::with_capacity(rest.len().div_ceil(stride_bytes));
        while rest.len() >= buffer_bytes {
            let next = rest.split_off(stride_bytes.min(rest.len()));
            rest.truncate(buffer_bytes);
            buffers.push(rest);
            rest = next;
        }
        buffers
    }

    /// Returns the distance in bytes between the beginnings of two buffers of [`Self::split`].
    pub(crate) fn stride_bytes(buffer_bytes: usize) -> usize {
        buffer_bytes.saturating_add(BUFFER_ALIGN_BYTES - 1) & !(BUFFER_ALIGN_BYTES - 1)
    }
}

/// A range of registered memory and its only owner.
///
/// It is read and written as a slice. Pushed into a [`Descriptor`](crate::Descriptor) and posted, it belongs to the
/// provider until the descriptor completes and is taken.
pub struct Buffer {
    region: Arc<RegionShared>,
    address: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: a buffer is the only access path to its bytes, on any thread.
unsafe impl Send for Buffer {}
// SAFETY: a shared reference gives `&[u8]` only.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Returns the handle of the registration that contains the buffer.
    pub fn handle(&self) -> MemoryHandle {
        self.region.handle()
    }

    /// Splits the buffer at `at_bytes`: it keeps the first part, and the second is returned. Buffers cannot grow again.
    ///
    /// # Panics
    /// When `at_bytes` is beyond the end.
    pub fn split_off(&mut self, at_bytes: usize) -> Self {
        assert!(
            at_bytes <= self.len_bytes,
            "split at {at_bytes} of a buffer of {} bytes",
            self.len_bytes
        );
        // SAFETY: the sum is inside the allocation or one past its end, as just checked.
        let address = unsafe { self.address.add(at_bytes) };
        let rest = Self {
            region: Arc::clone(&self.region),
            address,
            len_bytes: self.len_bytes - at_bytes,
        };
        self.len_bytes = at_bytes;
        rest
    }

    /// Shortens the buffer to its first `len_bytes`; the remainder stays allocated and unused until the region is
    /// freed.
    pub fn truncate(&mut self, len_bytes: usize) {
        self.len_bytes = self.len_bytes.min(len_bytes);
    }

    pub(crate) fn ptag(&self) -> &Ptag {
        self.region.ptag()
    }

    pub(crate) fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// Returns the address in the form of a data segment.
    pub(crate) fn address_bits(&self) -> u64 {
        self.address.as_ptr().expose_provenance() as u64
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range is initialised (zeroed at first), inside the allocation that `region` keeps alive, and this
        // buffer is its only owner; the provider accesses it only while a posted descriptor owns the buffer.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.len_bytes) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` excludes every other view.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.len_bytes) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Buffer")
            .field("address", &self.address)
            .field("len_bytes", &self.len_bytes)
            .field("handle", &self.handle())
            .finish()
    }
}

/// The target of an RDMA write or the source of an RDMA read: memory of the peer, as the peer advertised it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteBuffer {
    /// The address in the peer's address space.
    pub address: u64,
    /// The peer's handle of the registration that holds it.
    pub handle: MemoryHandle,
}

impl RemoteBuffer {
    /// Length of [`Self::to_bytes`].
    pub const BYTES: usize = 12;

    /// Returns the address `offset_bytes` further in the same registration. It wraps around; the peer checks the range.
    #[must_use]
    pub fn at(self, offset_bytes: u64) -> Self {
        Self {
            address: self.address.wrapping_add(offset_bytes),
            handle: self.handle,
        }
    }

    /// Encodes address and handle, little-endian, to be sent to a peer.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..].copy_from_slice(&self.handle.0.to_le_bytes());
        bytes
    }

    /// Decodes [`Self::to_bytes`]. Any bytes are accepted: the peer checks the address.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = *bytes;
        Self {
            address: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            handle: MemoryHandle(u32::from_le_bytes([i, j, k, l])),
        }
    }
}

/// Zeroed, page-aligned, registered memory that peers may read or write at any time.
///
/// Created by [`Nic::create_rdma_region`](crate::Nic::create_rdma_region). Since a peer may change it between any two
/// instructions, its bytes are copied in and out and never borrowed as a slice. The last aligned word of an RDMA write
/// becomes visible last: when [`Self::load_u64`] returns the new value of that word, all bytes of the write are
/// visible.
///
/// ```
/// use pmd::config::{Network, NicConfig};
/// use vipl::{Nic, RdmaAccess, RemoteBuffer};
///
/// // A private shared-memory segment; `Nic::open("VINIC0")` opens the segment that all programs share.
/// let segment = format!("doc-{}", std::process::id());
/// let nic = Nic::open_with(&NicConfig { network: Network::segment(segment), ..NicConfig::default() })?;
/// let ptag = nic.create_ptag()?;
/// let memory = nic.create_rdma_region(4096, &ptag, RdmaAccess { write: true, read: false })?;
///
/// // Sent to a peer, so that it can write here.
/// let advertised = memory.remote_buffer().to_bytes();
/// assert_eq!(RemoteBuffer::from_bytes(&advertised), memory.remote_buffer());
///
/// memory.write(3, b"bytes");
/// let mut seen = [0; 5];
/// memory.read(3, &mut seen);
/// assert_eq!(&seen, b"bytes");
/// assert_eq!(memory.load_u64(4088), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct RdmaRegion {
    shared: Arc<RegionShared>,
}

impl RdmaRegion {
    pub(crate) fn new(shared: Arc<RegionShared>) -> Self {
        Self { shared }
    }

    /// Returns the registered length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.shared.len_bytes
    }

    /// Returns the handle of the registration.
    pub fn handle(&self) -> MemoryHandle {
        self.shared.handle
    }

    /// Queries the attributes of this registration [VIPL 3.7.5].
    ///
    /// # Errors
    /// [`VipError::InvalidParameter`] when the NIC was closed by its handle.
    pub fn attributes(&self) -> Result<MemAttributes> {
        provider::query_mem(
            self.shared.nic.handle(),
            self.shared.address_bits(),
            self.shared.handle,
        )
    }

    /// Returns the address and handle that a peer needs to access the beginning of this region.
    pub fn remote_buffer(&self) -> RemoteBuffer {
        RemoteBuffer {
            address: self.shared.address_bits(),
            handle: self.shared.handle,
        }
    }

    /// Copies bytes out, starting at `offset_bytes`. The copy may contain a part of a peer's write in progress.
    ///
    /// # Panics
    /// When the range is not inside the region.
    pub fn read(&self, offset_bytes: usize, out: &mut [u8]) {
        self.check_range(offset_bytes, out.len());
        self.words().read(offset_bytes, out);
    }

    /// Copies bytes in, starting at `offset_bytes`; aligned words are written atomically.
    ///
    /// # Panics
    /// When the range is not inside the region.
    pub fn write(&self, offset_bytes: usize, bytes: &[u8]) {
        self.check_range(offset_bytes, bytes.len());
        self.words().write(offset_bytes, bytes);
    }

    /// Loads the aligned word at `offset_bytes`, in native byte order. When it returns a value of an RDMA write, all
    /// preceding bytes of the same write are visible.
    ///
    /// # Panics
    /// When the word is not inside the region or `offset_bytes` is not a multiple of 8.
    pub fn load_u64(&self, offset_bytes: usize) -> u64 {
        // Acquire: partner is the Release store by which the provider writes the last word of an RDMA write.
        self.word(offset_bytes).load(Ordering::Acquire)
    }

    /// Stores the aligned word at `offset_bytes`. A peer that reads the new value also sees all earlier writes of this
    /// program to the region.
    ///
    /// # Panics
    /// When the word is not inside the region or `offset_bytes` is not a multiple of 8.
    pub fn store_u64(&self, offset_bytes: usize, value: u64) {
        // Release: partner is the Acquire load of `load_u64`, in this program or in the datapath of a peer's read.
        self.word(offset_bytes).store(value, Ordering::Release);
    }

    fn word(&self, offset_bytes: usize) -> &AtomicU64 {
        assert!(
            offset_bytes.is_multiple_of(WORD_BYTES),
            "a word at {offset_bytes} is not aligned"
        );
        self.check_range(offset_bytes, WORD_BYTES);
        &self.words().0[offset_bytes / WORD_BYTES]
    }

    /// Returns all words that contain bytes of the region.
    fn words(&self) -> Words<'_> {
        let first = self.shared.address.cast::<AtomicU64>().as_ptr();
        let count = self.len_bytes().div_ceil(WORD_BYTES);
        // SAFETY: the region is whole pages, so aligned and long enough, and alive as long as `self`; no byte slice of
        // it is ever created, and every access of this program goes through these atomics.
        Words(unsafe { std::slice::from_raw_parts(first, count) })
    }

    /// Panics unless the range is inside the region.
    fn check_range(&self, offset_bytes: usize, len_bytes: usize) {
        let region_bytes = self.len_bytes();
        assert!(
            offset_bytes
                .checked_add(len_bytes)
                .is_some_and(|end| end <= region_bytes),
            "{len_bytes} bytes at offset {offset_bytes} of a region of {region_bytes} bytes"
        );
    }
}
