//! The descriptors of a FIP frame: type, length of the descriptor in words of 4 bytes, value.
//!
//! | Type | Name | Bytes | Value, from offset 2 |
//! | --- | --- | --- | --- |
//! | 2 | MAC address | 8 | MAC address 6 |
//! | 4 | name | 12 | reserved 2, name 8 |
//! | 6 | maximum FCoE size | 4 | size 2 |
//! | 7 to 10 | FLOGI, FDISC, LOGO, ELP | 4 + n | reserved 2, FC header and payload |
//! | 11 | VN_Port ID | 20 | MAC address 6, reserved 1, N_Port_ID 3, port name 8 |
//! | 15 | FC-4 attributes | 164 | reserved 2, types 32, features 128 |
//!
//! The other types are used on links with switches, and are only named here.

use super::WORD_BYTES;
use super::fc4::{self, Fc4Attributes};
use crate::error::{Field, ParseError, Reason};
use crate::ethernet::MacAddress;
use crate::fc::NPortId;
use vi_types::fields::{Reader, Writer, tiles};

const TYPE: usize = 0;
const WORDS: usize = 1;
const VALUE: usize = 2;

const NAME: usize = 4;
const ID_RESERVED: usize = 8;
const ID_N_PORT_ID: usize = 9;
const ID_PORT_NAME: usize = 12;
const FC4_TYPES: usize = 4;
const FC4_FEATURES: usize = 36;

/// Bytes of a MAC address descriptor.
pub(super) const MAC_BYTES: usize = 8;
/// Bytes of a name descriptor.
pub(super) const NAME_BYTES: usize = 12;
/// Bytes of a maximum FCoE size descriptor.
pub(super) const SIZE_BYTES: usize = 4;
/// Bytes of a VN_Port ID descriptor.
pub(super) const ID_BYTES: usize = 20;
/// Bytes of an FC-4 attributes descriptor.
pub(super) const FC4_BYTES: usize = 164;
/// Bytes before the FC header in the descriptors that contain a frame.
pub(super) const FRAME_PREFIX_BYTES: usize = 4;

const _: () = assert!(tiles(&[(TYPE, 1), (WORDS, 1), (VALUE, 6)], MAC_BYTES));
const _: () = assert!(tiles(
    &[(TYPE, 1), (WORDS, 1), (VALUE, 2), (NAME, 8)],
    NAME_BYTES
));
const _: () = assert!(tiles(&[(TYPE, 1), (WORDS, 1), (VALUE, 2)], SIZE_BYTES));
const _: () = assert!(tiles(
    &[
        (TYPE, 1),
        (WORDS, 1),
        (VALUE, 6),
        (ID_RESERVED, 1),
        (ID_N_PORT_ID, 3),
        (ID_PORT_NAME, 8),
    ],
    ID_BYTES
));
const _: () = assert!(tiles(
    &[
        (TYPE, 1),
        (WORDS, 1),
        (VALUE, 2),
        (FC4_TYPES, fc4::TYPE_BYTES),
        (FC4_FEATURES, fc4::FEATURE_BYTES),
    ],
    FC4_BYTES
));

/// Type of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DescriptorType {
    /// Priority of a switch.
    Priority,
    /// A MAC address.
    MacAddress,
    /// The address prefix of a fabric.
    FcMap,
    /// The name of a node or of a switch.
    Name,
    /// The name of a fabric.
    Fabric,
    /// The largest FCoE PDU that is accepted.
    MaxFcoeSize,
    /// An FLOGI frame, or its reply.
    Flogi,
    /// An FDISC frame, or its reply.
    Fdisc,
    /// A LOGO frame, or its reply.
    Logo,
    /// An ELP frame, or its reply.
    Elp,
    /// MAC address, N_Port_ID and name of a VN_Port.
    VnPortId,
    /// Keep-alive interval of a virtual link.
    KeepAlivePeriod,
    /// A vendor's identity.
    VendorId,
    /// A VLAN.
    Vlan,
    /// The supported protocols above FC.
    Fc4Attributes,
    /// Any other value. Never one of the values above if it was parsed.
    Unknown(u8),
}

