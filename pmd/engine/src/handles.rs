//! Handles: none is used again while a frame with it can be in the network [FCVI P-9, P-10].
//!
//! A handle has the VI's slot in its low bits, as many as the slots need, and a number in all
//! others: 22 bits with 1024 VIs. Every slot uses all numbers in an order of its own before one
//! repeats, so only the time of use needs to be kept. The order is random: no earlier handle helps
//! to guess the next one.
//!
//! ```text
//!   order of a slot    |   part 0   |   part 1   | ... |   part 7   |
//!                              ^ next                  R_A_TOV after the first use of part 0
//!                                                      part 7 may be used again
//! ```
//! A slot has one handle at a time. When it takes the first one of a part, those of the part before
//! have ended; R_A_TOV later that part may be used again. A slot that needs it sooner, at some hundred
//! thousand connections a second, has no handle, and the call fails.

use std::hash::{DefaultHasher, Hasher};

use fcvi_frame::profile;
use vi_types::ViIndex;

/// Parts of a slot's numbers with separate expiry times.
const PARTS: usize = 8;
/// Minimum bits of the slot, so that its numbers can be counted in 32 bits.
const MIN_SLOT_BITS: u32 = 8;
/// Rounds that mix both halves of a number.
const ROUNDS: u32 = 4;

/// Returns the bits of a handle that name the slot.
fn slot_bits(slots: usize) -> u32 {
    let bits = usize::BITS - slots.saturating_sub(1).leading_zeros();
    bits.clamp(MIN_SLOT_BITS, u16::BITS)
}

/// Returns the mask of the slot in a handle.
pub(crate) fn slot_mask(slots: usize) -> u32 {
    (1 << slot_bits(slots)) - 1
}

/// Returns the VI that a handle names, of an N_Port with this many slots.
#[must_use]
pub fn vi_of_handle(handle: u32, slots: usize) -> ViIndex {
    ViIndex(handle & slot_mask(slots))
}

/// The numbers of one slot.
#[derive(Clone, Debug)]
struct SlotNumbers {
    /// Key of the order; `None` before the first number.
    key: Option<u64>,
    /// Position of the next number in that order.
    next: u32,
    /// Time at which each part may be used again.
    free_ns: [u64; PARTS],
}

/// The handles of one N_Port. Allocates at construction only.
#[derive(Debug)]
pub(crate) struct Handles {
    numbers: Vec<SlotNumbers>,
    slot_bits: u32,
    r_a_tov_ns: u64,
}

impl Handles {
    pub(crate) fn new(slots: usize, r_a_tov_ns: u64) -> Self {
        let numbers = SlotNumbers {
            key: None,
            next: 0,
            free_ns: [0; PARTS],
        };
        Self {
            numbers: vec![numbers; slots],
            slot_bits: slot_bits(slots),
            r_a_tov_ns,
        }
    }

    /// Allocates a handle for a slot that has none; `None` if the next ones are in quarantine.
    pub(crate) fn allocate(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        random: impl FnMut() -> u32,
    ) -> Option<u32> {
        let (bits, r_a_tov_ns) = (u32::BITS - self.slot_bits, self.r_a_tov_ns);
        let slot = self.numbers.get_mut(vi.slot())?;
        let key = slot.key(random);
        loop {
            let position = slot.next_position(now_ns, r_a_tov_ns, bits)?;
            let number = permute(key, position, bits);
            let handle = (number << self.slot_bits) | vi.0;
            if number != 0 && handle != profile::HANDLE_NONE {
                return Some(handle);
            }
        }
    }
}

impl SlotNumbers {
    fn key(&mut self, mut random: impl FnMut() -> u32) -> u64 {
        let draw = || (u64::from(random()) << 32) | u64::from(random());
        *self.key.get_or_insert_with(draw)
    }

    /// Takes the next position in the order of `1 << bits` numbers.
    fn next_position(&mut self, now_ns: u64, r_a_tov_ns: u64, bits: u32) -> Option<u32> {
        let position = self.next;
        let part_length = (1 << bits) / PARTS as u32;
        if position.is_multiple_of(part_length) {
            let part = (position / part_length) as usize;
            if self.free_ns[part] > now_ns {
                return None;
            }
            // No part precedes the very first one.
            if position > 0 || self.free_ns[0] > 0 {
                self.free_ns[(part + PARTS - 1) % PARTS] = now_ns + r_a_tov_ns;
            }
        }
        self.next = (position + 1) & ((1 << bits) - 1);
        Some(position)
    }
}

