//! Handles, none of which comes again while a frame that has it can be on its way
//! [FCVI P-9, P-10].
//!
//! A handle has its VI's place in its low bits, as many as the places need, and a number in all
//! others: 22 bits of 1024 VIs. Every place goes through all numbers in an order of its own before
//! one comes again, so nothing has to be remembered of those that were given up but when. The
//! order is drawn at random: no earlier handle helps to guess the next one.
//!
//! ```text
//!   order of a place   |   part 0   |   part 1   | ... |   part 7   |
//!                              ^ next                  R_A_TOV after part 0 began
//!                                                      part 7 may begin again
//! ```
//! A place has one handle at a time. When it takes its first one of a part, those of the part
//! before are over; R_A_TOV later that part may come again. A place that comes round sooner, by
//! some hundred thousand connections a second, has no handle, and its call fails.

use std::hash::{DefaultHasher, Hasher};

use fcvi_frame::profile;

use crate::counters::Counter;
use crate::engine::{Engine, ViIndex};
use crate::host::Host;
use crate::synonym::{Check, skips};

/// Parts of a place's numbers whose time is kept apart.
const PARTS: usize = 8;
/// Bits of a place at least, so that its numbers can be counted in 32 bits.
const MIN_PLACE_BITS: u32 = 8;
/// Both halves of a number are mixed so often.
const ROUNDS: u32 = 4;

/// Bits of a handle that name the place, of so many.
fn place_bits(places: usize) -> u32 {
    let bits = usize::BITS - places.saturating_sub(1).leading_zeros();
    bits.clamp(MIN_PLACE_BITS, u16::BITS)
}

/// Takes the place out of a handle.
pub(crate) fn place_mask(places: usize) -> u32 {
    (1 << place_bits(places)) - 1
}

/// The numbers of one place.
#[derive(Clone, Debug)]
struct Numbers {
    /// What their order comes from; `None` before the first one.
    key: Option<u64>,
    /// The next one, in that order.
    next: u32,
    /// When each part may begin again.
    free_ns: [u64; PARTS],
}

/// The handles of one N_Port. Allocates nothing after it was made.
#[derive(Debug)]
pub(crate) struct Handles {
    numbers: Vec<Numbers>,
    place_bits: u32,
    r_a_tov_ns: u64,
}

impl Handles {
    pub(crate) fn new(places: usize, r_a_tov_ns: u64) -> Self {
        let numbers = Numbers {
            key: None,
            next: 0,
            free_ns: [0; PARTS],
        };
        Self {
            numbers: vec![numbers; places],
            place_bits: place_bits(places),
            r_a_tov_ns,
        }
    }

    /// A new handle for a place that has none now; `None` if none is over for long enough.
    fn draw(&mut self, now_ns: u64, vi: ViIndex, random: impl FnMut() -> u32) -> Option<u32> {
        let (bits, r_a_tov_ns) = (u32::BITS - self.place_bits, self.r_a_tov_ns);
        let place = self.numbers.get_mut(vi.slot())?;
        let key = place.key(random);
        loop {
            let position = place.take(now_ns, r_a_tov_ns, bits)?;
            let number = permuted(key, position, bits);
            let handle = (number << self.place_bits) | vi.0;
            if number != 0 && handle != profile::HANDLE_NONE {
                return Some(handle);
            }
        }
    }
}

impl Numbers {
    fn key(&mut self, mut random: impl FnMut() -> u32) -> u64 {
        let draw = || (u64::from(random()) << 32) | u64::from(random());
        *self.key.get_or_insert_with(draw)
    }

    /// The next position in the order of `1 << bits`.
    fn take(&mut self, now_ns: u64, r_a_tov_ns: u64, bits: u32) -> Option<u32> {
        let position = self.next;
        let part_length = (1 << bits) / PARTS as u32;
        if position.is_multiple_of(part_length) {
            let part = (position / part_length) as usize;
            if self.free_ns[part] > now_ns {
                return None;
            }
            // Before the first one of all there was none.
            if position > 0 || self.free_ns[0] > 0 {
                self.free_ns[(part + PARTS - 1) % PARTS] = now_ns + r_a_tov_ns;
            }
        }
        self.next = (position + 1) & ((1 << bits) - 1);
        Some(position)
    }
}

