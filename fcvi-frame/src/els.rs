//! The extended link services that a port must at least understand.
//!
//! Every payload begins with the command code. ADISC and its accept, 28 bytes:
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
//!
//! LOGO, 16 bytes: 0x05, 4 reserved, N_Port_ID (3), port name (8).
//! LS_RJT, 8 bytes: 0x01, 4 reserved, reason (1), explanation (1), vendor (1).

use crate::error::{Field, ParseError, Reason};
use crate::fc::NPortId;
use crate::wire::{Reader, Writer, tiles};

const COMMAND: usize = 0;
const RESERVED: usize = 1;

const HARD_ADDRESS: usize = 5;
const ADISC_PORT_NAME: usize = 8;
const NODE_NAME: usize = 16;
const ADISC_RESERVED: usize = 24;
const ADISC_N_PORT_ID: usize = 25;

const LOGO_N_PORT_ID: usize = 5;
const LOGO_PORT_NAME: usize = 8;

const REASON: usize = 5;
const EXPLANATION: usize = 6;
const VENDOR: usize = 7;

const _: () = assert!(tiles(
    &[
        (COMMAND, 1),
        (RESERVED, 4),
        (HARD_ADDRESS, 3),
        (ADISC_PORT_NAME, 8),
        (NODE_NAME, 8),
        (ADISC_RESERVED, 1),
        (ADISC_N_PORT_ID, 3),
    ],
    Adisc::BYTES
));
const _: () = assert!(tiles(
    &[
        (COMMAND, 1),
        (RESERVED, 4),
        (LOGO_N_PORT_ID, 3),
        (LOGO_PORT_NAME, 8)
    ],
    Logo::BYTES
));
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

/// The first byte of an ELS payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElsCommand {
    /// Reject.
    LsRjt,
    /// Accept.
    LsAcc,
    /// Port login.
    Plogi,
    /// Fabric login.
    Flogi,
    /// Logout.
    Logo,
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
    /// Any other code. One of the codes above never stands here when it was read from a frame.
    Unknown(u8),
}

impl ElsCommand {
    /// The meaning of a code.
    #[must_use]
    pub const fn from_raw(raw: u8) -> Self {
        match raw {
            0x01 => Self::LsRjt,
            0x02 => Self::LsAcc,
            0x03 => Self::Plogi,
            0x04 => Self::Flogi,
            0x05 => Self::Logo,
            0x12 => Self::Rrq,
            0x20 => Self::Prli,
            0x21 => Self::Prlo,
            0x52 => Self::Adisc,
            0x54 => Self::FarpRequest,
            0x55 => Self::FarpReply,
            other => Self::Unknown(other),
        }
    }

    /// The code.
    #[must_use]
    pub const fn raw(self) -> u8 {
        match self {
            Self::LsRjt => 0x01,
            Self::LsAcc => 0x02,
            Self::Plogi => 0x03,
            Self::Flogi => 0x04,
            Self::Logo => 0x05,
            Self::Rrq => 0x12,
            Self::Prli => 0x20,
            Self::Prlo => 0x21,
            Self::Adisc => 0x52,
            Self::FarpRequest => 0x54,
            Self::FarpReply => 0x55,
            Self::Unknown(other) => other,
        }
    }

    /// The command of an ELS payload.
    ///
    /// # Errors
    /// `ElsPayload` `TooShort`.
    pub fn parse(payload: &[u8]) -> Result<Self, ParseError> {
        match payload {
            [command, _, _, _, ..] => Ok(Self::from_raw(*command)),
            _ => Err(ParseError::new(Field::ElsPayload, Reason::TooShort)),
        }
    }
}

/// The payload as an array, if it is this command and has exactly this length.
fn exactly<const N: usize>(payload: &[u8], command: ElsCommand) -> Result<&[u8; N], ParseError> {
    if ElsCommand::parse(payload)? != command {
        return Err(ParseError::new(Field::ElsCommand, Reason::Mismatch));
    }
    match payload.split_first_chunk() {
        Some((bytes, [])) => Ok(bytes),
        Some(_) => Err(ParseError::new(Field::ElsPayload, Reason::TooLong)),
        None => Err(ParseError::new(Field::ElsPayload, Reason::TooShort)),
    }
}

/// Discover address: is that port still the one it was?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Adisc {
    /// Address fixed in the port; 0 if none is.
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

    /// Reads the accept of a request. Nothing in it tells of which one: that is
    /// known from the exchange.
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
            port_name: bytes.u64::<ADISC_PORT_NAME>(),
            node_name: bytes.u64::<NODE_NAME>(),
            n_port_id: NPortId::from_bytes(bytes.array::<ADISC_N_PORT_ID, 3>()),
        }
    }

    fn write(&self, command: ElsCommand, out: &mut [u8; 28]) {
        let mut out = Writer(out);
        out.u8::<COMMAND>(command.raw());
        out.u32::<RESERVED>(0);
        out.array::<HARD_ADDRESS, 3>(self.hard_address.to_bytes());
        out.u64::<ADISC_PORT_NAME>(self.port_name);
        out.u64::<NODE_NAME>(self.node_name);
        out.u8::<ADISC_RESERVED>(0);
        out.array::<ADISC_N_PORT_ID, 3>(self.n_port_id.to_bytes());
    }
}

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
            n_port_id: NPortId::from_bytes(bytes.array::<LOGO_N_PORT_ID, 3>()),
            port_name: bytes.u64::<LOGO_PORT_NAME>(),
        })
    }

    /// Writes a request.
    pub fn emit(&self, out: &mut [u8; 16]) {
        let mut out = Writer(out);
        out.u8::<COMMAND>(ElsCommand::Logo.raw());
        out.u32::<RESERVED>(0);
        out.array::<LOGO_N_PORT_ID, 3>(self.n_port_id.to_bytes());
        out.u64::<LOGO_PORT_NAME>(self.port_name);
    }
}

