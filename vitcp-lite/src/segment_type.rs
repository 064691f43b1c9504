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

/// Type of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SegmentType {
    /// Part of a message for the receiver's next descriptor.
    Send = profile::TYPE_SEND,
    /// Requests the bytes of an RDMA read.
    ReadRequest = profile::TYPE_READ_REQUEST,
    /// Part of the bytes of an RDMA read.
    ReadResponse = profile::TYPE_READ_RESPONSE,
    /// Part of an RDMA write.
    Write = profile::TYPE_WRITE,
    /// Carries the segment header only.
    Nop = profile::TYPE_NOP,
    /// Requests a VI connection.
    ConnectRequest = profile::TYPE_CONNECT_REQUEST,
    /// Accepts a connection request.
    ConnectAccept = profile::TYPE_CONNECT_ACCEPT,
    /// Rejects a connection request, or challenges its sender.
    ConnectReject = profile::TYPE_CONNECT_REJECT,
    /// Rejects a connection request without a matching listener.
    ConnectNoMatch = profile::TYPE_CONNECT_NO_MATCH,
}

impl SegmentType {
    /// All types, in the order of their numbers.
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

    /// Decodes a number, 0 to 31; `None` if undefined.
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

    /// Returns the number, not shifted above the flags.
    #[inline]
    #[must_use]
    pub const fn to_wire(self) -> u8 {
        self as u8
    }

    /// Checks whether segments of this type have an RDMA header [VI/TCP 3.2.1].
    #[inline]
    #[must_use]
    pub const fn has_rdma_header(self) -> bool {
        matches!(self, Self::ReadRequest | Self::ReadResponse | Self::Write)
    }

    /// Checks whether segments of this type may have a payload.
    #[inline]
    #[must_use]
    pub const fn has_payload(self) -> bool {
        matches!(self, Self::Send | Self::ReadResponse | Self::Write)
    }

    /// Checks whether it is a type of connection establishment [VI/TCP 4].
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

/// The name in the draft.
impl fmt::Display for SegmentType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// The flags of a segment, three bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(u8);

impl Flags {
    /// No flag.
    pub const NONE: Flags = Flags(0);
    /// BIT 1: Immediate Data is valid.
    pub const IMMEDIATE: Flags = Flags(profile::FLAG_IMMEDIATE);
    /// BIT 2: the last segment of a message.
    pub const END_OF_MESSAGE: Flags = Flags(profile::FLAG_END_OF_MESSAGE);
    /// BIT 3: the sender could not read the whole message; its payload may be padding.
    pub const TRANSMIT_ERROR: Flags = Flags(profile::FLAG_TRANSMIT_ERROR);

    const ALL_BITS: u8 = Self::IMMEDIATE.0 | Self::END_OF_MESSAGE.0 | Self::TRANSMIT_ERROR.0;

    /// Decodes the three lowest bits; ignores the others, which hold Type.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits & Self::ALL_BITS)
    }

    /// Returns the three bits, as on the wire.
    #[inline]
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Checks whether all of `flags` are set.
    #[inline]
    #[must_use]
    pub const fn contains(self, flags: Flags) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Returns the union with `flags`.
    #[inline]
    #[must_use]
    pub const fn with(self, flags: Flags) -> Self {
        Self(self.0 | flags.0)
    }
}

/// The names of the flags that are set, or `-`.
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
    fn from_wire_maps_0_to_8_only() {
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
    fn each_type_has_its_headers_and_payload() {
        let actual = SegmentType::ALL.map(|kind| {
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
        assert_eq!(actual, expected);
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
