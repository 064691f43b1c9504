//! The FC frame header.
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 1 | R_CTL |
//! | 1 | 3 | D_ID |
//! | 4 | 1 | CS_CTL, or priority |
//! | 5 | 3 | S_ID |
//! | 8 | 1 | TYPE |
//! | 9 | 3 | F_CTL |
//! | 12 | 1 | SEQ_ID |
//! | 13 | 1 | DF_CTL |
//! | 14 | 2 | SEQ_CNT |
//! | 16 | 2 | OX_ID |
//! | 18 | 2 | RX_ID |
//! | 20 | 4 | Parameter: the relative offset if F_CTL bit 3 is set |

use core::fmt;
use core::str::FromStr;

use crate::error::{Field, ParseError, Reason};
use crate::ethernet::{hex_byte, hex_groups};
use vi_types::fields::{Reader, Writer, tiles};

pub(crate) const R_CTL: usize = 0;
pub(crate) const D_ID: usize = 1;
pub(crate) const CS_CTL: usize = 4;
pub(crate) const S_ID: usize = 5;
pub(crate) const TYPE: usize = 8;
pub(crate) const F_CTL: usize = 9;
pub(crate) const SEQ_ID: usize = 12;
pub(crate) const DF_CTL: usize = 13;
pub(crate) const SEQ_CNT: usize = 14;
pub(crate) const OX_ID: usize = 16;
pub(crate) const RX_ID: usize = 18;
pub(crate) const PARAMETER: usize = 20;

const _: () = assert!(tiles(
    &[
        (R_CTL, 1),
        (D_ID, 3),
        (CS_CTL, 1),
        (S_ID, 3),
        (TYPE, 1),
        (F_CTL, 3),
        (SEQ_ID, 1),
        (DF_CTL, 1),
        (SEQ_CNT, 2),
        (OX_ID, 2),
        (RX_ID, 2),
        (PARAMETER, 4),
    ],
    FcHeader::BYTES
));

/// RX_ID before the responder has assigned one.
pub const RX_ID_UNASSIGNED: u16 = 0xFFFF;

/// A 24-bit FC address.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NPortId(u32);

impl NPortId {
    /// The broadcast address.
    pub const BROADCAST: Self = Self(0x00FF_FFFF);

    /// Creates an address; `None` if `id` has more than 24 bits.
    #[inline]
    #[must_use]
    pub const fn new(id: u32) -> Option<Self> {
        if id <= 0x00FF_FFFF {
            Some(Self(id))
        } else {
            None
        }
    }

    /// Converts the three bytes of the address in a frame.
    #[inline]
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 3]) -> Self {
        let [a, b, c] = bytes;
        Self(u32::from_be_bytes([0, a, b, c]))
    }

    /// Returns the address as a number below 2^24.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the three bytes of the address in a frame.
    #[inline]
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 3] {
        let [_, a, b, c] = self.0.to_be_bytes();
        [a, b, c]
    }
}

impl fmt::Display for NPortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c] = self.to_bytes();
        write!(f, "{a:02x}.{b:02x}.{c:02x}")
    }
}

impl fmt::Debug for NPortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// `00.01.02` or `000102`, hexadecimal.
impl FromStr for NPortId {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let bytes = if text.contains('.') {
            hex_groups(text, '.')
        } else {
            plain_hex(text)
        };
        bytes
            .map(Self::from_bytes)
            .ok_or(ParseError::new(Field::NPortId, Reason::BadSyntax))
    }
}

fn plain_hex(text: &str) -> Option<[u8; 3]> {
    let (a, rest) = text.split_at_checked(2)?;
    let (b, c) = rest.split_at_checked(2)?;
    Some([hex_byte(a)?, hex_byte(b)?, hex_byte(c)?])
}

/// R_CTL: routing and information category.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RCtl {
    /// Device data without category.
    Uncategorized,
    /// Solicited data, for a prepared buffer.
    SolicitedData,
    /// Unsolicited control.
    UnsolicitedControl,
    /// Solicited control, a response.
    SolicitedControl,
    /// Unsolicited data, for any buffer.
    UnsolicitedData,
    /// Data descriptor.
    DataDescriptor,
    /// Unsolicited command.
    UnsolicitedCommand,
    /// Command status.
    CommandStatus,
    /// Extended link service, request.
    ElsRequest,
    /// Extended link service, reply.
    ElsReply,
    /// Abort sequence.
    Abts,
    /// Basic accept.
    BaAcc,
    /// Basic reject.
    BaRjt,
    /// Any other value. Never one of the values above if it was parsed.
    Unknown(u8),
}

