//! Random numbers from a seed: delays, N_Port_IDs, and OX_IDs that other stations cannot guess.

use std::hash::{DefaultHasher, Hasher};

/// The SipHash of a counter and a secret seed: numbers that a station has seen, such as the OX_IDs
/// of requests to it, do not reveal those that it has not seen.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    seed: u64,
    count: u64,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, count: 0 }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.count = self.count.wrapping_add(1);
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.seed);
        hasher.write_u64(self.count);
        hasher.finish()
    }

    /// Returns a number below `limit`; 0 if that is 0.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next().checked_rem(limit).unwrap_or(0)
    }

    /// Returns `ns` plus up to an eighth of it.
    pub(crate) fn with_jitter(&mut self, ns: u64) -> u64 {
        ns.saturating_add(self.below(ns / 8 + 1))
    }
}
