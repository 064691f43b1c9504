//! What can be wrong with bytes that came in, and with a place to write to.

use core::fmt;

/// The part of a frame or text that could not be taken.
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
    /// The payload of a connect IU.
    ConnectPayload,
    /// The host part of an FCVI_NET_ADDRESS.
    HostAddress,
    /// The discriminator of an FCVI_NET_ADDRESS.
    Discriminator,
    /// The reliability bits of FCVI_ATTRIBUTES.
    Reliability,
    /// The payload of a gap report.
    MissingRanges,
    /// The payload of an extended link service.
    ElsPayload,
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
    /// The payload of a basic link service.
    BlsPayload,
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
            Field::ConnectPayload => "connect payload",
            Field::HostAddress => "host address",
            Field::Discriminator => "discriminator",
            Field::Reliability => "reliability",
            Field::MissingRanges => "missing ranges",
            Field::ElsPayload => "ELS payload",
            Field::ElsCommand => "ELS command",
            Field::FipVersion => "FIP version",
            Field::FipLength => "FIP descriptor list",
            Field::FipOperation => "FIP operation",
            Field::FipDescriptor => "FIP descriptor",
            Field::BlsPayload => "BLS payload",
        })
    }
}

/// Why it could not be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// Bytes are missing.
    TooShort,
    /// There are more bytes than may be.
    TooLong,
    /// The length is not a multiple of 4.
    NotMultipleOf4,
    /// A value that has no meaning, or none here.
    Unknown,
    /// It does not agree with another field.
    Mismatch,
    /// A combination that is set aside.
    Reserved,
    /// The check sum of the frame is another one.
    BadCrc,
    /// Text that is not of this form.
    BadSyntax,
    /// It must be there and is not.
    Missing,
    /// It is there twice.
    Repeated,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::TooShort => "is too short",
            Reason::TooLong => "is too long",
            Reason::NotMultipleOf4 => "is not a multiple of 4 bytes",
            Reason::Unknown => "is not known",
            Reason::Mismatch => "does not agree with the rest of the frame",
            Reason::Reserved => "is reserved",
            Reason::BadCrc => "is wrong",
            Reason::BadSyntax => "is not written correctly",
            Reason::Missing => "is missing",
            Reason::Repeated => "is repeated",
        })
    }
}

/// Bytes that are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ParseError {
    /// The first part that is wrong.
    pub field: Field,
    /// What is wrong with it.
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

/// Why a value was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EmitError {
    /// The buffer has fewer bytes than are needed.
    BufferTooShort {
        /// How many are needed.
        needed_bytes: usize,
    },
    /// No frame of this kind has this length.
    FrameLength {
        /// The length that was asked for.
        frame_bytes: usize,
    },
}

impl fmt::Display for EmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EmitError::BufferTooShort { needed_bytes } => {
                write!(
                    f,
                    "the buffer is too short, {needed_bytes} bytes are needed"
                )
            }
            EmitError::FrameLength { frame_bytes } => {
                write!(f, "no frame of this kind has {frame_bytes} bytes")
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
    fn errors_read_as_sentences() {
        assert_eq!(
            ParseError::new(Field::Crc, Reason::BadCrc).to_string(),
            "FC CRC is wrong"
        );
        assert_eq!(
            EmitError::BufferTooShort { needed_bytes: 84 }.to_string(),
            "the buffer is too short, 84 bytes are needed"
        );
    }

    #[test]
    fn a_parse_error_is_two_bytes() {
        assert_eq!(size_of::<ParseError>(), 2);
    }
}
