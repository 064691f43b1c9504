use super::{Level, fc_crc};
use crate::fcoe::Eof;
use crate::frame::tests::{any_frame, header};
use crate::frame::{FrameToEmit, HeaderTemplate, Payload, PerFrame, seal};
use crate::iu::Opcode;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

/// The CRC of any data followed by its CRC.
const RESIDUE: u32 = 0x2144_DF1C;

/// Computes the CRC bit by bit, by its definition.
fn bitwise(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

/// The CRC of received bytes by the instructions of one level; levels without such have `crc32fast`.
fn crc_by(level: Level, bytes: &[u8]) -> u32 {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level is available.
        Level::Pclmul => unsafe { super::x86_64::crc_pclmul(bytes) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Level::Vpclmul => unsafe { super::x86_64::crc_vpclmul(bytes) },
        _ => crc32fast::hash(bytes),
    }
}

#[test]
fn crc_of_the_catalogue_check_string() {
    assert_eq!(fc_crc(b"123456789"), 0xCBF4_3926);
}

#[test]
fn crc_of_every_length_equals_the_bitwise_definition() {
    let bytes: Vec<u8> = (0..600u32).map(|i| (i * i * 31 + i) as u8).collect();
    for level in Level::available() {
        for len in 0..=bytes.len() {
            assert_eq!(
                crc_by(level, &bytes[..len]),
                bitwise(&bytes[..len]),
                "{level:?} {len}"
            );
        }
    }
}

#[test]
fn fastest_available_level_is_used() {
    let fastest = Level::available().last().unwrap();
    assert_eq!(Level::of_processor(), fastest, "first use");
    assert_eq!(Level::of_processor(), fastest, "later use");
}

proptest! {
    #![proptest_config(crate::test_seed::config())]

    #[test]
    fn crc_equals_the_bitwise_definition(
        bytes in proptest::collection::vec(any::<u8>(), 0..2200),
    ) {
        for level in Level::available() {
            let crc = crc_by(level, &bytes);
            prop_assert_eq!(crc, bitwise(&bytes), "{:?}", level);
            let mut whole = bytes.clone();
            whole.extend_from_slice(&crc.to_le_bytes());
            prop_assert_eq!(crc_by(level, &whole), RESIDUE, "{:?}", level);
        }
    }

    /// Every level writes the frame that header, payload and [`seal`] make, and nothing beside it.
    #[test]
    fn frames_of_all_levels_are_equal(
        (header, per_frame, eof) in any_frame(),
        payload in proptest::collection::vec(any::<u8>(), 0..=2096),
        prefetch_bytes in prop_oneof![Just(0usize), Just(2304)],
        (offset, room) in (0usize..64, 0usize..64),
    ) {
        let template = HeaderTemplate::new(&header);
        let payload = &payload[..payload.len().min(2164 - template.bytes())];
        let frame = FrameToEmit {
            template: &template,
            per_frame: &per_frame,
            payload: Payload::from_slice(payload),
            eof,
            prefetch_bytes,
        };
        let bytes = frame.frame_bytes().unwrap();
        let mut expected = vec![0; bytes];
        let at = template.emit(&per_frame, &mut expected).unwrap();
        expected[at..at + payload.len()].copy_from_slice(payload);
        seal(&mut expected, bytes, eof).unwrap();
        for level in Level::available() {
            let mut memory = vec![0xEE; offset + bytes + room];
            prop_assert_eq!(frame.emit_with(level, &mut memory[offset..]), Ok(bytes));
            prop_assert!(memory[offset..offset + bytes] == expected[..], "{:?}", level);
            prop_assert!(memory[..offset].iter().all(|byte| *byte == 0xEE), "before");
            prop_assert!(memory[offset + bytes..].iter().all(|byte| *byte == 0xEE), "after");
        }
    }
}

/// Memory whose last byte is followed by a page that cannot be accessed, and whose first byte
/// follows one.
struct Fenced {
    start: *mut u8,
}

impl Fenced {
    const PAGE: usize = 4096;

    fn new() -> Self {
        let (read_write, none) = (libc::PROT_READ | libc::PROT_WRITE, libc::PROT_NONE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping of three pages.
        let pages =
            unsafe { libc::mmap(core::ptr::null_mut(), 3 * Self::PAGE, none, flags, -1, 0) };
        assert_ne!(pages, libc::MAP_FAILED);
        let start = pages.cast::<u8>().wrapping_add(Self::PAGE);
        // SAFETY: the middle page of the mapping.
        let changed = unsafe { libc::mprotect(start.cast(), Self::PAGE, read_write) };
        assert_eq!(changed, 0);
        Self { start }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: one page, mapped and zeroed, ours as long as the borrow.
        unsafe { core::slice::from_raw_parts_mut(self.start, Self::PAGE) }
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        let pages = self.start.wrapping_sub(Self::PAGE);
        // SAFETY: the mapping of `new`, to which no borrow is left.
        unsafe { libc::munmap(pages.cast(), 3 * Self::PAGE) };
    }
}

#[test]
fn nothing_outside_of_payload_and_frame_is_accessed() {
    let header = header(Opcode::SendRequest);
    let per_frame = PerFrame::of(&header);
    let template = HeaderTemplate::new(&header);
    let (mut source, mut target) = (Fenced::new(), Fenced::new());
    for (i, byte) in source.bytes().iter_mut().enumerate() {
        *byte = i as u8;
    }
    for payload_bytes in (0..=300).chain(2030..=2096) {
        for at_end in [false, true] {
            let from = if at_end {
                Fenced::PAGE - payload_bytes
            } else {
                0
            };
            let frame = FrameToEmit {
                template: &template,
                per_frame: &per_frame,
                payload: Payload::from_slice(&source.bytes()[from..from + payload_bytes]),
                eof: Eof::T,
                prefetch_bytes: 2 * Fenced::PAGE,
            };
            let bytes = frame.frame_bytes().unwrap();
            let to = if at_end { Fenced::PAGE - bytes } else { 0 };
            for level in Level::available() {
                let out = &mut target.bytes()[to..to + bytes];
                assert_eq!(frame.emit_with(level, out), Ok(bytes), "{level:?}");
                let (covered, trailer) = out[28..].split_at(bytes - 28 - 8);
                let crc = bitwise(covered);
                assert_eq!(crc_by(level, covered), crc, "{level:?}");
                assert_eq!(trailer[..4], crc.to_le_bytes(), "{level:?}");
            }
        }
    }
}
