//! Table of registered memory regions by memory handle.
//!
//! Lookups take no lock. An entry is valid while its key equals the handle: it is written while the
//! key is 0 and published with a Release store; a reader loads the key (Acquire), the fields, and
//! the key again. Handles contain a random generation, so that a stale one does not name a later
//! region at the same index, and peers cannot predict one (ADR 0041). Entries are removed under the
//! NIC's backend lock, so the poll loop never sees a removal in the middle of a poll.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use pmd_port::shm::SegmentStation;

use crate::descriptor::DataSegment;
use crate::memory::backing::{Backing, Location, MappedAddress, Owner};
use crate::memory::direct_access::ExportedMemory;
use crate::memory::{Access, TagCheck};
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

mod ownership;
mod registration;
mod removed;

use registration::Control;
pub use removed::Removed;
use vi_types::{CallError, LockPolicy, ResourceError};

const CHUNK: usize = 512;
/// Rights in a grant.
pub(super) const RDMA_WRITE: u32 = 1;
pub(super) const RDMA_READ: u32 = 2;
const WRITABLE: u32 = 4;
/// Position of the owner's number in a grant, above the rights.
pub(super) const OWNER_SHIFT: u32 = 8;
const OWNER: u64 = 0x00FF_FFFF;

/// Consumer-selected attributes of a region (VIPL 4.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionAttributes {
    /// Number of the protection tag; 0 for none.
    pub tag: u32,
    /// Peers may write.
    pub rdma_write: bool,
    /// Peers may read.
    pub rdma_read: bool,
}

/// Reason why a registration failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionError {
    /// Length zero, or the range is not mapped.
    Invalid,
    /// A limit was reached, or pages could not be locked.
    Resource(ResourceError),
}

impl From<RegionError> for CallError {
    fn from(error: RegionError) -> Self {
        match error {
            RegionError::Invalid => Self::InvalidParameter,
            RegionError::Resource(error) => Self::Resource(error),
        }
    }
}

/// Current number of registered regions and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionUsage {
    /// Regions.
    pub regions: u64,
    /// Bytes, in whole pages; of applications' mapped files the whole files, each once.
    pub bytes: u64,
    /// Registrations whose pages could not be locked, since the NIC was opened.
    pub unlocked: u64,
}

/// A region, as the data path reads it: in this process, or in a file that other processes map (`direct_access`).
#[derive(Default)]
#[repr(C)]
pub(super) struct RegionEntry {
    /// The handle while the entry is valid, otherwise 0.
    key: AtomicU32,
    /// Tag, owner and rights in one word, so that they change atomically.
    grant: AtomicU64,
    base: AtomicU64,
    end: AtomicU64,
}

impl RegionEntry {
    /// Returns the region, if the entry is that of this handle.
    #[inline]
    pub(super) fn view(&self, handle: u32) -> Option<RegionView> {
        // Acquire: partner of the Release store in `publish`.
        if handle == 0 || self.key.load(Ordering::Acquire) != handle {
            return None;
        }
        let view = RegionView {
            grant: self.grant.load(Ordering::Relaxed),
            base: self.base.load(Ordering::Relaxed),
            end: self.end.load(Ordering::Relaxed),
        };
        self.still_has(handle).then_some(view)
    }

    /// Returns whether the entry is still that of this handle, after what was loaded since [`Self::view`].
    #[inline]
    pub(super) fn still_has(&self, handle: u32) -> bool {
        // Acquire fence: partner of the Release fence in `clear`; the load then shows that no other
        // region was written here meanwhile.
        fence(Ordering::Acquire);
        self.key.load(Ordering::Relaxed) == handle
    }

