//! The FCoE header and trailer around an FC frame.
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 1 | version in the upper half, 0 |
//! | 1 | 12 | reserved: sent as 0, ignored |
//! | 13 | 1 | SOF |
//! | 14 | 24 + n | FC frame, a multiple of 4 bytes |
//! | 38 + n | 4 | FC CRC, little-endian |
//! | 42 + n | 1 | EOF |
//! | 43 + n | 3 | reserved: sent as 0, ignored |

use crate::error::{Field, ParseError, Reason};
use crate::ethernet;
use crate::fc::FcHeader;
use vi_types::fields::{Reader, Writer, tiles};

const VERSION: usize = 0;
const RESERVED: usize = 1;
pub(crate) const SOF: usize = 13;

const CRC: usize = 0;
const EOF: usize = 4;
const TRAILER_RESERVED: usize = 5;

/// Bytes of the FCoE header, before the FC frame.
pub const FCOE_HEADER_BYTES: usize = 14;
/// Bytes of the CRC and FCoE trailer, behind the FC frame.
pub const FCOE_TRAILER_BYTES: usize = 8;
/// Bytes of the longest data field of an FC frame.
pub const MAX_DATA_FIELD_BYTES: usize = 2112;
/// The smallest receive data field size that a port may announce.
pub const MIN_DATA_FIELD_BYTES: usize = 256;
/// Bytes of the longest untagged frame, without the Ethernet FCS.
pub const MAX_FRAME_BYTES: usize = 2172;
/// Bytes of the shortest untagged frame; never padded by Ethernet.
pub const MIN_FRAME_BYTES: usize = 60;

const OVERHEAD_BYTES: usize = FCOE_HEADER_BYTES + FCOE_TRAILER_BYTES;

const _: () = assert!(tiles(
    &[(VERSION, 1), (RESERVED, 12), (SOF, 1)],
    FCOE_HEADER_BYTES
));
const _: () = assert!(tiles(
    &[(CRC, 4), (EOF, 1), (TRAILER_RESERVED, 3)],
    FCOE_TRAILER_BYTES
));
const _: () = assert!(
    MIN_FRAME_BYTES == ethernet::HEADER_BYTES + OVERHEAD_BYTES + FcHeader::BYTES
        && MAX_FRAME_BYTES == MIN_FRAME_BYTES + MAX_DATA_FIELD_BYTES
);

/// Returns the length of the longest data field that fits into an Ethernet MTU; 0 if none does.
#[inline]
#[must_use]
pub const fn data_field_for_mtu(mtu_bytes: usize) -> usize {
    let frame_bytes = mtu_bytes.saturating_sub(OVERHEAD_BYTES) & !3;
    let data_field_bytes = frame_bytes.saturating_sub(FcHeader::BYTES);
    if data_field_bytes < MAX_DATA_FIELD_BYTES {
        data_field_bytes
    } else {
        MAX_DATA_FIELD_BYTES
    }
}

/// Start of frame: the class, and whether the frame is the first of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sof {
    /// Fabric internal.
    F,
    /// Class 4, first.
    I4,
    /// Class 2, first.
    I2,
    /// Class 3, first.
    I3,
    /// Class 4, not first.
    N4,
    /// Class 2, not first.
    N2,
    /// Class 3, not first.
    N3,
    /// Class 4, activates a circuit.
    C4,
    /// Any other value. Never one of the values above if it was parsed.
    Unknown(u8),
}

impl Sof {
    /// Converts a byte on the wire.
    #[inline]
    #[must_use]
    pub const fn from_raw(raw: u8) -> Self {
        match raw {
            0x28 => Self::F,
            0x29 => Self::I4,
            0x2D => Self::I2,
            0x2E => Self::I3,
            0x31 => Self::N4,
            0x35 => Self::N2,
            0x36 => Self::N3,
            0x39 => Self::C4,
            other => Self::Unknown(other),
        }
    }

    /// Returns the byte on the wire.
    #[inline]
    #[must_use]
    pub const fn raw(self) -> u8 {
        match self {
            Self::F => 0x28,
            Self::I4 => 0x29,
            Self::I2 => 0x2D,
            Self::I3 => 0x2E,
            Self::N4 => 0x31,
            Self::N2 => 0x35,
            Self::N3 => 0x36,
            Self::C4 => 0x39,
            Self::Unknown(other) => other,
        }
    }
}

/// End of frame: whether the frame is the last of a sequence, and whether its content is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Eof {
    /// More frames of the sequence follow.
    N,
    /// Last frame of the sequence.
    T,
    /// Removes a class 4 circuit.
    Rt,
    /// Disconnects.
    Dt,
    /// Not last, content invalid.
    Ni,
    /// Disconnects, content invalid.
    Dti,
    /// Removes a class 4 circuit, content invalid.
    Rti,
    /// Abort.
    A,
    /// Any other value. Never one of the values above if it was parsed.
    Unknown(u8),
}

