//! The layout of descriptors in application memory (VIPL 5).
//!
//! | bytes | segment |
//! | --- | --- |
//! | 0..32 | control: next 8, next handle 4, segment count 2, control 2, reserved 4, immediate 4, length 4, status 4 |
//! | 32..48 | address (RDMA only): remote address 8, remote handle 4, reserved 4 |
//! | then 16 each | data: address 8, handle 4, length 4 |

use core::mem::{offset_of, size_of};

use vi_types::status;

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

/// Returns the completed-operation code of a send descriptor with this control field.
#[inline]
pub fn send_operation(control: u16) -> u32 {
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
