//! ADISC, discover address, and its accept: 28 bytes.
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 1 | 0x52, or 0x02 in the accept |
//! | 1 | 4 | reserved |
//! | 5 | 3 | hard address |
//! | 8 | 8 | port name |
//! | 16 | 8 | node name |
//! | 24 | 1 | reserved |
//! | 25 | 3 | N_Port_ID |

use super::{ElsCommand, exactly};
use crate::error::ParseError;
use crate::fc::NPortId;
use vi_types::fields::{Reader, Writer, tiles};

const COMMAND: usize = 0;
const RESERVED: usize = 1;
const HARD_ADDRESS: usize = 5;
const PORT_NAME: usize = 8;
const NODE_NAME: usize = 16;
const RESERVED_2: usize = 24;
const N_PORT_ID: usize = 25;

const _: () = assert!(tiles(
    &[
        (COMMAND, 1),
        (RESERVED, 4),
        (HARD_ADDRESS, 3),
        (PORT_NAME, 8),
        (NODE_NAME, 8),
        (RESERVED_2, 1),
        (N_PORT_ID, 3),
    ],
    Adisc::BYTES
));

/// Discover address: verifies that an N_Port_ID still belongs to the same port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Adisc {
    /// Hard-wired address of the port, or 0.
    pub hard_address: NPortId,
    /// Port_Name of the sender.
    pub port_name: u64,
    /// Node_Name of the sender.
    pub node_name: u64,
    /// N_Port_ID of the sender.
    pub n_port_id: NPortId,
}

impl Adisc {
    /// Bytes on the wire, of the request and of its accept.
    pub const BYTES: usize = 28;

    /// Reads a request.
    ///
    /// # Errors
    /// `ElsPayload` `TooShort` or `TooLong`; `ElsCommand` `Mismatch`.
    pub fn parse_request(payload: &[u8]) -> Result<Self, ParseError> {
        exactly(payload, ElsCommand::Adisc).map(Self::read)
    }

    /// Reads the accept of a request. It does not contain the request's command:
    /// that is known from the exchange.
    ///
    /// # Errors
    /// `ElsPayload` `TooShort` or `TooLong`; `ElsCommand` `Mismatch`.
    pub fn parse_accept(payload: &[u8]) -> Result<Self, ParseError> {
        exactly(payload, ElsCommand::LsAcc).map(Self::read)
    }

    /// Writes a request.
    pub fn emit_request(&self, out: &mut [u8; 28]) {
        self.write(ElsCommand::Adisc, out);
    }

    /// Writes the accept of a request.
    pub fn emit_accept(&self, out: &mut [u8; 28]) {
        self.write(ElsCommand::LsAcc, out);
    }

    fn read(bytes: &[u8; 28]) -> Self {
        let bytes = Reader(bytes);
        Self {
            hard_address: NPortId::from_bytes(bytes.array::<HARD_ADDRESS, 3>()),
            port_name: bytes.u64::<PORT_NAME>(),
            node_name: bytes.u64::<NODE_NAME>(),
            n_port_id: NPortId::from_bytes(bytes.array::<N_PORT_ID, 3>()),
        }
    }

    fn write(&self, command: ElsCommand, out: &mut [u8; 28]) {
        let mut out = Writer(out);
        out.u8::<COMMAND>(command.raw());
        out.u32::<RESERVED>(0);
        out.array::<HARD_ADDRESS, 3>(self.hard_address.to_bytes());
        out.u64::<PORT_NAME>(self.port_name);
        out.u64::<NODE_NAME>(self.node_name);
        out.u8::<RESERVED_2>(0);
        out.array::<N_PORT_ID, 3>(self.n_port_id.to_bytes());
    }
}
