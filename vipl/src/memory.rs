//! Registered memory: what a provider may read and write on behalf of a VI [VIPL 3.4].
//!
//! Two kinds, told apart by who else may touch the bytes:
//!
//! | type | others that touch it | access by the program |
//! | --- | --- | --- |
//! | [`MemoryRegion`], cut into [`Buffer`]s | the provider, only while a posted descriptor owns the buffer | `&[u8]`, `&mut [u8]` |
//! | [`RdmaRegion`] | a peer, at any time | copies in and out, [`RdmaRegion::load_u64`] |
//!
//! A [`Buffer`] is the only owner of its bytes, so posting it (by value, inside a descriptor) is what hands them to the
//! provider. The memory is freed when the last buffer of its region is gone.

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

/// Registration works on pages; memory of its own pages shares none with an unregistered neighbour.
const PAGE_BYTES: usize = 4096;
/// Buffers cut from one region begin on a cache line of their own.
const BUFFER_ALIGN_BYTES: usize = 64;

/// What a peer may do with registered memory.
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
    /// Taken out, and never freed, if they may be registered still when this is dropped.
    pages: Option<Pages>,
    len_bytes: usize,
    handle: MemoryHandle,
}

// SAFETY: the allocation belongs to this value and is freed by it alone; the bytes are reached through `Buffer`s, each
// the only owner of its range, or through `RdmaRegion`'s atomic accesses.
unsafe impl Send for RegionShared {}
// SAFETY: as above; a shared reference gives the address, never the bytes.
unsafe impl Sync for RegionShared {}

