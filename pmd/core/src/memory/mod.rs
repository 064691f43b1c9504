//! Registered memory: the bytes that a NIC may read and write, of this process and of applications that it serves.
//!
//! | module | contents |
//! | --- | --- |
//! | `table` | memory handles to regions, read without a lock by the data path |
//! | `pages` | state of pages in the kernel: mapped, writable, locked |
//! | `page_locks` | number of regions that lock each page |
//! | `copy` | copies into and out of application memory |
//! | `backing` | owner and location of the memory of a region |
//! | `client_mapping` | memory files of applications, mapped here |
//! | `client_process` | memory of another process, accessed by system calls |
//! | `transfer` | copies between any two locations |
//! | `direct_access` | access to the memory of other stations of the segment, and theirs to this one's |
//! | `shared_allocator` | allocator of memory that other processes can map |
//! | `memfd_lookup` | finds the memfd behind an address range |

pub mod backing;
pub mod client_mapping;
pub mod client_process;
pub mod copy;
pub mod direct_access;
mod memfd_lookup;
pub(crate) mod page_locks;
pub mod pages;
pub mod shared_allocator;
pub mod table;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
pub mod transfer;

use backing::Owner;

pub use client_process::drop_cap_sys_ptrace;
pub use memfd_lookup::{find_memfd, mapped_file_ids};
pub use shared_allocator::SharedMemory;
pub use table::{RegionAttributes, RegionError};

/// Kind of an access to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The provider reads for the owner: a descriptor, data to send.
    Read,
    /// The provider writes for the owner: received data, completion status.
    Write,
    /// The peer writes.
    RemoteWrite,
    /// The peer reads.
    RemoteRead,
}

/// Owner and protection tag of a VI, which a region must match. A VI without a tag matches any tag
/// (`protection = "lenient"`).
///
/// Encoded like the grant of a region, so that a check is one comparison: `tag 32 | owner 24 | 0`,
/// tag 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagCheck(u64);

impl TagCheck {
    /// Matches this program's regions with any tag.
    pub const LENIENT: Self = Self::tag(0);

    /// Matches this program's regions with this tag; 0 for a VI without a tag.
    #[inline]
    pub const fn tag(tag: u32) -> Self {
        Self::of(Owner::PROGRAM, tag)
    }

    /// Matches regions of this owner with this tag; 0 for a VI without a tag.
    #[inline]
    pub const fn of(owner: Owner, tag: u32) -> Self {
        Self((tag as u64) << 32 | (owner.number() as u64) << table::OWNER_SHIFT)
    }

    /// Returns the tag; 0 for none.
    #[inline]
    pub const fn number(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Returns whether the memory of the VI belongs to an application, so that its addresses are not valid here.
    #[inline]
    pub const fn is_client(self) -> bool {
        self.0 as u32 != 0
    }
}
