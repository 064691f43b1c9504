//! Flow control counts compared with 64-bit counts that do not wrap.

use proptest::collection::vec as any_vec;
use proptest::prelude::*;

use super::{Credits, Posted, is_after};

/// Advertises the count, as a segment that is sent does.
fn advertise(posted: &mut Posted) -> u16 {
    let word = posted.word();
    posted.note_advertised();
    word
}

proptest! {
    #![proptest_config(crate::seeded::config())]

    #[test]
    fn is_after_orders_numbers_within_half(from in any::<u32>(), ahead in 1..0x8000_0000u32) {
        let to = from.wrapping_add(ahead);
        prop_assert!(is_after(to, from));
        prop_assert!(!is_after(from, to));
        prop_assert!(!is_after(from, from));
    }

    /// Both sides of one connection over several wraps of the 16 bits, with occasional segments that
    /// advertise; the peer's consumer posts and ours sends at any rate.
    #[test]
    fn credits_and_posted_match_counts_that_do_not_wrap(
        threshold in prop_oneof![Just(0u16), 1..100u16, any::<u16>()],
        steps in any_vec((0..4u8, 0..30_000u64), 200..400),
    ) {
        let mut posted = Posted::new(threshold);
        let mut credits = Credits::new(0);
        let (mut total, mut used, mut advertised) = (0u64, 0u64, 0u64);
        for (what, count) in steps {
            match what {
                0 => {
                    total += count;
                    posted.note((total & 0xFFFF_FFFF) as u32);
                }
                1 => {
                    advertised = advertised.max(total.min(used + 32767));
                    let word = posted.word();
                    posted.note_advertised();
                    prop_assert_eq!(word, (advertised & 0xFFFF) as u16);
                    credits.note_posted(word);
                }
                _ => {
                    for _ in 0..count {
                        let may = used < advertised;
                        prop_assert_eq!(credits.use_one(), may);
                        if !may {
                            break;
                        }
                        used += 1;
                        posted.use_one();
                    }
                }
            }
            prop_assert_eq!(u64::from(credits.available()), advertised - used);
            let more = total.min(used + 32767) > advertised;
            let is_low = advertised - used < u64::from(threshold);
            prop_assert_eq!(posted.wants_nop(), more && is_low);
        }
    }

    /// A peer that advertises its total as the draft defines it, without our limit.
    #[test]
    fn credits_beyond_16_bits_are_kept(
        first in any::<u16>(),
        steps in any_vec((1..32_768u64, 0..20_000u64), 20..60),
    ) {
        let mut credits = Credits::new(first);
        let (mut total, mut used) = (u64::from(first), 0);
        for (more, uses) in steps {
            total += more;
            credits.note_posted((total & 0xFFFF) as u16);
            for _ in 0..uses.min(total - used) {
                prop_assert!(credits.use_one());
                used += 1;
            }
            prop_assert_eq!(u64::from(credits.available()), (total - used).min(65535));
        }
    }

    #[test]
    fn stale_value_takes_no_credit_back(first in any::<u16>(), back in 0..=32768u16) {
        let mut credits = Credits::new(first);
        let before = credits;
        credits.note_posted(first.wrapping_sub(back));
        prop_assert_eq!(credits, before);
    }

    /// A peer that ignores its credits uses descriptors that were never advertised.
    #[test]
    fn peer_that_ignores_credits_causes_no_overflow(
        steps in any_vec((0..3u8, any::<u32>()), 0..300),
    ) {
        let mut posted = Posted::new(8);
        let mut total = 0u64;
        for (what, value) in steps {
            match what {
                0 => {
                    total += u64::from(value % 100);
                    posted.note(total as u32);
                }
                1 => prop_assert!(u64::from(advertise(&mut posted)) <= total),
                _ => (0..value % 100).for_each(|_| posted.use_one()),
            }
            let _ = posted.wants_nop();
        }
    }
}

#[test]
fn is_after_of_numbers_far_apart() {
    assert!(is_after(0, u32::MAX));
    assert!(is_after(5, 0xFFFF_FFF0));
    assert!(!is_after(0x8000_0000, 0) && !is_after(0, 0x8000_0000));
}

#[test]
fn advertised_credits_are_limited_to_half_the_range() {
    let mut posted = Posted::new(u16::MAX);
    posted.note(100_000);
    assert_eq!(advertise(&mut posted), 32767);
    assert!(!posted.wants_nop(), "nothing new to advertise");
    posted.use_one();
    assert!(posted.wants_nop());
    assert_eq!(advertise(&mut posted), 32768);
    assert!(!posted.wants_nop());
}

#[test]
fn unsent_value_does_not_count_as_advertised() {
    let mut posted = Posted::new(4);
    posted.note(3);
    assert_eq!(posted.word(), 3);
    assert!(posted.wants_nop(), "the send buffer was full");
    posted.note(5);
    assert_eq!(advertise(&mut posted), 5);
    assert!(!posted.wants_nop());
}

#[test]
fn note_smaller_count_is_ignored() {
    let mut posted = Posted::new(1);
    posted.note(7);
    posted.note(3);
    assert!(posted.wants_nop());
    assert_eq!(advertise(&mut posted), 7);
    assert!(!posted.wants_nop());
}

#[test]
fn nop_is_due_below_threshold() {
    let mut posted = Posted::new(2);
    posted.note(4);
    assert_eq!(advertise(&mut posted), 4);
    posted.note(10);
    assert!(!posted.wants_nop(), "four are unused");
    posted.use_one();
    posted.use_one();
    assert!(!posted.wants_nop(), "two are");
    posted.use_one();
    assert!(posted.wants_nop(), "one is");
    assert_eq!(advertise(&mut posted), 10);
}

#[test]
fn use_one_without_credit_fails() {
    let mut credits = Credits::new(2);
    assert!(credits.use_one() && credits.use_one() && !credits.use_one());
    assert_eq!(credits.available(), 0);
    credits.note_posted(3);
    assert_eq!(credits.available(), 1);
}