impl RCtl {
    /// Converts a byte on the wire.
    #[inline]
    #[must_use]
    pub const fn from_raw(raw: u8) -> Self {
        match raw {
            0x00 => Self::Uncategorized,
            0x01 => Self::SolicitedData,
            0x02 => Self::UnsolicitedControl,
            0x03 => Self::SolicitedControl,
            0x04 => Self::UnsolicitedData,
            0x05 => Self::DataDescriptor,
            0x06 => Self::UnsolicitedCommand,
            0x07 => Self::CommandStatus,
            0x22 => Self::ElsRequest,
            0x23 => Self::ElsReply,
            0x81 => Self::Abts,
            0x84 => Self::BaAcc,
            0x85 => Self::BaRjt,
            other => Self::Unknown(other),
        }
    }

    /// Returns the byte on the wire.
    #[inline]
    #[must_use]
    pub const fn raw(self) -> u8 {
        match self {
            Self::Uncategorized => 0x00,
            Self::SolicitedData => 0x01,
            Self::UnsolicitedControl => 0x02,
            Self::SolicitedControl => 0x03,
            Self::UnsolicitedData => 0x04,
            Self::DataDescriptor => 0x05,
            Self::UnsolicitedCommand => 0x06,
            Self::CommandStatus => 0x07,
            Self::ElsRequest => 0x22,
            Self::ElsReply => 0x23,
            Self::Abts => 0x81,
            Self::BaAcc => 0x84,
            Self::BaRjt => 0x85,
            Self::Unknown(other) => other,
        }
    }
}

/// TYPE: the protocol of the data field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FcType {
    /// Basic link service.
    Bls,
    /// Extended link service.
    Els,
    /// IP over FC.
    Ip,
    /// SCSI over FC.
    Fcp,
    /// Common transport.
    Ct,
    /// Switch link service.
    SwIls,
    /// NVMe over FC.
    Nvme,
    /// FC-VI.
    Vi,
    /// Any other value. Never one of the values above if it was parsed.
    Unknown(u8),
}

impl FcType {
    /// Converts a byte on the wire.
    #[inline]
    #[must_use]
    pub const fn from_raw(raw: u8) -> Self {
        match raw {
            0x00 => Self::Bls,
            0x01 => Self::Els,
            0x05 => Self::Ip,
            0x08 => Self::Fcp,
            0x20 => Self::Ct,
            0x22 => Self::SwIls,
            0x28 => Self::Nvme,
            0x58 => Self::Vi,
            other => Self::Unknown(other),
        }
    }

    /// Returns the byte on the wire.
    #[inline]
    #[must_use]
    pub const fn raw(self) -> u8 {
        match self {
            Self::Bls => 0x00,
            Self::Els => 0x01,
            Self::Ip => 0x05,
            Self::Fcp => 0x08,
            Self::Ct => 0x20,
            Self::SwIls => 0x22,
            Self::Nvme => 0x28,
            Self::Vi => 0x58,
            Self::Unknown(other) => other,
        }
    }
}

/// DF_CTL: the optional headers in front of the payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DfCtl(pub u8);

impl DfCtl {
    /// A security header.
    pub const ESP_HEADER: u8 = 0x40;
    /// A network header of 16 bytes.
    pub const NETWORK_HEADER: u8 = 0x20;
    /// An association header of 32 bytes.
    pub const ASSOCIATION_HEADER: u8 = 0x10;

    /// Returns the length of the device_header in bytes: 0, 16, 32 or 64.
    #[inline]
    #[must_use]
    pub const fn device_header_bytes(self) -> usize {
        match self.0 & 3 {
            0 => 0,
            1 => 16,
            2 => 32,
            _ => 64,
        }
    }

