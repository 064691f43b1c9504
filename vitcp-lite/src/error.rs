//! Errors of malformed segments.

use core::fmt;

use crate::segment_type::SegmentType;

/// The error of a malformed segment. Segment boundaries after it are unknown: the caller closes
/// the TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SegmentError {
    /// Unsupported Version: its value.
    Version(u8),
    /// Undefined Type: its number.
    Type(u8),
    /// Segment Length is impossible for the type.
    Length {
        /// The type.
        kind: SegmentType,
        /// Segment Length, in bytes.
        segment_bytes: u16,
    },
    /// The CE header is truncated.
    CeHeader {
        /// Bytes present.
        bytes: u16,
    },
    /// Calling Discriminator Length is more than 16 bytes.
    CallingDiscriminator {
        /// The length.
        bytes: u16,
    },
    /// Called Discriminator Length is more than 16 bytes.
    CalledDiscriminator {
        /// The length.
        bytes: u16,
    },
    /// Security Information has more than 256 bytes.
    Security {
        /// Its length, at most 65535.
        bytes: u16,
    },
}

impl SegmentError {
    /// Counter names, in the order of the variants.
    pub const NAMES: [&'static str; 7] = [
        "version",
        "type",
        "length",
        "ce_header",
        "calling_discriminator",
        "called_discriminator",
        "security",
    ];

    /// Returns the counter name: that of the invalid field.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Version(_) => "version",
            Self::Type(_) => "type",
            Self::Length { .. } => "length",
            Self::CeHeader { .. } => "ce_header",
            Self::CallingDiscriminator { .. } => "calling_discriminator",
            Self::CalledDiscriminator { .. } => "called_discriminator",
            Self::Security { .. } => "security",
        }
    }
}

impl fmt::Display for SegmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => write!(f, "version {version} is not known"),
            Self::Type(raw) => write!(f, "type {raw} is not known"),
            Self::Length {
                kind,
                segment_bytes,
            } => write!(f, "no {kind} segment has {segment_bytes} bytes"),
            Self::CeHeader { bytes } => write!(f, "a CE header of {bytes} bytes is too short"),
            Self::CallingDiscriminator { bytes } => {
                write!(f, "a calling discriminator of {bytes} bytes is too long")
            }
            Self::CalledDiscriminator { bytes } => {
                write!(f, "a called discriminator of {bytes} bytes is too long")
            }
            Self::Security { bytes } => {
                write!(f, "security information of {bytes} bytes is too long")
            }
        }
    }
}

impl core::error::Error for SegmentError {}

#[cfg(test)]
mod tests {
    use super::SegmentError;
    use crate::segment_type::SegmentType;
    use std::string::ToString;

    #[test]
    fn error_display_texts() {
        let kind = SegmentType::ConnectReject;
        let errors = [
            SegmentError::Version(2),
            SegmentError::Type(9),
            SegmentError::Length {
                kind,
                segment_bytes: 30,
            },
            SegmentError::CeHeader { bytes: 43 },
            SegmentError::CallingDiscriminator { bytes: 17 },
            SegmentError::CalledDiscriminator { bytes: 65535 },
            SegmentError::Security { bytes: 257 },
        ];
        let expected = [
            "version 2 is not known",
            "type 9 is not known",
            "no Connect Reject segment has 30 bytes",
            "a CE header of 43 bytes is too short",
            "a calling discriminator of 17 bytes is too long",
            "a called discriminator of 65535 bytes is too long",
            "security information of 257 bytes is too long",
        ];
        assert_eq!(errors.map(|error| error.to_string()), expected);
        assert_eq!(errors.map(SegmentError::name), SegmentError::NAMES);
    }

    #[test]
    fn error_is_four_bytes() {
        assert_eq!(size_of::<SegmentError>(), 4);
    }
}
