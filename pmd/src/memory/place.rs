//! Whose the bytes of a region are, and where they are for this process.

use std::sync::Arc;

use pmd_port::mapping::Watch;

use crate::memory::SharedMemory;
use crate::memory::client::Client;
use crate::memory::mapped::MappedMemory;
use crate::vi::FIELD_MASK;

/// Whose regions they are: this program's, or an application's that this process serves.
///
/// One that shows a tag or a handle of another owner is refused, whatever the tag. Who serves
/// applications gives each a number of its own, for all of its openings of the NIC: they are one
/// program's, and their regions and VIs go together (VIPL 3.4.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owner(u32);

impl Owner {
    /// This program.
    pub(crate) const PROGRAM: Self = Self(0);

    /// An application with this number of 24 bits, not 0.
    pub(crate) const fn client(number: u32) -> Option<Self> {
        if number == 0 || number > FIELD_MASK {
            return None;
        }
        Some(Self(number))
    }

    #[inline]
    pub(crate) const fn number(self) -> u32 {
        self.0
    }
}

/// Where the bytes of a region are. Those of this program are at the registered address, also if
/// the region has a bounce buffer.
#[derive(Debug)]
pub(crate) enum Place {
    /// In a file that we mapped.
    Mapped(MappedMemory),
    /// In the application only.
    Foreign(Arc<Client>),
    /// In this program; the datapath process maps this bounce buffer instead.
    BounceBuffer(SharedMemory),
}

/// The memory of an application, as it is registered for it.
#[derive(Debug)]
pub(crate) struct ClientMemory {
    pub(crate) owner: Owner,
    pub(crate) place: Place,
    /// May the application write it, as it says?
    pub(crate) writable: bool,
}

/// Where bytes of an application are that are mapped here, until a region goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Here {
    pub(crate) address: u64,
    pub(crate) watch: Watch,
}

impl Place {
    /// Where the byte at this offset is, if it is mapped.
    #[inline]
    pub(super) fn here(&self, offset_bytes: u64) -> Option<Here> {
        match self {
            Self::Mapped(memory) => Some(Here {
                address: memory.address() + offset_bytes,
                watch: memory.watch(),
            }),
            Self::Foreign(_) | Self::BounceBuffer(_) => None,
        }
    }
}

/// Where bytes are that a lookup found usable, for the rest of the turn.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Location<'t> {
    /// At this address of ours.
    Near(u64),
    /// At this address of a client.
    Far(&'t Client, u64),
}

impl Location<'_> {
    /// So many bytes further on, inside what was found.
    #[inline]
    pub(crate) fn plus(self, bytes: u64) -> Self {
        match self {
            Self::Near(at) => Self::Near(at + bytes),
            Self::Far(client, at) => Self::Far(client, at + bytes),
        }
    }
}
