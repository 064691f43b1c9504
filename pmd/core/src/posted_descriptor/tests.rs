use super::*;
use proptest::prelude::*;

proptest! {
    #[test]
    fn walk_visits_every_byte_once_in_order(
        lengths in proptest::collection::vec(0u32..50, 0..12),
        cuts in proptest::collection::vec(1usize..40, 1..30),
    ) {
        let mut base = 0u64;
        let mut expected = Vec::new();
        let segments: Vec<_> = lengths
            .iter()
            .map(|&length| {
                base += 1000;
                expected.extend((0..u64::from(length)).map(|i| base + i));
                DataSegment { address: base, handle: 1, length }
            })
            .collect();
        let mut cursor = Cursor::default();
        let mut seen = Vec::new();
        for cut in cuts.iter().cycle() {
            let cut = (*cut).min(expected.len() - seen.len());
            let offset = seen.len() as u32;
            let range = &expected[seen.len()..seen.len() + cut];
            let in_one_segment = range.windows(2).all(|pair| pair[0] + 1 == pair[1]);
            let contiguous = cursor.contiguous(&segments, offset, cut as u32);
            if cut > 0 {
                prop_assert_eq!(contiguous, Some(range[0]).filter(|_| in_one_segment));
            }
            if let Some(address) = contiguous {
                seen.extend((0..cut as u64).map(|i| address + i));
                if seen.len() == expected.len() {
                    break;
                }
                continue;
            }
            let fits = cursor.walk(&segments, offset, cut, |address, range| {
                seen.extend(range.clone().map(|i| address + (i - range.start) as u64));
            });
            prop_assert!(fits);
            if seen.len() == expected.len() {
                break;
            }
        }
        prop_assert_eq!(&seen, &expected);
        let beyond = cursor.walk(&segments, expected.len() as u32, 1, |_, _| ());
        prop_assert!(!beyond, "a byte past the end");
        let beyond = cursor.contiguous(&segments, expected.len() as u32, 1);
        prop_assert_eq!(beyond, None, "a byte past the end");
        if !expected.is_empty() {
            let middle = expected.len() / 2;
            let mut again = None;
            cursor.walk(&segments, middle as u32, 1, |address, _| again = Some(address));
            prop_assert_eq!(again, Some(expected[middle]));
        }
    }
}

#[test]
fn slot_cursor_separates_interleaved_descriptors() {
    let segments = |base: u64, lengths: &[u32]| -> Vec<DataSegment> {
        let at = (0..).map(|index| base + index * 1000);
        at.zip(lengths)
            .map(|(address, &length)| DataSegment {
                address,
                handle: 1,
                length,
            })
            .collect()
    };
    // The rest of a segment of one is longer than a whole segment of the other.
    let reads = [segments(0, &[10, 300, 90]), segments(50_000, &[390, 10])];
    let mut cursor = SlotCursor::default();
    let mut seen = [Vec::new(), Vec::new()];
    for offset in (0..400).step_by(80) {
        for (number, segments) in reads.iter().enumerate() {
            let cursor = cursor.of(number as u32 + 7);
            let fits = cursor.walk(segments, offset, 80, |address, range| {
                seen[number].extend((0..range.len() as u64).map(|i| address + i));
            });
            assert!(fits, "{offset} of {number}");
        }
    }
    for (seen, segments) in seen.iter().zip(&reads) {
        let expected: Vec<u64> = segments
            .iter()
            .flat_map(|s| (0..u64::from(s.length)).map(|i| s.address + i))
            .collect();
        assert_eq!(*seen, expected);
    }
}
