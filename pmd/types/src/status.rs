//! Bits of the status word of a descriptor (VIPL 5.2).

/// The descriptor is complete.
pub const DONE: u32 = 0x0000_0001;
/// Local Format Error.
pub const FORMAT_ERROR: u32 = 0x0000_0002;
/// Local Protection Error.
pub const PROTECTION_ERROR: u32 = 0x0000_0004;
/// Local Length Error.
pub const LENGTH_ERROR: u32 = 0x0000_0008;
/// Partial Packet Error.
pub const PARTIAL_ERROR: u32 = 0x0000_0010;
/// Descriptor Flushed.
pub const DESC_FLUSHED_ERROR: u32 = 0x0000_0020;
/// Transport Error.
pub const TRANSPORT_ERROR: u32 = 0x0000_0040;
/// RDMA Protection Error.
pub const RDMA_PROT_ERROR: u32 = 0x0000_0080;
/// Remote Descriptor Error.
pub const REMOTE_DESC_ERROR: u32 = 0x0000_0100;
/// All error bits.
pub const ERROR_MASK: u32 = 0x0000_01FE;
/// A send completed.
pub const OP_SEND: u32 = 0x0000_0000;
/// A receive completed.
pub const OP_RECEIVE: u32 = 0x0001_0000;
/// An RDMA write completed.
pub const OP_RDMA_WRITE: u32 = 0x0002_0000;
/// An RDMA write of the peer with immediate data consumed this receive descriptor.
pub const OP_REMOTE_RDMA_WRITE: u32 = 0x0003_0000;
/// An RDMA read completed.
pub const OP_RDMA_READ: u32 = 0x0004_0000;
/// Mask of the completed operation.
pub const OP_MASK: u32 = 0x0007_0000;
/// The lowest bit of [`OP_MASK`].
pub const OP_SHIFT: u32 = 16;
/// The immediate data field is valid.
pub const IMMEDIATE: u32 = 0x0008_0000;

/// Error bits of the status of a completed descriptor (VIPL 5.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    /// No error bit.
    pub const OK: Status = Status(0);
    /// Local Format Error.
    pub const FORMAT: Status = Status(FORMAT_ERROR);
    /// Local Protection Error.
    pub const PROTECTION: Status = Status(PROTECTION_ERROR);
    /// Local Length Error.
    pub const LENGTH: Status = Status(LENGTH_ERROR);
    /// Partial Packet Error, always with another bit.
    pub const PARTIAL: Status = Status(PARTIAL_ERROR);
    /// Descriptor Flushed.
    pub const FLUSHED: Status = Status(DESC_FLUSHED_ERROR);
    /// Transport Error.
    pub const TRANSPORT: Status = Status(TRANSPORT_ERROR);
    /// RDMA Protection Error: the remote side refused a read or write.
    pub const RDMA_PROTECTION: Status = Status(RDMA_PROT_ERROR);
    /// Remote Descriptor Error: the remote receive descriptor did not fit, or none was posted.
    pub const REMOTE_DESCRIPTOR: Status = Status(REMOTE_DESC_ERROR);

    /// Returns the union of both sets of bits.
    #[must_use]
    pub const fn with(self, other: Status) -> Status {
        Status(self.0 | other.0)
    }

    /// Reports whether all of these bits are set.
    #[must_use]
    pub const fn has(self, bits: Status) -> bool {
        self.0 & bits.0 == bits.0
    }

    /// Reports whether no error bit is set.
    #[must_use]
    pub const fn is_ok(self) -> bool {
        self.0 == 0
    }
}
