//! Errors of parsing and emitting frames.

use core::fmt;

/// The part of a frame or text that could not be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Field {
    /// A MAC address written as text.
    MacAddress,
    /// An N_Port_ID written as text.
    NPortId,
    /// The Ethernet header, tag included.
    EthernetHeader,
    /// The EtherType.
    EtherType,
    /// The length of the whole frame.
    Frame,
    /// The FCoE version.
    FcoeVersion,
    /// The start-of-frame code.
    Sof,
    /// The end-of-frame code.
    Eof,
    /// The CRC of the FC frame.
    Crc,
    /// The fill byte count of F_CTL.
    FillBytes,
    /// The TYPE of the FC header.
    FcType,
    /// R_CTL of the FC header.
    RCtl,
    /// DF_CTL of the FC header.
    DfCtl,
    /// The FC-VI device_header.
    DeviceHeader,
    /// FCVI_OPCODE.
    Opcode,
    /// The payload of an IU or link service.
    Payload,
    /// The host part of an FCVI_NET_ADDRESS.
    HostAddress,
    /// The discriminator of an FCVI_NET_ADDRESS.
    Discriminator,
    /// The reliability bits of FCVI_ATTRIBUTES.
    Reliability,
    /// The command code of an extended link service.
    ElsCommand,
    /// The FIP version.
    FipVersion,
    /// The length of a FIP descriptor list.
    FipLength,
    /// Opcode and subcode of a FIP frame.
    FipOperation,
    /// A FIP descriptor.
    FipDescriptor,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Field::MacAddress => "MAC address",
            Field::NPortId => "N_Port_ID",
            Field::EthernetHeader => "Ethernet header",
            Field::EtherType => "EtherType",
            Field::Frame => "frame",
            Field::FcoeVersion => "FCoE version",
            Field::Sof => "SOF",
            Field::Eof => "EOF",
            Field::Crc => "FC CRC",
            Field::FillBytes => "fill bytes",
            Field::FcType => "TYPE",
            Field::RCtl => "R_CTL",
            Field::DfCtl => "DF_CTL",
            Field::DeviceHeader => "device_header",
            Field::Opcode => "FCVI_OPCODE",
            Field::Payload => "payload",
            Field::HostAddress => "host address",
            Field::Discriminator => "discriminator",
            Field::Reliability => "reliability",
            Field::ElsCommand => "ELS command",
            Field::FipVersion => "FIP version",
            Field::FipLength => "FIP descriptor list",
            Field::FipOperation => "FIP operation",
            Field::FipDescriptor => "FIP descriptor",
        })
    }
}

/// The reason that a field could not be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// Bytes are missing.
    TooShort,
    /// There are too many bytes.
    TooLong,
    /// The length is not a multiple of 4.
    NotMultipleOf4,
    /// An unknown value, or one that is not supported here.
    Unknown,
    /// It is inconsistent with another field.
    Mismatch,
    /// A reserved combination.
    Reserved,
    /// The CRC of the frame is wrong.
    BadCrc,
    /// Invalid syntax of a text.
    BadSyntax,
    /// It is required and missing.
    Missing,
    /// It is repeated.
    Repeated,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::TooShort => "is too short",
            Reason::TooLong => "is too long",
            Reason::NotMultipleOf4 => "is not a multiple of 4 bytes",
            Reason::Unknown => "is unknown",
            Reason::Mismatch => "is inconsistent with the rest of the frame",
            Reason::Reserved => "is reserved",
            Reason::BadCrc => "is wrong",
            Reason::BadSyntax => "has invalid syntax",
            Reason::Missing => "is missing",
            Reason::Repeated => "is repeated",
        })
    }
}

/// Error of parsing bytes or text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ParseError {
    /// The first field that is wrong.
    pub field: Field,
    /// The reason.
    pub reason: Reason,
}

impl ParseError {
    #[cold]
    pub(crate) const fn new(field: Field, reason: Reason) -> Self {
        Self { field, reason }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.field, self.reason)
    }
}

impl core::error::Error for ParseError {}

/// Error of emitting a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EmitError {
    /// The buffer is too short.
    BufferTooShort {
        /// Needed bytes.
        needed_bytes: usize,
    },
    /// No frame of this kind has this length.
    FrameLength {
        /// The requested length.
        frame_bytes: usize,
    },
}

impl fmt::Display for EmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EmitError::BufferTooShort { needed_bytes } => {
                write!(
                    f,
                    "the buffer is too short: {needed_bytes} bytes are needed"
                )
            }
            EmitError::FrameLength { frame_bytes } => {
                write!(f, "{frame_bytes} bytes is not a valid frame length")
            }
        }
    }
}

impl core::error::Error for EmitError {}

#[cfg(test)]
mod tests {
    use super::{EmitError, Field, ParseError, Reason};
    use std::string::ToString;

    #[test]
    fn errors_are_displayed_with_field_and_reason() {
        assert_eq!(
            ParseError::new(Field::Crc, Reason::BadCrc).to_string(),
            "FC CRC is wrong"
        );
        assert_eq!(
            EmitError::BufferTooShort { needed_bytes: 84 }.to_string(),
            "the buffer is too short: 84 bytes are needed"
        );
    }

    #[test]
    fn parse_error_has_two_bytes() {
        assert_eq!(size_of::<ParseError>(), 2);
    }
}
