//! The information units (IUs) of FC-VI.
//!
//! Opcodes and R_CTL are our choice [P-2, P-5]. The opcode determines the other columns of the table,
//! against which a frame is checked.

use core::fmt;

use crate::fc::RCtl;
use crate::profile;

macro_rules! information_units {
    ($($(#[$doc:meta])* $name:ident = $opcode:literal, $text:literal, $class:ident, $r_ctl:path, $header_bytes:literal;)*) => {
        /// The IU of a frame.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Opcode {
            $($(#[$doc])* $name = $opcode,)*
        }

        impl Opcode {
            /// All opcodes, in the order of the table.
            pub const ALL: [Opcode; [$($opcode),*].len()] = [$(Opcode::$name),*];

            /// Converts FCVI_OPCODE; `None` if it is unknown.
            #[inline]
            #[must_use]
            pub const fn from_raw(raw: u8) -> Option<Self> {
                match raw {
                    $($opcode => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Returns whether it belongs to messages or to the connection.
            #[inline]
            #[must_use]
            pub const fn class(self) -> IuClass {
                match self {
                    $(Self::$name => IuClass::$class,)*
                }
            }

            /// Returns R_CTL of the frames of the IU [P-2].
            #[inline]
            #[must_use]
            pub const fn r_ctl(self) -> RCtl {
                match self {
                    $(Self::$name => $r_ctl,)*
                }
            }

            /// Returns the length of the device_header in bytes: 16 or 32.
            #[inline]
            #[must_use]
            pub const fn header_bytes(self) -> usize {
                match self {
                    $(Self::$name => $header_bytes,)*
                }
            }

            const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

// Variant, opcode, name in the specification, class, R_CTL, bytes of the device_header.
information_units! {
    /// A message for the receiver's next receive descriptor.
    SendRequest = 0x01, "FCVI_SEND_RQST", Message, profile::R_CTL_SEND, 16;
    /// Status of a send.
    SendResponse = 0x02, "FCVI_SEND_RESP", Message, profile::R_CTL_MESSAGE_RESPONSE, 16;
    /// An RDMA write.
    WriteRequest = 0x03, "FCVI_WRITE_RQST", Message, profile::R_CTL_PLACED_DATA, 32;
    /// Status of an RDMA write.
    WriteResponse = 0x04, "FCVI_WRITE_RESP", Message, profile::R_CTL_MESSAGE_RESPONSE, 16;
    /// An RDMA read.
    ReadRequest = 0x05, "FCVI_READ_RQST", Message, profile::R_CTL_READ_REQUEST, 32;
    /// Data of an RDMA read, or the reason of its failure.
    ReadResponse = 0x06, "FCVI_READ_RESP", Message, profile::R_CTL_PLACED_DATA, 16;
    /// A message for the receiver's next receive descriptor, which it copies from the sender's memory [P-17].
    RendezvousRequest = 0x07, "FCVI_RENDEZVOUS_RQST", Message, profile::R_CTL_RENDEZVOUS, 32;
    /// Requests a connection.
    ConnectRequest = 0x11, "FCVI_CONNECT_RQST", Connection, profile::R_CTL_CONNECTION_REQUEST, 32;
    /// Accepts, defers or rejects a connection.
    ConnectResponse1 = 0x12, "FCVI_CONNECT_RESP1", Connection, profile::R_CTL_CONNECTION_RESPONSE, 32;
    /// The originator is ready.
    ConnectResponse2 = 0x13, "FCVI_CONNECT_RESP2", Connection, profile::R_CTL_CONNECTION_RESPONSE, 32;
    /// The responder is ready too.
    ConnectResponse3 = 0x14, "FCVI_CONNECT_RESP3", Connection, profile::R_CTL_CONNECTION_RESPONSE, 32;
    /// Disconnects.
    DisconnectRequest = 0x21, "FCVI_DISCONNECT_RQST", Connection, profile::R_CTL_CONNECTION_REQUEST, 32;
    /// Confirms a disconnect.
    DisconnectResponse = 0x22, "FCVI_DISCONNECT_RESP", Connection, profile::R_CTL_CONNECTION_RESPONSE, 32;
}

/// What an IU belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IuClass {
    /// The messages of an established connection.
    Message,
    /// Establishing and ending a connection.
    Connection,
}

impl Opcode {
    /// Returns FCVI_OPCODE.
    #[inline]
    #[must_use]
    pub const fn raw(self) -> u8 {
        self as u8
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
    use std::vec::Vec;

    /// The rows of the table of IUs in the specification, without the column of payloads.
    fn specified() -> Vec<&'static str> {
        include_str!("../../docs/spec/fcvi-frame.md")
            .lines()
            .filter(|line| line.starts_with("| FCVI_") && line.split(" | ").count() == 5)
            .filter_map(|line| line.rsplit_once(" | "))
            .map(|(row, _payload)| row)
            .collect()
    }

    #[test]
    fn opcode_properties_match_the_specification() {
        let rows: Vec<String> = Opcode::ALL
            .iter()
            .map(|op| {
                let (opcode, r_ctl, bytes) = (op.raw(), op.r_ctl().raw(), op.header_bytes());
                format!("| {op} | {opcode:#04x} | {r_ctl:#04x} | {bytes}")
            })
            .collect();
        assert_eq!(rows, specified());
    }

    #[test]
    fn from_raw_accepts_only_the_opcodes() {
        let known = (0..=u8::MAX).filter_map(Opcode::from_raw);
        assert!(known.eq(Opcode::ALL));
        assert!(
            Opcode::ALL
                .iter()
                .all(|op| Opcode::from_raw(op.raw()) == Some(*op))
        );
    }
}
