//! Offsets of frame fields, access to them, and a random number generator.

use std::ops::Range;

/// Ethernet header.
pub(crate) const SOURCE: Range<usize> = 6..12;
pub(crate) const ETHERTYPE: Range<usize> = 12..14;
/// FIP: header, and the offset of the descriptors.
pub(crate) const FIP_VERSION: usize = 14;
pub(crate) const FIP_OPCODE: Range<usize> = 16..18;
pub(crate) const FIP_SUBCODE: usize = 19;
pub(crate) const FIP_LIST_WORDS: Range<usize> = 20..22;
pub(crate) const FIP_DESCRIPTORS: usize = 24;
/// FC header.
pub(crate) const FC: usize = 28;
pub(crate) const R_CTL: usize = 28;
pub(crate) const D_ID: Range<usize> = 29..32;
pub(crate) const S_ID: Range<usize> = 33..36;
pub(crate) const FC_TYPE: usize = 36;
/// The device_header of an FC-VI frame, or the payload of a link service.
pub(crate) const HANDLE: Range<usize> = 52..56;
pub(crate) const COMMAND: usize = 52;
pub(crate) const OPCODE: usize = 56;
pub(crate) const MSG_ID: Range<usize> = 60..64;
/// CRC, EOF and reserved bytes.
pub(crate) const TRAILER_BYTES: usize = 8;

pub(crate) const FCOE: [u8; 2] = [0x89, 0x06];
pub(crate) const FIP: [u8; 2] = [0x89, 0x14];
pub(crate) const TYPE_ELS: u8 = 0x01;
pub(crate) const TYPE_VI: u8 = 0x58;

/// The shortest FCoE frame: FC header and trailer only.
pub(crate) const SHORTEST_BYTES: usize = 52 + TRAILER_BYTES;

/// The longest FCoE frame: a data field of 2112 bytes.
pub(crate) const LARGEST_BYTES: usize = SHORTEST_BYTES + 2112;

/// Writes the low bytes of a number into a field.
pub(crate) fn put(frame: &mut [u8], field: Range<usize>, value: u32) {
    let bytes = value.to_be_bytes();
    let len = field.len();
    frame[field].copy_from_slice(&bytes[bytes.len() - len..]);
}

/// Reads a field of at most four bytes.
pub(crate) fn get(frame: &[u8], field: Range<usize>) -> u32 {
    let bytes = frame[field].iter();
    bytes.fold(0, |sum, byte| sum << 8 | u32::from(*byte))
}

/// Sets the CRC of a changed frame.
pub(crate) fn with_crc(mut frame: Vec<u8>) -> Vec<u8> {
    let end = frame.len() - TRAILER_BYTES;
    let crc = fcvi_frame::crc::fc_crc(&frame[FC..end]);
    frame[end..end + 4].copy_from_slice(&crc.to_le_bytes());
    frame
}

/// A random number generator (SplitMix64).
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number in a non-empty range.
    pub(crate) fn in_range(&mut self, range: Range<usize>) -> usize {
        range.start + (self.next() % range.len() as u64) as usize
    }

    /// Returns a random element; `None` if there is none.
    pub(crate) fn choose<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        (!of.is_empty()).then(|| &of[self.in_range(0..of.len())])
    }
}
