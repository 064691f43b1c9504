//! Owner of a registered region, and the memory that backs it in this process.

use std::sync::Arc;

use pmd_port::mapping::LossFlag;

use crate::handle::FIELD_MASK;
use crate::memory::SharedMemory;
use crate::memory::client_mapping::MappedMemory;
use crate::memory::client_process::ClientProcess;

/// Owner of regions: this program, or an application that this process serves.
///
/// An access with a tag or handle of another owner is refused, whatever the tag. A datapath process
/// gives each application one number for all of its handles of the NIC: they belong to one
/// program, whose regions and VIs may be combined (VIPL 3.4.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner(u32);

impl Owner {
    /// This program.
    pub const PROGRAM: Self = Self(0);

    /// The application with this number of 24 bits, not 0.
    pub const fn client(number: u32) -> Option<Self> {
        if number == 0 || number > FIELD_MASK {
            return None;
        }
        Some(Self(number))
    }

    /// Returns the number; 0 for this program.
    #[inline]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// Memory that backs a region. Memory of this program is at the registered address, also if the
/// region has a bounce buffer.
#[derive(Debug)]
pub enum Backing {
    /// A file of the application that is mapped here.
    Mapped(MappedMemory),
    /// Memory of the application's process only, accessed by system calls.
    Foreign(Arc<ClientProcess>),
    /// Memory of this program; the datapath process maps this bounce buffer instead.
    BounceBuffer(SharedMemory),
    /// Memory of this program, which the datapath process accesses by system calls.
    Private,
}

/// Memory of an application that is to be registered.
#[derive(Debug)]
pub struct ClientMemory {
    /// The application.
    pub owner: Owner,
    /// Where its bytes are.
    pub backing: Backing,
    /// The application may write it, as it states.
    pub writable: bool,
}

/// Address of application memory that is mapped here, valid until a region is removed.
#[derive(Clone, Copy, Debug)]
pub struct MappedAddress {
    /// The address.
    pub address: u64,
    pub(crate) loss_flag: LossFlag,
}

/// Memory shared with an application for all data of one short message.
#[derive(Clone, Copy, Debug)]
pub struct InlineBuffer {
    /// Its number, not 0.
    pub number: u32,
    /// Its first byte.
    pub memory: MappedAddress,
}

impl Backing {
    /// Returns whether this is memory of this program that the datapath process does not map.
    pub(super) fn is_unmapped(&self) -> bool {
        matches!(self, Self::BounceBuffer(_) | Self::Private)
    }

    /// Returns the address of the byte at this offset, if it is mapped here.
    #[inline]
    pub(super) fn mapped_address(&self, offset_bytes: u64) -> Option<MappedAddress> {
        match self {
            Self::Mapped(memory) => Some(memory.at(offset_bytes)),
            Self::Foreign(_) | Self::BounceBuffer(_) | Self::Private => None,
        }
    }
}

/// Location of bytes that a lookup found usable, valid until the backend lock is released.
#[derive(Clone, Copy, Debug)]
pub enum Location<'t> {
    /// At this address of this process.
    Local(u64),
    /// At this address of a client process.
    Foreign(&'t ClientProcess, u64),
}

impl Location<'_> {
    /// Advances by this many bytes, within the range that was found.
    #[inline]
    pub fn plus(self, bytes: u64) -> Self {
        match self {
            Self::Local(at) => Self::Local(at + bytes),
            Self::Foreign(client, at) => Self::Foreign(client, at + bytes),
        }
    }
}