    /// True if the device_header is preceded by another optional header.
    #[inline]
    #[must_use]
    pub const fn has_other_headers(self) -> bool {
        self.0 & (Self::ESP_HEADER | Self::NETWORK_HEADER | Self::ASSOCIATION_HEADER) != 0
    }
}

/// F_CTL: 24 control bits of exchange, sequence and frame.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct FCtl(pub u32);

impl FCtl {
    /// The sender did not originate the exchange.
    pub const EXCHANGE_RESPONDER: Self = Self(1 << 23);
    /// The sender did not initiate the sequence.
    pub const SEQUENCE_RECIPIENT: Self = Self(1 << 22);
    /// First sequence of the exchange.
    pub const FIRST_SEQUENCE: Self = Self(1 << 21);
    /// Last sequence of the exchange.
    pub const LAST_SEQUENCE: Self = Self(1 << 20);
    /// Last frame of the sequence.
    pub const END_SEQUENCE: Self = Self(1 << 19);
    /// CS_CTL is a priority.
    pub const PRIORITY: Self = Self(1 << 17);
    /// Sequence initiative is transferred: the receiver may send the next sequence.
    pub const SEQUENCE_INITIATIVE: Self = Self(1 << 16);
    /// The sequence is retransmitted.
    pub const RETRANSMITTED: Self = Self(1 << 9);
    /// Parameter is a relative offset.
    pub const RELATIVE_OFFSET: Self = Self(1 << 3);

    const FILL: u32 = 3;

    /// Returns the bits that are set in either.
    #[inline]
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// True if every bit of `other` is set.
    #[inline]
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Sets the number of fill bytes, modulo 4.
    #[inline]
    #[must_use]
    pub const fn with_fill(self, fill_bytes: u8) -> Self {
        Self((self.0 & !Self::FILL) | (fill_bytes as u32 & Self::FILL))
    }

    /// Returns the number of fill bytes at the end of the data field: 0 to 3.
    #[inline]
    #[must_use]
    pub const fn fill_bytes(self) -> usize {
        (self.0 & Self::FILL) as usize
    }
}

impl fmt::Debug for FCtl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FCtl({:#08x})", self.0)
    }
}

/// The header of an FC frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FcHeader {
    /// Routing and category.
    pub r_ctl: RCtl,
    /// Destination.
    pub d_id: NPortId,
    /// Class specific control; 0 in class 3.
    pub cs_ctl: u8,
    /// Source.
    pub s_id: NPortId,
    /// Protocol of the data field.
    pub fc_type: FcType,
    /// Frame control; the upper 8 of its 32 bits are not on the wire.
    pub f_ctl: FCtl,
    /// Identifier of the sequence within the exchange.
    pub seq_id: u8,
    /// Optional headers, see [`DfCtl`].
    pub df_ctl: u8,
    /// Sequence count of the frame.
    pub seq_cnt: u16,
    /// The originator's identifier of the exchange.
    pub ox_id: u16,
    /// The responder's identifier of the exchange.
    pub rx_id: u16,
    /// Relative offset, or a value that depends on the frame type.
    pub parameter: u32,
}

impl FcHeader {
    /// Bytes on the wire.
    pub const BYTES: usize = 24;

