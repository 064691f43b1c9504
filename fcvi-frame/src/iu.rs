//! The twelve information units of FC-VI.
//!
//! | IU | Opcode | R_CTL | device_header | Payload |
//! | --- | --- | --- | --- | --- |
//! | FCVI_SEND_RQST | 0x01 | 0x04 | 16 | user data |
//! | FCVI_SEND_RESP | 0x02 | 0x07 | 16 | none |
//! | FCVI_WRITE_RQST | 0x03 | 0x01 | 32 | user data |
//! | FCVI_WRITE_RESP | 0x04 | 0x07 | 16 | none |
//! | FCVI_READ_RQST | 0x05 | 0x06 | 32 | none |
//! | FCVI_READ_RESP | 0x06 | 0x01 | 16 | user data |
//! | FCVI_CONNECT_RQST | 0x11 | 0x02 | 32 | 160 bytes |
//! | FCVI_CONNECT_RESP1 | 0x12 | 0x03 | 32 | 96 bytes |
//! | FCVI_CONNECT_RESP2 | 0x13 | 0x03 | 32 | none |
//! | FCVI_CONNECT_RESP3 | 0x14 | 0x03 | 32 | none |
//! | FCVI_DISCONNECT_RQST | 0x21 | 0x02 | 32 | none |
//! | FCVI_DISCONNECT_RESP | 0x22 | 0x03 | 32 | none |
//!
//! Opcodes and R_CTL are our choice [P-2, P-5]. The opcode determines the other
//! columns, against which a frame is checked.

use core::fmt;

use crate::fc::RCtl;
use crate::profile;

/// The IU of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// A message for the receiver's next receive descriptor.
    SendRequest = profile::OPCODE_SEND_REQUEST,
    /// Status of a send.
    SendResponse = profile::OPCODE_SEND_RESPONSE,
    /// An RDMA write.
    WriteRequest = profile::OPCODE_WRITE_REQUEST,
    /// Status of an RDMA write.
    WriteResponse = profile::OPCODE_WRITE_RESPONSE,
    /// An RDMA read.
    ReadRequest = profile::OPCODE_READ_REQUEST,
    /// Data of an RDMA read, or the reason of its failure.
    ReadResponse = profile::OPCODE_READ_RESPONSE,
    /// Requests a connection.
    ConnectRequest = profile::OPCODE_CONNECT_REQUEST,
    /// Accepts, defers or rejects a connection.
    ConnectResponse1 = profile::OPCODE_CONNECT_RESPONSE1,
    /// The originator is ready.
    ConnectResponse2 = profile::OPCODE_CONNECT_RESPONSE2,
    /// The responder is ready too.
    ConnectResponse3 = profile::OPCODE_CONNECT_RESPONSE3,
    /// Disconnects.
    DisconnectRequest = profile::OPCODE_DISCONNECT_REQUEST,
    /// Confirms a disconnect.
    DisconnectResponse = profile::OPCODE_DISCONNECT_RESPONSE,
}

impl Opcode {
    /// All opcodes, in the order of the table.
    pub const ALL: [Opcode; 12] = [
        Opcode::SendRequest,
        Opcode::SendResponse,
        Opcode::WriteRequest,
        Opcode::WriteResponse,
        Opcode::ReadRequest,
        Opcode::ReadResponse,
        Opcode::ConnectRequest,
        Opcode::ConnectResponse1,
        Opcode::ConnectResponse2,
        Opcode::ConnectResponse3,
        Opcode::DisconnectRequest,
        Opcode::DisconnectResponse,
    ];

    /// Converts FCVI_OPCODE; `None` if it is unknown.
    #[inline]
    #[must_use]
    pub const fn from_raw(raw: u8) -> Option<Self> {
        Some(match raw {
            profile::OPCODE_SEND_REQUEST => Self::SendRequest,
            profile::OPCODE_SEND_RESPONSE => Self::SendResponse,
            profile::OPCODE_WRITE_REQUEST => Self::WriteRequest,
            profile::OPCODE_WRITE_RESPONSE => Self::WriteResponse,
            profile::OPCODE_READ_REQUEST => Self::ReadRequest,
            profile::OPCODE_READ_RESPONSE => Self::ReadResponse,
            profile::OPCODE_CONNECT_REQUEST => Self::ConnectRequest,
            profile::OPCODE_CONNECT_RESPONSE1 => Self::ConnectResponse1,
            profile::OPCODE_CONNECT_RESPONSE2 => Self::ConnectResponse2,
            profile::OPCODE_CONNECT_RESPONSE3 => Self::ConnectResponse3,
            profile::OPCODE_DISCONNECT_REQUEST => Self::DisconnectRequest,
            profile::OPCODE_DISCONNECT_RESPONSE => Self::DisconnectResponse,
            _ => return None,
        })
    }