impl RegionShared {
    /// Allocates zeroed whole pages and registers `len_bytes` of them. Those of an attached NIC are such that the
    /// datapath process can map them, if it can be.
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
            // SAFETY: the range is ours, and `drop` deregisters it before it is freed. What others may do with it
            // meanwhile is what the types above the region allow for.
            unsafe { provider::register_mem(nic.handle(), exposed, len_bytes as u64, &attributes) }
        };
        let in_heap = || -> Result<_> {
            let pages = Pages::of_heap(len_bytes)?;
            let handle = register(&pages)?;
            Ok((pages, handle))
        };
        let (pages, handle) = if nic.is_attached() && len_bytes > 0 {
            let shared = Pages::shared(len_bytes).ok_or(VipError::ErrorResource);
            match shared.and_then(|pages| Ok((register(&pages)?, pages))) {
                Ok((handle, pages)) => (pages, handle),
                // It may be the descriptors, of which memory of the heap needs none.
                Err(VipError::ErrorResource) => {
                    let there = in_heap()?;
                    pages::warn_of_heap();
                    there
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
            // In a child the registration is the parent's, and the memory is a copy or a mapping of the child's own.
            Err(_) if self.nic.is_of_parent() => {}
            // An unknown handle, too: the NIC was closed by its handle, or is being closed at this moment by another
            // thread, and its registrations may not have ended yet.
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

/// Zeroed, page-aligned, registered memory that no peer can reach, not yet cut into buffers.
///
/// Made by [`Nic::create_region`](crate::Nic::create_region). It is deregistered and freed when it and every buffer cut
/// from it are dropped.
#[derive(Debug)]
pub struct MemoryRegion {
    shared: Arc<RegionShared>,
}

impl MemoryRegion {
    pub(crate) fn new(shared: Arc<RegionShared>) -> Self {
        Self { shared }
    }

    /// The registered length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.shared.len_bytes
    }

    /// The handle of the registration.
    pub fn handle(&self) -> MemoryHandle {
        self.shared.handle
    }

    /// The attributes that the provider holds for this registration [VIPL 3.7.5].
    ///
    /// # Errors
    /// [`VipError::InvalidParameter`] when the NIC was closed underneath.
    pub fn attributes(&self) -> Result<MemAttributes> {
        provider::query_mem(
            self.shared.nic.handle(),
            self.shared.address_bits(),
            self.shared.handle,
        )
    }

    /// The whole region as one buffer.
    pub fn into_buffer(self) -> Buffer {
        let address = self.shared.address;
        let len_bytes = self.shared.len_bytes;
        Buffer {
            region: self.shared,
            address,
            len_bytes,
        }
    }

    /// Cuts the region into buffers of `buffer_bytes`, each beginning on a 64-byte boundary, as many as fit.
    ///
    /// # Panics
    /// When `buffer_bytes` is 0.
    pub fn split(self, buffer_bytes: usize) -> Vec<Buffer> {
        assert!(
            buffer_bytes > 0,
            "a region is cut into buffers of one byte or more"
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

    /// From the beginning of one buffer of [`Self::split`] to the next.
    pub(crate) fn stride_bytes(buffer_bytes: usize) -> usize {
        buffer_bytes.saturating_add(BUFFER_ALIGN_BYTES - 1) & !(BUFFER_ALIGN_BYTES - 1)
    }
}

/// A range of registered memory and its only owner.
///
/// It is read and written as a slice. Pushed into a [`Descriptor`](crate::Descriptor) and posted, it belongs to the
/// provider until the descriptor comes back.
pub struct Buffer {
    region: Arc<RegionShared>,
    address: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: a buffer is the only way to its bytes, wherever it is.
unsafe impl Send for Buffer {}
// SAFETY: a shared reference gives `&[u8]` only.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// The handle of the registration that the buffer lies in.
    pub fn handle(&self) -> MemoryHandle {
        self.region.handle()
    }

    /// Cuts the buffer in two at `at_bytes`; this one keeps the beginning. Neither can be longer than it is now.
    ///
    /// # Panics
    /// When `at_bytes` is beyond the end.
    pub fn split_off(&mut self, at_bytes: usize) -> Self {
        assert!(
            at_bytes <= self.len_bytes,
            "cut at {at_bytes} of a buffer of {} bytes",
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

    /// Gives up all but the first `len_bytes`; the rest stays allocated and unused until the region is freed.
    pub fn truncate(&mut self, len_bytes: usize) {
        self.len_bytes = self.len_bytes.min(len_bytes);
    }

    pub(crate) fn ptag(&self) -> &Ptag {
        self.region.ptag()
    }

    pub(crate) fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// The address as it stands in a data segment.
    pub(crate) fn address_bits(&self) -> u64 {
        self.address.as_ptr().expose_provenance() as u64
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range is initialised (zeroed at first), inside the allocation that `region` keeps alive, and this
        // buffer is its only owner; the provider touches it only while a posted descriptor has taken the buffer away.
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

/// Where an RDMA write goes or a read comes from: memory of the peer, as the peer told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteBuffer {
    /// The address in the peer's address space.
    pub address: u64,
    /// The peer's handle of the registration that holds it.
    pub handle: MemoryHandle,
}

impl RemoteBuffer {
    /// The bytes that [`Self::to_bytes`] makes.
    pub const BYTES: usize = 12;

    /// The same registration, `offset_bytes` further; wraps around, and the peer refuses what it did not register.
    #[must_use]
    pub fn at(self, offset_bytes: u64) -> Self {
        Self {
            address: self.address.wrapping_add(offset_bytes),
            handle: self.handle,
        }
    }

    /// Address and handle, little-endian, ready to be told to a peer.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..].copy_from_slice(&self.handle.0.to_le_bytes());
        bytes
    }

    /// The inverse of [`Self::to_bytes`]. Any bytes are accepted: the peer judges what an address is worth.
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
/// Made by [`Nic::create_rdma_region`](crate::Nic::create_rdma_region). Since a peer may change it between any two
/// instructions, its bytes are copied in and out and never lent as a slice. The bytes of one RDMA write become visible
/// so that its last aligned word is seen last: [`Self::load_u64`] on that word tells that all of them are there.
///
/// ```
/// use pmd::config::NicConfig;
/// use vipl::{Nic, RdmaAccess, RemoteBuffer};
///
/// // A segment of shared memory of its own; `Nic::open("VINIC0")` is the one that all programs share.
/// let segment = format!("doc-{}", std::process::id());
/// let nic = Nic::open_with(&NicConfig { segment, ..NicConfig::default() })?;
/// let ptag = nic.create_ptag()?;
/// let memory = nic.create_rdma_region(4096, &ptag, RdmaAccess { write: true, read: false })?;
///
/// // What a peer is told, so that it can write here.
/// let told = memory.remote_buffer().to_bytes();
/// assert_eq!(RemoteBuffer::from_bytes(&told), memory.remote_buffer());
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

    /// The registered length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.shared.len_bytes
    }

    /// The handle of the registration.
    pub fn handle(&self) -> MemoryHandle {
        self.shared.handle
    }

    /// The attributes that the provider holds for this registration [VIPL 3.7.5].
    ///
    /// # Errors
    /// [`VipError::InvalidParameter`] when the NIC was closed underneath.
    pub fn attributes(&self) -> Result<MemAttributes> {
        provider::query_mem(
            self.shared.nic.handle(),
            self.shared.address_bits(),
            self.shared.handle,
        )
    }

    /// What a peer has to know to reach the beginning of this region.
    pub fn remote_buffer(&self) -> RemoteBuffer {
        RemoteBuffer {
            address: self.shared.address_bits(),
            handle: self.shared.handle,
        }
    }

    /// Copies bytes out, from `offset_bytes` on. With a write of a peer under way the copy may hold some of its bytes.
    ///
    /// # Panics
    /// When the range is not inside the region.
    pub fn read(&self, offset_bytes: usize, out: &mut [u8]) {
        self.range(offset_bytes, out.len());
        self.words().read(offset_bytes, out);
    }

    /// Copies bytes in, from `offset_bytes` on, aligned words whole.
    ///
    /// # Panics
    /// When the range is not inside the region.
    pub fn write(&self, offset_bytes: usize, bytes: &[u8]) {
        self.range(offset_bytes, bytes.len());
        self.words().write(offset_bytes, bytes);
    }

    /// Reads the aligned word at `offset_bytes`, in the order of this machine's bytes. Whatever a peer wrote before it
    /// within the same RDMA write is visible when the new value is.
    ///
    /// # Panics
    /// When the word is not inside the region or `offset_bytes` is not a multiple of 8.
    pub fn load_u64(&self, offset_bytes: usize) -> u64 {
        // Acquire: partner is the Release store with which the provider places the last word of an RDMA write.
        self.word(offset_bytes).load(Ordering::Acquire)
    }

    /// Writes the aligned word at `offset_bytes`. Whatever this program wrote into the region before is visible to a
    /// peer that reads the new value.
    ///
    /// # Panics
    /// When the word is not inside the region or `offset_bytes` is not a multiple of 8.
    pub fn store_u64(&self, offset_bytes: usize, value: u64) {
        // Release: partner is the Acquire load of `load_u64`, in this program or on the way to a reading peer.
        self.word(offset_bytes).store(value, Ordering::Release);
    }

    fn word(&self, offset_bytes: usize) -> &AtomicU64 {
        assert!(
            offset_bytes.is_multiple_of(WORD_BYTES),
            "a word at {offset_bytes} is not aligned"
        );
        self.range(offset_bytes, WORD_BYTES);
        &self.words().0[offset_bytes / WORD_BYTES]
    }

    /// All words that the region has bytes of.
    fn words(&self) -> Words<'_> {
        let first = self.shared.address.cast::<AtomicU64>().as_ptr();
        let count = self.len_bytes().div_ceil(WORD_BYTES);
        // SAFETY: the region is whole pages, so aligned and long enough, and alive as long as `self`; no slice of bytes
        // is ever made of it, and every access of this program goes through these atomics.
        Words(unsafe { std::slice::from_raw_parts(first, count) })
    }

    /// Checks a range.
    fn range(&self, offset_bytes: usize, len_bytes: usize) {
        let region_bytes = self.len_bytes();
        assert!(
            offset_bytes
                .checked_add(len_bytes)
                .is_some_and(|end| end <= region_bytes),
            "{len_bytes} bytes at {offset_bytes} of a region of {region_bytes}"
        );
    }
}
