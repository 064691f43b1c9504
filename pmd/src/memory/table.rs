//! Memory handles to regions.
//!
//! Lookups take no lock. An entry is valid while its key equals the handle: it
//! is written while the key is 0 and published with a Release store; a reader
//! loads the key (Acquire), the fields, and the key again. Handles carry a random
//! generation, so that a stale one does not name the region that took its place,
//! and peers cannot predict one (ADR 0041).
//! Whoever removes an entry holds the NIC's turn, so the poll loop never sees
//! one go in the middle of a turn.

use std::sync::{Condvar, Mutex, OnceLock};

use crate::descriptor::DataSegment;
use crate::memory::pages::LockPolicy;
use crate::memory::place::{Here, Location, Owner, Place};
use crate::memory::{Access, TagCheck};
use crate::resource_error::ResourceError;
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

mod holdings;
mod registration;

use registration::Control;
pub(crate) use registration::Removed;

const CHUNK: usize = 512;
const RDMA_WRITE: u32 = 1;
const RDMA_READ: u32 = 2;
const WRITABLE: u32 = 4;
/// Above the rights stands the owner's number.
pub(super) const OWNER_SHIFT: u32 = 8;
const OWNER: u64 = 0x00FF_FFFF;

/// Consumer's choices for a region (VIPL 4.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RegionAttributes {
    /// Number of the protection tag; 0 for none.
    pub tag: u32,
    /// Peers may write.
    pub rdma_write: bool,
    /// Peers may read.
    pub rdma_read: bool,
}

/// Why a registration failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegionError {
    /// Length zero, or the range is not mapped.
    Invalid,
    /// A limit was reached, or pages could not be locked.
    Resource(ResourceError),
}

/// What is registered at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RegionUsage {
    /// Regions.
    pub regions: u64,
    /// Bytes, page-granular.
    pub bytes: u64,
    /// Registrations whose pages could not be locked, since the NIC was opened.
    pub unlocked: u64,
}

#[derive(Default)]
struct Entry {
    /// The handle while the entry is valid, else 0.
    key: AtomicU32,
    /// Tag, owner and rights in one word, so that a change of them is seen whole.
    grant: AtomicU64,
    base: AtomicU64,
    end: AtomicU64,
}

/// Where the bytes of an entry's region are: null for this program's own. Apart from the
/// entries, which the data path of this program's own VIs reads alone.
type PlaceChunk = [AtomicPtr<Place>; CHUNK];

/// Limits of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegionLimits {
    pub(crate) regions: u32,
    pub(crate) bytes: u64,
    /// Of one region.
    pub(crate) region_bytes: u64,
    pub(crate) lock: LockPolicy,
}

/// The regions of one NIC in this process.
pub(crate) struct RegionTable {
    /// Changes when a region or its attributes go, or those of a VI: what was valid before
    /// must be looked up again.
    epoch: AtomicU32,
    chunks: Box<[OnceLock<Box<[Entry; CHUNK]>>]>,
    /// Made when the first region of an application comes.
    places: Box<[OnceLock<Box<PlaceChunk>>]>,
    /// Regions with a bounce buffer.
    bounce_buffers: AtomicU32,
    control: Mutex<Control>,
    /// A region has gone: partner of whoever adopts one in its place.
    gone: Condvar,
    limits: RegionLimits,
}

/// A valid region as the data path sees it.
#[derive(Clone, Copy)]
pub(crate) struct View {
    grant: u64,
    base: u64,
    end: u64,
}

impl View {
    /// Checks tag and owner.
    #[inline]
    fn is_of(self, tag: TagCheck) -> bool {
        // A VI without a tag is the rare one.
        let differs = (self.grant ^ tag.0) >> OWNER_SHIFT;
        differs == 0 || (tag.number() == 0 && differs & OWNER == 0)
    }

    /// May the range be used so? Sums are checked: nothing wraps.
    #[inline]
    pub(crate) fn allows(
        self,
        tag: TagCheck,
        address: u64,
        length_bytes: u64,
        access: Access,
    ) -> bool {
        let Some(end) = address.checked_add(length_bytes) else {
            return false;
        };
        let needs = match access {
            Access::Read => 0,
            Access::Write => WRITABLE,
            Access::RemoteWrite => WRITABLE | RDMA_WRITE,
            Access::RemoteRead => RDMA_READ,
        };
        self.is_of(tag)
            && self.base <= address
            && end <= self.end
            && self.grant as u32 & needs == needs
    }
}

