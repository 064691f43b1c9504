//! FCVI_ATTRIBUTES [P-9].
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 4 | ATTR_FLAGS: 0 UD, 1 RD, 2 RR (exactly one), 8 RDMA write, 9 RDMA read, 10 in order, 16 recovery [P-16] |
//! | 4 | 4 | MaxTransferSize |
//! | 8 | 1 | FC class |
//! | 9 | 1 | CS_CTL |
//! | 10 | 6 | reserved |
//! | 16 | 2 | outstanding RDMA reads accepted |
//! | 18 | 2 | receive data field size |
//! | 20 | 4 | reserved |
//!
//! Other flags and reserved bytes are sent as 0 and ignored.

use vi_types::ReliabilityLevel;

use crate::error::{Field, ParseError, Reason};
use crate::profile::{self, attribute};
use vi_types::fields::{Reader, Writer, tiles};

const FLAGS: usize = 0;
const MAX_TRANSFER: usize = 4;
const QOS_CLASS: usize = 8;
const CS_CTL: usize = 9;
const QOS_RESERVED: usize = 10;
const MAX_READS: usize = 16;
const RECEIVE_DATA_FIELD: usize = 18;
const RESERVED: usize = 20;

const _: () = assert!(tiles(
    &[
        (FLAGS, 4),
        (MAX_TRANSFER, 4),
        (QOS_CLASS, 1),
        (CS_CTL, 1),
        (QOS_RESERVED, 6),
        (MAX_READS, 2),
        (RECEIVE_DATA_FIELD, 2),
        (RESERVED, 4),
    ],
    Attributes::BYTES
));

const RELIABILITY: u32 =
    attribute::UNRELIABLE_DELIVERY | attribute::RELIABLE_DELIVERY | attribute::RELIABLE_RECEPTION;

/// Attributes of the VI at one end of a connection. Sizes are not validated:
/// their user must reject those that no frame can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Attributes {
    /// Reliability level.
    pub reliability: ReliabilityLevel,
    /// RDMA writes are accepted.
    pub rdma_write: bool,
    /// RDMA reads are accepted.
    pub rdma_read: bool,
    /// The network delivers in order.
    pub in_order: bool,
    /// Message recovery is offered [P-16].
    pub recovery: bool,
    /// Longest message.
    pub max_transfer_bytes: u32,
    /// FC class.
    pub qos_class: u8,
    /// CS_CTL of the frames.
    pub cs_ctl: u8,
    /// Maximum number of outstanding RDMA reads.
    pub max_reads: u16,
    /// Longest data field that is accepted, device_header included.
    pub receive_data_field_bytes: u16,
}

impl Default for Attributes {
    fn default() -> Self {
        Self {
            reliability: ReliabilityLevel::UnreliableDelivery,
            rdma_write: false,
            rdma_read: false,
            in_order: false,
            recovery: false,
            max_transfer_bytes: 0,
            qos_class: profile::QOS_CLASS_3,
            cs_ctl: profile::CS_CTL,
            max_reads: 0,
            receive_data_field_bytes: 0,
        }
    }
}

impl Attributes {
    /// Bytes on the wire.
    pub const BYTES: usize = 24;

    /// Reads attributes.
    ///
    /// # Errors
    /// `Reliability` `Mismatch` unless exactly one level is set.
    pub fn parse(bytes: &[u8; 24]) -> Result<Self, ParseError> {
        let bytes = Reader(bytes);
        let flags = bytes.u32::<FLAGS>();
        let reliability = match flags & RELIABILITY {
            attribute::UNRELIABLE_DELIVERY => ReliabilityLevel::UnreliableDelivery,
            attribute::RELIABLE_DELIVERY => ReliabilityLevel::ReliableDelivery,
            attribute::RELIABLE_RECEPTION => ReliabilityLevel::ReliableReception,
            _ => return Err(ParseError::new(Field::Reliability, Reason::Mismatch)),
        };
        Ok(Self {
            reliability,
            rdma_write: flags & attribute::RDMA_WRITE != 0,
            rdma_read: flags & attribute::RDMA_READ != 0,
            in_order: flags & attribute::IN_ORDER != 0,
            recovery: flags & attribute::RECOVERY != 0,
            max_transfer_bytes: bytes.u32::<MAX_TRANSFER>(),
            qos_class: bytes.u8::<QOS_CLASS>(),
            cs_ctl: bytes.u8::<CS_CTL>(),
            max_reads: bytes.u16::<MAX_READS>(),
            receive_data_field_bytes: bytes.u16::<RECEIVE_DATA_FIELD>(),
        })
    }

