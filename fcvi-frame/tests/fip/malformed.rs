//! Golden frames cut, extended and damaged.

use fcvi_frame::error::{Field, Reason};
use fcvi_frame::fip::{FipView, LinkService, Vn2vnFrame};

use super::golden_frames;

/// Returns the offset of the end of the descriptor list.
fn end(bytes: &[u8]) -> usize {
    24 + 4 * usize::from(u16::from_be_bytes([bytes[20], bytes[21]]))
}

#[derive(Debug, PartialEq)]
enum Content<'a> {
    Vn2vn(Vn2vnFrame),
    Service(LinkService<'a>),
}

/// Parses the content of a frame; `None` if it is invalid.
fn read(bytes: &[u8]) -> Option<Content<'_>> {
    let view = FipView::parse(bytes).ok()?;
    let service = view.link_service().map(Content::Service);
    view.vn2vn().map(Content::Vn2vn).or(service).ok()
}

#[test]
fn truncated_frame_is_accepted_only_with_its_whole_list() {
    for (name, bytes) in golden_frames() {
        let whole = read(&bytes);
        assert!(whole.is_some(), "{name}");
        for length in 0..bytes.len() {
            let cut = read(&bytes[..length]);
            if length < end(&bytes) {
                assert_eq!(cut, None, "{name} cut to {length}");
            } else {
                assert_eq!(cut, whole, "{name} cut to {length}");
            }
        }
        let mut longer = bytes.clone();
        longer.resize(bytes.len() + 64, 0xFF);
        assert_eq!(read(&longer), whole, "{name} with padding");
    }
}

/// Every value of the list length field.
#[test]
fn every_wrong_list_length_is_rejected() {
    for (name, bytes) in golden_frames() {
        let words = (end(&bytes) - 24) / 4;
        for length in 0..=u16::MAX {
            let mut bytes = bytes.clone();
            bytes[20..22].copy_from_slice(&length.to_be_bytes());
            let accepted = read(&bytes).is_some();
            assert_eq!(
                accepted,
                usize::from(length) == words,
                "{name}: {length} words"
            );
            if 24 + 4 * usize::from(length) > bytes.len() {
                let error = FipView::parse(&bytes).unwrap_err();
                assert_eq!(
                    (error.field, error.reason),
                    (Field::FipLength, Reason::TooLong)
                );
            }
        }
    }
}

/// Flips every bit: the content changes, or the frame is rejected, or the bit is reserved or padding.
#[test]
fn every_flipped_bit_is_rejected_or_changes_the_content_or_is_ignored() {
    for (name, bytes) in golden_frames() {
        let whole = read(&bytes);
        let is_service = bytes[17] == 2;
        for bit in 0..bytes.len() * 8 {
            let at = bit / 8;
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (bit % 8);
            let found = read(&damaged);
            // Addresses, reserved fields, unused flags, padding.
            let ignored = at < 12
                || (at == 14 && bit % 8 < 4)
                || [15, 18].contains(&at)
                || ((22..24).contains(&at) && (is_service || (at, bit % 8) != (23, 3)))
                || at >= end(&bytes);
            let reserved = if is_service {
                [26, 27].contains(&at)
            } else {
                [34, 35, 52, 66, 67].contains(&at)
            };
            assert_eq!(found == whole, ignored || reserved, "{name}: bit {bit}");
        }
    }
}