/// Tag, owner and rights as they stand in an entry: `tag 32 | owner 24 | rights 8`.
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
    pub(crate) fn new(limits: RegionLimits) -> Self {
        let regions = limits.regions.min(0xFFFF) as usize;
        Self {
            epoch: AtomicU32::new(1),
            chunks: (0..regions.div_ceil(CHUNK))
                .map(|_| OnceLock::new())
                .collect(),
            places: (0..regions.div_ceil(CHUNK))
                .map(|_| OnceLock::new())
                .collect(),
            bounce_buffers: AtomicU32::new(0),
            control: Mutex::new(Control::default()),
            gone: Condvar::new(),
            limits: RegionLimits {
                regions: regions as u32,
                ..limits
            },
        }
    }

    /// The epoch that a check which starts now is good for.
    #[inline]
    pub(crate) fn epoch(&self) -> u32 {
        // Acquire: partner of the AcqRel addition in `begin_epoch`.
        self.epoch.load(Ordering::Acquire)
    }

    /// Has everything that was found valid looked up again before its next use. The caller
    /// has changed what checks depend on, and holds the NIC's turn.
    pub(crate) fn begin_epoch(&self) {
        // AcqRel: whoever sees the new epoch sees what was changed before.
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// The region that `handle` names.
    #[inline]
    pub(crate) fn view(&self, handle: u32) -> Option<View> {
        let index = (handle & 0xFFFF) as usize;
        let entry = self.chunks.get(index / CHUNK)?.get()?.get(index % CHUNK)?;
        // Acquire: partner of the Release store in `publish`.
        if handle == 0 || entry.key.load(Ordering::Acquire) != handle {
            return None;
        }
        let view = View {
            grant: entry.grant.load(Ordering::Relaxed),
            base: entry.base.load(Ordering::Relaxed),
            end: entry.end.load(Ordering::Relaxed),
        };
        // Acquire fence: partner of the Release fence in `remove`; with the second
        // load it shows that no other region was written here meanwhile.
        fence(Ordering::Acquire);
        (entry.key.load(Ordering::Relaxed) == handle).then_some(view)
    }

    /// Checks whether a handle names a region of this tag and owner.
    pub(crate) fn is_of(&self, handle: u32, tag: TagCheck) -> bool {
        self.view(handle).is_some_and(|view| view.is_of(tag))
    }

    /// Bytes from an address to the end of a region, if tag and rights allow this access.
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

    /// May the range of a region be used so?
    #[inline]
    pub(crate) fn check(
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

    /// Where a range is, if it may be used so.
    ///
    /// # Safety
    /// The caller holds the NIC's turn for as long as it uses the location.
    pub(crate) unsafe fn locate(
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
            return Some(Location::Near(address));
        }
        // SAFETY: passed on from our caller, who has found the region.
        match unsafe { self.place(handle) }? {
            Place::Mapped(memory) => (!memory.is_lost())
                .then(|| Location::Near(memory.address() + (address - view.base))),
            Place::Foreign(client) => Some(Location::Far(client, address)),
            Place::BounceBuffer(_) => Some(Location::Near(address)),
        }
    }

    /// Do any regions have a bounce buffer?
    #[inline]
    pub(crate) fn has_bounce_buffers(&self) -> bool {
        // Relaxed: memory is registered before it is posted.
        self.bounce_buffers.load(Ordering::Relaxed) != 0
    }

    /// Address of a segment in the bounce buffer of its region, if it has one and may be used so.
    ///
    /// # Safety
    /// The caller holds the NIC's turn for as long as it uses the address.
    pub(crate) unsafe fn bounce_buffer_of(
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
        // SAFETY: passed on from our caller, who has found the region.
        match unsafe { self.place(segment.handle) }? {
            Place::BounceBuffer(copy) => {
                let base = copy.address().as_ptr().expose_provenance() as u64;
                Some(base + (segment.address - view.base))
            }
            Place::Mapped(_) | Place::Foreign(_) => None,
        }
    }

    /// May an application's range be used so? And where it is, if it is mapped here: until the
    /// next epoch.
    ///
    /// # Safety
    /// The caller holds the NIC's turn.
    #[inline]
    pub(crate) unsafe fn find(
        &self,
        segment: &DataSegment,
        tag: TagCheck,
        access: Access,
    ) -> (bool, Option<Here>) {
        let length_bytes = u64::from(segment.length);
        match self.view(segment.handle) {
            Some(view) if view.allows(tag, segment.address, length_bytes, access) => {
                // SAFETY: passed on from our caller; the region is there.
                let place = unsafe { self.place(segment.handle) };
                let here = place.and_then(|place| place.here(segment.address - view.base));
                (true, here)
            }
            _ => (false, None),
        }
    }

    /// Where an application's region is.
    ///
    /// # Safety
    /// The caller holds the NIC's turn for as long as it uses the place, and has found the
    /// region under it.
    #[inline]
    unsafe fn place(&self, handle: u32) -> Option<&Place> {
        let index = (handle & 0xFFFF) as usize;
        let places = self.places.get(index / CHUNK)?.get()?;
        // Relaxed: written before the key that our caller has read, by the Release store of which
        // it is published; the turn keeps it from being changed.
        let place = places.get(index % CHUNK)?.load(Ordering::Relaxed);
        // SAFETY: not null, it points to the place that the registration owns until it is
        // removed, which needs the turn that our caller holds.
        unsafe { place.as_ref() }
    }
}

#[cfg(test)]
mod tests;
