//! CE headers: round trips, and errors of invalid fields.

use proptest::prelude::*;
use std::string::ToString;

use super::CeHeader;
use crate::samples::any_ce;
use crate::{Attributes, Discriminator, ExactLevel, Security, SegmentError};

proptest! {
    #![proptest_config(crate::seeded::config())]

    #[test]
    fn header_round_trips(ce in any_ce()) {
        let mut bytes = [0xEE; 301];
        let written = ce.emit(&mut bytes).unwrap();
        prop_assert_eq!(written, 44 + ce.security.as_bytes().len());
        prop_assert_eq!(written, ce.bytes());
        prop_assert_eq!(bytes[written], 0xEE);
        prop_assert_eq!(CeHeader::parse(&bytes[..written]), Ok(ce));
        let calling = ce.calling.as_bytes().len();
        let called = ce.called.as_bytes().len();
        prop_assert!(bytes[8 + calling..24].iter().all(|b| *b == 0));
        prop_assert!(bytes[28 + called..44].iter().all(|b| *b == 0));
        let mut short = [0xEE; 300];
        prop_assert_eq!(ce.emit(&mut short[..written - 1]), None);
        prop_assert_eq!(short, [0xEE; 300]);
    }

    #[test]
    fn parse_of_any_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = CeHeader::parse(&bytes);
        let mut right = bytes.clone();
        if right.len() >= 44 {
            for length in [2, 26] {
                right[length] = 0;
                right[length + 1] &= 15;
            }
        }
        match CeHeader::parse(&right) {
            Ok(ce) => prop_assert_eq!(ce.bytes(), right.len()),
            Err(_) => prop_assert!(right.len() < 44 || right.len() > 300),
        }
    }
}

#[test]
fn fields_are_at_the_drafts_offsets() {
    let ce = CeHeader {
        attributes: Attributes {
            reliable: true,
            level: ExactLevel::Reception,
            ..Attributes::default()
        },
        mtu_bytes: 0x0102_0304,
        calling: Discriminator::new(b"ab").unwrap(),
        called: Discriminator::new(b"0123456789abcdef").unwrap(),
        read_window: 0x0506,
        security: Security::new(b"key").unwrap(),
    };
    let mut bytes = [0xEE; 47];
    assert_eq!(ce.emit(&mut bytes), Some(47));
    assert_eq!(bytes[..8], [0, 0x41, 0, 2, 1, 2, 3, 4]);
    assert_eq!(bytes[8..24], *b"ab\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    assert_eq!(bytes[24..28], [5, 6, 0, 16]);
    assert_eq!(bytes[28..44], *b"0123456789abcdef");
    assert_eq!(bytes[44..], *b"key");
    assert_eq!(
        ce.to_string(),
        "\"ab\" to \"0123456789abcdef\" attributes 0041 MTU 16909060 bytes 1286 reads \
         3 bytes of security"
    );
}

#[test]
fn parse_discriminator_above_16_bytes_fails() {
    for length in 0..=u16::MAX {
        let mut calling = [0; 44];
        calling[2..4].copy_from_slice(&length.to_be_bytes());
        let mut called = [0; 44];
        called[26..28].copy_from_slice(&length.to_be_bytes());
        let used = |discriminator: Discriminator| discriminator.as_bytes().len();
        let calling = CeHeader::parse(&calling).map(|ce| used(ce.calling));
        let called = CeHeader::parse(&called).map(|ce| used(ce.called));
        if length > 16 {
            let bytes = length;
            assert_eq!(calling, Err(SegmentError::CallingDiscriminator { bytes }));
            assert_eq!(called, Err(SegmentError::CalledDiscriminator { bytes }));
        } else {
            assert_eq!(calling, Ok(usize::from(length)));
            assert_eq!(called, Ok(usize::from(length)));
        }
    }
}

#[test]
fn parse_truncated_or_too_long_header_fails() {
    let bytes = [0; 70000];
    for n in 0..44u16 {
        let parsed = CeHeader::parse(&bytes[..usize::from(n)]);
        assert_eq!(parsed, Err(SegmentError::CeHeader { bytes: n }));
    }
    assert_eq!(CeHeader::parse(&bytes[..44]), Ok(CeHeader::default()));
    assert!(CeHeader::parse(&bytes[..300]).is_ok());
    for (n, reported) in [(301, 257), (70000, 65535)] {
        let parsed = CeHeader::parse(&bytes[..n]);
        assert_eq!(parsed, Err(SegmentError::Security { bytes: reported }));
    }
}

#[test]
fn padding_and_unknown_attributes_are_ignored() {
    let mut bytes = [0; 44];
    bytes[23] = 1;
    bytes[43] = 1;
    bytes[0] = 0xFF;
    assert_eq!(CeHeader::parse(&bytes), Ok(CeHeader::default()));
}
