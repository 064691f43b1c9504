//! Handles of objects, packed into a number.

/// The kind of object that a handle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum HandleKind {
    /// An open NIC.
    Nic = 1,
    /// A VI.
    Vi = 2,
    /// A completion queue.
    Cq = 3,
    /// A pending connection request.
    Conn = 4,
    /// A protection tag.
    Ptag = 5,
}

/// A handle in parts, packed as `kind 4 | device 12 | generation 24 | index 24` bits; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawHandle {
    /// A [`HandleKind`], if the handle is valid.
    pub kind: u8,
    /// Number of the NIC.
    pub device: u16,
    /// Number of the use of the index.
    pub generation: u32,
    /// Index of the object.
    pub index: u32,
}

/// Generations and indices are 24 bits wide.
pub const FIELD_MASK: u32 = 0x00FF_FFFF;

impl RawHandle {
    /// Splits a handle.
    #[inline]
    pub const fn unpack(raw: u64) -> Self {
        Self {
            kind: (raw >> 60) as u8,
            device: (raw >> 48) as u16 & 0xFFF,
            generation: (raw >> 24) as u32 & FIELD_MASK,
            index: raw as u32 & FIELD_MASK,
        }
    }

    /// Makes a handle.
    #[inline]
    pub const fn pack(kind: HandleKind, device: u16, generation: u32, index: u32) -> u64 {
        ((kind as u64) << 60)
            | ((device as u64 & 0xFFF) << 48)
            | ((generation as u64 & FIELD_MASK as u64) << 24)
            | (index as u64 & FIELD_MASK as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handle_unpacks_to_packed_parts() {
        let raw = RawHandle::pack(HandleKind::Conn, 0xABC, 0x12_3456, 0x00F0_0001);
        let handle = RawHandle::unpack(raw);
        assert_eq!(handle.kind, HandleKind::Conn as u8);
        assert_eq!(handle.device, 0xABC);
        assert_eq!(handle.generation, 0x12_3456);
        assert_eq!(handle.index, 0x00F0_0001);
    }
}
