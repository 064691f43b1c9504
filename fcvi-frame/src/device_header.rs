//! The FC-VI device_header, first in the data field of every frame [P-4].
//!
//! | Offset | Bytes | Field | In 16 bytes | In 32 bytes |
//! | --- | --- | --- | --- | --- |
//! | 0 | 4 | FCVI_HANDLE | yes | yes |
//! | 4 | 1 | FCVI_OPCODE | yes | yes |
//! | 5 | 1 | FCVI_FLAGS | yes | yes |
//! | 6 | 2 | reserved | yes | yes |
//! | 8 | 4 | FCVI_MSG_ID | yes | yes |
//! | 12 | 4 | FCVI_PARAMETER | yes | yes |
//! | 16 | 8 | FCVI_RMT_VA | | yes |
//! | 24 | 4 | FCVI_RMT_VA_HANDLE | | yes |
//! | 28 | 4 | FCVI_TOT_LEN or FCVI_CONNECTION_ID | | yes |

use core::fmt;

use crate::error::{EmitError, Field, ParseError, Reason};
use crate::iu::Opcode;
use vi_types::fields::{Reader, Writer, tiles};

const HANDLE: usize = 0;
const OPCODE: usize = 4;
pub(crate) const FLAGS: usize = 5;
const RESERVED: usize = 6;
pub(crate) const MSG_ID: usize = 8;
pub(crate) const PARAMETER: usize = 12;
pub(crate) const RMT_VA: usize = 16;
pub(crate) const RMT_VA_HANDLE: usize = 24;
pub(crate) const TOT_LEN: usize = 28;

/// Bytes of the short form.
pub const SHORT_BYTES: usize = 16;
/// Bytes of the long form.
pub const LONG_BYTES: usize = 32;

const _: () = assert!(tiles(
    &[
        (HANDLE, 4),
        (OPCODE, 1),
        (FLAGS, 1),
        (RESERVED, 2),
        (MSG_ID, 4),
        (PARAMETER, 4),
    ],
    SHORT_BYTES
));
const _: () = assert!(tiles(
    &[
        (0, SHORT_BYTES),
        (RMT_VA, 8),
        (RMT_VA_HANDLE, 4),
        (TOT_LEN, 4)
    ],
    LONG_BYTES
));

/// The FC-VI device_header of a frame. The last three fields are 0 and not on
/// the wire if the IU's header has 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceHeader {
    /// The receiver's handle of its VI.
    pub handle: u32,
    /// The IU.
    pub opcode: Opcode,
    /// See [`flags`](crate::flags).
    pub flags: u8,
    /// Number of the message.
    pub msg_id: u32,
    /// Immediate data, or see [`reason`](crate::reason).
    pub parameter: u32,
    /// Address of an RDMA operation.
    pub rmt_va: u64,
    /// Memory handle of an RDMA operation.
    pub rmt_va_handle: u32,
    /// Bytes of the message, or the connection ID.
    pub tot_len: u32,
}

impl DeviceHeader {
    /// Returns FCVI_CONNECTION_ID of a connection IU, which replaces FCVI_TOT_LEN.
    #[inline]
    #[must_use]
    pub const fn connection_id(&self) -> u32 {
        self.tot_len
    }

