//! Registered memory: which bytes of the process a NIC may read and write.
//!
//! | room | what is in it |
//! | --- | --- |
//! | `table` | handles to regions, read without a lock by the data path |
//! | `pages` | what the kernel says of the pages: mapped, writable, locked |
//! | `locked` | how many regions want a page locked |
//! | `copy` | bytes in and out of application memory |

pub(crate) mod copy;
pub(crate) mod locked;
mod pages;
pub(crate) mod table;

pub use pages::LockPolicy;
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

/// The tag that a VI shows to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TagCheck {
    /// Must equal the region's tag.
    Tag(u32),
    /// The VI has none and is let through (`protection = "lenient"`).
    Lenient,
}
