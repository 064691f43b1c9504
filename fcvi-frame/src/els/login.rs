//! PLOGI and FLOGI, and their accepts: names and service parameters, 116 bytes.
//!
//! | Offset | Bytes | Field |
//! | --- | --- | --- |
//! | 0 | 1 | 0x03 PLOGI, 0x04 FLOGI, 0x02 in the accept |
//! | 1 | 3 | reserved |
//! | 4 | 2 | highest and lowest version, 0x20 each |
//! | 6 | 2 | buffer-to-buffer credit |
//! | 8 | 2 | features |
//! | 10 | 2 | receive data field size in the low 12 bits |
//! | 12 | 2 | PLOGI: total concurrent sequences |
//! | 14 | 2 | PLOGI: categories with relative offset, bit n for category n |
//! | 16 | 4 | E_D_TOV |
//! | 20 | 8 | port name |
//! | 28 | 8 | node name |
//! | 36 | 32 | class 1 and class 2 parameters: sent as 0, ignored |
//! | 68 | 2 | class 3: service options |
//! | 70 | 4 | class 3: initiator and recipient control |
//! | 74 | 2 | class 3: receive data field size in the low 12 bits |
//! | 76 | 2 | class 3: concurrent sequences |
//! | 78 | 2 | class 3: end-to-end credit |
//! | 80 | 2 | class 3: open sequences per exchange |
//! | 82 | 2 | reserved |
//! | 84 | 32 | class 4 parameters and vendor version: sent as 0, ignored |
//!
//! Between VN_Ports an FLOGI has zeros in the fields from 12 to 19 and the sizes of
//! class 3.

use super::{ElsCommand, exactly};
use crate::error::{Field, ParseError, Reason};
use vi_types::fields::{Reader, Writer, tiles};

const COMMAND: usize = 0;
const RESERVED: usize = 1;
const VERSIONS: usize = 4;
const CREDIT: usize = 6;
const FEATURES: usize = 8;
const RECEIVE: usize = 10;
const SEQUENCES: usize = 12;
const RELATIVE_OFFSET: usize = 14;
const E_D_TOV: usize = 16;
const PORT_NAME: usize = 20;
const NODE_NAME: usize = 28;
const CLASS_1_2: usize = 36;
const SERVICE: usize = 68;
const CONTROL: usize = 70;
const CLASS_RECEIVE: usize = 74;
const CLASS_SEQUENCES: usize = 76;
const END_TO_END_CREDIT: usize = 78;
const OPEN_SEQUENCES: usize = 80;
const RESERVED_2: usize = 82;
const CLASS_4_AND_VENDOR: usize = 84;

const _: () = assert!(tiles(
    &[
        (COMMAND, 1),
        (RESERVED, 3),
        (VERSIONS, 2),
        (CREDIT, 2),
        (FEATURES, 2),
        (RECEIVE, 2),
        (SEQUENCES, 2),
        (RELATIVE_OFFSET, 2),
        (E_D_TOV, 4),
        (PORT_NAME, 8),
        (NODE_NAME, 8),
        (CLASS_1_2, 32),
        (SERVICE, 2),
        (CONTROL, 4),
        (CLASS_RECEIVE, 2),
        (CLASS_SEQUENCES, 2),
        (END_TO_END_CREDIT, 2),
        (OPEN_SEQUENCES, 2),
        (RESERVED_2, 2),
        (CLASS_4_AND_VENDOR, 32),
    ],
    Login::BYTES
));

/// Highest and lowest FC-PH version, the same in all implementations.
const FC_PH_VERSIONS: u16 = 0x2020;
/// Mask of a receive data field size.
const RECEIVE_MASK: u16 = 0x0FFF;

/// Features of the common service parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LoginFeatures(pub u16);

impl LoginFeatures {
    /// The relative offset of a sequence's frames increases continuously.
    pub const CONTINUOUS_OFFSET: Self = Self(0x8000);
    /// The relative offset may be any.
    pub const RANDOM_OFFSET: Self = Self(0x4000);
    /// The sender is a port of a fabric.
    pub const F_PORT: Self = Self(0x1000);
    /// E_D_TOV is in nanoseconds, not in milliseconds.
    pub const E_D_TOV_NS: Self = Self(0x0400);
    /// SEQ_CNT increases continuously.
    pub const CONTINUOUS_SEQ_CNT: Self = Self(0x0002);
    /// The payload has 256 bytes; not supported.
    pub const LONG_PAYLOAD: Self = Self(0x0001);

    /// True if every bit of `other` is set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Class 3 service parameters of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Class3Parameters {
    /// Options; see [`Class3Parameters::VALID`] and [`Class3Parameters::SEQUENTIAL`].
    pub service: u16,
    /// Receive data field size in bytes, less than 4096.
    pub receive_bytes: u16,
    /// Maximum number of concurrent sequences.
    pub concurrent_sequences: u16,
    /// Maximum number of open sequences per exchange.
    pub open_sequences: u16,
}

