//! The layout of descriptors in application memory (VIPL 5).
//!
//! | bytes | segment |
//! | --- | --- |
//! | 0..32 | control: next 8, next handle 4, segment count 2, control 2, reserved 4, immediate 4, length 4, status 4 |
//! | 32..48 | address (RDMA only): remote address 8, remote handle 4, reserved 4 |
//! | then 16 each | data: address 8, handle 4, length 4 |

use core::mem::{offset_of, size_of};

/// Alignment of a descriptor in bytes (VIPL 4.1).
pub const ALIGNMENT_BYTES: u64 = 64;

/// Bits of the control field (VIPL 5.2).
pub mod control {
    /// Send, or receive.
    pub const OP_SEND_RECV: u16 = 0;
    /// RDMA write.
    pub const OP_RDMA_WRITE: u16 = 1;
    /// RDMA read.
    pub const OP_RDMA_READ: u16 = 2;
    /// Mask of the operation.
    pub const OP_MASK: u16 = 3;
    /// Immediate data is valid.
    pub const IMMEDIATE: u16 = 4;
    /// Queue fence.
    pub const QFENCE: u16 = 8;
    /// Must be zero.
    pub const RESERVED: u16 = 0xFFF0;
}

/// Bits of the status field (VIPL 5.2).
pub mod status {
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
}

/// Returns the completed-operation code of a send descriptor with this control field.
#[inline]
pub(crate) fn send_operation(control: u16) -> u32 {
    match control & control::OP_MASK {
        control::OP_RDMA_WRITE => status::OP_RDMA_WRITE,
        control::OP_RDMA_READ => status::OP_RDMA_READ,
        _ => status::OP_SEND,
    }
}

/// Control segment, 32 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlSegment {
    /// Owned by the provider while posted; never read.
    pub next: u64,
    /// Owned by the provider while posted; never read.
    pub next_handle: u32,
    /// Segments that follow, the address segment included.
    pub segment_count: u16,
    /// See [`control`].
    pub control: u16,
    /// Zero.
    pub reserved: u32,
    /// Immediate data: 32 bits that are sent with the message.
    pub immediate_data: u32,
    /// Bytes of all data segments; bytes transferred after completion.
    pub length: u32,
    /// See [`status`].
    pub status: u32,
}

/// Address segment, 16 bytes: the remote buffer of an RDMA operation.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressSegment {
    /// Address at the peer.
    pub address: u64,
    /// Memory handle at the peer.
    pub handle: u32,
    /// Zero.
    pub reserved: u32,
}

/// Data segment, 16 bytes: a local buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataSegment {
    /// Address of the buffer.
    pub address: u64,
    /// Memory handle of its region.
    pub handle: u32,
    /// Bytes.
    pub length: u32,
}

/// The smallest descriptor: a control segment and space for two more segments.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawDescriptor {
    /// Control segment.
    pub control: ControlSegment,
    /// Address or data segments; more may follow in memory.
    pub segments: [DataSegment; 2],
}

impl From<AddressSegment> for DataSegment {
    /// Reinterprets the 16 bytes.
    fn from(segment: AddressSegment) -> Self {
        Self {
            address: segment.address,
            handle: segment.handle,
            length: segment.reserved,
        }
    }
}

/// Bytes of a control segment.
pub const CONTROL_BYTES: u64 = size_of::<ControlSegment>() as u64;
/// Bytes of an address or data segment.
pub const SEGMENT_BYTES: u64 = size_of::<DataSegment>() as u64;

const _: () = {
    assert!(size_of::<ControlSegment>() == 32);
    assert!(size_of::<AddressSegment>() == 16);
    assert!(size_of::<DataSegment>() == 16);
    assert!(size_of::<RawDescriptor>() == 64);
    assert!(offset_of!(ControlSegment, next_handle) == 8);
    assert!(offset_of!(ControlSegment, segment_count) == 12);
    assert!(offset_of!(ControlSegment, control) == 14);
    assert!(offset_of!(ControlSegment, reserved) == 16);
    assert!(offset_of!(ControlSegment, immediate_data) == 20);
    assert!(offset_of!(ControlSegment, length) == 24);
    assert!(offset_of!(ControlSegment, status) == 28);
};
