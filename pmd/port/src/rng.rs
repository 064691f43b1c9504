//! A small seeded random number generator for faults and tests: deterministic on every machine.

/// Scale of probabilities: parts per million.
pub(crate) const MILLION_PPM: u32 = 1_000_000;

/// SplitMix64: one 64-bit word of state, period 2^64.
#[derive(Clone, Debug)]
pub(crate) struct Rng {
    state: u64,
}

impl Rng {
    /// Creates a generator; every seed is valid.
    pub(crate) const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns 64 uniformly distributed bits.
    #[inline]
    pub(crate) fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`, which is at least 1.
    #[inline]
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        debug_assert!(bound > 0);
        // The upper half of a 32 x 32 bit product; its bias is below 2^-32 * bound.
        let random = self.next_u64() >> 32;
        ((random * u64::from(bound)) >> 32) as u32
    }

    /// Returns true with a probability in parts per million.
    #[inline]
    pub(crate) fn chance(&mut self, probability_ppm: u32) -> bool {
        self.below(MILLION_PPM) < probability_ppm
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_matches_the_reference() {
        // The first outputs of SplitMix64 for seed 1234567 from its author's reference program.
        let mut rng = Rng::new(1_234_567);
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(expected.map(|_| rng.next_u64()), expected);
    }

    #[test]
    fn below_reaches_every_number_and_no_other() {
        let mut rng = Rng::new(1);
        let mut seen = [0u32; 7];
        for _ in 0..7_000 {
            seen[rng.below(7) as usize] += 1;
        }
        assert!(
            seen.iter().all(|&count| (800..1_200).contains(&count)),
            "{seen:?}"
        );
    }

    #[test]
    fn chance_matches_the_probability() {
        let mut rng = Rng::new(2);
        assert!((0..1_000).all(|_| !rng.chance(0)));
        assert!((0..1_000).all(|_| rng.chance(MILLION_PPM)));
        let hits = (0..100_000).filter(|_| rng.chance(50_000)).count();
        assert!((4_500..5_500).contains(&hits), "{hits} of 5000");
    }
}
