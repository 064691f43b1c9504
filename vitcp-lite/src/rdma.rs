//! The RDMA header, 16 bytes, in every segment of an RDMA message [VI/TCP 3.2.1].
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 8 | RDMA Address |
//! | 8 | 4 | Registered Memory Handle |
//! | 12 | 4 | RDMA Length: bytes of the whole message |

use core::fmt;

use crate::profile::RDMA_HEADER_BYTES;
use vi_types::fields::{Reader, Writer, tiles};

const ADDRESS: usize = 0;
const HANDLE: usize = 8;
const LENGTH: usize = 12;

const _: () = assert!(tiles(
    &[(ADDRESS, 8), (HANDLE, 4), (LENGTH, 4)],
    RDMA_HEADER_BYTES
));

/// The RDMA header: the remote memory of an RDMA message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaHeader {
    /// Address of the message's first byte, the same in all its segments.
    pub address: u64,
    /// Memory handle of the region.
    pub handle: u32,
    /// Bytes of the whole message.
    pub total_bytes: u32,
}

impl RdmaHeader {
    /// Parses a header; any bytes are valid.
    #[inline]
    #[must_use]
    pub fn parse(bytes: &[u8; 16]) -> Self {
        let bytes = Reader(bytes);
        Self {
            address: bytes.u64::<ADDRESS>(),
            handle: bytes.u32::<HANDLE>(),
            total_bytes: bytes.u32::<LENGTH>(),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; 16]) {
        let mut out = Writer(out);
        out.u64::<ADDRESS>(self.address);
        out.u32::<HANDLE>(self.handle);
        out.u32::<LENGTH>(self.total_bytes);
    }
}

impl fmt::Display for RdmaHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "address {:016x} handle {:08x} total {} bytes",
            self.address, self.handle, self.total_bytes
        )
    }
}

#[cfg(test)]
mod tests {
    use super::RdmaHeader;
    use proptest::prelude::*;
    use std::string::ToString;

    proptest! {
        #![proptest_config(crate::seeded::config())]

        #[test]
        fn header_round_trips((address, handle, total_bytes) in any::<(u64, u32, u32)>()) {
            let header = RdmaHeader { address, handle, total_bytes };
            let mut bytes = [0xEE; 16];
            header.emit(&mut bytes);
            prop_assert_eq!(RdmaHeader::parse(&bytes), header);
        }
    }

    #[test]
    fn fields_are_at_the_drafts_offsets() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 0, 1, 0];
        let header = RdmaHeader::parse(&bytes);
        assert_eq!(
            header.to_string(),
            "address 0102030405060708 handle 090a0b0c total 256 bytes"
        );
    }
}
