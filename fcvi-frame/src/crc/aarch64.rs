//! Copies payload with the CRC instructions of ARMv8.

use core::arch::aarch64::{__crc32b, __crc32d};

use super::{CopyWithCrc, CoveredHeader, PayloadCopy, read_last, read_once};

pub(super) struct Armv8Crc;

impl CopyWithCrc for Armv8Crc {
    #[inline]
    unsafe fn copy_with_crc(header: CoveredHeader, copy: PayloadCopy) -> u32 {
        // SAFETY: guaranteed by the caller.
        unsafe { copy_with_crc(header, copy) }
    }
}

/// # Safety
/// As for [`CopyWithCrc::copy_with_crc`].
#[target_feature(enable = "crc")]
unsafe fn copy_with_crc(header: CoveredHeader, mut copy: PayloadCopy) -> u32 {
    let mut crc = u32::MAX;
    for word in header.words.iter().take(header.count) {
        crc = __crc32d(crc, word.swap_bytes());
    }
    for number in 0..copy.bytes / 8 {
        if number % 8 == 0 {
            copy.prefetch();
        }
        // SAFETY: eight bytes are left of the payload, and of its target.
        let word = read_once(unsafe { copy.from.cast::<u64>().read_unaligned() });
        crc = __crc32d(crc, word.to_le());
        // SAFETY: as above.
        unsafe { copy.to.cast::<u64>().write_unaligned(word) };
        copy.from = copy.from.wrapping_add(8);
        copy.to = copy.to.wrapping_add(8);
    }
    let left = copy.bytes % 8;
    // SAFETY: this many bytes are left of the payload.
    let last = unsafe { read_last(copy.from, left) }.to_le_bytes();
    for byte in last.iter().take(left.next_multiple_of(4)) {
        crc = __crc32b(crc, *byte);
    }
    // SAFETY: the target is writable up to the multiple of 4.
    unsafe {
        copy.to
            .copy_from_nonoverlapping(last.as_ptr(), left.next_multiple_of(4))
    };
    !crc
}
