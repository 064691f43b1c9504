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