impl Class3Parameters {
    /// Option: class 3 is supported.
    pub const VALID: u16 = 0x8000;
    /// Option: frames are delivered in the order in which they are sent.
    pub const SEQUENTIAL: u16 = 0x0800;

    /// True if class 3 is supported.
    #[must_use]
    pub const fn is_valid(&self) -> bool {
        self.service & Self::VALID != 0
    }

    /// True if sequential delivery is requested, or granted.
    #[must_use]
    pub const fn is_sequential(&self) -> bool {
        self.service & Self::SEQUENTIAL != 0
    }
}

/// Payload of a login or its accept: names and service parameters of the sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Login {
    /// Buffer-to-buffer credit; without meaning on Ethernet.
    pub credit: u16,
    /// Features.
    pub features: LoginFeatures,
    /// Receive data field size in bytes, less than 4096.
    pub receive_bytes: u16,
    /// Maximum number of concurrent sequences of all classes. Upper half of R_A_TOV in an accept
    /// of a fabric's FLOGI.
    pub total_sequences: u16,
    /// Categories with relative offset: bit n for category n. Lower half
    /// of R_A_TOV in an accept of a fabric's FLOGI.
    pub relative_offset: u16,
    /// E_D_TOV, in milliseconds unless [`LoginFeatures::E_D_TOV_NS`] is set.
    pub e_d_tov: u32,
    /// Port_Name.
    pub port_name: u64,
    /// Node_Name.
    pub node_name: u64,
    /// Class 3 parameters.
    pub class3: Class3Parameters,
}

impl Login {
    /// Bytes on the wire, of a request and of its accept.
    pub const BYTES: usize = 116;

    /// Reads a request (`command` is [`ElsCommand::Plogi`] or [`ElsCommand::Flogi`]) or its accept
    /// ([`ElsCommand::LsAcc`]). An accept does not contain the request's command: that is known from the exchange.
    ///
    /// # Errors
    /// `ElsPayload` `TooShort` or `TooLong`; `ElsCommand` `Mismatch` if it is another command, or
    /// if `command` is not one of the three.
    pub fn parse(command: ElsCommand, payload: &[u8]) -> Result<Self, ParseError> {
        let (ElsCommand::Plogi | ElsCommand::Flogi | ElsCommand::LsAcc) = command else {
            return Err(ParseError::new(Field::ElsCommand, Reason::Mismatch));
        };
        let bytes = Reader(exactly::<{ Self::BYTES }>(payload, command)?);
        Ok(Self {
            credit: bytes.u16::<CREDIT>(),
            features: LoginFeatures(bytes.u16::<FEATURES>()),
            receive_bytes: bytes.u16::<RECEIVE>() & RECEIVE_MASK,
            total_sequences: bytes.u16::<SEQUENCES>(),
            relative_offset: bytes.u16::<RELATIVE_OFFSET>(),
            e_d_tov: bytes.u32::<E_D_TOV>(),
            port_name: bytes.u64::<PORT_NAME>(),
            node_name: bytes.u64::<NODE_NAME>(),
            class3: Class3Parameters {
                service: bytes.u16::<SERVICE>(),
                receive_bytes: bytes.u16::<CLASS_RECEIVE>() & RECEIVE_MASK,
                concurrent_sequences: bytes.u16::<CLASS_SEQUENCES>(),
                open_sequences: bytes.u16::<OPEN_SEQUENCES>(),
            },
        })
    }

    /// Writes a request or an accept, according to `command`. Of the sizes the low 12 bits are written.
    pub fn emit(&self, command: ElsCommand, out: &mut [u8; 116]) {
        let mut out = Writer(out);
        out.u8::<COMMAND>(command.raw());
        out.u24::<RESERVED>(0);
        out.u16::<VERSIONS>(FC_PH_VERSIONS);
        out.u16::<CREDIT>(self.credit);
        out.u16::<FEATURES>(self.features.0);
        out.u16::<RECEIVE>(self.receive_bytes & RECEIVE_MASK);
        out.u16::<SEQUENCES>(self.total_sequences);
        out.u16::<RELATIVE_OFFSET>(self.relative_offset);
        out.u32::<E_D_TOV>(self.e_d_tov);
        out.u64::<PORT_NAME>(self.port_name);
        out.u64::<NODE_NAME>(self.node_name);
        out.array::<CLASS_1_2, 32>([0; 32]);
        out.u16::<SERVICE>(self.class3.service);
        out.u32::<CONTROL>(0);
        out.u16::<CLASS_RECEIVE>(self.class3.receive_bytes & RECEIVE_MASK);
        out.u16::<CLASS_SEQUENCES>(self.class3.concurrent_sequences);
        out.u16::<END_TO_END_CREDIT>(0);
        out.u16::<OPEN_SEQUENCES>(self.class3.open_sequences);
        out.u16::<RESERVED_2>(0);
        out.array::<CLASS_4_AND_VENDOR, 32>([0; 32]);
    }
}
