//! FIP, the FCoE Initialization Protocol: discovery and login between ports of an Ethernet link.
//!
//! Behind the Ethernet header, EtherType 0x8914:
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 1 | version in the upper half, 1 |
//! | 1 | 1 | reserved |
//! | 2 | 2 | opcode |
//! | 4 | 1 | reserved |
//! | 5 | 1 | subcode |
//! | 6 | 2 | length of the descriptor list, in words of 4 bytes |
//! | 8 | 2 | flags |
//! | 10 | 4 n | descriptors, each with its type and its length |
//!
//! Bytes behind the list are padding and ignored. [`FipView`] reads the header;
//! [`Vn2vnFrame`] and [`LinkService`] are the two operations of a link without a
//! switch, and accept only their descriptors.

mod descriptor;
mod fc4;
mod link_service;
mod vn2vn;

pub use descriptor::{Descriptor, DescriptorType, Descriptors, VnPortId};
pub use fc4::Fc4Attributes;
pub use link_service::{LinkService, LinkServiceKind};
pub use vn2vn::{Claim, Vn2vnFrame, Vn2vnMessage, VnPort};

use crate::error::{Field, ParseError, Reason};
use crate::ethernet::{self, ETHERTYPE_FIP, EthernetHeader, MacAddress};
use crate::fcoe;
use vi_types::fields::{Reader, Writer, tiles};

const VERSION: usize = 0;
const RESERVED: usize = 1;
const OPCODE: usize = 2;
const RESERVED2: usize = 4;
const SUBCODE: usize = 5;
const LIST_WORDS: usize = 6;
const FLAGS: usize = 8;

/// Bytes of the FIP header.
pub const FIP_HEADER_BYTES: usize = 10;
/// Bytes of the Ethernet and FIP headers of an untagged frame, before the descriptors.
const HEADERS_BYTES: usize = 24;
const WORD_BYTES: usize = 4;
const THIS_VERSION: u8 = 1;

const _: () = assert!(tiles(
    &[
        (VERSION, 1),
        (RESERVED, 1),
        (OPCODE, 2),
        (RESERVED2, 1),
        (SUBCODE, 1),
        (LIST_WORDS, 2),
        (FLAGS, 2),
    ],
    FIP_HEADER_BYTES
));
const _: () = assert!(ethernet::HEADER_BYTES + FIP_HEADER_BYTES == HEADERS_BYTES);

/// The largest FCoE PDU, from the FCoE header to the reserved bytes behind the EOF: the MTU that
/// a link needs for FC frames of full size, and the maximum that a port announces.
pub const MAX_FCOE_PDU_BYTES: u16 = (fcoe::MAX_FRAME_BYTES - ethernet::HEADER_BYTES) as u16;

/// Opcode of a FIP frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FipOpcode {
    /// Discovery of switches.
    Discovery,
    /// A login or logout, see [`LinkService`].
    LinkService,
    /// Keep alive, or clear virtual links.
    Control,
    /// Discovery of VLANs.
    Vlan,
    /// VN2VN: discovery between ports without a switch, see [`Vn2vnFrame`].
    Vn2vn,
    /// Any other value. Never one of the values above if it was parsed.
    Unknown(u16),
}

impl FipOpcode {
    /// Converts a value on the wire.
    #[must_use]
    pub const fn from_raw(raw: u16) -> Self {
        match raw {
            1 => Self::Discovery,
            2 => Self::LinkService,
            3 => Self::Control,
            4 => Self::Vlan,
            5 => Self::Vn2vn,
            other => Self::Unknown(other),
        }
    }

    /// Returns the value on the wire.
    #[must_use]
    pub const fn raw(self) -> u16 {
        match self {
            Self::Discovery => 1,
            Self::LinkService => 2,
            Self::Control => 3,
            Self::Vlan => 4,
            Self::Vn2vn => 5,
            Self::Unknown(other) => other,
        }
    }
}

/// The flags of a FIP header.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq, Hash)]
pub struct FipFlags(pub u16);

impl FipFlags {
    /// The switch provides the MAC address.
    pub const FPMA: Self = Self(0x8000);
    /// The server provides the MAC address.
    pub const SPMA: Self = Self(0x4000);
    /// REC: the N_Port_ID is one that the sender recorded earlier; or a point-to-point link.
    pub const RECORDED: Self = Self(0x0008);
    /// Available for login.
    pub const AVAILABLE: Self = Self(0x0004);
    /// Solicited.
    pub const SOLICITED: Self = Self(0x0002);
    /// Sent by an F_Port.
    pub const F_PORT: Self = Self(0x0001);