    pub(super) fn publish(&self, handle: u32, grant: u64, (base, end): (u64, u64)) {
        // Release fence: partner of the Acquire fence in `still_has`: a thread that sees one of the new fields sees that
        // the key was cleared.
        fence(Ordering::Release);
        self.grant.store(grant, Ordering::Relaxed);
        self.base.store(base, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        // Release: partner of the Acquire load in `view`.
        self.key.store(handle, Ordering::Release);
    }

    pub(super) fn clear(&self) {
        self.key.store(0, Ordering::Relaxed);
        // Release fence: partner of the Acquire fence in `still_has`.
        fence(Ordering::Release);
    }

    pub(super) fn set_grant(&self, grant: u64) {
        // Relaxed: one word; concurrent posts see either value.
        self.grant.store(grant, Ordering::Relaxed);
    }
}

/// Backings of regions; null for regions of this program that need none. Separate from the
/// entries, since the data path of this program's own VIs reads only those.
type BackingChunk = [AtomicPtr<Backing>; CHUNK];

/// Limits of a region table.
#[derive(Clone, Copy, Debug)]
pub struct RegionLimits {
    /// Number of regions.
    pub regions: u32,
    /// Bytes of all regions, counted as in [`RegionUsage::bytes`].
    pub bytes: u64,
    /// Bytes of one region.
    pub region_bytes: u64,
    /// Policy for locking pages.
    pub lock: LockPolicy,
}

/// The regions of one NIC in this process.
pub struct RegionTable {
    /// Incremented when a region is removed, or attributes of a region or VI change: earlier checks
    /// must be repeated then.
    epoch: AtomicU32,
    chunks: Box<[OnceLock<Box<[RegionEntry; CHUNK]>>]>,
    /// Allocated with the first region of an application.
    backings: Box<[OnceLock<Box<BackingChunk>>]>,
    /// Regions of this program that the datapath process does not map.
    unmapped: AtomicU32,
    control: Mutex<Control>,
    /// Notified when a region is removed; [`Self::adopt`] waits for it.
    removed: Condvar,
    /// The regions that the stations of the NIC's segment may access directly, while the NIC is in one.
    exported: Mutex<Option<Arc<ExportedMemory>>>,
    limits: RegionLimits,
}

/// Snapshot of a valid region for the data path.
#[derive(Clone, Copy)]
pub struct RegionView {
    grant: u64,
    base: u64,
    end: u64,
}

impl RegionView {
    /// Returns tag, owner and rights.
    pub(super) fn grant(self) -> u64 {
        self.grant
    }

    /// Returns the first address, and the one after the last.
    #[inline]
    pub(super) fn range(self) -> (u64, u64) {
        (self.base, self.end)
    }

    /// Checks tag and owner.
    #[inline]
    fn has_tag(self, tag: TagCheck) -> bool {
        // VIs without a tag are rare.
        let differs = (self.grant ^ tag.0) >> OWNER_SHIFT;
        differs == 0 || (tag.number() == 0 && differs & OWNER == 0)
    }

    /// Checks tag, owner, rights and bounds; overflow-safe.
    #[inline]
    pub fn allows(self, tag: TagCheck, address: u64, length_bytes: u64, access: Access) -> bool {
        let Some(end) = address.checked_add(length_bytes) else {
            return false;
        };
        let required = match access {
            Access::Read => 0,
            Access::Write => WRITABLE,
            Access::RemoteWrite => WRITABLE | RDMA_WRITE,
            Access::RemoteRead => RDMA_READ,
        };
        self.has_tag(tag)
            && self.base <= address
            && end <= self.end
            && self.grant as u32 & required == required
    }
}

/// Encodes tag, owner and rights of an entry: `tag 32 | owner 24 | rights 8`.
fn grant(attributes: RegionAttributes, owner: Owner, writable: bool) -> u64 {
    let mut rights = 0;
    for (on, bit) in [
        (attributes.rdma_write, RDMA_WRITE),
        (attributes.rdma_read, RDMA_READ),
        (writable, WRITABLE),
    ] {
        if on {
            rights |= bit;
        }
    }
    u64::from(attributes.tag) << 32 | u64::from(owner.number() << OWNER_SHIFT | rights)
}

impl RegionTable {
    /// Creates a table without regions.
    pub fn new(limits: RegionLimits) -> Self {
        let regions = limits.regions.min(0xFFFF) as usize;
        Self {
            epoch: AtomicU32::new(1),
            chunks: (0..regions.div_ceil(CHUNK))
                .map(|_| OnceLock::new())
                .collect(),
            backings: (0..regions.div_ceil(CHUNK))
                .map(|_| OnceLock::new())
                .collect(),
            unmapped: AtomicU32::new(0),
            control: Mutex::new(Control::default()),
            removed: Condvar::new(),
            exported: Mutex::new(None),
            limits: RegionLimits {
                regions: regions as u32,
                ..limits
            },
        }
    }

