//! RRQ, reinstate recovery qualifier: 12 bytes.
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 1 | 0x12 |
//! | 1 | 4 | reserved |
//! | 5 | 3 | S_ID of the exchange's originator |
//! | 8 | 2 | OX_ID |
//! | 10 | 2 | RX_ID |
//!
//! Its accept is the command alone.

use super::{ElsCommand, exactly};
use crate::error::ParseError;
use crate::fc::NPortId;
use vi_types::fields::{Reader, Writer, tiles};

const COMMAND: usize = 0;
const RESERVED: usize = 1;
const S_ID: usize = 5;
const OX_ID: usize = 8;
const RX_ID: usize = 10;

const _: () = assert!(tiles(
    &[
        (COMMAND, 1),
        (RESERVED, 4),
        (S_ID, 3),
        (OX_ID, 2),
        (RX_ID, 2),
    ],
    Rrq::BYTES
));

/// Reinstate recovery qualifier: the identifiers of an aborted exchange may be reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rrq {
    /// N_Port_ID of the port that originated the exchange.
    pub s_id: NPortId,
    /// The originator's identifier of the exchange.
    pub ox_id: u16,
    /// The responder's identifier of the exchange.
    pub rx_id: u16,
}

impl Rrq {
    /// Bytes on the wire.
    pub const BYTES: usize = 12;

    /// Reads a request.
    ///
    /// # Errors
    /// `ElsPayload` `TooShort` or `TooLong`; `ElsCommand` `Mismatch`.
    pub fn parse(payload: &[u8]) -> Result<Self, ParseError> {
        let bytes = Reader(exactly::<{ Self::BYTES }>(payload, ElsCommand::Rrq)?);
        Ok(Self {
            s_id: NPortId::from_bytes(bytes.array::<S_ID, 3>()),
            ox_id: bytes.u16::<OX_ID>(),
            rx_id: bytes.u16::<RX_ID>(),
        })
    }

    /// Writes a request.
    pub fn emit(&self, out: &mut [u8; 12]) {
        let mut out = Writer(out);
        out.u8::<COMMAND>(ElsCommand::Rrq.raw());
        out.u32::<RESERVED>(0);
        out.array::<S_ID, 3>(self.s_id.to_bytes());
        out.u16::<OX_ID>(self.ox_id);
        out.u16::<RX_ID>(self.rx_id);
    }
}
