//! Type and Flags: the second byte of a segment [VI/TCP 3.1].
//!
//! | Bits | Field |
//! | --- | --- |
//! | 7 to 3 | Type |
//! | 2 | Transmit Error |
//! | 1 | End of Message |
//! | 0 | Immediate Data Valid |

use core::fmt;

use crate::profile;

/// What a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SegmentType {
    /// A piece of a message for the receiver's next descriptor.
    Send = profile::TYPE_SEND,
    /// Asks for the bytes of an RDMA read.
    ReadRequest = profile::TYPE_READ_REQUEST,
    /// A piece of them.
    ReadResponse = profile::TYPE_READ_RESPONSE,
    /// A piece of an RDMA write.
    Write = profile::TYPE_WRITE,
    /// Carries nothing but what every segment header says.
    Nop = profile::TYPE_NOP,
    /// Asks for a VI connection.
    ConnectRequest = profile::TYPE_CONNECT_REQUEST,
    /// Grants it.
    ConnectAccept = profile::TYPE_CONNECT_ACCEPT,
    /// Refuses it, or asks for more before it is decided.
    ConnectReject = profile::TYPE_CONNECT_REJECT,
    /// Nobody waits for it.
    ConnectNoMatch = profile::TYPE_CONNECT_NO_MATCH,
}

impl SegmentType {
    /// All of them, in the order of their numbers.
    pub const ALL: [SegmentType; 9] = [
        SegmentType::Send,
        SegmentType::ReadRequest,
        SegmentType::ReadResponse,
        SegmentType::Write,
        SegmentType::Nop,
        SegmentType::ConnectRequest,
        SegmentType::ConnectAccept,
        SegmentType::ConnectReject,
        SegmentType::ConnectNoMatch,
    ];

    /// The type of a number of Type, 0 to 31; `None` if it has no meaning.
    #[inline]
    #[must_use]
    pub const fn from_wire(raw: u8) -> Option<Self> {
        Some(match raw {
            profile::TYPE_SEND => Self::Send,
            profile::TYPE_READ_REQUEST => Self::ReadRequest,
            profile::TYPE_READ_RESPONSE => Self::ReadResponse,
            profile::TYPE_WRITE => Self::Write,
            profile::TYPE_NOP => Self::Nop,
            profile::TYPE_CONNECT_REQUEST => Self::ConnectRequest,
            profile::TYPE_CONNECT_ACCEPT => Self::ConnectAccept,
            profile::TYPE_CONNECT_REJECT => Self::ConnectReject,
            profile::TYPE_CONNECT_NO_MATCH => Self::ConnectNoMatch,
            _ => return None,
        })
    }

    /// The number of Type, not yet at its place above the flags.
    #[inline]
    #[must_use]
    pub const fn to_wire(self) -> u8 {
        self as u8
    }

    /// Does an RDMA header follow in every segment [VI/TCP 3.2.1]?
    #[inline]
    #[must_use]
    pub const fn has_rdma_header(self) -> bool {
        matches!(self, Self::ReadRequest | Self::ReadResponse | Self::Write)
    }

    /// May a payload follow the headers?
    #[inline]
    #[must_use]
    pub const fn has_payload(self) -> bool {
        matches!(self, Self::Send | Self::ReadResponse | Self::Write)
    }

    /// Is it about the connection [VI/TCP 4]?
    #[inline]
    #[must_use]
    pub const fn is_connection(self) -> bool {
        matches!(
            self,
            Self::ConnectRequest | Self::ConnectAccept | Self::ConnectReject | Self::ConnectNoMatch
        )
    }

    const fn text(self) -> &'static str {
        match self {
            Self::Send => "Send",
            Self::ReadRequest => "RDMA Read Request",
            Self::ReadResponse => "RDMA Read Response",
            Self::Write => "RDMA Write",
            Self::Nop => "NOP",
            Self::ConnectRequest => "Connect Request",
            Self::ConnectAccept => "Connect Accept",
            Self::ConnectReject => "Connect Reject",
            Self::ConnectNoMatch => "Connect No Match",
        }
    }
}