/// Returns the number at this position of the order given by `key`. Each half is mixed with a
/// function of the other one, which is invertible, so no two positions have the same number.
pub(crate) fn permute(key: u64, position: u32, bits: u32) -> u32 {
    let low_bits = bits / 2;
    let (low_mask, high_mask) = ((1 << low_bits) - 1, (1 << (bits - low_bits)) - 1);
    let (mut low, mut high) = (position & low_mask, position >> low_bits);
    for round in 0..ROUNDS {
        low ^= mix(key, 2 * round, high) & low_mask;
        high ^= mix(key, 2 * round + 1, low) & high_mask;
    }
    (high << low_bits) | low
}

/// Returns the SipHash of half a number under a secret key.
fn mix(key: u64, round: u32, half: u32) -> u32 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(key);
    hasher.write_u32(round);
    hasher.write_u32(half);
    hasher.finish() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    const R_A_TOV: u64 = 1_000;
    /// Numbers of a slot among 65,535: all of 16 bits but 0.
    const NUMBERS: u64 = 65_535;

    fn allocate(handles: &mut Handles, now_ns: u64) -> Option<u32> {
        handles.allocate(now_ns, ViIndex(7), || 0xABCD_EF01)
    }

    #[test]
    fn handle_contains_its_slot_and_uses_all_other_bits() {
        for (slots, bits) in [(1, 8), (256, 8), (257, 9), (1024, 10), (65_535, 16)] {
            assert_eq!(slot_bits(slots), bits);
            assert_eq!(slot_mask(slots), (1 << bits) - 1);
            assert!(slots - 1 <= slot_mask(slots) as usize);
        }
        let mut handles = Handles::new(1024, R_A_TOV);
        let mut all = 0;
        for _ in 0..100 {
            let handle = allocate(&mut handles, 0).expect("an unused handle");
            assert_eq!(handle & 0x3FF, 7);
            all |= handle >> 10;
        }
        assert_eq!(all, 0x3F_FFFF);
    }

    #[test]
    fn permutation_contains_every_number_once() {
        for bits in [16, 17] {
            for key in [0, 1, u64::MAX] {
                let mut seen = vec![false; 1 << bits];
                for position in 0..1 << bits {
                    let number = permute(key, position, bits) as usize;
                    assert!(!core::mem::replace(&mut seen[number], true));
                }
            }
        }
    }

    /// Adjacent positions of one order, and one position of two orders, are statistically
    /// independent.
    #[test]
    fn permutations_are_statistically_independent() {
        let total = 1 << 16;
        let mut bits = 0;
        let mut same = 0;
        for position in 0..total - 1 {
            let number = permute(5, position, 16);
            bits += (number ^ permute(5, position + 1, 16)).count_ones();
            same += u32::from(number == permute(6, position, 16));
        }
        assert!((7 * total..9 * total).contains(&bits), "{bits} of {total}");
        assert!(same < 10, "{same}");
    }

    #[test]
    fn slot_reuses_a_handle_only_after_r_a_tov() {
        let mut handles = Handles::new(65_535, R_A_TOV);
        // When each handle ended at the latest: when the next one was taken.
        let mut ended_ns = HashMap::new();
        let mut last = None;
        let (mut now_ns, mut refused) = (0, 0);
        // Four rounds: as fast as possible, then so slowly that none is refused.
        for taken in 0..4 * NUMBERS {
            let handle = loop {
                if let Some(handle) = allocate(&mut handles, now_ns) {
                    break handle;
                }
                assert!(taken < 3 * NUMBERS, "refused although allocated slowly");
                refused += 1;
                now_ns += 1;
            };
            if let Some(last) = last.replace(handle) {
                ended_ns.insert(last, now_ns);
            }
            let before = ended_ns.get(&handle);
            assert!(before.is_none_or(|ended_ns| now_ns >= ended_ns + R_A_TOV));
            now_ns += u64::from(taken > 2 * NUMBERS && taken % 16 == 0);
        }
        assert_eq!(refused, 2 * R_A_TOV, "at the end of the first two rounds");
        assert_eq!(ended_ns.len() as u64, NUMBERS);
    }
}
