//! FARP-REQ and FARP-REPLY, which resolve names or host addresses to N_Ports: 76 bytes.
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 1 | 0x54 FARP-REQ, 0x55 FARP-REPLY |
//! | 1 | 3 | reserved |
//! | 4 | 1 | match code |
//! | 5 | 3 | requester's N_Port_ID |
//! | 8 | 1 | responder flags |
//! | 9 | 3 | responder's N_Port_ID, 0 in a request |
//! | 12 | 8 | requester's port name |
//! | 20 | 8 | requester's node name |
//! | 28 | 8 | responder's port name |
//! | 36 | 8 | responder's node name |
//! | 44 | 16 | requester's host address |
//! | 60 | 16 | responder's host address |
//!
//! Both are requests: a FARP-REPLY opens its own exchange. An IPv4 address is in
//! the last 4 of the 16 bytes, preceded by zeros.

use super::{ElsCommand, exactly};
use crate::error::{Field, ParseError, Reason};
use crate::fc::NPortId;
use vi_types::HostAddress;
use vi_types::fields::{Reader, Writer, tiles};

const COMMAND: usize = 0;
const RESERVED: usize = 1;
const MATCH: usize = 4;
const REQUESTER: usize = 5;
const ACTION: usize = 8;
const RESPONDER: usize = 9;
const REQUESTER_PORT_NAME: usize = 12;
const REQUESTER_NODE_NAME: usize = 20;
const RESPONDER_PORT_NAME: usize = 28;
const RESPONDER_NODE_NAME: usize = 36;
const REQUESTER_HOST: usize = 44;
const RESPONDER_HOST: usize = 60;

const _: () = assert!(tiles(
    &[
        (COMMAND, 1),
        (RESERVED, 3),
        (MATCH, 1),
        (REQUESTER, 3),
        (ACTION, 1),
        (RESPONDER, 3),
        (REQUESTER_PORT_NAME, 8),
        (REQUESTER_NODE_NAME, 8),
        (RESPONDER_PORT_NAME, 8),
        (RESPONDER_NODE_NAME, 8),
        (REQUESTER_HOST, 16),
        (RESPONDER_HOST, 16),
    ],
    Farp::BYTES
));

/// Match code: the responder's fields that must match, all of those whose bit is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FarpMatch(pub u8);

impl FarpMatch {
    /// The port name.
    pub const PORT_NAME: Self = Self(0x01);
    /// The node name.
    pub const NODE_NAME: Self = Self(0x02);
    /// The host address.
    pub const HOST: Self = Self(0x04);

    /// True if every bit of `other` is set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// True if at least one field bit and no other bit is set.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        matches!(self.0, 1..=7)
    }
}

/// Actions that the requester requests of the matching port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FarpAction(pub u8);

impl FarpAction {
    /// Log in with the requester.
    pub const LOGIN: Self = Self(0x01);
    /// Send a FARP-REPLY.
    pub const REPLY: Self = Self(0x02);

    /// True if every bit of `other` is set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Payload of FARP-REQ and FARP-REPLY: the requester and the responder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Farp {
    /// The responder's fields that must match.
    pub match_code: FarpMatch,
    /// Requested actions.
    pub action: FarpAction,
    /// N_Port_ID of the requester.
    pub requester: NPortId,
    /// N_Port_ID of the responder; 0 in a request.
    pub responder: NPortId,
    /// Port_Name of the requester.
    pub requester_port_name: u64,
    /// Node_Name of the requester.
    pub requester_node_name: u64,
    /// Port_Name of the responder, or 0.
    pub responder_port_name: u64,
    /// Node_Name of the responder, or 0.
    pub responder_node_name: u64,
    /// Host address of the requester.
    pub requester_host: HostAddress,
    /// Host address of the responder.
    pub responder_host: HostAddress,
}

impl Farp {
    /// Bytes on the wire, of both.
    pub const BYTES: usize = 76;

    /// Reads a FARP-REQ or a FARP-REPLY, according to `command`.
    ///
    /// # Errors
    /// `ElsPayload` `TooShort` or `TooLong`; `ElsCommand` `Mismatch` if it is another command, or
    /// if `command` is neither.
    pub fn parse(command: ElsCommand, payload: &[u8]) -> Result<Self, ParseError> {
        let (ElsCommand::FarpRequest | ElsCommand::FarpReply) = command else {
            return Err(ParseError::new(Field::ElsCommand, Reason::Mismatch));
        };
        let bytes = Reader(exactly::<{ Self::BYTES }>(payload, command)?);
        Ok(Self {
            match_code: FarpMatch(bytes.u8::<MATCH>()),
            action: FarpAction(bytes.u8::<ACTION>()),
            requester: NPortId::from_bytes(bytes.array::<REQUESTER, 3>()),
            responder: NPortId::from_bytes(bytes.array::<RESPONDER, 3>()),
            requester_port_name: bytes.u64::<REQUESTER_PORT_NAME>(),
            requester_node_name: bytes.u64::<REQUESTER_NODE_NAME>(),
            responder_port_name: bytes.u64::<RESPONDER_PORT_NAME>(),
            responder_node_name: bytes.u64::<RESPONDER_NODE_NAME>(),
            requester_host: host_from_wire(bytes.array::<REQUESTER_HOST, 16>()),
            responder_host: host_from_wire(bytes.array::<RESPONDER_HOST, 16>()),
        })
    }

    /// Writes a FARP-REQ or a FARP-REPLY, according to `command`.
    pub fn emit(&self, command: ElsCommand, out: &mut [u8; 76]) {
        let mut out = Writer(out);
        out.u8::<COMMAND>(command.raw());
        out.u24::<RESERVED>(0);
        out.u8::<MATCH>(self.match_code.0);
        out.array::<REQUESTER, 3>(self.requester.to_bytes());
        out.u8::<ACTION>(self.action.0);
        out.array::<RESPONDER, 3>(self.responder.to_bytes());
        out.u64::<REQUESTER_PORT_NAME>(self.requester_port_name);
        out.u64::<REQUESTER_NODE_NAME>(self.requester_node_name);
        out.u64::<RESPONDER_PORT_NAME>(self.responder_port_name);
        out.u64::<RESPONDER_NODE_NAME>(self.responder_node_name);
        out.array::<REQUESTER_HOST, 16>(host_to_wire(self.requester_host));
        out.array::<RESPONDER_HOST, 16>(host_to_wire(self.responder_host));
    }
}

/// Reads a host address: `::a.b.c.d` is the IPv4 address a.b.c.d, unless a is 0: no host has
/// such an address, and `::` and `::1` are IPv6 addresses.
fn host_from_wire(bytes: [u8; 16]) -> HostAddress {
    match bytes {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d] if a != 0 => {
            HostAddress::from_ipv4([a, b, c, d])
        }
        other => HostAddress(other),
    }
}

fn host_to_wire(host: HostAddress) -> [u8; 16] {
    match host.0 {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, a, b, c, d] if a != 0 => {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d]
        }
        other => other,
    }
}