    /// Returns the current epoch, for a check that starts now.
    #[inline]
    pub fn epoch(&self) -> u32 {
        // Acquire: partner of the AcqRel addition in `begin_epoch`.
        self.epoch.load(Ordering::Acquire)
    }

    /// Invalidates all earlier checks. The caller has changed a region or attributes
    /// and holds the NIC's backend lock.
    pub fn begin_epoch(&self) {
        // AcqRel: a thread that sees the new epoch sees the change before it.
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Has the other stations of a segment access directly the regions that are registered from now on, of a NIC with
    /// this many VIs.
    ///
    /// # Errors
    /// No memory or file descriptor for the table that they read.
    pub fn export(&self, vis: u32, station: SegmentStation) -> io::Result<()> {
        let exported = ExportedMemory::create(vis, self.limits.regions, station)?;
        *self.lock_exported() = Some(Arc::new(exported));
        Ok(())
    }

    /// Ends [`Self::export`], when the NIC is down.
    pub fn end_export(&self) {
        *self.lock_exported() = None;
    }

    /// Returns the regions that other stations may access directly.
    pub fn exported(&self) -> Option<Arc<ExportedMemory>> {
        self.lock_exported().clone()
    }

    fn lock_exported(&self) -> MutexGuard<'_, Option<Arc<ExportedMemory>>> {
        self.exported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks up the region of a handle.
    #[inline]
    pub fn view(&self, handle: u32) -> Option<RegionView> {
        let index = (handle & 0xFFFF) as usize;
        let entry = self.chunks.get(index / CHUNK)?.get()?.get(index % CHUNK)?;
        entry.view(handle)
    }

    /// Returns whether a handle names a region with this tag and owner.
    pub fn has_tag(&self, handle: u32, tag: TagCheck) -> bool {
        self.view(handle).is_some_and(|view| view.has_tag(tag))
    }

    /// Returns whether peers may write or read a region.
    #[inline]
    pub fn peers_have_access(&self, handle: u32) -> bool {
        let rights = self.view(handle).map_or(0, |view| view.grant as u32);
        rights & (RDMA_WRITE | RDMA_READ) != 0
    }

    /// Returns the number of bytes from an address to the end of a region, if tag and rights allow this access.
    pub(crate) fn bytes_from(
        &self,
        handle: u32,
        tag: TagCheck,
        address: u64,
        access: Access,
    ) -> Option<u64> {
        let view = self.view(handle)?;
        let allowed = view.allows(tag, address, 0, access);
        allowed.then(|| view.end - address)
    }

    /// Returns whether this access to a range of a region is allowed.
    #[inline]
    pub fn check(
        &self,
        handle: u32,
        tag: TagCheck,
        address: u64,
        length_bytes: u64,
        access: Access,
    ) -> bool {
        self.view(handle)
            .is_some_and(|view| view.allows(tag, address, length_bytes, access))
    }

    /// Locates a range, if this access to it is allowed.
    ///
    /// # Safety
    /// The caller holds the NIC's backend lock for as long as it uses the location.
    pub unsafe fn locate(
        &self,
        handle: u32,
        tag: TagCheck,
        address: u64,
        length_bytes: u64,
        access: Access,
    ) -> Option<Location<'_>> {
        let view = self.view(handle)?;
        if !view.allows(tag, address, length_bytes, access) {
            return None;
        }
        if !tag.is_client() {
            return Some(Location::Local(address));
        }
        // SAFETY: guaranteed by the caller; the region was found.
        match unsafe { self.backing(handle) }? {
            Backing::Mapped(memory) => (!memory.is_lost())
                .then(|| Location::Local(memory.address() + (address - view.base))),
            Backing::Foreign(client) => Some(Location::Foreign(client, address)),
            Backing::BounceBuffer(_) | Backing::Private => Some(Location::Local(address)),
        }
    }

