//! Copies to and from memory that peers may change at any time, by aligned atomic words.
//!
//! All accesses are atomic and of one size, so that concurrent reads and writes of this program's threads are no data
//! race, for any ranges.

use crate::sync::{AtomicU64, Ordering};

pub(super) const WORD_BYTES: usize = size_of::<u64>();

/// Memory as aligned words.
#[derive(Clone, Copy)]
pub(super) struct Words<'a>(pub(super) &'a [AtomicU64]);

impl Words<'_> {
    /// Copies bytes out, starting at `offset_bytes`.
    pub(super) fn read(self, offset_bytes: usize, mut out: &mut [u8]) {
        let (first, mut skip_bytes) = (offset_bytes / WORD_BYTES, offset_bytes % WORD_BYTES);
        for word in &self.0[first..] {
            if out.is_empty() {
                return;
            }
            // Relaxed: bytes are ordered only by `RdmaRegion::load_u64`.
            let value = word.load(Ordering::Relaxed).to_ne_bytes();
            let (part, rest) = out.split_at_mut(out.len().min(WORD_BYTES - skip_bytes));
            part.copy_from_slice(&value[skip_bytes..skip_bytes + part.len()]);
            (out, skip_bytes) = (rest, 0);
        }
    }

    /// Copies bytes in, starting at `offset_bytes`. Of a partially written word the other bytes keep concurrent
    /// changes.
    pub(super) fn write(self, offset_bytes: usize, mut bytes: &[u8]) {
        let (first, mut skip_bytes) = (offset_bytes / WORD_BYTES, offset_bytes % WORD_BYTES);
        for word in &self.0[first..] {
            if bytes.is_empty() {
                return;
            }
            let (part, rest) = bytes.split_at(bytes.len().min(WORD_BYTES - skip_bytes));
            let patched = |before: u64| {
                let mut value = before.to_ne_bytes();
                value[skip_bytes..skip_bytes + part.len()].copy_from_slice(part);
                u64::from_ne_bytes(value)
            };
            // Relaxed: bytes are ordered only by `RdmaRegion::store_u64`.
            if part.len() == WORD_BYTES {
                word.store(patched(0), Ordering::Relaxed);
            } else {
                let mut before = word.load(Ordering::Relaxed);
                // Relaxed: as above.
                while let Err(now) = word.compare_exchange_weak(
                    before,
                    patched(before),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                ) {
                    before = now;
                }
            }
            (bytes, skip_bytes) = (rest, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(count: usize) -> Vec<AtomicU64> {
        (0..count).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn words_copy_every_range_and_no_other_byte() {
        const BYTES: usize = 4 * WORD_BYTES;
        for offset in 0..=BYTES {
            for len in 0..=BYTES - offset {
                let memory = words(BYTES / WORD_BYTES);
                Words(&memory).write(0, &[0xEE; BYTES]);
                let bytes: Vec<u8> = (1..=len as u8).collect();
                Words(&memory).write(offset, &bytes);
                let mut all = [0; BYTES];
                Words(&memory).read(0, &mut all);
                let mut expected = [0xEE; BYTES];
                expected[offset..offset + len].copy_from_slice(&bytes);
                assert_eq!(all, expected, "{len} bytes at {offset}");
                let mut out = vec![0; len];
                Words(&memory).read(offset, &mut out);
                assert_eq!(out, bytes, "{len} bytes at {offset}");
            }
        }
    }

    /// Under Miri this shows that there is no data race.
    #[test]
    fn words_written_by_two_threads_keep_the_bytes_of_both() {
        let memory = words(2);
        let memory = Words(&memory);
        std::thread::scope(|scope| {
            scope.spawn(|| (1..=50).for_each(|value| memory.write(1, &[value; 6])));
            scope.spawn(|| (1..=50).for_each(|value| memory.write(7, &[value; 9])));
        });
        let mut all = [0; 2 * WORD_BYTES];
        memory.read(0, &mut all);
        let mut expected = [50; 2 * WORD_BYTES];
        expected[0] = 0;
        assert_eq!(all, expected);
    }
}
