//! Doorbells: a bitmap of the VIs with posted work, so that the poller need not scan all VIs.

use crate::sync::{AtomicU64, Ordering};

/// The most VIs of a set of doorbells.
pub const MAX_VI: u32 = 64 * 64;

/// One bit for each VI, and one for each word of them.
pub struct Doorbells {
    summary: AtomicU64,
    words: [AtomicU64; 64],
}

impl Doorbells {
    /// Creates doorbells, none of which is rung.
    pub(crate) fn new() -> Self {
        Self {
            summary: AtomicU64::new(0),
            words: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Rings the doorbell of a VI. What was posted before is visible to the thread that drains it.
    #[inline]
    pub fn ring(&self, vi: u32) {
        let (word, bit) = ((vi / 64) as usize & 63, vi % 64);
        // AcqRel, partner of the swap in `drain`: a bit that is set again while it is
        // drained is either seen by that drain or left for the next one.
        self.words[word].fetch_or(1 << bit, Ordering::AcqRel);
        self.summary.fetch_or(1 << word, Ordering::AcqRel);
    }

    /// Returns true if a doorbell was rung and not drained.
    #[inline]
    pub fn any(&self) -> bool {
        // Acquire: partner of the AcqRel in `ring`.
        self.summary.load(Ordering::Acquire) != 0
    }

    /// Takes all bits and calls `each` for their VIs.
    #[inline]
    pub fn drain(&self, mut each: impl FnMut(u32)) {
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
    fn each_doorbell_is_drained_once() {
        let doorbells = Doorbells::new();
        for vi in [0, 63, 64, 4095, 63] {
            doorbells.ring(vi);
        }
        assert!(doorbells.any());
        let mut drained = Vec::new();
        doorbells.drain(|vi| drained.push(vi));
        assert_eq!(drained, [0, 63, 64, 4095]);
        assert!(!doorbells.any());
        doorbells.drain(|vi| panic!("{vi} again"));
    }
}