/// The number at this position of the order that comes from `key`: each half is mixed with what
/// is made of the other one, which can be undone, so no two positions have one number.
fn permuted(key: u64, position: u32, bits: u32) -> u32 {
    let low_bits = bits / 2;
    let (low_mask, high_mask) = ((1 << low_bits) - 1, (1 << (bits - low_bits)) - 1);
    let (mut low, mut high) = (position & low_mask, position >> low_bits);
    for round in 0..ROUNDS {
        low ^= mixed(key, 2 * round, high) & low_mask;
        high ^= mixed(key, 2 * round + 1, low) & high_mask;
    }
    (high << low_bits) | low
}

/// SipHash of half a number, by a secret key.
fn mixed(key: u64, round: u32, half: u32) -> u32 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(key);
    hasher.write_u32(round);
    hasher.write_u32(half);
    hasher.finish() as u32
}

impl Engine {
    /// The VI whose place a handle names; whether it is its handle is another question.
    #[inline]
    pub(crate) fn place_of(&self, handle: u32) -> ViIndex {
        ViIndex(handle & self.place_mask)
    }

    /// A handle for this VI, which has none, that no earlier one helps to guess, and that no
    /// frame on its way has. `None` if there is none.
    pub(crate) fn new_handle<H: Host>(
        &mut self,
        now_ns: u64,
        vi: ViIndex,
        host: &mut H,
    ) -> Option<u32> {
        if skips(Check::DeadHandle) {
            let number = (host.random() & 0xFFFF).max(1);
            return Some((number << self.handles.place_bits) | vi.0);
        }
        let handle = self.handles.draw(now_ns, vi, || host.random());
        if handle.is_none() {
            self.counters.count(Counter::NoHandle);
        }
        handle
    }

    /// Takes the handle of this VI, whose connection or request is over; 0 if it had none.
    pub(crate) fn retire_handle(&mut self, vi: ViIndex) -> u32 {
        let handle = self.endpoint_mut(vi);
        handle.map_or(0, |ep| core::mem::take(&mut ep.handle))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    const R_A_TOV: u64 = 1_000;
    /// Of a place among 65,535: all of 16 bits but 0.
    const NUMBERS: u64 = 65_535;

    fn draw(handles: &mut Handles, now_ns: u64) -> Option<u32> {
        handles.draw(now_ns, ViIndex(7), || 0xABCD_EF01)
    }

    #[test]
    fn a_handle_has_its_place_and_all_other_bits() {
        for (places, bits) in [(1, 8), (256, 8), (257, 9), (1024, 10), (65_535, 16)] {
            assert_eq!(place_bits(places), bits);
            assert_eq!(place_mask(places), (1 << bits) - 1);
            assert!(places - 1 <= place_mask(places) as usize);
        }
        let mut handles = Handles::new(1024, R_A_TOV);
        let mut all = 0;
        for _ in 0..100 {
            let handle = draw(&mut handles, 0).expect("the first ones");
            assert_eq!(handle & 0x3FF, 7);
            all |= handle >> 10;
        }
        assert_eq!(all, 0x3F_FFFF);
    }

    #[test]
    fn every_order_has_every_number_once() {
        for bits in [16, 17] {
            for key in [0, 1, u64::MAX] {
                let mut seen = vec![false; 1 << bits];
                for position in 0..1 << bits {
                    let number = permuted(key, position, bits) as usize;
                    assert!(!core::mem::replace(&mut seen[number], true));
                }
            }
        }
    }

    /// Neighbours in one order, and one place in two, have nothing in common but chance.
    #[test]
    fn orders_look_random() {
        let total = 1 << 16;
        let mut bits = 0;
        let mut same = 0;
        for position in 0..total - 1 {
            let number = permuted(5, position, 16);
            bits += (number ^ permuted(5, position + 1, 16)).count_ones();
            same += u32::from(number == permuted(6, position, 16));
        }
        assert!((7 * total..9 * total).contains(&bits), "{bits} of {total}");
        assert!(same < 10, "{same}");
    }

    #[test]
    fn a_place_that_comes_round_waits_for_r_a_tov() {
        let mut handles = Handles::new(65_535, R_A_TOV);
        // When each was over, at the latest: when the next one was taken.
        let mut ended_ns = HashMap::new();
        let mut last = None;
        let (mut now_ns, mut refused) = (0, 0);
        // Four times round: as fast as can be, then so slowly that none is refused.
        for taken in 0..4 * NUMBERS {
            let handle = loop {
                if let Some(handle) = draw(&mut handles, now_ns) {
                    break handle;
                }
                assert!(taken < 3 * NUMBERS, "slowly");
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
        assert_eq!(refused, 2 * R_A_TOV, "at the end of two times round");
        assert_eq!(ended_ns.len() as u64, NUMBERS);
    }
}
