//! Segment headers: round trips, and errors of invalid fields.

use proptest::prelude::*;
use std::string::ToString;

use super::SegmentHeader;
use crate::samples::any_segment;
use crate::{Flags, IsCode, RemoteError, SegmentError, SegmentType, ViErrorType};

proptest! {
    #![proptest_config(crate::seeded::config())]

    #[test]
    fn header_round_trips(whole in any_segment(100)) {
        let header = whole.segment.header;
        let mut bytes = [0xEE; 24];
        header.emit(&mut bytes);
        prop_assert_eq!(SegmentHeader::parse(&bytes), Ok(header));
        prop_assert_eq!(usize::from(header.payload_bytes()), whole.payload.len());
        let headers_bytes = 24 + header.extension_bytes() + whole.payload.len();
        prop_assert_eq!(headers_bytes, usize::from(header.segment_bytes));
    }

    #[test]
    fn any_bytes_round_trip_or_fail(mut bytes in any::<[u8; 24]>(), right in any::<bool>()) {
        if right {
            bytes[0] = 1;
            bytes[1] &= 0x4F;
        }
        if let Ok(header) = SegmentHeader::parse(&bytes) {
            let mut again = [0; 24];
            header.emit(&mut again);
            prop_assert_eq!(again, bytes);
        }
    }
}

proptest! {
    #![proptest_config(crate::seeded::config())]

    /// Headers that differ little from a whole send, and arbitrary ones.
    #[test]
    fn parse_whole_send_agrees_with_parse(
        mut bytes in any::<[u8; 24]>(),
        right in any::<[bool; 5]>(),
        flags in 0..8u8,
    ) {
        let [version, kind, length, offset, error] = right;
        if version {
            bytes[0] = 1;
        }
        if kind {
            bytes[1] = flags;
        }
        for (zero, range) in [(length, 2..3), (offset, 4..8), (error, 22..24)] {
            if zero {
                bytes[range].fill(0);
            }
        }
        let expected = SegmentHeader::parse(&bytes).ok().filter(|header| {
            header.kind == SegmentType::Send
                && header.flags.contains(Flags::END_OF_MESSAGE)
                && !header.flags.contains(Flags::TRANSMIT_ERROR)
                && header.data_offset == 0
                && header.remote_error == RemoteError::NONE
        });
        prop_assert_eq!(SegmentHeader::parse_whole_send(&bytes), expected);
    }
}

fn of(kind: SegmentType, segment_bytes: u16) -> [u8; 24] {
    let mut bytes = [0; 24];
    SegmentHeader::new(kind, segment_bytes).emit(&mut bytes);
    bytes
}

#[test]
fn fields_are_at_the_drafts_offsets() {
    let header = SegmentHeader {
        kind: SegmentType::Write,
        flags: Flags::IMMEDIATE.with(Flags::END_OF_MESSAGE),
        segment_bytes: 0x0203,
        data_offset: 0x0405_0607,
        immediate: 0x0809_0A0B,
        message: 0x0C0D_0E0F,
        ack: 0x1011_1213,
        rx_posted: 0x1415,
        remote_error: RemoteError {
            vi_error: ViErrorType::RdmaProtection,
            is_code: IsCode::Transport,
        },
    };
    let mut bytes = [0; 24];
    header.emit(&mut bytes);
    let expected = [
        1, 0x1B, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 1, 1,
    ];
    assert_eq!(bytes, expected);
    assert_eq!(
        header.to_string(),
        "RDMA Write immediate+end 515 bytes offset 67438087 immediate 08090a0b message 0c0d0e0f \
         ack 10111213 posted 5141 RDMA memory protection error (transport error)"
    );
}

#[test]
fn parse_unsupported_version_fails() {
    for version in 0..=u8::MAX {
        let mut bytes = of(SegmentType::Nop, 24);
        bytes[0] = version;
        let expected = match version {
            1 => Ok(SegmentHeader::new(SegmentType::Nop, 24)),
            _ => Err(SegmentError::Version(version)),
        };
        assert_eq!(SegmentHeader::parse(&bytes), expected);
    }
}

#[test]
fn parse_unknown_type_fails_with_any_flags() {
    for byte in 0..=u8::MAX {
        let mut bytes = of(SegmentType::Nop, 68);
        bytes[1] = byte;
        let raw = byte >> 3;
        let parsed = SegmentHeader::parse(&bytes);
        match SegmentType::from_wire(raw) {
            None => assert_eq!(parsed, Err(SegmentError::Type(raw))),
            Some(kind) => match parsed {
                Ok(header) => {
                    assert_eq!((header.kind, header.flags.bits()), (kind, byte & 7));
                }
                Err(error) => assert_eq!(error.name(), "length"),
            },
        }
    }
}

/// The possible lengths of each type; with a CE header up to 324.
#[test]
fn parse_checks_length_for_each_type() {
    for kind in SegmentType::ALL {
        for segment_bytes in 0..=u16::MAX {
            let is_possible = match kind {
                SegmentType::Send => segment_bytes >= 24,
                SegmentType::ReadRequest => segment_bytes == 40,
                SegmentType::ReadResponse | SegmentType::Write => segment_bytes >= 40,
                SegmentType::Nop | SegmentType::ConnectNoMatch => segment_bytes == 24,
                SegmentType::ConnectRequest | SegmentType::ConnectAccept => segment_bytes >= 68,
                SegmentType::ConnectReject => segment_bytes == 24 || segment_bytes >= 68,
            };
            let has_ce = kind.is_connection() && kind != SegmentType::ConnectNoMatch;
            let expected = if !is_possible {
                Err(SegmentError::Length {
                    kind,
                    segment_bytes,
                })
            } else if has_ce && segment_bytes > 324 {
                Err(SegmentError::Security {
                    bytes: segment_bytes - 68,
                })
            } else {
                Ok(SegmentHeader::new(kind, segment_bytes))
            };
            assert_eq!(SegmentHeader::parse(&of(kind, segment_bytes)), expected);
        }
    }
}

#[test]
fn payload_of_impossible_length_is_empty() {
    for kind in SegmentType::ALL {
        let header = SegmentHeader::new(kind, 3);
        assert_eq!(header.payload_bytes(), 0);
    }
    assert_eq!(
        SegmentHeader::new(SegmentType::Send, 65535).payload_bytes(),
        65511
    );
    assert_eq!(
        SegmentHeader::new(SegmentType::Write, 65535).payload_bytes(),
        65495
    );
}
