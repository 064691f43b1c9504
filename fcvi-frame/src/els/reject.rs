//! LS_RJT, rejection of a request: 8 bytes.
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 1 | 0x01 |
//! | 1 | 4 | reserved |
//! | 5 | 1 | reason |
//! | 6 | 1 | explanation |
//! | 7 | 1 | vendor specific |

use core::fmt;

use super::{ElsCommand, exactly};
use crate::error::ParseError;
use vi_types::fields::{Reader, Writer, tiles};

const COMMAND: usize = 0;
const RESERVED: usize = 1;
const REASON: usize = 5;
const EXPLANATION: usize = 6;
const VENDOR: usize = 7;

const _: () = assert!(tiles(
    &[
        (COMMAND, 1),
        (RESERVED, 4),
        (REASON, 1),
        (EXPLANATION, 1),
        (VENDOR, 1)
    ],
    LsRjt::BYTES
));

/// Reason code of LS_RJT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectReason {
    /// The command code is invalid.
    InvalidCommand,
    /// The request is invalid in the current state.
    LogicalError,
    /// Logically busy: cannot be processed now.
    LogicalBusy,
    /// The request breaks a rule of the protocol.
    ProtocolError,
    /// The request cannot be carried out.
    UnableToPerform,
    /// The command is not supported.
    NotSupported,
    /// The same command is already in progress.
    InProgress,
    /// FIP: the sender is unknown.
    FipError,
    /// Vendor specific.
    VendorUnique,
    /// Any other code. Never one of the codes above if it was parsed.
    Unknown(u8),
}

impl RejectReason {
    /// Converts a code on the wire.
    #[must_use]
    pub const fn from_raw(raw: u8) -> Self {
        match raw {
            0x01 => Self::InvalidCommand,
            0x03 => Self::LogicalError,
            0x05 => Self::LogicalBusy,
            0x07 => Self::ProtocolError,
            0x09 => Self::UnableToPerform,
            0x0B => Self::NotSupported,
            0x0E => Self::InProgress,
            0x20 => Self::FipError,
            0xFF => Self::VendorUnique,
            other => Self::Unknown(other),
        }
    }

    /// Returns the code on the wire.
    #[must_use]
    pub const fn raw(self) -> u8 {
        match self {
            Self::InvalidCommand => 0x01,
            Self::LogicalError => 0x03,
            Self::LogicalBusy => 0x05,
            Self::ProtocolError => 0x07,
            Self::UnableToPerform => 0x09,
            Self::NotSupported => 0x0B,
            Self::InProgress => 0x0E,
            Self::FipError => 0x20,
            Self::VendorUnique => 0xFF,
            Self::Unknown(other) => other,
        }
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InvalidCommand => "invalid command",
            Self::LogicalError => "logical error",
            Self::LogicalBusy => "busy",
            Self::ProtocolError => "protocol error",
            Self::UnableToPerform => "unable to perform",
            Self::NotSupported => "not supported",
            Self::InProgress => "already in progress",
            Self::FipError => "FIP error",
            Self::VendorUnique => "vendor unique",
            Self::Unknown(code) => return write!(f, "reason {code:#04x}"),
        })
    }
}

/// Explanation code of LS_RJT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectExplanation {
    /// No explanation.
    None,
    /// Service parameters: the options, class 3 among them.
    Options,
    /// Service parameters: the receive data field size.
    ReceiveSize,
    /// Invalid port name.
    InvalidPortName,
    /// Service parameters that all classes share.
    CommonParameters,
    /// The S_ID of the exchange is not the sender's or ours.
    InvalidSId,
    /// No exchange has these identifiers.
    InvalidExchange,
    /// The command is already in progress.
    InProgress,
    /// The sender must be logged in.
    LoginRequired,
    /// The N_Port_ID is not the sender's.
    InvalidNPortId,
    /// No resources for another login.
    NoResources,
    /// The data cannot be supplied.
    NoData,
    /// The request is not supported.
    NotSupported,
    /// The payload has an invalid length.
    InvalidLength,
    /// The sender is not in the neighbour set.
    NotNeighbour,
    /// Any other code. Never one of the codes above if it was parsed.
    Unknown(u8),
}

