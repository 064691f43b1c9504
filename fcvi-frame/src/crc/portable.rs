//! Copies payload with the instructions of every processor: through a private buffer, so that
//! neither the payload nor its target is read twice.

use core::hint::black_box;

use super::{CopyWithCrc, CoveredHeader, PayloadCopy};

/// Size of the buffer: a part that stays in the first-level cache.
const PART_BYTES: usize = 512;

pub(super) struct Portable;

impl CopyWithCrc for Portable {
    #[inline]
    unsafe fn copy_with_crc(header: CoveredHeader, copy: PayloadCopy) -> u32 {
        let mut crc = crc32fast::Hasher::new();
        for word in header.words.iter().take(header.count) {
            crc.update(&word.to_be_bytes());
        }
        let mut part = [0u8; PART_BYTES];
        let mut done = 0;
        while done < copy.bytes {
            let bytes = copy
                .bytes
                .min(done.saturating_add(PART_BYTES))
                .wrapping_sub(done);
            let padded = bytes.next_multiple_of(4);
            let from = copy.from.wrapping_add(done);
            // SAFETY: `bytes` bytes of the payload follow `done`, and the buffer is private.
            unsafe { from.copy_to_nonoverlapping(part.as_mut_ptr(), bytes) };
            // So that the compiler does not copy from the payload again below.
            let Some(part) = black_box(&mut part).get_mut(..padded) else {
                break;
            };
            if let Some(fill) = part.get_mut(bytes..) {
                fill.fill(0);
            }
            crc.update(part);
            let to = copy.to.wrapping_add(done);
            // SAFETY: the target is writable up to the multiple of 4; only the last part has fill.
            unsafe { to.copy_from_nonoverlapping(part.as_ptr(), padded) };
            done = done.wrapping_add(bytes);
        }
        crc.finalize()
    }
}
