//! Ranges of frames received ahead of order, and the gaps between them.
//!
//! Message IDs are compared by their distance from the oldest incomplete message, which orders them
//! across the wrap-around.

use fcvi_frame::gaps::{MAX_RANGES, MissingRange};

use crate::config::MAX_UNANSWERED;

/// Position in a stream: everything before it is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// The oldest incomplete message.
    pub(crate) msg_id: u32,
    /// Bytes of it that are placed.
    pub(crate) placed_bytes: u32,
}

impl Position {
    /// Returns how far this message is ahead; more than `i32::MAX` if it is before the position.
    pub(crate) fn distance_to(self, msg_id: u32) -> u32 {
        msg_id.wrapping_sub(self.msg_id)
    }

    /// Reports whether this message is before the position, or no further ahead than a peer may be.
    pub(crate) fn is_plausible(self, msg_id: u32) -> bool {
        let distance = self.distance_to(msg_id);
        distance < MAX_UNANSWERED || distance > i32::MAX as u32
    }
}

/// Contiguous received bytes of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceivedRange {
    pub(crate) msg_id: u32,
    pub(crate) begin: u32,
    pub(crate) end: u32,
    /// The range includes the end of the message.
    pub(crate) last: bool,
}

impl ReceivedRange {
    /// Reports whether both share bytes. An empty message occupies position 0.
    fn overlaps(&self, other: &ReceivedRange) -> bool {
        let end = |range: &ReceivedRange| range.end.max(range.begin + 1);
        self.msg_id == other.msg_id && self.begin < end(other) && other.begin < end(self)
    }
}

/// Ranges received ahead of order, sorted. Allocates at construction only.
#[derive(Debug)]
pub(crate) struct ReceivedRanges {
    ranges: Vec<ReceivedRange>,
    limit: usize,
    /// The furthest received frame, whether or not it was kept: gaps are known up to it.
    seen: Option<ReceivedRange>,
}