impl RejectExplanation {
    /// Converts a code on the wire.
    #[must_use]
    pub const fn from_raw(raw: u8) -> Self {
        match raw {
            0x00 => Self::None,
            0x01 => Self::Options,
            0x07 => Self::ReceiveSize,
            0x0D => Self::InvalidPortName,
            0x0F => Self::CommonParameters,
            0x15 => Self::InvalidSId,
            0x17 => Self::InvalidExchange,
            0x19 => Self::InProgress,
            0x1E => Self::LoginRequired,
            0x1F => Self::InvalidNPortId,
            0x29 => Self::NoResources,
            0x2A => Self::NoData,
            0x2C => Self::NotSupported,
            0x2D => Self::InvalidLength,
            0x62 => Self::NotNeighbour,
            other => Self::Unknown(other),
        }
    }

    /// Returns the code on the wire.
    #[must_use]
    pub const fn raw(self) -> u8 {
        match self {
            Self::None => 0x00,
            Self::Options => 0x01,
            Self::ReceiveSize => 0x07,
            Self::InvalidPortName => 0x0D,
            Self::CommonParameters => 0x0F,
            Self::InvalidSId => 0x15,
            Self::InvalidExchange => 0x17,
            Self::InProgress => 0x19,
            Self::LoginRequired => 0x1E,
            Self::InvalidNPortId => 0x1F,
            Self::NoResources => 0x29,
            Self::NoData => 0x2A,
            Self::NotSupported => 0x2C,
            Self::InvalidLength => 0x2D,
            Self::NotNeighbour => 0x62,
            Self::Unknown(other) => other,
        }
    }
}

impl fmt::Display for RejectExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "no explanation",
            Self::Options => "service options",
            Self::ReceiveSize => "receive data field size",
            Self::InvalidPortName => "invalid port name",
            Self::CommonParameters => "common service parameters",
            Self::InvalidSId => "invalid S_ID",
            Self::InvalidExchange => "invalid OX_ID or RX_ID",
            Self::InProgress => "already in progress",
            Self::LoginRequired => "login required",
            Self::InvalidNPortId => "invalid N_Port_ID",
            Self::NoResources => "no resources",
            Self::NoData => "no data",
            Self::NotSupported => "not supported",
            Self::InvalidLength => "invalid length",
            Self::NotNeighbour => "not a neighbour",
            Self::Unknown(code) => return write!(f, "explanation {code:#04x}"),
        })
    }
}

/// LS_RJT: rejection of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LsRjt {
    /// The reason.
    pub reason: RejectReason,
    /// The explanation.
    pub explanation: RejectExplanation,
}

impl LsRjt {
    /// Bytes on the wire.
    pub const BYTES: usize = 8;

    /// Reads a reject.
    ///
    /// # Errors
    /// `ElsPayload` `TooShort` or `TooLong`; `ElsCommand` `Mismatch`.
    pub fn parse(payload: &[u8]) -> Result<Self, ParseError> {
        let bytes = Reader(exactly::<{ Self::BYTES }>(payload, ElsCommand::LsRjt)?);
        Ok(Self {
            reason: RejectReason::from_raw(bytes.u8::<REASON>()),
            explanation: RejectExplanation::from_raw(bytes.u8::<EXPLANATION>()),
        })
    }

    /// Writes a reject.
    pub fn emit(&self, out: &mut [u8; 8]) {
        let mut out = Writer(out);
        out.u8::<COMMAND>(ElsCommand::LsRjt.raw());
        out.u32::<RESERVED>(0);
        out.u8::<REASON>(self.reason.raw());
        out.u8::<EXPLANATION>(self.explanation.raw());
        out.u8::<VENDOR>(0);
    }
}

/// `reason (explanation)`.
impl fmt::Display for LsRjt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.reason, self.explanation)
    }
}