    /// Reads the header in front of `bytes`; also returns its length, 16 or 32.
    ///
    /// # Errors
    /// `DeviceHeader` `TooShort`; `Opcode` `Unknown`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize), ParseError> {
        const TOO_SHORT: ParseError = ParseError::new(Field::DeviceHeader, Reason::TooShort);
        let short = Reader(bytes.first_chunk::<SHORT_BYTES>().ok_or(TOO_SHORT)?);
        let opcode = Opcode::from_raw(short.u8::<OPCODE>())
            .ok_or(ParseError::new(Field::Opcode, Reason::Unknown))?;
        let mut header = Self {
            handle: short.u32::<HANDLE>(),
            opcode,
            flags: short.u8::<FLAGS>(),
            msg_id: short.u32::<MSG_ID>(),
            parameter: short.u32::<PARAMETER>(),
            rmt_va: 0,
            rmt_va_handle: 0,
            tot_len: 0,
        };
        if opcode.header_bytes() == SHORT_BYTES {
            return Ok((header, SHORT_BYTES));
        }
        let long = Reader(bytes.first_chunk::<LONG_BYTES>().ok_or(TOO_SHORT)?);
        header.rmt_va = long.u64::<RMT_VA>();
        header.rmt_va_handle = long.u32::<RMT_VA_HANDLE>();
        header.tot_len = long.u32::<TOT_LEN>();
        Ok((header, LONG_BYTES))
    }

    /// Writes the header to the front of `out` and returns its length.
    ///
    /// # Errors
    /// [`EmitError::BufferTooShort`].
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, EmitError> {
        let needed_bytes = self.opcode.header_bytes();
        let too_short = EmitError::BufferTooShort { needed_bytes };
        if needed_bytes == SHORT_BYTES {
            self.emit_short(out.first_chunk_mut().ok_or(too_short)?);
        } else {
            self.emit_long(out.first_chunk_mut().ok_or(too_short)?);
        }
        Ok(needed_bytes)
    }

    /// Returns the header, followed by zeros if it is the short one.
    #[inline]
    pub(crate) fn image(&self) -> [u8; LONG_BYTES] {
        let mut image = [0; LONG_BYTES];
        if self.opcode.header_bytes() == LONG_BYTES {
            self.emit_long(&mut image);
        } else if let Some(short) = image.first_chunk_mut() {
            self.emit_short(short);
        }
        image
    }

    #[inline]
    fn emit_short(&self, out: &mut [u8; SHORT_BYTES]) {
        let mut out = Writer(out);
        out.u32::<HANDLE>(self.handle);
        out.u8::<OPCODE>(self.opcode.raw());
        out.u8::<FLAGS>(self.flags);
        out.u16::<RESERVED>(0);
        out.u32::<MSG_ID>(self.msg_id);
        out.u32::<PARAMETER>(self.parameter);
    }

    #[inline]
    fn emit_long(&self, out: &mut [u8; LONG_BYTES]) {
        if let Some(short) = out.first_chunk_mut() {
            self.emit_short(short);
        }
        let mut out = Writer(out);
        out.u64::<RMT_VA>(self.rmt_va);
        out.u32::<RMT_VA_HANDLE>(self.rmt_va_handle);
        out.u32::<TOT_LEN>(self.tot_len);
    }
}

impl fmt::Display for DeviceHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} handle {:08x} flags {:02x} msg_id {:08x} parameter {:08x}",
            self.opcode, self.handle, self.flags, self.msg_id, self.parameter
        )?;
        if self.opcode.header_bytes() == LONG_BYTES {
            write!(
                f,
                " rmt_va {:016x} rmt_va_handle {:08x} tot_len {:08x}",
                self.rmt_va, self.rmt_va_handle, self.tot_len
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::DeviceHeader;
    use crate::error::{Field, Reason};
    use crate::iu::Opcode;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(crate::test_seed::config())]

        #[test]
        fn headers_round_trip(
            at in 0..Opcode::ALL.len(),
            (handle, flags, msg_id, parameter) in any::<(u32, u8, u32, u32)>(),
            (rmt_va, rmt_va_handle, tot_len) in any::<(u64, u32, u32)>(),
        ) {
            let opcode = Opcode::ALL[at];
            let long = opcode.header_bytes() == 32;
            let header = DeviceHeader {
                handle,
                opcode,
                flags,
                msg_id,
                parameter,
                rmt_va: if long { rmt_va } else { 0 },
                rmt_va_handle: if long { rmt_va_handle } else { 0 },
                tot_len: if long { tot_len } else { 0 },
            };
            let mut bytes = [0xEE; 33];
            let written = header.emit(&mut bytes).unwrap();
            prop_assert_eq!(written, opcode.header_bytes());
            prop_assert_eq!(bytes[written], 0xEE);
            prop_assert_eq!(&bytes[6..8], &[0, 0]);
            prop_assert_eq!(DeviceHeader::parse(&bytes), Ok((header, written)));
            prop_assert_eq!(header.connection_id(), header.tot_len);
            let error = DeviceHeader::parse(&bytes[..written - 1]).unwrap_err();
            prop_assert_eq!((error.field, error.reason), (Field::DeviceHeader, Reason::TooShort));
            prop_assert!(header.emit(&mut bytes[..written - 1]).is_err());
        }

        #[test]
        fn parse_accepts_or_rejects_any_bytes(
            bytes in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            if let Ok((header, length)) = DeviceHeader::parse(&bytes) {
                prop_assert_eq!(length, header.opcode.header_bytes());
                prop_assert!(length <= bytes.len());
            }
        }
    }

    #[test]
    fn reserved_bytes_are_ignored() {
        let mut bytes = [0; 16];
        bytes[4] = Opcode::SendRequest.raw();
        let clean = DeviceHeader::parse(&bytes);
        bytes[6] = 0xFF;
        bytes[7] = 0xFF;
        assert_eq!(DeviceHeader::parse(&bytes), clean);
    }
}
