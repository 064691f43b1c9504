//! Direct access to the registered memory of another station of a segment: RDMA writes and reads by stores and loads.
//!
//! Memory of the allocator ([`SharedMemory`](super::SharedMemory)) is a file, which another process of the same user can
//! map. Each station exports a table ([`ExportedMemory`]) of its regions and connected VIs, in a file too. A station
//! that carries out an RDMA operation looks the region up in the table of the other one ([`PeerMemory`]), with the same
//! rules as for frames, and copies. What it may not or cannot access, it sends in frames, so that there is one place
//! for every error. A station that receives a long send copies it from the region of the sender, whatever its rights.
//!
//! ```text
//! exported table:  | header | gate of each station slot | VIs | regions |
//! gate:            odd while the station of that slot accesses memory of the owner of the table
//!
//!   accessing station                          owner
//!   gate = odd                                 key of the region = 0
//!   full barrier                               full barrier
//!   region and VI still there? -> copy         gate odd? -> wait until it changes, or its station has ended
//!   gate = even
//! ```
//! Either the accessing station sees that the region is gone, or the owner sees the gate: when a region is
//! deregistered, or its rights are reduced, no station accesses it any more (`tests/loom`).
//!
//! # Trust
//! Only processes of one user are in a segment. One that is hostile can write to any memory that another one exports,
//! whatever the table says, and delay its deregistrations by [`WAIT_LIMIT`]; it cannot make another process
//! access memory outside of the files that it mapped (`docs/direct-access.md`).

use core::fmt;
use core::ptr::NonNull;
use std::time::Duration;

use pmd_port::mapping::Mapping;

use super::table::{RDMA_READ, RDMA_WRITE, RegionEntry, RegionView};
use super::{Access, TagCheck};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

mod exported;
mod gate;
mod peer;
#[cfg(all(test, not(loom)))]
mod tests;

pub(super) use exported::SharablePages;
pub use exported::{ExportedMemory, Revoked, VisibleVi};
use gate::{ConnectionWord, Gate};
pub use peer::{DirectAccess, MappedFile, PeerMemory, PeerVi};

/// How long a deregistration waits for an access of another station: a copy of at most [`PART_BYTES`], by a process that
/// may be descheduled, or stopped by a debugger.
pub const WAIT_LIMIT: Duration = Duration::from_secs(5);

/// The most bytes of one access.
pub const PART_BYTES: u32 = vi_types::DIRECT_PART_BYTES;

/// Another station has begun an access to memory that does not end: its process is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessInProgress;

impl fmt::Display for AccessInProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("another process of the segment is stopped while it accesses the memory")
    }
}

/// At the beginning of a table; the last byte is the version of its layout.
const MAGIC: u64 = u64::from_be_bytes(*b"VIMEMOR\x02");
/// Station slots of a segment.
const SLOTS: usize = 256;
/// Bits per word of the set of stations that have mapped a table.
const WORD_BITS: usize = 64;

/// The beginning of a table.
#[repr(C, align(128))]
struct TableHeader {
    magic: AtomicU64,
    /// The random key by which a station names the table.
    key: AtomicU64,
    /// The owner's process ID in its own PID namespace: a forked child has its parent's files.
    pid: AtomicU32,
    vis: AtomicU32,
    regions: AtomicU32,
    /// Counts removed regions: files that were mapped for them may not be needed any more.
    removals: AtomicU32,
    /// Set of the station slots that have mapped the table.
    users: [AtomicU64; SLOTS / WORD_BITS],
}

/// A VI that is connected to a station of the segment.
#[repr(C, align(32))]
struct SharedVi {
    /// [`VisibleVi::connection`]; 0 while the peer may not access memory through this VI.
    connection: ConnectionWord,
    /// The protection tag, and in the low bits the rights of the peer, as in the grant of a region.
    grant: AtomicU64,
    max_transfer_bytes: AtomicU32,
}

/// A registered region, and where its pages are.
#[repr(C, align(64))]
struct SharedRegion {
    entry: RegionEntry,
    fd: AtomicU32,
    inode: AtomicU64,
    offset_bytes: AtomicU64,
}

/// Low bits of a grant: rights.
const RIGHTS: u64 = 0xFF;