impl DescriptorType {
    /// Converts a byte on the wire.
    #[must_use]
    pub const fn from_raw(raw: u8) -> Self {
        match raw {
            1 => Self::Priority,
            2 => Self::MacAddress,
            3 => Self::FcMap,
            4 => Self::Name,
            5 => Self::Fabric,
            6 => Self::MaxFcoeSize,
            7 => Self::Flogi,
            8 => Self::Fdisc,
            9 => Self::Logo,
            10 => Self::Elp,
            11 => Self::VnPortId,
            12 => Self::KeepAlivePeriod,
            13 => Self::VendorId,
            14 => Self::Vlan,
            15 => Self::Fc4Attributes,
            other => Self::Unknown(other),
        }
    }

    /// Returns the byte on the wire.
    #[must_use]
    pub const fn raw(self) -> u8 {
        match self {
            Self::Priority => 1,
            Self::MacAddress => 2,
            Self::FcMap => 3,
            Self::Name => 4,
            Self::Fabric => 5,
            Self::MaxFcoeSize => 6,
            Self::Flogi => 7,
            Self::Fdisc => 8,
            Self::Logo => 9,
            Self::Elp => 10,
            Self::VnPortId => 11,
            Self::KeepAlivePeriod => 12,
            Self::VendorId => 13,
            Self::Vlan => 14,
            Self::Fc4Attributes => 15,
            Self::Unknown(other) => other,
        }
    }

    /// True for a critical descriptor. A receiver that does not support a critical descriptor must
    /// reject the frame; it skips others.
    #[must_use]
    pub const fn is_critical(self) -> bool {
        self.raw() < 128
    }

    /// Rejects a frame with this unexpected descriptor, if it is critical.
    pub(super) const fn reject_if_critical(self) -> Result<(), ParseError> {
        let reason = match self {
            Self::Unknown(_) => Reason::Unknown,
            _ => Reason::Mismatch,
        };
        if self.is_critical() {
            Err(ParseError::new(Field::FipDescriptor, reason))
        } else {
            Ok(())
        }
    }
}

/// One descriptor, with its type and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor<'a> {
    /// Its type.
    pub kind: DescriptorType,
    bytes: &'a [u8],
}

/// Identity of a VN_Port: value of the VN_Port ID descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VnPortId {
    /// The address of its FCoE frames.
    pub mac: MacAddress,
    /// Its N_Port_ID.
    pub n_port_id: NPortId,
    /// Its Port_Name.
    pub port_name: u64,
}

impl<'a> Descriptor<'a> {
    fn exactly<const N: usize>(self) -> Result<Reader<'a, N>, ParseError> {
        match self.bytes.split_first_chunk() {
            Some((bytes, [])) => Ok(Reader(bytes)),
            Some(_) => Err(ParseError::new(Field::FipDescriptor, Reason::TooLong)),
            None => Err(ParseError::new(Field::FipDescriptor, Reason::TooShort)),
        }
    }

    /// Reads the value as a MAC address.
    ///
    /// # Errors
    /// `FipDescriptor` `TooShort` or `TooLong`.
    pub fn mac_address(self) -> Result<MacAddress, ParseError> {
        let bytes = self.exactly::<MAC_BYTES>()?;
        Ok(MacAddress(bytes.array::<VALUE, 6>()))
    }

    /// Reads the value as a name.
    ///
    /// # Errors
    /// `FipDescriptor` `TooShort` or `TooLong`.
    pub fn name(self) -> Result<u64, ParseError> {
        Ok(self.exactly::<NAME_BYTES>()?.u64::<NAME>())
    }

    /// Reads the value as the largest accepted FCoE PDU, in bytes.
    ///
    /// # Errors
    /// `FipDescriptor` `TooShort` or `TooLong`.
    pub fn max_fcoe_bytes(self) -> Result<u16, ParseError> {
        Ok(self.exactly::<SIZE_BYTES>()?.u16::<VALUE>())
    }

    /// Reads the value as the identity of a VN_Port.
    ///
    /// # Errors
    /// `FipDescriptor` `TooShort` or `TooLong`.
    pub fn vn_port_id(self) -> Result<VnPortId, ParseError> {
        let bytes = self.exactly::<ID_BYTES>()?;
        Ok(VnPortId {
            mac: MacAddress(bytes.array::<VALUE, 6>()),
            n_port_id: NPortId::from_bytes(bytes.array::<ID_N_PORT_ID, 3>()),
            port_name: bytes.u64::<ID_PORT_NAME>(),
        })
    }

    /// Reads the value as the supported protocols.
    ///
    /// # Errors
    /// `FipDescriptor` `TooShort` or `TooLong`.
    pub fn fc4_attributes(self) -> Result<Fc4Attributes, ParseError> {
        let bytes = self.exactly::<FC4_BYTES>()?;
        Ok(Fc4Attributes {
            types: bytes.array::<FC4_TYPES, { fc4::TYPE_BYTES }>(),
            features: bytes.array::<FC4_FEATURES, { fc4::FEATURE_BYTES }>(),
        })
    }

    /// Returns the contained FC frame, from the FC header on.
    ///
    /// # Errors
    /// `FipDescriptor` `TooShort`.
    pub(super) fn fc_frame(self) -> Result<&'a [u8], ParseError> {
        self.bytes
            .get(FRAME_PREFIX_BYTES..)
            .ok_or(ParseError::new(Field::FipDescriptor, Reason::TooShort))
    }
}

