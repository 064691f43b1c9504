//! Golden frames cut, extended and damaged.

use fcvi_frame::error::{Field, Reason};
use fcvi_frame::fip::{FipView, LinkService, Vn2vnFrame};

use super::golden_frames;

/// Where the descriptor list ends.
fn end(bytes: &[u8]) -> usize {
    24 + 4 * usize::from(u16::from_be_bytes([bytes[20], bytes[21]]))
}

#[derive(Debug, PartialEq)]
enum Content<'a> {
    Vn2vn(Vn2vnFrame),
    Service(LinkService<'a>),
}

/// What the frame says.
fn read(bytes: &[u8]) -> Option<Content<'_>> {
    let view = FipView::parse(bytes).ok()?;
    let service = view.link_service().map(Content::Service);
    view.vn2vn().map(Content::Vn2vn).or(service).ok()
}

#[test]
fn a_frame_is_taken_as_long_as_its_list_is_whole() {
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

/// Every length that the list can be said to have.
#[test]
fn every_wrong_list_length_is_an_error() {
    for (name, bytes) in golden_frames() {
        let words = (end(&bytes) - 24) / 4;
        for lie in 0..=u16::MAX {
            let mut bytes = bytes.clone();
            bytes[20..22].copy_from_slice(&lie.to_be_bytes());
            let taken = read(&bytes).is_some();
            assert_eq!(taken, usize::from(lie) == words, "{name}: {lie} words");
            if 24 + 4 * usize::from(lie) > bytes.len() {
                let error = FipView::parse(&bytes).unwrap_err();
                assert_eq!(
                    (error.field, error.reason),
                    (Field::FipLength, Reason::TooLong)
                );
            }
        }
    }
}

/// Every bit: it has a meaning, or the frame is refused, or it is reserved or padding.
#[test]
fn every_flipped_bit_is_refused_or_means_something_or_nothing() {
    for (name, bytes) in golden_frames() {
        let whole = read(&bytes);
        let is_service = bytes[17] == 2;
        for bit in 0..bytes.len() * 8 {
            let at = bit / 8;
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (bit % 8);
            let found = read(&damaged);
            // Addresses, reserved fields, flags without meaning here, padding.
            let silent = at < 12
                || (at == 14 && bit % 8 < 4)
                || [15, 18].contains(&at)
                || ((22..24).contains(&at) && (is_service || (at, bit % 8) != (23, 3)))
                || at >= end(&bytes);
            let reserved = if is_service {
                [26, 27].contains(&at)
            } else {
                [34, 35, 52, 66, 67].contains(&at)
            };
            assert_eq!(found == whole, silent || reserved, "{name}: bit {bit}");
        }
    }
}