impl SharedVi {
    /// Returns the tag of the VI, if this connection may be used for such an access.
    #[inline]
    fn tag_for(&self, connection: u64, bytes: u32, access: Access) -> Option<TagCheck> {
        if !self.connection.is(connection) {
            return None;
        }
        let grant = self.grant.load(Ordering::Relaxed);
        let rights = match access {
            Access::RemoteRead => RDMA_READ,
            Access::RemoteWrite | Access::Write => RDMA_WRITE,
            // What the owner sends.
            Access::Read => 0,
        };
        let max_bytes = self.max_transfer_bytes.load(Ordering::Relaxed);
        // Its fence is also the partner of the Release fence in `ExportedMemory::open_vi`: the values are not those of a later
        // connection.
        let allowed = grant & u64::from(rights) == u64::from(rights)
            && bytes <= max_bytes
            && self.connection.is_still(connection);
        allowed.then_some(TagCheck(grant & !RIGHTS))
    }
}

/// Location of a region's pages: a file of the station's process, and the offset of the region in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileRange {
    fd: u32,
    inode: u64,
    offset_bytes: u64,
}

impl SharedRegion {
    /// Returns the region of this handle, if it is there.
    #[inline]
    fn find(&self, handle: u32) -> Option<(RegionView, FileRange)> {
        let view = self.entry.view(handle)?;
        let file = FileRange {
            fd: self.fd.load(Ordering::Relaxed),
            inode: self.inode.load(Ordering::Relaxed),
            offset_bytes: self.offset_bytes.load(Ordering::Relaxed),
        };
        self.entry.still_has(handle).then_some((view, file))
    }
}

/// A mapped table: the station's own, or that of another one.
#[derive(Debug)]
struct Table {
    map: Mapping,
    vis: u32,
    regions: u32,
    /// Offset of the regions.
    regions_at: usize,
}

/// Offset of the VIs in a table.
const VIS_AT: usize = size_of::<TableHeader>() + SLOTS * size_of::<Gate>();

impl Table {
    /// Returns the length of a table; it has one region for each index of a handle.
    fn len_bytes(vis: u32, regions: u32) -> usize {
        Self::regions_at(vis) + regions as usize * size_of::<SharedRegion>()
    }

    fn regions_at(vis: u32) -> usize {
        (VIS_AT + vis as usize * size_of::<SharedVi>()).next_multiple_of(align_of::<SharedRegion>())
    }

    /// Wraps a mapping, which must have the length of such a table.
    fn new(map: Mapping, vis: u32, regions: u32) -> Self {
        assert!(map.len() >= Self::len_bytes(vis, regions));
        Self {
            map,
            vis,
            regions,
            regions_at: Self::regions_at(vis),
        }
    }

    /// Returns the address of the part at this offset.
    fn at<T>(&self, offset_bytes: usize) -> NonNull<T> {
        // SAFETY: the callers stay below `len_bytes`, which the mapping has at least.
        unsafe { self.map.as_ptr().add(offset_bytes) }.cast()
    }

    fn header(&self) -> &TableHeader {
        // SAFETY: at the beginning of a page-aligned mapping that lives as long as `self`; atomics only, so that sharing
        // it with other processes is no data race.
        unsafe { self.at::<TableHeader>(0).as_ref() }
    }

    #[inline]
    fn gate(&self, slot: usize) -> &Gate {
        assert!(slot < SLOTS);
        let offset = size_of::<TableHeader>() + slot * size_of::<Gate>();
        // SAFETY: one of the gates, as for `header`.
        unsafe { self.at::<Gate>(offset).as_ref() }
    }

    #[inline]
    fn vi(&self, index: u32) -> Option<&SharedVi> {
        let offset = VIS_AT + index as usize * size_of::<SharedVi>();
        // SAFETY: one of the VIs, as for `header`.
        (index < self.vis).then(|| unsafe { self.at::<SharedVi>(offset).as_ref() })
    }

    /// Returns the offset of the region of a handle.
    #[inline]
    fn region_at(&self, handle: u32) -> usize {
        self.regions_at + (handle & 0xFFFF) as usize * size_of::<SharedRegion>()
    }

    #[inline]
    fn region(&self, handle: u32) -> Option<&SharedRegion> {
        let index = handle & 0xFFFF;
        let offset = self.region_at(handle);
        // SAFETY: one of the regions, as for `header`.
        (index < self.regions).then(|| unsafe { self.at::<SharedRegion>(offset).as_ref() })
    }
}