    /// Returns FCVI_OPCODE.
    #[inline]
    #[must_use]
    pub const fn raw(self) -> u8 {
        self as u8
    }

    /// Returns the length of the device_header in bytes: 16 or 32.
    #[inline]
    #[must_use]
    pub const fn header_bytes(self) -> usize {
        match self {
            Self::SendRequest | Self::SendResponse | Self::WriteResponse | Self::ReadResponse => 16,
            Self::WriteRequest
            | Self::ReadRequest
            | Self::ConnectRequest
            | Self::ConnectResponse1
            | Self::ConnectResponse2
            | Self::ConnectResponse3
            | Self::DisconnectRequest
            | Self::DisconnectResponse => 32,
        }
    }

    /// Returns R_CTL of the frames of the IU [P-2].
    #[inline]
    #[must_use]
    pub const fn r_ctl(self) -> RCtl {
        match self {
            Self::SendRequest => profile::R_CTL_SEND,
            Self::WriteRequest | Self::ReadResponse => profile::R_CTL_PLACED_DATA,
            Self::SendResponse | Self::WriteResponse => profile::R_CTL_MESSAGE_RESPONSE,
            Self::ReadRequest => profile::R_CTL_READ_REQUEST,
            Self::ConnectRequest | Self::DisconnectRequest => profile::R_CTL_CONNECTION_REQUEST,
            Self::ConnectResponse1
            | Self::ConnectResponse2
            | Self::ConnectResponse3
            | Self::DisconnectResponse => profile::R_CTL_CONNECTION_RESPONSE,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::SendRequest => "FCVI_SEND_RQST",
            Self::SendResponse => "FCVI_SEND_RESP",
            Self::WriteRequest => "FCVI_WRITE_RQST",
            Self::WriteResponse => "FCVI_WRITE_RESP",
            Self::ReadRequest => "FCVI_READ_RQST",
            Self::ReadResponse => "FCVI_READ_RESP",
            Self::ConnectRequest => "FCVI_CONNECT_RQST",
            Self::ConnectResponse1 => "FCVI_CONNECT_RESP1",
            Self::ConnectResponse2 => "FCVI_CONNECT_RESP2",
            Self::ConnectResponse3 => "FCVI_CONNECT_RESP3",
            Self::DisconnectRequest => "FCVI_DISCONNECT_RQST",
            Self::DisconnectResponse => "FCVI_DISCONNECT_RESP",
        }
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::Opcode;
    use std::format;
    use std::string::String;

    /// Compares the code with the table of the module's documentation.
    #[test]
    fn opcode_properties_match_the_documented_table() {
        let table: String = Opcode::ALL
            .iter()
            .map(|op| {
                format!(
                    "{op} {:02x} {:02x} {}\n",
                    op.raw(),
                    op.r_ctl().raw(),
                    op.header_bytes()
                )
            })
            .collect();
        assert_eq!(
            table,
            "FCVI_SEND_RQST 01 04 16\n\
             FCVI_SEND_RESP 02 07 16\n\
             FCVI_WRITE_RQST 03 01 32\n\
             FCVI_WRITE_RESP 04 07 16\n\
             FCVI_READ_RQST 05 06 32\n\
             FCVI_READ_RESP 06 01 16\n\
             FCVI_CONNECT_RQST 11 02 32\n\
             FCVI_CONNECT_RESP1 12 03 32\n\
             FCVI_CONNECT_RESP2 13 03 32\n\
             FCVI_CONNECT_RESP3 14 03 32\n\
             FCVI_DISCONNECT_RQST 21 02 32\n\
             FCVI_DISCONNECT_RESP 22 03 32\n"
        );
    }

    #[test]
    fn from_raw_accepts_only_the_twelve_opcodes() {
        let known = (0..=u8::MAX).filter_map(Opcode::from_raw);
        assert!(known.eq(Opcode::ALL));
        assert!(
            Opcode::ALL
                .iter()
                .all(|op| Opcode::from_raw(op.raw()) == Some(*op))
        );
    }
}