/// The draft's name.
impl fmt::Display for SegmentType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// The flags of a segment, three bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(u8);

impl Flags {
    /// None of them.
    pub const NONE: Flags = Flags(0);
    /// BIT 1: Immediate Data is that of the message's sender.
    pub const IMMEDIATE: Flags = Flags(profile::FLAG_IMMEDIATE);
    /// BIT 2: the last segment of a message.
    pub const END_OF_MESSAGE: Flags = Flags(profile::FLAG_END_OF_MESSAGE);
    /// BIT 3: the sender could not read all of the message; its payload may be padding.
    pub const TRANSMIT_ERROR: Flags = Flags(profile::FLAG_TRANSMIT_ERROR);

    const ALL_BITS: u8 = Self::IMMEDIATE.0 | Self::END_OF_MESSAGE.0 | Self::TRANSMIT_ERROR.0;

    /// The flags of the three lowest bits; those above, where Type is, do not count.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & Self::ALL_BITS)
    }

    /// The three bits, as on the wire.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Are all of `flags` set?
    #[inline]
    #[must_use]
    pub const fn contains(self, flags: Flags) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// These and `flags`.
    #[inline]
    #[must_use]
    pub const fn with(self, flags: Flags) -> Self {
        Self(self.0 | flags.0)
    }
}

/// The names of those that are set, or `-`.
impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (flag, name) in [
            (Self::IMMEDIATE, "immediate"),
            (Self::END_OF_MESSAGE, "end"),
            (Self::TRANSMIT_ERROR, "transmit-error"),
        ] {
            if self.contains(flag) {
                write!(f, "{separator}{name}")?;
                separator = "+";
            }
        }
        if *self == Self::NONE {
            f.write_str("-")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Flags, SegmentType};
    use std::string::ToString;

    #[test]
    fn every_number_is_a_type_or_none() {
        for raw in 0..=u8::MAX {
            match SegmentType::from_wire(raw) {
                Some(kind) => {
                    assert_eq!(kind.to_wire(), raw);
                    assert_eq!(SegmentType::ALL[usize::from(raw)], kind);
                }
                None => assert!(raw > 8),
            }
        }
    }

    #[test]
    fn what_follows_each_type() {
        let told = SegmentType::ALL.map(|kind| {
            (
                kind.to_string(),
                kind.has_rdma_header(),
                kind.has_payload(),
                kind.is_connection(),
            )
        });
        let expected = [
            ("Send", false, true, false),
            ("RDMA Read Request", true, false, false),
            ("RDMA Read Response", true, true, false),
            ("RDMA Write", true, true, false),
            ("NOP", false, false, false),
            ("Connect Request", false, false, true),
            ("Connect Accept", false, false, true),
            ("Connect Reject", false, false, true),
            ("Connect No Match", false, false, true),
        ]
        .map(|(name, rdma, payload, connection)| (name.to_string(), rdma, payload, connection));
        assert_eq!(told, expected);
    }

    #[test]
    fn flags_are_three_bits() {
        assert_eq!(Flags::from_bits(0xFF).bits(), 7);
        assert_eq!(Flags::from_bits(0xF8), Flags::NONE);
        let both = Flags::IMMEDIATE.with(Flags::END_OF_MESSAGE);
        assert_eq!(both.bits(), 3);
        assert!(both.contains(Flags::IMMEDIATE) && both.contains(both));
        assert!(!both.contains(Flags::TRANSMIT_ERROR));
        assert!(!Flags::IMMEDIATE.contains(both));
        assert_eq!(both.to_string(), "immediate+end");
        assert_eq!(Flags::TRANSMIT_ERROR.to_string(), "transmit-error");
        assert_eq!(Flags::NONE.to_string(), "-");
    }
}
