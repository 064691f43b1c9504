//! The Ethernet header, with or without an 802.1Q tag.
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 6 | destination address |
//! | 6 | 6 | source address |
//! | 12 | 2 | EtherType, or 0x8100 and then: |
//! | 14 | 2 | priority, drop eligible, VLAN identifier |
//! | 16 | 2 | EtherType |

use core::fmt;
use core::str::FromStr;

use crate::error::{EmitError, Field, ParseError, Reason};
use crate::fc::NPortId;
use vi_types::fields::{Reader, Writer, tiles};

const DST: usize = 0;
const SRC: usize = 6;
const ETHERTYPE: usize = 12;
const VLAN_TCI: usize = 14;
const TAGGED_ETHERTYPE: usize = 16;

/// Bytes of a header without a tag.
pub const HEADER_BYTES: usize = 14;
/// Bytes of a header with one tag.
pub const TAGGED_HEADER_BYTES: usize = 18;

const _: () = assert!(tiles(&[(DST, 6), (SRC, 6), (ETHERTYPE, 2)], HEADER_BYTES));
const _: () = assert!(tiles(
    &[
        (DST, 6),
        (SRC, 6),
        (ETHERTYPE, 2),
        (VLAN_TCI, 2),
        (TAGGED_ETHERTYPE, 2)
    ],
    TAGGED_HEADER_BYTES
));

/// EtherType of FCoE.
pub const ETHERTYPE_FCOE: u16 = 0x8906;
/// EtherType of FIP, the FCoE Initialization Protocol.
pub const ETHERTYPE_FIP: u16 = 0x8914;
/// EtherType of an 802.1Q tag.
pub const ETHERTYPE_VLAN: u16 = 0x8100;

/// An Ethernet address.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// The broadcast address.
    pub const BROADCAST: Self = Self([0xFF; 6]);
    /// The multicast address of all VN2VN ports of the link.
    pub const ALL_VN2VN: Self = Self([0x01, 0x10, 0x18, 0x01, 0x00, 0x04]);

    /// Returns the address of a VN_Port in VN2VN mode: prefix 0E-FD-00, then its N_Port_ID.
    #[inline]
    #[must_use]
    pub const fn vn2vn(id: NPortId) -> Self {
        let [a, b, c] = id.to_bytes();
        Self([0x0E, 0xFD, 0x00, a, b, c])
    }

    /// True for a multicast address, or the broadcast address.
    #[inline]
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        let [first, ..] = self.0;
        first & 1 != 0
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Six pairs of hexadecimal digits, all separated by `:` or all by `-`.
impl FromStr for MacAddress {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let separator = if text.contains('-') { '-' } else { ':' };
        let bytes = hex_groups(text, separator)
            .ok_or(ParseError::new(Field::MacAddress, Reason::BadSyntax))?;
        Ok(Self(bytes))
    }
}

/// Parses `N` pairs of hexadecimal digits, separated by `separator`.
pub(crate) fn hex_groups<const N: usize>(text: &str, separator: char) -> Option<[u8; N]> {
    let mut groups = text.split(separator);
    let mut bytes = [0; N];
    for byte in &mut bytes {
        *byte = hex_byte(groups.next()?)?;
    }
    groups.next().is_none().then_some(bytes)
}

/// Parses exactly two hexadecimal digits, without a sign.
pub(crate) fn hex_byte(text: &str) -> Option<u8> {
    let two_digits = text.len() == 2 && text.bytes().all(|b| b.is_ascii_hexdigit());
    if two_digits {
        u8::from_str_radix(text, 16).ok()
    } else {
        None
    }
}

/// The Ethernet header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EthernetHeader {
    /// Destination.
    pub dst: MacAddress,
    /// Source.
    pub src: MacAddress,
    /// Tag control information, if the frame is tagged.
    pub vlan_tci: Option<u16>,
    /// The EtherType, that behind the tag if the frame is tagged.
    pub ethertype: u16,
}