    /// True if every bit of `other` is set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A received frame with a valid FIP header. Its descriptors are read according to its opcode, by
/// [`FipView::vn2vn`] or [`FipView::link_service`].
#[derive(Clone, Copy, Debug)]
pub struct FipView<'a> {
    /// Its Ethernet header.
    pub ethernet: EthernetHeader,
    /// Its opcode.
    pub opcode: FipOpcode,
    /// Its subcode.
    pub subcode: u8,
    /// Its flags.
    pub flags: FipFlags,
    /// Bytes behind the Ethernet header, padding included.
    pub pdu_bytes: usize,
    list: &'a [u8],
}

impl<'a> FipView<'a> {
    /// Reads a frame, from the destination address to the last byte before the Ethernet FCS.
    ///
    /// # Errors
    /// The first of these that is wrong: `EthernetHeader`, `EtherType`, `Frame` `TooShort`,
    /// `FipVersion`, `FipLength` `TooLong` if the list is longer than the frame.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        const TOO_SHORT: ParseError = ParseError::new(Field::Frame, Reason::TooShort);
        let (ethernet, ethernet_bytes) = EthernetHeader::parse(bytes)?;
        if ethernet.ethertype != ETHERTYPE_FIP {
            return Err(ParseError::new(Field::EtherType, Reason::Unknown));
        }
        let pdu = bytes.get(ethernet_bytes..).ok_or(TOO_SHORT)?;
        let (header, rest) = pdu
            .split_first_chunk::<FIP_HEADER_BYTES>()
            .ok_or(TOO_SHORT)?;
        let header = Reader(header);
        if header.u8::<VERSION>() >> 4 != THIS_VERSION {
            return Err(ParseError::new(Field::FipVersion, Reason::Unknown));
        }
        let list_bytes = usize::from(header.u16::<LIST_WORDS>()).saturating_mul(WORD_BYTES);
        let list = rest
            .get(..list_bytes)
            .ok_or(ParseError::new(Field::FipLength, Reason::TooLong))?;
        Ok(Self {
            ethernet,
            opcode: FipOpcode::from_raw(header.u16::<OPCODE>()),
            subcode: header.u8::<SUBCODE>(),
            flags: FipFlags(header.u16::<FLAGS>()),
            pdu_bytes: pdu.len(),
            list,
        })
    }

    /// Returns its descriptors, in their order.
    #[must_use]
    pub fn descriptors(&self) -> Descriptors<'a> {
        Descriptors::new(self.list)
    }
}

/// Emits the Ethernet and FIP headers of an untagged frame.
fn headers(
    (dst, src): (MacAddress, MacAddress),
    opcode: FipOpcode,
    subcode: u8,
    list_words: u16,
    flags: FipFlags,
) -> [u8; HEADERS_BYTES] {
    let mut ethernet = [0; ethernet::HEADER_BYTES];
    EthernetHeader {
        dst,
        src,
        vlan_tci: None,
        ethertype: ETHERTYPE_FIP,
    }
    .emit_untagged(&mut ethernet);
    let mut fip = [0; FIP_HEADER_BYTES];
    let mut out = Writer(&mut fip);
    out.u8::<VERSION>(THIS_VERSION << 4);
    out.u16::<OPCODE>(opcode.raw());
    out.u8::<SUBCODE>(subcode);
    out.u16::<LIST_WORDS>(list_words);
    out.u16::<FLAGS>(flags.0);
    let mut headers = [0; HEADERS_BYTES];
    let mut out = Writer(&mut headers);
    out.array::<0, { ethernet::HEADER_BYTES }>(ethernet);
    out.array::<{ ethernet::HEADER_BYTES }, FIP_HEADER_BYTES>(fip);
    headers
}

/// Error of a frame that is read as another operation than its own.
const OTHER_OPERATION: ParseError = ParseError::new(Field::FipOperation, Reason::Unknown);
/// Error of a frame without a required descriptor.
const MISSING: ParseError = ParseError::new(Field::FipDescriptor, Reason::Missing);

/// Sets the value of a descriptor; fails if it is already set.
fn set_once<T>(field: &mut Option<T>, value: T) -> Result<(), ParseError> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err(ParseError::new(Field::FipDescriptor, Reason::Repeated)),
    }
}

#[cfg(test)]
mod tests;