    /// Writes the attributes.
    pub fn emit(&self, out: &mut [u8; 24]) {
        let mut out = Writer(out);
        out.u32::<FLAGS>(self.flags());
        out.u32::<MAX_TRANSFER>(self.max_transfer_bytes);
        out.u8::<QOS_CLASS>(self.qos_class);
        out.u8::<CS_CTL>(self.cs_ctl);
        out.array::<QOS_RESERVED, 6>([0; 6]);
        out.u16::<MAX_READS>(self.max_reads);
        out.u16::<RECEIVE_DATA_FIELD>(self.receive_data_field_bytes);
        out.u32::<RESERVED>(0);
    }

    pub(super) fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        self.emit(&mut bytes);
        bytes
    }

    fn flags(&self) -> u32 {
        let flag = |set, flag| if set { flag } else { 0 };
        let reliability = match self.reliability {
            ReliabilityLevel::UnreliableDelivery => attribute::UNRELIABLE_DELIVERY,
            ReliabilityLevel::ReliableDelivery => attribute::RELIABLE_DELIVERY,
            ReliabilityLevel::ReliableReception => attribute::RELIABLE_RECEPTION,
        };
        reliability
            | flag(self.rdma_write, attribute::RDMA_WRITE)
            | flag(self.rdma_read, attribute::RDMA_READ)
            | flag(self.in_order, attribute::IN_ORDER)
            | flag(self.recovery, attribute::RECOVERY)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::Attributes;
    use proptest::prelude::*;
    use vi_types::ReliabilityLevel;

    pub(crate) fn any_attributes() -> impl Strategy<Value = Attributes> {
        let reliability = prop_oneof![
            Just(ReliabilityLevel::UnreliableDelivery),
            Just(ReliabilityLevel::ReliableDelivery),
            Just(ReliabilityLevel::ReliableReception)
        ];
        let flags = any::<[bool; 4]>();
        let numbers = any::<(u32, u8, u8, u16, u16)>();
        (reliability, flags, numbers).prop_map(|(reliability, flags, numbers)| Attributes {
            reliability,
            rdma_write: flags[0],
            rdma_read: flags[1],
            in_order: flags[2],
            recovery: flags[3],
            max_transfer_bytes: numbers.0,
            qos_class: numbers.1,
            cs_ctl: numbers.2,
            max_reads: numbers.3,
            receive_data_field_bytes: numbers.4,
        })
    }

    proptest! {
        #![proptest_config(crate::test_seed::config())]

        #[test]
        fn attributes_round_trip(attributes in any_attributes()) {
            let bytes = attributes.to_bytes();
            prop_assert_eq!(Attributes::parse(&bytes), Ok(attributes));
        }
    }

    #[test]
    fn parse_requires_exactly_one_reliability_level() {
        for bits in 0..8u8 {
            let mut bytes = [0; 24];
            bytes[3] = bits;
            assert_eq!(Attributes::parse(&bytes).is_ok(), bits.count_ones() == 1);
        }
    }

    #[test]
    fn unknown_flags_and_reserved_bytes_are_ignored() {
        let mut bytes = Attributes::default().to_bytes();
        bytes[0] = 0x80;
        bytes[10] = 1;
        bytes[23] = 1;
        assert_eq!(Attributes::parse(&bytes), Ok(Attributes::default()));
    }
}