    /// Returns whether there is any region of this program that the datapath process does not map.
    #[inline]
    pub fn has_unmapped(&self) -> bool {
        // Relaxed: memory is registered before it is posted.
        self.unmapped.load(Ordering::Relaxed) != 0
    }

    /// Returns whether a region of this program that was found valid is accessed by the datapath process by system calls.
    ///
    /// # Safety
    /// The caller holds the NIC's backend lock, and has found the region under it.
    #[inline]
    pub unsafe fn is_private(&self, handle: u32) -> bool {
        // SAFETY: guaranteed by the caller.
        matches!(unsafe { self.backing(handle) }, Some(Backing::Private))
    }

    /// Returns whether a region of an application that was found valid is accessed by system calls.
    ///
    /// # Safety
    /// As for [`Self::is_private`].
    #[inline]
    pub unsafe fn is_foreign(&self, handle: u32) -> bool {
        // SAFETY: guaranteed by the caller.
        matches!(unsafe { self.backing(handle) }, Some(Backing::Foreign(_)))
    }

    /// Returns the address of a segment in the bounce buffer of its region, if it has one and this access is allowed.
    ///
    /// # Safety
    /// The caller holds the NIC's backend lock for as long as it uses the address.
    pub unsafe fn bounce_buffer_of(
        &self,
        segment: &DataSegment,
        tag: TagCheck,
        access: Access,
    ) -> Option<u64> {
        let view = self.view(segment.handle)?;
        let length_bytes = u64::from(segment.length);
        if !view.allows(tag, segment.address, length_bytes, access) {
            return None;
        }
        // SAFETY: guaranteed by the caller; the region was found.
        match unsafe { self.backing(segment.handle) }? {
            Backing::BounceBuffer(buffer) => {
                let base = buffer.address().as_ptr().expose_provenance() as u64;
                Some(base + (segment.address - view.base))
            }
            Backing::Mapped(_) | Backing::Foreign(_) | Backing::Private => None,
        }
    }

    /// Returns whether this access to a range of an application is allowed, and the address of the range if it is
    /// mapped here; valid until the next epoch.
    ///
    /// # Safety
    /// The caller holds the NIC's backend lock.
    #[inline]
    pub unsafe fn find(
        &self,
        segment: &DataSegment,
        tag: TagCheck,
        access: Access,
    ) -> (bool, Option<MappedAddress>) {
        let length_bytes = u64::from(segment.length);
        match self.view(segment.handle) {
            Some(view) if view.allows(tag, segment.address, length_bytes, access) => {
                // SAFETY: guaranteed by the caller; the region was found.
                let backing = unsafe { self.backing(segment.handle) };
                let offset_bytes = segment.address - view.base;
                (
                    true,
                    backing.and_then(|backing| backing.mapped_address(offset_bytes)),
                )
            }
            _ => (false, None),
        }
    }

    /// Returns the backing of an application's region.
    ///
    /// # Safety
    /// The caller holds the NIC's backend lock for as long as it uses the backing, and has found the
    /// region under it.
    #[inline]
    unsafe fn backing(&self, handle: u32) -> Option<&Backing> {
        let index = (handle & 0xFFFF) as usize;
        let backings = self.backings.get(index / CHUNK)?.get()?;
        // Relaxed: published by the Release store of the key, which the caller has read;
        // it changes only under the backend lock.
        let backing = backings.get(index % CHUNK)?.load(Ordering::Relaxed);
        // SAFETY: if not null, it points to the backing that the registration owns until it is
        // removed, which needs the backend lock that the caller holds.
        unsafe { backing.as_ref() }
    }
}

#[cfg(test)]
mod tests;