impl ReceivedRanges {
    pub(crate) fn new(limit: u32) -> Self {
        let limit = limit.max(1) as usize;
        Self {
            ranges: Vec::with_capacity(limit),
            limit,
            seen: None,
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Reports whether a byte of this frame was received already.
    pub(crate) fn overlaps(&self, frame: &ReceivedRange) -> bool {
        self.ranges.iter().any(|range| range.overlaps(frame))
    }

    /// Returns the index of the first range not before this one.
    fn index_of(&self, at: Position, frame: &ReceivedRange) -> usize {
        let key = |range: &ReceivedRange| (at.distance_to(range.msg_id), range.begin);
        self.ranges.partition_point(|range| key(range) < key(frame))
    }

    /// Reports whether there is room for a new frame.
    pub(crate) fn has_room_for(&self, at: Position, frame: &ReceivedRange) -> bool {
        self.ranges.len() < self.limit || self.continues(at, frame)
    }

    fn continues(&self, at: Position, frame: &ReceivedRange) -> bool {
        let index = self.index_of(at, frame);
        let before = index
            .checked_sub(1)
            .and_then(|index| self.ranges.get(index));
        let after = self.ranges.get(index);
        before.is_some_and(|range| range.msg_id == frame.msg_id && range.end == frame.begin)
            || after.is_some_and(|range| range.msg_id == frame.msg_id && range.begin == frame.end)
    }

    /// Adds a new frame, for which there is room.
    pub(crate) fn add(&mut self, at: Position, frame: ReceivedRange) {
        let index = self.index_of(at, &frame);
        let joins_after = self
            .ranges
            .get(index)
            .is_some_and(|range| range.msg_id == frame.msg_id && range.begin == frame.end);
        let before = index
            .checked_sub(1)
            .filter(|at| self.ranges[*at].msg_id == frame.msg_id)
            .filter(|at| self.ranges[*at].end == frame.begin);
        match (before, joins_after) {
            (Some(before), true) => {
                let after = self.ranges.remove(index);
                self.ranges[before].end = after.end;
                self.ranges[before].last = after.last;
            }
            (Some(before), false) => {
                self.ranges[before].end = frame.end;
                self.ranges[before].last = frame.last;
            }
            (None, true) => self.ranges[index].begin = frame.begin,
            (None, false) if self.ranges.len() < self.limit => self.ranges.insert(index, frame),
            (None, false) => {}
        }
    }

    /// Removes and returns the range that begins at this position.
    pub(crate) fn take(&mut self, at: Position) -> Option<ReceivedRange> {
        let first = self.ranges.first()?;
        let fits = first.msg_id == at.msg_id && first.begin == at.placed_bytes;
        fits.then(|| self.ranges.remove(0))
    }

    /// Removes what a faulty peer sent beyond the end of this message, which is complete.
    pub(crate) fn forget(&mut self, msg_id: u32) {
        self.ranges.retain(|range| range.msg_id != msg_id);
    }

    /// Notes a received frame. Returns true if there is a gap before it that was not reported yet.
    pub(crate) fn record(&mut self, at: Position, frame: ReceivedRange) -> bool {
        let seen = self
            .seen
            .filter(|seen| at.distance_to(seen.msg_id) <= i32::MAX as u32);
        let key = |range: &ReceivedRange| (at.distance_to(range.msg_id), range.end, range.last);
        let (next, beyond) = match seen {
            Some(seen) if seen.last => ((at.distance_to(seen.msg_id) + 1, 0), key(&seen)),
            Some(seen) => ((at.distance_to(seen.msg_id), seen.end), key(&seen)),
            None => ((0, at.placed_bytes), (0, 0, false)),
        };
        let next = next.max((0, at.placed_bytes));
        if seen.is_some() && key(&frame) <= beyond {
            return false;
        }
        self.seen = Some(frame);
        (at.distance_to(frame.msg_id), frame.begin) > next
    }

    /// Reports whether a frame of an incomplete message was received.
    #[inline]
    pub(crate) fn has_seen_beyond(&self, at: Position) -> bool {
        let ahead = |seen: ReceivedRange| at.distance_to(seen.msg_id) <= i32::MAX as u32;
        self.seen.is_some_and(ahead)
    }

    /// Notes that everything received is complete, and that the next message arrives in one frame.
    #[inline]
    pub(crate) fn clear_seen(&mut self) {
        // After 2^31 further messages it would count as ahead.
        self.seen = None;
    }

    /// Writes the gaps between this position and the furthest received frame, oldest first, up to
    /// the capacity of one report. Returns their number.
    pub(crate) fn missing(&self, at: Position, out: &mut [MissingRange; MAX_RANGES]) -> usize {
        let Some(seen) = self.seen else {
            return 0;
        };
        let furthest = at.distance_to(seen.msg_id);
        if furthest > i32::MAX as u32 {
            return 0;
        }
        let mut gaps = Gaps { out, count: 0 };
        let mut ranges = self.ranges.iter().peekable();
        for distance in 0..=furthest {
            let msg_id = at.msg_id.wrapping_add(distance);
            let mut reached = if distance == 0 { at.placed_bytes } else { 0 };
            let mut whole = false;
            while let Some(range) = ranges.next_if(|range| range.msg_id == msg_id) {
                if range.begin > reached {
                    gaps.add(msg_id, reached, range.begin - reached);
                }
                (reached, whole) = (range.end, range.last);
            }
            if !whole && (distance < furthest || seen.last) {
                gaps.add(msg_id, reached, 0);
            } else if !whole && seen.end > reached {
                gaps.add(msg_id, reached, seen.end - reached);
            }
            if gaps.count == MAX_RANGES {
                break;
            }
        }
        gaps.count
    }
}

/// Gaps found so far.
struct Gaps<'a> {
    out: &'a mut [MissingRange; MAX_RANGES],
    count: usize,
}

impl Gaps<'_> {
    fn add(&mut self, msg_id: u32, offset_bytes: u32, length_bytes: u32) {
        if let Some(gap) = self.out.get_mut(self.count) {
            *gap = MissingRange {
                msg_id,
                offset_bytes,
                length_bytes,
            };
            self.count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::rng::Rng;

    const FIRST: u32 = u32::MAX - 1;

    fn range(ahead: u32, begin: u32, end: u32, last: bool) -> ReceivedRange {
        ReceivedRange {
            msg_id: FIRST.wrapping_add(ahead),
            begin,
            end,
            last,
        }
    }

    fn at(ahead: u32, placed_bytes: u32) -> Position {
        Position {
            msg_id: FIRST.wrapping_add(ahead),
            placed_bytes,
        }
    }

    fn missing(received_ranges: &ReceivedRanges, at: Position) -> Vec<(u32, u32, u32)> {
        let mut out = [MissingRange::default(); MAX_RANGES];
        let count = received_ranges.missing(at, &mut out);
        let gaps = out[..count].iter();
        gaps.map(|gap| {
            let ahead = gap.msg_id.wrapping_sub(FIRST);
            (ahead, gap.offset_bytes, gap.length_bytes)
        })
        .collect()
    }

    #[test]
    fn gaps_are_between_the_position_and_the_furthest_frame() {
        let mut received_ranges = ReceivedRanges::new(8);
        assert_eq!(missing(&received_ranges, at(0, 0)), []);
        for (frame, new, gaps) in [
            (range(0, 0, 10, false), false, vec![(0, 0, 10)]),
            (range(0, 20, 30, false), true, vec![(0, 0, 10), (0, 10, 10)]),
        ] {
            assert_eq!(received_ranges.record(at(0, 0), frame), new);
            // The first was not kept, the second is.
            if frame.begin == 20 {
                received_ranges.add(at(0, 0), frame);
                assert_eq!(missing(&received_ranges, at(0, 0)), [(0, 0, 20)]);
            } else {
                assert_eq!(missing(&received_ranges, at(0, 0)), gaps);
            }
        }
        // Two messages ahead, without a frame of the one in between.
        let frame = range(2, 0, 5, true);
        assert!(received_ranges.record(at(0, 10), frame));
        received_ranges.add(at(0, 10), frame);
        let gaps = [(0, 10, 10), (0, 30, 0), (1, 0, 0)];
        assert_eq!(missing(&received_ranges, at(0, 10)), gaps);
        // A frame that continues without a gap is not a new gap.
        assert!(!received_ranges.record(at(0, 10), range(3, 0, 10, false)));
        assert!(!received_ranges.record(at(0, 10), range(3, 10, 20, false)));
        assert!(received_ranges.record(at(0, 10), range(3, 30, 40, true)));
        assert!(!received_ranges.record(at(0, 10), range(3, 20, 30, false)));
        assert!(!received_ranges.record(at(0, 10), range(1, 0, 5, true)));
        assert_eq!(missing(&received_ranges, at(3, 40)), [(3, 40, 0)]);
        assert_eq!(missing(&received_ranges, at(4, 0)), []);
        assert!(!received_ranges.record(at(4, 0), range(4, 0, 5, true)));
    }

    #[test]
    fn empty_message_is_a_range() {
        let mut received_ranges = ReceivedRanges::new(2);
        let empty = range(1, 0, 0, true);
        assert!(received_ranges.record(at(0, 0), empty));
        received_ranges.add(at(0, 0), empty);
        assert!(received_ranges.overlaps(&empty));
        assert_eq!(missing(&received_ranges, at(0, 0)), [(0, 0, 0)]);
        assert_eq!(received_ranges.take(at(0, 0)), None);
        assert_eq!(received_ranges.take(at(1, 0)), Some(empty));
    }

    #[test]
    fn full_list_accepts_only_frames_adjacent_to_a_range() {
        let mut received_ranges = ReceivedRanges::new(2);
        let position = at(0, 0);
        for begin in [10, 30] {
            received_ranges.add(position, range(0, begin, begin + 10, false));
        }
        assert!(!received_ranges.has_room_for(position, &range(0, 50, 60, false)));
        assert!(!received_ranges.has_room_for(position, &range(1, 40, 50, false)));
        received_ranges.add(position, range(0, 50, 60, false));
        assert_eq!(received_ranges.len(), 2);
        for frame in [range(0, 40, 50, false), range(0, 20, 30, false)] {
            assert!(received_ranges.has_room_for(position, &frame));
            received_ranges.add(position, frame);
        }
        assert_eq!(received_ranges.ranges, [range(0, 10, 50, false)]);
    }

    /// Frames of a few messages in any order, compared with the set of them.
    #[test]
    fn frames_in_any_order_complete_all_messages() {
        const FRAME: u32 = 10;
        let seed = 0x15A4;
        println!("seed {seed:#x}");
        let mut rng = Rng::new(seed);
        for _ in 0..2_000 {
            let lengths: Vec<u32> = (0..4).map(|_| 1 + rng.below(6) as u32).collect();
            let frames = |(ahead, frames): (usize, &u32)| {
                let frames = *frames;
                (0..frames)
                    .map(move |n| range(ahead as u32, n * FRAME, (n + 1) * FRAME, n + 1 == frames))
            };
            let mut pending: Vec<ReceivedRange> =
                lengths.iter().enumerate().flat_map(frames).collect();
            let mut received_ranges = ReceivedRanges::new(32);
            let mut position = at(0, 0);
            let mut received: Vec<ReceivedRange> = Vec::new();
            while !pending.is_empty() {
                let frame = pending.swap_remove(rng.below(pending.len() as u64) as usize);
                assert!(!received_ranges.overlaps(&frame));
                received_ranges.record(position, frame);
                received_ranges.add(position, frame);
                assert!(received_ranges.overlaps(&frame));
                received.push(frame);
                while let Some(range) = received_ranges.take(position) {
                    position = if range.last {
                        received_ranges.forget(range.msg_id);
                        at(position.msg_id.wrapping_sub(FIRST) + 1, 0)
                    } else {
                        Position {
                            placed_bytes: range.end,
                            ..position
                        }
                    };
                }
                check(&received_ranges, position, &pending, &received);
            }
            assert_eq!((position, received_ranges.len()), (at(4, 0), 0));
        }
    }

    /// A gap is reported exactly where frames are missing before one that was received.
    fn check(
        received_ranges: &ReceivedRanges,
        position: Position,
        pending: &[ReceivedRange],
        received: &[ReceivedRange],
    ) {
        let gaps = missing(received_ranges, position);
        let key = |range: &ReceivedRange| (range.msg_id.wrapping_sub(FIRST), range.begin);
        let furthest = received.iter().map(key).max().expect("a received frame");
        for frame in pending {
            let is_reported = gaps.iter().any(|(ahead, offset, length)| {
                let end = if *length == 0 {
                    u32::MAX
                } else {
                    offset + length
                };
                key(frame).0 == *ahead && (*offset..end).contains(&frame.begin)
            });
            let is_gap = key(frame) < furthest;
            assert_eq!(is_reported, is_gap, "{frame:?} in {gaps:?}");
        }
    }
}
