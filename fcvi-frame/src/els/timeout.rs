//! The accept of RTV, read timeout values: 16 bytes.
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 1 | 0x02 |
//! | 1 | 3 | reserved |
//! | 4 | 4 | R_A_TOV in milliseconds |
//! | 8 | 4 | E_D_TOV |
//! | 12 | 4 | qualifier: bit 26 if E_D_TOV is in nanoseconds, else it is in milliseconds |

use super::{ElsCommand, exactly};
use crate::error::ParseError;
use vi_types::fields::{Reader, Writer, tiles};

const COMMAND: usize = 0;
const RESERVED: usize = 1;
const R_A_TOV: usize = 4;
const E_D_TOV: usize = 8;
const QUALIFIER: usize = 12;

const _: () = assert!(tiles(
    &[
        (COMMAND, 1),
        (RESERVED, 3),
        (R_A_TOV, 4),
        (E_D_TOV, 4),
        (QUALIFIER, 4),
    ],
    RtvAccept::BYTES
));

/// Timeout values of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RtvAccept {
    /// R_A_TOV in milliseconds.
    pub r_a_tov_ms: u32,
    /// E_D_TOV, in milliseconds unless [`RtvAccept::E_D_TOV_NS`] is set in the qualifier.
    pub e_d_tov: u32,
    /// See [`RtvAccept::E_D_TOV_NS`].
    pub qualifier: u32,
}

impl RtvAccept {
    /// Bytes on the wire.
    pub const BYTES: usize = 16;
    /// Qualifier: E_D_TOV is in nanoseconds.
    pub const E_D_TOV_NS: u32 = 1 << 26;

    /// Reads an accept.
    ///
    /// # Errors
    /// `ElsPayload` `TooShort` or `TooLong`; `ElsCommand` `Mismatch`.
    pub fn parse(payload: &[u8]) -> Result<Self, ParseError> {
        let bytes = Reader(exactly::<{ Self::BYTES }>(payload, ElsCommand::LsAcc)?);
        Ok(Self {
            r_a_tov_ms: bytes.u32::<R_A_TOV>(),
            e_d_tov: bytes.u32::<E_D_TOV>(),
            qualifier: bytes.u32::<QUALIFIER>(),
        })
    }

    /// Writes an accept.
    pub fn emit(&self, out: &mut [u8; 16]) {
        let mut out = Writer(out);
        out.u8::<COMMAND>(ElsCommand::LsAcc.raw());
        out.u24::<RESERVED>(0);
        out.u32::<R_A_TOV>(self.r_a_tov_ms);
        out.u32::<E_D_TOV>(self.e_d_tov);
        out.u32::<QUALIFIER>(self.qualifier);
    }
}