/// Refusal of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LsRjt {
    /// Reason code.
    pub reason: u8,
    /// Reason code explanation.
    pub explanation: u8,
}

impl LsRjt {
    /// Bytes on the wire.
    pub const BYTES: usize = 8;
    /// Reason: the command is not supported.
    pub const COMMAND_NOT_SUPPORTED: u8 = 0x0B;
    /// Reason: the request cannot be carried out.
    pub const UNABLE_TO_PERFORM: u8 = 0x09;
    /// Explanation: none.
    pub const NO_EXPLANATION: u8 = 0x00;

    /// Reads a refusal.
    ///
    /// # Errors
    /// `ElsPayload` `TooShort` or `TooLong`; `ElsCommand` `Mismatch`.
    pub fn parse(payload: &[u8]) -> Result<Self, ParseError> {
        let bytes = Reader(exactly::<{ Self::BYTES }>(payload, ElsCommand::LsRjt)?);
        Ok(Self {
            reason: bytes.u8::<REASON>(),
            explanation: bytes.u8::<EXPLANATION>(),
        })
    }

    /// Writes a refusal.
    pub fn emit(&self, out: &mut [u8; 8]) {
        let mut out = Writer(out);
        out.u8::<COMMAND>(ElsCommand::LsRjt.raw());
        out.u32::<RESERVED>(0);
        out.u8::<REASON>(self.reason);
        out.u8::<EXPLANATION>(self.explanation);
        out.u8::<VENDOR>(0);
    }
}

#[cfg(test)]
mod tests {
    use super::{Adisc, ElsCommand, Logo, LsRjt};
    use crate::error::{Field, ParseError, Reason};
    use crate::fc::NPortId;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(crate::seeded::config())]

        #[test]
        fn payloads_come_back(
            ids: [[u8; 3]; 2],
            names: [u64; 2],
            (reason, explanation) in any::<(u8, u8)>(),
        ) {
            let [hard_address, n_port_id] = ids.map(NPortId::from_bytes);
            let [port_name, node_name] = names;
            let adisc = Adisc { hard_address, port_name, node_name, n_port_id };
            let mut bytes = [0xEE; 28];
            adisc.emit_request(&mut bytes);
            prop_assert_eq!(Adisc::parse_request(&bytes), Ok(adisc));
            prop_assert!(Adisc::parse_accept(&bytes).is_err());
            adisc.emit_accept(&mut bytes);
            prop_assert_eq!(Adisc::parse_accept(&bytes), Ok(adisc));
            prop_assert!(Adisc::parse_request(&bytes).is_err());

            let logo = Logo { n_port_id, port_name };
            let mut bytes = [0xEE; 16];
            logo.emit(&mut bytes);
            prop_assert_eq!(Logo::parse(&bytes), Ok(logo));

            let reject = LsRjt { reason, explanation };
            let mut bytes = [0xEE; 8];
            reject.emit(&mut bytes);
            prop_assert_eq!(LsRjt::parse(&bytes), Ok(reject));
        }
    }

    #[test]
    fn every_code_comes_back() {
        for raw in 0..=u8::MAX {
            assert_eq!(ElsCommand::from_raw(raw).raw(), raw);
        }
    }

    #[test]
    fn only_the_exact_length_and_command_are_read() {
        for length in 0..40 {
            for command in [ElsCommand::Adisc, ElsCommand::Logo, ElsCommand::LsRjt] {
                let mut bytes = [0; 40];
                bytes[0] = command.raw();
                let payload = &bytes[..length];
                let results = [
                    (ElsCommand::Adisc, 28, Adisc::parse_request(payload).err()),
                    (ElsCommand::Logo, 16, Logo::parse(payload).err()),
                    (ElsCommand::LsRjt, 8, LsRjt::parse(payload).err()),
                ];
                for (wanted, exact, error) in results {
                    let expected = if length < 4 {
                        Some((Field::ElsPayload, Reason::TooShort))
                    } else if command != wanted {
                        Some((Field::ElsCommand, Reason::Mismatch))
                    } else if length < exact {
                        Some((Field::ElsPayload, Reason::TooShort))
                    } else if length > exact {
                        Some((Field::ElsPayload, Reason::TooLong))
                    } else {
                        None
                    };
                    assert_eq!(error, expected.map(|(f, r)| ParseError::new(f, r)));
                }
            }
        }
    }
}
