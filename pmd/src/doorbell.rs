//! Which VIs have something new, without looking at all of them.

use crate::sync::{AtomicU64, Ordering};

/// VIs that a set of doorbells covers.
pub(crate) const MAX_VI: u32 = 64 * 64;

/// One bit for each VI, and one for each word of them.
pub(crate) struct Doorbells {
    summary: AtomicU64,
    words: [AtomicU64; 64],
}

impl Doorbells {
    pub(crate) fn new() -> Self {
        Self {
            summary: AtomicU64::new(0),
            words: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Rings for a VI. What was posted before is visible to whoever drains the bit.
    #[inline]
    pub(crate) fn ring(&self, vi: u32) {
        let (word, bit) = ((vi / 64) as usize & 63, vi % 64);
        // AcqRel, partner of the swap in `drain`: a bit that is set again while it is
        // drained is either seen by that drain or left for the next one.
        self.words[word].fetch_or(1 << bit, Ordering::AcqRel);
        self.summary.fetch_or(1 << word, Ordering::AcqRel);
    }

    /// True if a bell was rung that nobody has drained.
    pub(crate) fn any(&self) -> bool {
        // Acquire: partner of the AcqRel in `ring`.
        self.summary.load(Ordering::Acquire) != 0
    }

    /// Takes all bits and calls `each` for their VIs.
    #[inline]
    pub(crate) fn drain(&self, mut each: impl FnMut(u32)) {
        if self.summary.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut summary = self.summary.swap(0, Ordering::AcqRel);
        while summary != 0 {
            let word = summary.trailing_zeros();
            summary &= summary - 1;
            let mut bits = self.words[word as usize].swap(0, Ordering::AcqRel);
            while bits != 0 {
                each(word * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_bell_is_heard_once() {
        let bells = Doorbells::new();
        for vi in [0, 63, 64, 4095, 63] {
            bells.ring(vi);
        }
        assert!(bells.any());
        let mut heard = Vec::new();
        bells.drain(|vi| heard.push(vi));
        assert_eq!(heard, [0, 63, 64, 4095]);
        assert!(!bells.any());
        bells.drain(|vi| panic!("{vi} again"));
    }
}