impl EthernetHeader {
    /// Reads the header in front of `bytes`; also returns its length, 14 or 18.
    ///
    /// # Errors
    /// `EthernetHeader` `TooShort`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize), ParseError> {
        const SHORT: ParseError = ParseError::new(Field::EthernetHeader, Reason::TooShort);
        let plain = Reader(bytes.first_chunk::<HEADER_BYTES>().ok_or(SHORT)?);
        let header = Self {
            dst: MacAddress(plain.array::<DST, 6>()),
            src: MacAddress(plain.array::<SRC, 6>()),
            vlan_tci: None,
            ethertype: plain.u16::<ETHERTYPE>(),
        };
        if header.ethertype != ETHERTYPE_VLAN {
            return Ok((header, HEADER_BYTES));
        }
        let tagged = Reader(bytes.first_chunk::<TAGGED_HEADER_BYTES>().ok_or(SHORT)?);
        let header = Self {
            vlan_tci: Some(tagged.u16::<VLAN_TCI>()),
            ethertype: tagged.u16::<TAGGED_ETHERTYPE>(),
            ..header
        };
        Ok((header, TAGGED_HEADER_BYTES))
    }

    /// Returns the number of bytes that [`EthernetHeader::emit`] writes.
    #[inline]
    #[must_use]
    pub const fn bytes(&self) -> usize {
        match self.vlan_tci {
            None => HEADER_BYTES,
            Some(_) => TAGGED_HEADER_BYTES,
        }
    }

    /// Writes the header to the front of `out` and returns its length.
    ///
    /// # Errors
    /// [`EmitError::BufferTooShort`].
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, EmitError> {
        let short = EmitError::BufferTooShort {
            needed_bytes: self.bytes(),
        };
        match self.vlan_tci {
            None => {
                let out = out.first_chunk_mut::<HEADER_BYTES>().ok_or(short)?;
                self.emit_untagged(out);
            }
            Some(tci) => {
                let out = out.first_chunk_mut::<TAGGED_HEADER_BYTES>().ok_or(short)?;
                let mut out = Writer(out);
                out.array::<DST, 6>(self.dst.0);
                out.array::<SRC, 6>(self.src.0);
                out.u16::<ETHERTYPE>(ETHERTYPE_VLAN);
                out.u16::<VLAN_TCI>(tci);
                out.u16::<TAGGED_ETHERTYPE>(self.ethertype);
            }
        }
        Ok(self.bytes())
    }

    #[inline]
    pub(crate) fn emit_untagged(&self, out: &mut [u8; HEADER_BYTES]) {
        let mut out = Writer(out);
        out.array::<DST, 6>(self.dst.0);
        out.array::<SRC, 6>(self.src.0);
        out.u16::<ETHERTYPE>(self.ethertype);
    }
}

#[cfg(test)]
mod tests {
    use super::{ETHERTYPE_FCOE, ETHERTYPE_VLAN, EthernetHeader, MacAddress};
    use crate::error::EmitError;
    use crate::fc::NPortId;
    use proptest::prelude::*;
    use std::string::ToString;

    #[test]
    fn vn2vn_addresses_carry_the_n_port_id() {
        let id = NPortId::from_bytes([0x00, 0x02, 0x03]);
        assert_eq!(MacAddress::vn2vn(id).to_string(), "0e:fd:00:00:02:03");
        assert!(!MacAddress::vn2vn(NPortId::BROADCAST).is_multicast());
        assert!(MacAddress::ALL_VN2VN.is_multicast());
        assert!(MacAddress::BROADCAST.is_multicast());
    }

    #[test]
    fn parsing_rejects_invalid_address_text() {
        for text in [
            "",
            "0e:fd:00:00:02",
            "0e:fd:00:00:02:03:04",
            "0e:fd:00:00:02:3",
            "0e:fd:00:00:02:+3",
            "0e:fd-00:00:02:03",
            "0e:fd:00:00:02:03 ",
            "0g:fd:00:00:02:03",
            "ä:fd:00:00:02:03",
        ] {
            assert!(text.parse::<MacAddress>().is_err(), "{text:?}");
        }
        assert_eq!(
            "0E-FD-00-00-02-03".parse(),
            Ok(MacAddress([0x0E, 0xFD, 0, 0, 2, 3]))
        );
    }

    #[test]
    fn emit_into_short_buffer_reports_needed_bytes() {
        let mut header = EthernetHeader {
            dst: MacAddress::BROADCAST,
            src: MacAddress::default(),
            vlan_tci: None,
            ethertype: ETHERTYPE_FCOE,
        };
        let short = |needed_bytes| Err(EmitError::BufferTooShort { needed_bytes });
        assert_eq!(header.emit(&mut [0; 13]), short(14));
        header.vlan_tci = Some(3);
        assert_eq!(header.emit(&mut [0; 17]), short(18));
    }

    proptest! {
        #![proptest_config(crate::test_seed::config())]

        #[test]
        fn headers_round_trip(dst: [u8; 6], src: [u8; 6], vlan_tci: Option<u16>, ethertype: u16) {
            // An untagged 0x8100 is by definition a tag.
            prop_assume!(ethertype != ETHERTYPE_VLAN || vlan_tci.is_some());
            let header = EthernetHeader {
                dst: MacAddress(dst),
                src: MacAddress(src),
                vlan_tci,
                ethertype,
            };
            let mut bytes = [0; 18];
            let written = header.emit(&mut bytes).unwrap();
            prop_assert_eq!(written, header.bytes());
            prop_assert_eq!(EthernetHeader::parse(&bytes[..written]), Ok((header, written)));
            prop_assert!(EthernetHeader::parse(&bytes[..written - 1]).is_err());
        }

        #[test]
        fn addresses_round_trip_through_text(bytes: [u8; 6]) {
            let address = MacAddress(bytes);
            prop_assert_eq!(address.to_string().parse(), Ok(address));
        }
    }
}