impl Eof {
    /// Converts a byte on the wire.
    #[inline]
    #[must_use]
    pub const fn from_raw(raw: u8) -> Self {
        match raw {
            0x41 => Self::N,
            0x42 => Self::T,
            0x44 => Self::Rt,
            0x46 => Self::Dt,
            0x49 => Self::Ni,
            0x4E => Self::Dti,
            0x4F => Self::Rti,
            0x50 => Self::A,
            other => Self::Unknown(other),
        }
    }

    /// Returns the byte on the wire.
    #[inline]
    #[must_use]
    pub const fn raw(self) -> u8 {
        match self {
            Self::N => 0x41,
            Self::T => 0x42,
            Self::Rt => 0x44,
            Self::Dt => 0x46,
            Self::Ni => 0x49,
            Self::Dti => 0x4E,
            Self::Rti => 0x4F,
            Self::A => 0x50,
            Self::Unknown(other) => other,
        }
    }
}

/// The FCoE header, before the FC frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FcoeHeader {
    /// Start of frame.
    pub sof: Sof,
}

impl FcoeHeader {
    /// Reads the header.
    ///
    /// # Errors
    /// `FcoeVersion` `Unknown` unless the version is 0.
    #[inline]
    pub fn parse(bytes: &[u8; FCOE_HEADER_BYTES]) -> Result<Self, ParseError> {
        let bytes = Reader(bytes);
        if bytes.u8::<VERSION>() >> 4 != 0 {
            return Err(ParseError::new(Field::FcoeVersion, Reason::Unknown));
        }
        Ok(Self {
            sof: Sof::from_raw(bytes.u8::<SOF>()),
        })
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; FCOE_HEADER_BYTES]) {
        let mut out = Writer(out);
        out.u8::<VERSION>(0);
        out.array::<RESERVED, 12>([0; 12]);
        out.u8::<SOF>(self.sof.raw());
    }
}

/// The CRC and FCoE trailer, behind the FC frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FcoeTrailer {
    /// The CRC as returned by [`fc_crc`](crate::crc::fc_crc).
    pub crc: u32,
    /// End of frame.
    pub eof: Eof,
}

impl FcoeTrailer {
    /// Reads the trailer.
    #[inline]
    #[must_use]
    pub fn parse(bytes: &[u8; FCOE_TRAILER_BYTES]) -> Self {
        let bytes = Reader(bytes);
        Self {
            crc: u32::from_le_bytes(bytes.array::<CRC, 4>()),
            eof: Eof::from_raw(bytes.u8::<EOF>()),
        }
    }

    /// Writes the trailer.
    #[inline]
    pub fn emit(&self, out: &mut [u8; FCOE_TRAILER_BYTES]) {
        let mut out = Writer(out);
        out.array::<CRC, 4>(self.crc.to_le_bytes());
        out.u8::<EOF>(self.eof.raw());
        out.array::<TRAILER_RESERVED, 3>([0; 3]);
    }
}

#[cfg(test)]
mod tests {
    use super::{Eof, FcoeHeader, FcoeTrailer, MAX_DATA_FIELD_BYTES, Sof, data_field_for_mtu};
    use proptest::prelude::*;

    #[test]
    fn every_raw_byte_round_trips() {
        for raw in 0..=u8::MAX {
            assert_eq!(Sof::from_raw(raw).raw(), raw);
            assert_eq!(Eof::from_raw(raw).raw(), raw);
        }
    }

    #[test]
    fn data_field_for_mtu_fits_the_link() {
        for (mtu, expected) in [
            (0, 0),
            (45, 0),
            (46, 0),
            (49, 0),
            (50, 4),
            (1500, 1452),
            (2154, 2108),
            (2157, 2108),
            (2158, 2112),
            (2500, 2112),
            (9000, 2112),
            (usize::MAX, MAX_DATA_FIELD_BYTES),
        ] {
            assert_eq!(data_field_for_mtu(mtu), expected, "MTU {mtu}");
        }
    }

    #[test]
    fn parse_accepts_only_version_0() {
        let mut bytes = [0; 14];
        bytes[13] = 0x2E;
        bytes[0] = 0x0F;
        assert_eq!(FcoeHeader::parse(&bytes), Ok(FcoeHeader { sof: Sof::I3 }));
        bytes[0] = 0x10;
        assert!(FcoeHeader::parse(&bytes).is_err());
    }

    proptest! {
        #![proptest_config(crate::test_seed::config())]

        #[test]
        fn trailers_round_trip(crc: u32, eof: u8) {
            let trailer = FcoeTrailer { crc, eof: Eof::from_raw(eof) };
            let mut bytes = [0xEE; 8];
            trailer.emit(&mut bytes);
            prop_assert_eq!(bytes[5..8].to_vec(), [0, 0, 0]);
            prop_assert_eq!(FcoeTrailer::parse(&bytes), trailer);
        }
    }
}