/// Iterator over the descriptors of a frame; ends after the first with an invalid length.
#[derive(Clone, Debug)]
pub struct Descriptors<'a> {
    rest: &'a [u8],
}

impl<'a> Descriptors<'a> {
    pub(super) const fn new(list: &'a [u8]) -> Self {
        Self { rest: list }
    }
}

impl<'a> Iterator for Descriptors<'a> {
    type Item = Result<Descriptor<'a>, ParseError>;

    fn next(&mut self) -> Option<Self::Item> {
        let wrong = |reason| Some(Err(ParseError::new(Field::FipDescriptor, reason)));
        let list = core::mem::take(&mut self.rest);
        let (kind, words) = match list {
            [] => return None,
            [_] => return wrong(Reason::TooShort),
            [kind, words, ..] => (*kind, *words),
        };
        if words == 0 {
            return wrong(Reason::TooShort);
        }
        let descriptor_bytes = usize::from(words).saturating_mul(WORD_BYTES);
        let Some((bytes, rest)) = list.split_at_checked(descriptor_bytes) else {
            return wrong(Reason::TooLong);
        };
        self.rest = rest;
        let kind = DescriptorType::from_raw(kind);
        Some(Ok(Descriptor { kind, bytes }))
    }
}

/// Returns a descriptor of this type and length, with a zero value.
fn blank<const N: usize>(kind: DescriptorType) -> [u8; N] {
    const { assert!(N.is_multiple_of(WORD_BYTES) && N / WORD_BYTES <= 255) };
    let mut bytes = [0; N];
    let mut out = Writer(&mut bytes);
    out.u8::<TYPE>(kind.raw());
    out.u8::<WORDS>((N / WORD_BYTES) as u8);
    bytes
}

pub(super) fn emit_mac(mac: MacAddress) -> [u8; MAC_BYTES] {
    let mut bytes = blank(DescriptorType::MacAddress);
    Writer(&mut bytes).array::<VALUE, 6>(mac.0);
    bytes
}

pub(super) fn emit_name(name: u64) -> [u8; NAME_BYTES] {
    let mut bytes = blank(DescriptorType::Name);
    Writer(&mut bytes).u64::<NAME>(name);
    bytes
}

pub(super) fn emit_max_fcoe_bytes(max_fcoe_bytes: u16) -> [u8; SIZE_BYTES] {
    let mut bytes = blank(DescriptorType::MaxFcoeSize);
    Writer(&mut bytes).u16::<VALUE>(max_fcoe_bytes);
    bytes
}

pub(super) fn emit_vn_port_id(id: &VnPortId) -> [u8; ID_BYTES] {
    let mut bytes = blank(DescriptorType::VnPortId);
    let mut out = Writer(&mut bytes);
    out.array::<VALUE, 6>(id.mac.0);
    out.array::<ID_N_PORT_ID, 3>(id.n_port_id.to_bytes());
    out.u64::<ID_PORT_NAME>(id.port_name);
    bytes
}

pub(super) fn emit_fc4_attributes(fc4: &Fc4Attributes) -> [u8; FC4_BYTES] {
    let mut bytes = blank(DescriptorType::Fc4Attributes);
    let mut out = Writer(&mut bytes);
    out.array::<FC4_TYPES, { fc4::TYPE_BYTES }>(fc4.types);
    out.array::<FC4_FEATURES, { fc4::FEATURE_BYTES }>(fc4.features);
    bytes
}

/// Emits the bytes before the FC header of a descriptor that contains a frame; `words` is the length
/// of the whole descriptor.
pub(super) fn emit_frame_prefix(kind: DescriptorType, words: u8) -> [u8; FRAME_PREFIX_BYTES] {
    [kind.raw(), words, 0, 0]
}