    /// Reads a header. Every value of every byte is accepted.
    #[inline(always)]
    #[must_use]
    pub fn parse(bytes: &[u8; 24]) -> Self {
        let bytes = Reader(bytes);
        Self {
            r_ctl: RCtl::from_raw(bytes.u8::<R_CTL>()),
            d_id: NPortId::from_bytes(bytes.array::<D_ID, 3>()),
            cs_ctl: bytes.u8::<CS_CTL>(),
            s_id: NPortId::from_bytes(bytes.array::<S_ID, 3>()),
            fc_type: FcType::from_raw(bytes.u8::<TYPE>()),
            f_ctl: FCtl(bytes.u24::<F_CTL>()),
            seq_id: bytes.u8::<SEQ_ID>(),
            df_ctl: bytes.u8::<DF_CTL>(),
            seq_cnt: bytes.u16::<SEQ_CNT>(),
            ox_id: bytes.u16::<OX_ID>(),
            rx_id: bytes.u16::<RX_ID>(),
            parameter: bytes.u32::<PARAMETER>(),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, out: &mut [u8; 24]) {
        let mut out = Writer(out);
        out.u8::<R_CTL>(self.r_ctl.raw());
        out.array::<D_ID, 3>(self.d_id.to_bytes());
        out.u8::<CS_CTL>(self.cs_ctl);
        out.array::<S_ID, 3>(self.s_id.to_bytes());
        out.u8::<TYPE>(self.fc_type.raw());
        out.u24::<F_CTL>(self.f_ctl.0);
        out.u8::<SEQ_ID>(self.seq_id);
        out.u8::<DF_CTL>(self.df_ctl);
        out.u16::<SEQ_CNT>(self.seq_cnt);
        out.u16::<OX_ID>(self.ox_id);
        out.u16::<RX_ID>(self.rx_id);
        out.u32::<PARAMETER>(self.parameter);
    }
}

impl fmt::Display for FcHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} > {} r_ctl {:02x} type {:02x} f_ctl {:06x} seq_id {:02x} seq_cnt {} ox_id {:04x} rx_id {:04x} parameter {}",
            self.s_id,
            self.d_id,
            self.r_ctl.raw(),
            self.fc_type.raw(),
            self.f_ctl.0,
            self.seq_id,
            self.seq_cnt,
            self.ox_id,
            self.rx_id,
            self.parameter
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{DfCtl, FCtl, FcHeader, FcType, NPortId, RCtl};
    use proptest::prelude::*;
    use std::string::ToString;

    #[test]
    fn every_raw_byte_round_trips() {
        for raw in 0..=u8::MAX {
            assert_eq!(RCtl::from_raw(raw).raw(), raw);
            assert_eq!(FcType::from_raw(raw).raw(), raw);
        }
        assert_eq!(FcType::from_raw(0x58), FcType::Vi);
    }

    #[test]
    fn n_port_ids_have_24_bits() {
        assert_eq!(NPortId::new(0x00FF_FFFF), Some(NPortId::BROADCAST));
        assert_eq!(NPortId::new(0x0100_0000), None);
        assert_eq!(NPortId::default().get(), 0);
    }

    #[test]
    fn n_port_ids_are_parsed_in_both_forms() {
        let id = NPortId::from_bytes([0, 1, 0xAB]);
        assert_eq!(id.to_string(), "00.01.ab");
        assert_eq!("00.01.AB".parse(), Ok(id));
        assert_eq!("0001ab".parse(), Ok(id));
        for text in [
            "",
            "0001a",
            "0001abc",
            "0001abcd",
            "00.01",
            "00.01.ab.00",
            "0.1.2",
            "+00102",
            "00.01.+b",
            "é001",
            "0x0001",
        ] {
            assert!(text.parse::<NPortId>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn f_ctl_fill_does_not_change_other_bits() {
        let f_ctl = FCtl(0x38_0000).union(FCtl::RELATIVE_OFFSET).with_fill(7);
        assert_eq!(f_ctl.0, 0x38_000B);
        assert_eq!(f_ctl.fill_bytes(), 3);
        assert_eq!(f_ctl.with_fill(1).fill_bytes(), 1);
        assert!(f_ctl.contains(FCtl::END_SEQUENCE));
        assert!(!f_ctl.contains(FCtl::END_SEQUENCE.union(FCtl::PRIORITY)));
    }

    #[test]
    fn df_ctl_returns_the_header_lengths() {
        assert_eq!(
            [0, 1, 2, 3].map(|v| DfCtl(v).device_header_bytes()),
            [0, 16, 32, 64]
        );
        assert!(!DfCtl(0x02).has_other_headers());
        assert!(DfCtl(0x22).has_other_headers());
    }

    proptest! {
        #![proptest_config(crate::test_seed::config())]

        #[test]
        fn any_24_bytes_round_trip(bytes: [u8; 24]) {
            let header = FcHeader::parse(&bytes);
            let mut out = [0; 24];
            header.emit(&mut out);
            prop_assert_eq!(out, bytes);
        }

        #[test]
        fn n_port_ids_round_trip_through_text(bytes: [u8; 3]) {
            let id = NPortId::from_bytes(bytes);
            prop_assert_eq!(id.to_string().parse(), Ok(id));
            prop_assert_eq!(id.to_bytes(), bytes);
        }
    }
}
