//! Random numbers from seeds, and bytes that are determined by a key and their offset.

/// An odd constant: the increment of SplitMix64.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Mixes the bits of a value (SplitMix64).
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// Combines several numbers, in order, into a key.
pub(crate) fn key(parts: &[u64]) -> u64 {
    parts.iter().fold(0, |key, part| {
        mix(key.wrapping_add(STEP) ^ mix(part.wrapping_add(STEP)))
    })
}

/// A random number generator (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// Returns a number below `end`; 0 if `end` is 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next().checked_rem(end).unwrap_or(0)
    }

    /// Returns true with a probability of `in_thousand` / 1000.
    pub(crate) fn chance(&mut self, in_thousand: u64) -> bool {
        self.below(1000) < in_thousand
    }
}

fn word(key: u64, index: u64) -> [u8; 8] {
    let value = (key ^ index.wrapping_mul(STEP)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (value ^ (value >> 29)).to_le_bytes()
}

/// Fills `out` with the bytes of a key, starting at `offset`.
pub(crate) fn fill(key: u64, offset: usize, out: &mut [u8]) {
    let mut at = offset as u64;
    let (head, body) = out.split_at_mut((offset.wrapping_neg() % 8).min(out.len()));
    for byte in head {
        *byte = word(key, at / 8)[(at % 8) as usize];
        at += 1;
    }
    for chunk in body.chunks_mut(8) {
        chunk.copy_from_slice(&word(key, at / 8)[..chunk.len()]);
        at += 8;
    }
}

/// Returns the index of the first byte that differs from the bytes of a key at `offset`.
pub(crate) fn mismatch(key: u64, offset: usize, bytes: &[u8]) -> Option<usize> {
    let head_bytes = (offset.wrapping_neg() % 8).min(bytes.len());
    let differs = |index: &usize| {
        let at = offset + index;
        bytes[*index] != word(key, at as u64 / 8)[at % 8]
    };
    if let Some(index) = (0..head_bytes).find(differs) {
        return Some(index);
    }
    let first = (offset + head_bytes) as u64 / 8;
    for (number, chunk) in bytes[head_bytes..].chunks(8).enumerate() {
        if *chunk != word(key, first + number as u64)[..chunk.len()] {
            let begin = head_bytes + number * 8;
            return (begin..begin + chunk.len()).find(differs);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fill_is_consistent_and_mismatch_finds_any_changed_byte() {
        let mut whole = [0; 203];
        fill(7, 0, &mut whole);
        for cut in 0..whole.len() {
            let mut pieces = [0; 203];
            let (head, tail) = pieces.split_at_mut(cut);
            fill(7, 0, head);
            fill(7, cut, tail);
            assert_eq!(pieces, whole, "cut at {cut}");
            assert_eq!(mismatch(7, cut, &whole[cut..]), None);
            let mut damaged = whole;
            damaged[cut] ^= 4;
            for begin in [0, 3, 8] {
                let found = mismatch(7, begin, &damaged[begin..]);
                assert_eq!(found, cut.checked_sub(begin), "from {begin}");
            }
        }
        assert_ne!(mismatch(8, 0, &whole), None, "another key");
        assert_ne!(mismatch(7, 8, &whole), None, "another offset");
    }
}
