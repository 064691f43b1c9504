//! Golden frames with wrong lengths and damaged bits.

mod common;

use common::golden_frames;
use fcvi_frame::connect::{ConnectRequest, ConnectResponse};
use fcvi_frame::error::Field;
use fcvi_frame::fcoe::Eof;
use fcvi_frame::frame::{FrameView, seal};
use fcvi_frame::gaps::MissingRanges;
use fcvi_frame::iu::Opcode;

/// Truncated and extended frames.
#[test]
fn frame_of_another_length_is_rejected() {
    for (name, bytes) in golden_frames(".") {
        for length in 0..bytes.len() {
            assert!(
                FrameView::parse(&bytes[..length]).is_err(),
                "{name} cut to {length}"
            );
        }
        let mut longer = bytes.clone();
        for extra in 1..=64 {
            longer.push(0);
            assert!(
                FrameView::parse(&longer).is_err(),
                "{name} with {extra} zeros more"
            );
        }
    }
}

/// Another length with a valid CRC. The outer parsers may accept it; the inner
/// ones must return an error or a payload of that length.
#[test]
fn frame_of_another_length_with_valid_crc_is_parsed_within_its_length() {
    for (name, bytes) in golden_frames(".") {
        let mut resized = bytes.clone();
        resized.resize(2172, 0);
        for frame_bytes in (60..=2172).step_by(4) {
            let mut resized = resized[..frame_bytes].to_vec();
            seal(&mut resized, frame_bytes, Eof::T).unwrap();
            let fill_bytes = usize::from(bytes[39] & 3);
            let view = match FrameView::parse(&resized) {
                Ok(view) => view,
                Err(error) => {
                    assert_eq!(error.field, Field::FillBytes, "{name} as {frame_bytes}");
                    assert!(frame_bytes == 60 && fill_bytes > 0, "{name}");
                    continue;
                }
            };
            let data_bytes = frame_bytes - 60 - fill_bytes;
            assert_eq!(
                view.data_field().len(),
                data_bytes,
                "{name} as {frame_bytes}"
            );
            if let Ok(iu) = view.iu() {
                let header_bytes = iu.header.opcode.header_bytes();
                assert_eq!(iu.payload.len(), data_bytes - header_bytes, "{name}");
                let exact = |payload_bytes: usize| frame_bytes == 92 + payload_bytes;
                assert_eq!(
                    ConnectRequest::parse(iu.payload).is_ok(),
                    name == "fcvi_connect_rqst" && exact(160),
                    "{name} as {frame_bytes}"
                );
                assert_eq!(
                    ConnectResponse::parse(iu.payload).is_ok(),
                    name == "fcvi_connect_resp1" && exact(96),
                    "{name} as {frame_bytes}"
                );
                // Ranges have no length field: any whole number of them is a report.
                let ranges = iu.payload.len() / 12;
                assert_eq!(
                    MissingRanges::parse(iu.payload).is_ok(),
                    iu.payload.len() % 12 == 0 && (1..=16).contains(&ranges),
                    "{name} as {frame_bytes}"
                );
            } else if let Some(opcode) = bytes.get(56).and_then(|raw| Opcode::from_raw(*raw)) {
                let too_short = data_bytes < opcode.header_bytes();
                assert!(
                    too_short || !name.starts_with("fcvi"),
                    "{name} as {frame_bytes}"
                );
            }
        }
    }
}

/// Every value of the length fields inside the connect payloads.
#[test]
fn every_wrong_length_field_is_rejected() {
    let frames = golden_frames(".");
    let (_, bytes) = frames
        .iter()
        .find(|(name, _)| *name == "fcvi_connect_rqst")
        .expect("one of the golden frames");
    // Local address at 84 + 8, remote at 84 + 72; host length, then discriminator length.
    for (at, legal) in [(92, 16..=16), (94, 0..=44), (156, 16..=16), (158, 0..=44)] {
        for length in 0..=u16::MAX {
            let mut payload = bytes[84..84 + ConnectRequest::BYTES].to_vec();
            payload[at - 84..at - 82].copy_from_slice(&length.to_be_bytes());
            let parsed = ConnectRequest::parse(&payload);
            assert_eq!(parsed.is_ok(), legal.contains(&length), "{length} at {at}");
        }
    }
}

/// Flips every bit of every golden frame: detected by the CRC or another check, or
/// in an ignored field.
#[test]
fn every_flipped_bit_is_detected_or_ignored() {
    for (name, bytes) in golden_frames(".") {
        let end = bytes.len();
        for bit in 0..end * 8 {
            let at = bit / 8;
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (bit % 8);
            let ignored =
                at < 12 || (at == 14 && bit % 8 < 4) || (15..27).contains(&at) || at >= end - 3;
            match FrameView::parse(&damaged) {
                Ok(_) => assert!(ignored, "{name}: bit {bit}"),
                Err(_) => assert!(!ignored, "{name}: bit {bit}"),
            }
        }
    }
}
