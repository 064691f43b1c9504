//! The payload of a gap report: the byte ranges that the receiver misses [P-16].
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 4 | message ID |
//! | 4 | 4 | relative offset of the first missing byte |
//! | 8 | 4 | missing bytes; 0: all from there to the end of the message |
//!
//! One to sixteen of these ranges, in the order of their messages and offsets.

use crate::error::{Field, ParseError, Reason};
use vi_types::fields::{Reader, Writer, tiles};

const MSG_ID: usize = 0;
const OFFSET: usize = 4;
const LENGTH: usize = 8;

const _: () = assert!(tiles(
    &[(MSG_ID, 4), (OFFSET, 4), (LENGTH, 4)],
    MissingRange::BYTES
));

/// Maximum number of ranges of one report.
pub const MAX_RANGES: usize = 16;
/// Bytes of the longest payload.
pub const MAX_BYTES: usize = MAX_RANGES * MissingRange::BYTES;

const _: () = assert!(MAX_BYTES == 192);

/// A range of missing bytes of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MissingRange {
    /// The message.
    pub msg_id: u32,
    /// Offset of the first missing byte.
    pub offset_bytes: u32,
    /// Number of missing bytes; 0: to the end of the message, which may be empty.
    pub length_bytes: u32,
}

impl MissingRange {
    /// Bytes on the wire.
    pub const BYTES: usize = 12;

    /// Reads a range. It is not checked against the message.
    #[inline]
    #[must_use]
    pub fn parse(bytes: &[u8; 12]) -> Self {
        let bytes = Reader(bytes);
        Self {
            msg_id: bytes.u32::<MSG_ID>(),
            offset_bytes: bytes.u32::<OFFSET>(),
            length_bytes: bytes.u32::<LENGTH>(),
        }
    }

    /// Writes the range.
    #[inline]
    pub fn emit(&self, out: &mut [u8; 12]) {
        let mut out = Writer(out);
        out.u32::<MSG_ID>(self.msg_id);
        out.u32::<OFFSET>(self.offset_bytes);
        out.u32::<LENGTH>(self.length_bytes);
    }
}

/// The ranges of a gap report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingRanges<'a>(&'a [[u8; MissingRange::BYTES]]);

impl<'a> MissingRanges<'a> {
    /// Reads the payload of a gap report.
    ///
    /// # Errors
    /// `MissingRanges` `TooShort` without a range, or with a part of one; `TooLong` with more
    /// than [`MAX_RANGES`].
    pub fn parse(payload: &'a [u8]) -> Result<Self, ParseError> {
        let (ranges, rest) = payload.as_chunks();
        if ranges.is_empty() || !rest.is_empty() {
            return Err(ParseError::new(Field::Payload, Reason::TooShort));
        }
        if ranges.len() > MAX_RANGES {
            return Err(ParseError::new(Field::Payload, Reason::TooLong));
        }
        Ok(Self(ranges))
    }

    /// Returns the ranges.
    pub fn iter(&self) -> impl Iterator<Item = MissingRange> + 'a {
        self.0.iter().map(MissingRange::parse)
    }
}

/// Writes ranges, at most [`MAX_RANGES`] and those that fit into `out`; returns the number of bytes
/// written.
pub fn emit(ranges: &[MissingRange], out: &mut [u8]) -> usize {
    let (chunks, _) = out.as_chunks_mut();
    let written = ranges.iter().take(MAX_RANGES).zip(chunks);
    written
        .map(|(range, chunk)| range.emit(chunk))
        .count()
        .saturating_mul(MissingRange::BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn any_range() -> impl Strategy<Value = MissingRange> {
        any::<(u32, u32, u32)>().prop_map(|(msg_id, offset_bytes, length_bytes)| MissingRange {
            msg_id,
            offset_bytes,
            length_bytes,
        })
    }

    proptest! {
        #![proptest_config(crate::test_seed::config())]

        #[test]
        fn ranges_round_trip(ranges in proptest::collection::vec(any_range(), 1..=MAX_RANGES)) {
            let mut bytes = [0xEE; MAX_BYTES + 5];
            let written = emit(&ranges, &mut bytes);
            prop_assert_eq!(written, ranges.len() * 12);
            prop_assert!(bytes[written..].iter().all(|b| *b == 0xEE));
            let parsed = MissingRanges::parse(&bytes[..written]);
            let parsed: Vec<_> = parsed.expect("emitted ranges").iter().collect();
            prop_assert_eq!(parsed, ranges);
        }
    }

    #[test]
    fn parse_requires_one_to_sixteen_whole_ranges() {
        let bytes = [7; 20 * 12];
        for length in 0..=bytes.len() {
            let legal = length % 12 == 0 && (12..=192).contains(&length);
            let parsed = MissingRanges::parse(&bytes[..length]);
            assert_eq!(parsed.is_ok(), legal, "{length} bytes");
        }
    }

    #[test]
    fn emit_writes_only_ranges_that_fit() {
        let ranges = [MissingRange::default(); 20];
        assert_eq!(emit(&ranges, &mut [0; 300]), MAX_BYTES);
        assert_eq!(emit(&ranges, &mut [0; 35]), 24);
        assert_eq!(emit(&[], &mut [0; 35]), 0);
    }
}
