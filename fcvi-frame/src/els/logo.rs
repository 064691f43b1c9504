//! LOGO, logout: 16 bytes.
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 1 | 0x05 |
//! | 1 | 4 | reserved |
//! | 5 | 3 | N_Port_ID |
//! | 8 | 8 | port name |
//!
//! Its accept is the command alone.

use super::{ElsCommand, exactly};
use crate::error::ParseError;
use crate::fc::NPortId;
use vi_types::fields::{Reader, Writer, tiles};

const COMMAND: usize = 0;
const RESERVED: usize = 1;
const N_PORT_ID: usize = 5;
const PORT_NAME: usize = 8;

const _: () = assert!(tiles(
    &[(COMMAND, 1), (RESERVED, 4), (N_PORT_ID, 3), (PORT_NAME, 8)],
    Logo::BYTES
));

/// Logout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Logo {
    /// N_Port_ID of the port that logs out.
    pub n_port_id: NPortId,
    /// Its Port_Name.
    pub port_name: u64,
}

impl Logo {
    /// Bytes on the wire.
    pub const BYTES: usize = 16;

    /// Reads a request.
    ///
    /// # Errors
    /// `ElsPayload` `TooShort` or `TooLong`; `ElsCommand` `Mismatch`.
    pub fn parse(payload: &[u8]) -> Result<Self, ParseError> {
        let bytes = Reader(exactly::<{ Self::BYTES }>(payload, ElsCommand::Logo)?);
        Ok(Self {
            n_port_id: NPortId::from_bytes(bytes.array::<N_PORT_ID, 3>()),
            port_name: bytes.u64::<PORT_NAME>(),
        })
    }

    /// Writes a request.
    pub fn emit(&self, out: &mut [u8; 16]) {
        let mut out = Writer(out);
        out.u8::<COMMAND>(ElsCommand::Logo.raw());
        out.u32::<RESERVED>(0);
        out.array::<N_PORT_ID, 3>(self.n_port_id.to_bytes());
        out.u64::<PORT_NAME>(self.port_name);
    }
}
