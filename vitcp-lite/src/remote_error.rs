//! Remote Error Code, the last two bytes of the segment header [VI/TCP 3.1].
//!
//! | Bits | Field |
//! | --- | --- |
//! | 15 to 8 | VI Error Type |
//! | 7 to 0 | IS Error Code; all values are ours |
//!
//! On an established connection both describe the message that Message ACK names.

use core::fmt;

use crate::profile;

/// VI Error Type: the error of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ViErrorType {
    /// No Error.
    #[default]
    None,
    /// RDMA Memory Protection Error.
    RdmaProtection,
    /// VI Descriptor Error.
    Descriptor,
    /// A number that the draft does not define.
    Unknown(u8),
}

impl ViErrorType {
    /// Decodes a number.
    #[inline]
    #[must_use]
    pub const fn from_wire(raw: u8) -> Self {
        match raw {
            profile::VI_ERROR_NONE => Self::None,
            profile::VI_ERROR_RDMA_PROTECTION => Self::RdmaProtection,
            profile::VI_ERROR_DESCRIPTOR => Self::Descriptor,
            unknown => Self::Unknown(unknown),
        }
    }

    /// Returns the number.
    #[inline]
    #[must_use]
    pub const fn to_wire(self) -> u8 {
        match self {
            Self::None => profile::VI_ERROR_NONE,
            Self::RdmaProtection => profile::VI_ERROR_RDMA_PROTECTION,
            Self::Descriptor => profile::VI_ERROR_DESCRIPTOR,
            Self::Unknown(raw) => raw,
        }
    }
}

impl fmt::Display for ViErrorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "no error",
            Self::RdmaProtection => "RDMA memory protection error",
            Self::Descriptor => "VI descriptor error",
            Self::Unknown(raw) => return write!(f, "VI error {raw}"),
        })
    }
}

/// IS Error Code: implementation specific; the values are ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum IsCode {
    /// No error.
    #[default]
    None,
    /// The message had the Transmit Error flag.
    Transport,
    /// Connect Reject: the consumer rejected the request.
    Rejected,
    /// Connect Reject: the reliability levels differ.
    ReliabilityLevel,
    /// Connect Reject: the maximum transfer sizes differ.
    MaxTransferSize,
    /// Connect Reject: no resources.
    NoResources,
    /// Connect Reject: the security information is not accepted.
    Security,
    /// Connect Reject with a CE header: a challenge; the TCP connection stays open.
    Challenge,
    /// Another number: a code of another implementation.
    Unknown(u8),
}

impl IsCode {
    /// Decodes a number.
    #[inline]
    #[must_use]
    pub const fn from_wire(raw: u8) -> Self {
        match raw {
            profile::IS_NONE => Self::None,
            profile::IS_TRANSPORT => Self::Transport,
            profile::IS_REJECTED => Self::Rejected,
            profile::IS_RELIABILITY_LEVEL => Self::ReliabilityLevel,
            profile::IS_MAX_TRANSFER_SIZE => Self::MaxTransferSize,
            profile::IS_NO_RESOURCES => Self::NoResources,
            profile::IS_SECURITY => Self::Security,
            profile::IS_CHALLENGE => Self::Challenge,
            unknown => Self::Unknown(unknown),
        }
    }

    /// Returns the number.
    #[inline]
    #[must_use]
    pub const fn to_wire(self) -> u8 {
        match self {
            Self::None => profile::IS_NONE,
            Self::Transport => profile::IS_TRANSPORT,
            Self::Rejected => profile::IS_REJECTED,
            Self::ReliabilityLevel => profile::IS_RELIABILITY_LEVEL,
            Self::MaxTransferSize => profile::IS_MAX_TRANSFER_SIZE,
            Self::NoResources => profile::IS_NO_RESOURCES,
            Self::Security => profile::IS_SECURITY,
            Self::Challenge => profile::IS_CHALLENGE,
            Self::Unknown(raw) => raw,
        }
    }
}

impl fmt::Display for IsCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Transport => "transport error",
            Self::Rejected => "rejected by the consumer",
            Self::ReliabilityLevel => "reliability levels differ",
            Self::MaxTransferSize => "maximum transfer sizes differ",
            Self::NoResources => "no resources",
            Self::Security => "security information not accepted",
            Self::Challenge => "challenge",
            Self::Unknown(raw) => return write!(f, "code {raw}"),
        })
    }
}

/// Remote Error Code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RemoteError {
    /// The error of the message.
    pub vi_error: ViErrorType,
    /// Details, or the reason why a connection is refused.
    pub is_code: IsCode,
}

impl RemoteError {
    /// No error.
    pub const NONE: RemoteError = RemoteError {
        vi_error: ViErrorType::None,
        is_code: IsCode::None,
    };

    /// Decodes 16 bits.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        let [vi_error, is_code] = bits.to_be_bytes();
        Self {
            vi_error: ViErrorType::from_wire(vi_error),
            is_code: IsCode::from_wire(is_code),
        }
    }

    /// Returns the 16 bits.
    #[inline]
    #[must_use]
    pub const fn to_bits(self) -> u16 {
        u16::from_be_bytes([self.vi_error.to_wire(), self.is_code.to_wire()])
    }
}

impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.vi_error, self.is_code)
    }
}

#[cfg(test)]
mod tests {
    use super::{IsCode, RemoteError, ViErrorType};
    use std::string::ToString;

    #[test]
    fn every_code_round_trips() {
        for bits in 0..=u16::MAX {
            assert_eq!(RemoteError::from_bits(bits).to_bits(), bits);
        }
        assert_eq!(RemoteError::from_bits(0), RemoteError::NONE);
        assert_eq!(RemoteError::default(), RemoteError::NONE);
    }

    #[test]
    fn numbers_match_the_table() {
        let codes = [0, 1, 16, 17, 18, 19, 20, 21].map(IsCode::from_wire);
        let expected = [
            IsCode::None,
            IsCode::Transport,
            IsCode::Rejected,
            IsCode::ReliabilityLevel,
            IsCode::MaxTransferSize,
            IsCode::NoResources,
            IsCode::Security,
            IsCode::Challenge,
        ];
        assert_eq!(codes, expected);
        let vi_errors = [0, 1, 2, 3].map(ViErrorType::from_wire);
        let expected = [
            ViErrorType::None,
            ViErrorType::RdmaProtection,
            ViErrorType::Descriptor,
            ViErrorType::Unknown(3),
        ];
        assert_eq!(vi_errors, expected);
    }

    #[test]
    fn vi_error_is_the_upper_byte() {
        let error = RemoteError::from_bits(0x0211);
        assert_eq!(error.vi_error, ViErrorType::Descriptor);
        assert_eq!(error.is_code, IsCode::ReliabilityLevel);
        assert_eq!(
            error.to_string(),
            "VI descriptor error (reliability levels differ)"
        );
        assert_eq!(
            RemoteError::from_bits(0xFFFE).to_string(),
            "VI error 255 (code 254)"
        );
    }
}
