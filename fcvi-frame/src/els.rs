//! Extended link services (ELS): logins and other requests between N_Ports.
//!
//! TYPE 0x01, R_CTL 0x22 for a request and 0x23 for its reply. Every payload
//! begins with the command code in one byte; an accept without parameters is
//! 0x02 and three zeros.
//!
//! | File | Payloads |
//! | --- | --- |
//! | `login` | PLOGI, FLOGI and their accepts: names and service parameters |
//! | `logo` | LOGO |
//! | `process` | PRLI, PRLO and their accepts: one page per protocol |
//! | `adisc` | ADISC and its accept |
//! | `timeout` | the accept of RTV |
//! | `rrq` | RRQ |
//! | `farp` | FARP-REQ and FARP-REPLY |
//! | `reject` | LS_RJT |

mod adisc;
mod farp;
mod login;
mod logo;
mod process;
mod reject;
mod rrq;
#[cfg(test)]
mod tests;
mod timeout;

pub use adisc::Adisc;
pub use farp::{Farp, FarpAction, FarpMatch};
pub use login::{Class3Parameters, Login, LoginFeatures};
pub use logo::Logo;
pub use process::{PageFlags, Pages, ProcessLogin, ResponseCode, ServiceParameterPage};
pub use reject::{LsRjt, RejectExplanation, RejectReason};
pub use rrq::Rrq;
pub use timeout::RtvAccept;

use crate::error::{Field, ParseError, Reason};

/// Length of the longest supported payload, a login.
pub const MAX_PAYLOAD_BYTES: usize = Login::BYTES;

/// The accept without parameters.
pub const ACCEPT: [u8; 4] = [ElsCommand::LsAcc.raw(), 0, 0, 0];

/// RTV, read timeout values, which has no parameters.
pub const READ_TIMEOUT_VALUES: [u8; 4] = [ElsCommand::Rtv.raw(), 0, 0, 0];

/// The first byte of an ELS payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElsCommand {
    /// Reject.
    LsRjt,
    /// Accept.
    LsAcc,
    /// Port login.
    Plogi,
    /// Fabric login; between VN_Ports, the first login.
    Flogi,
    /// Logout.
    Logo,
    /// Read timeout values.
    Rtv,
    /// Reinstate recovery qualifier.
    Rrq,
    /// Process login.
    Prli,
    /// Process logout.
    Prlo,
    /// Discover address.
    Adisc,
    /// Address resolution, request.
    FarpRequest,
    /// Address resolution, reply.
    FarpReply,
    /// Any other code. Never one of the codes above if it was parsed.
    Unknown(u8),
}

impl ElsCommand {
    /// Converts a code on the wire.
    #[must_use]
    pub const fn from_raw(raw: u8) -> Self {
        match raw {
            0x01 => Self::LsRjt,
            0x02 => Self::LsAcc,
            0x03 => Self::Plogi,
            0x04 => Self::Flogi,
            0x05 => Self::Logo,
            0x0E => Self::Rtv,
            0x12 => Self::Rrq,
            0x20 => Self::Prli,
            0x21 => Self::Prlo,
            0x52 => Self::Adisc,
            0x54 => Self::FarpRequest,
            0x55 => Self::FarpReply,
            other => Self::Unknown(other),
        }
    }

    /// Returns the code on the wire.
    #[must_use]
    pub const fn raw(self) -> u8 {
        match self {
            Self::LsRjt => 0x01,
            Self::LsAcc => 0x02,
            Self::Plogi => 0x03,
            Self::Flogi => 0x04,
            Self::Logo => 0x05,
            Self::Rtv => 0x0E,
            Self::Rrq => 0x12,
            Self::Prli => 0x20,
            Self::Prlo => 0x21,
            Self::Adisc => 0x52,
            Self::FarpRequest => 0x54,
            Self::FarpReply => 0x55,
            Self::Unknown(other) => other,
        }
    }

    /// Reads the command of an ELS payload.
    ///
    /// # Errors
    /// `ElsPayload` `TooShort`.
    pub fn parse(payload: &[u8]) -> Result<Self, ParseError> {
        match payload {
            [command, _, _, _, ..] => Ok(Self::from_raw(*command)),
            _ => Err(ParseError::new(Field::Payload, Reason::TooShort)),
        }
    }
}

/// Returns the payload as an array if it is of this command and has exactly this length.
fn exactly<const N: usize>(payload: &[u8], command: ElsCommand) -> Result<&[u8; N], ParseError> {
    if ElsCommand::parse(payload)? != command {
        return Err(ParseError::new(Field::ElsCommand, Reason::Mismatch));
    }
    match payload.split_first_chunk() {
        Some((bytes, [])) => Ok(bytes),
        Some(_) => Err(ParseError::new(Field::Payload, Reason::TooLong)),
        None => Err(ParseError::new(Field::Payload, Reason::TooShort)),
    }
}
