//! Registered memory: which bytes of the process a NIC may read and write, and which of the
//! applications that it serves.
//!
//! | room | what is in it |
//! | --- | --- |
//! | `table` | handles to regions, read without a lock by the data path |
//! | `pages` | what the kernel says of the pages: mapped, writable, locked |
//! | `locked` | how many regions want a page locked |
//! | `copy` | bytes in and out of application memory |
//! | `place` | whose the bytes of a region are, and where |
//! | `mapped` | memory that an application offers, mapped |
//! | `client` | memory of another process, reached by system calls |
//! | `transfer` | bytes between two ends, wherever they are |
//! | `shared` | the allocator: memory that a process can offer |
//! | `offered` | what a process can offer of its memory, and how |

pub(crate) mod client;
pub(crate) mod copy;
pub(crate) mod locked;
pub(crate) mod mapped;
mod offered;
pub(crate) mod pages;
pub(crate) mod place;
pub(crate) mod shared;
pub(crate) mod table;
#[cfg(test)]
pub(crate) mod testkit;
pub(crate) mod transfer;

use place::Owner;

pub use client::obey_ptrace_rules;
pub(crate) use offered::{mapped_files, shared_memory_of};
pub use pages::LockPolicy;
pub use shared::SharedMemory;
pub(crate) use table::{RegionAttributes, RegionError};

/// What an access wants to do with a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// The provider reads for the owner: a descriptor, data to send.
    Read,
    /// The provider writes for the owner: received data, completion status.
    Write,
    /// The peer writes.
    RemoteWrite,
    /// The peer reads.
    RemoteRead,
}

/// What a VI shows to a region: whose the region has to be, and the tag that it has to have. A VI
/// without a tag is let through (`protection = "lenient"`).
///
/// As it stands in the grant of a region, so that a check is one comparison: `tag 32 | owner 24 | 0`,
/// tag 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TagCheck(u64);

impl TagCheck {
    /// This program's regions, whatever their tags.
    pub(crate) const LENIENT: Self = Self::tag(0);

    /// This program's regions with this tag; 0 for a VI that has none.
    #[inline]
    pub(crate) const fn tag(tag: u32) -> Self {
        Self::of(Owner::PROGRAM, tag)
    }

    /// This application's regions with this tag; 0 for a VI that has none.
    #[inline]
    pub(crate) const fn of(owner: Owner, tag: u32) -> Self {
        Self((tag as u64) << 32 | (owner.number() as u64) << table::OWNER_SHIFT)
    }

    /// The tag; 0 for none.
    #[inline]
    pub(crate) const fn number(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Is the memory of the VI an application's, which its addresses do not name here?
    #[inline]
    pub(crate) const fn is_client(self) -> bool {
        self.0 as u32 != 0
    }
}
