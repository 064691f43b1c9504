//! What came ahead of order: runs of frames, and the gaps between them.
//!
//! Message IDs are compared by their distance from the oldest message that is not whole, which
//! makes them ordered around the end of the numbers.

use fcvi_frame::gaps::{MAX_RANGES, MissingRange};

/// How far a stream got: everything before it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// The oldest message that is not whole.
    pub(crate) msg_id: u32,
    /// So many bytes of it are there.
    pub(crate) placed_bytes: u32,
}

impl Position {
    /// How far this message is ahead; more than `i32::MAX`: it is behind.
    pub(crate) fn distance_to(self, msg_id: u32) -> u32 {
        msg_id.wrapping_sub(self.msg_id)
    }
}

/// Bytes of one message that came without a gap between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) msg_id: u32,
    pub(crate) begin: u32,
    pub(crate) end: u32,
    /// They end the message.
    pub(crate) last: bool,
}

impl Run {
    /// Are there bytes in both? An empty message has its one place at 0.
    fn overlaps(&self, other: &Run) -> bool {
        let end = |run: &Run| run.end.max(run.begin + 1);
        self.msg_id == other.msg_id && self.begin < end(other) && other.begin < end(self)
    }
}

/// Runs that came ahead of order, sorted. Allocates nothing after it was made.
#[derive(Debug)]
pub(crate) struct Islands {
    runs: Vec<Run>,
    limit: usize,
    /// The furthest frame that came, whether or not it was kept: how far gaps are known.
    seen: Option<Run>,
}

impl Islands {
    pub(crate) fn new(limit: u32) -> Self {
        let limit = limit.max(1) as usize;
        Self {
            runs: Vec::with_capacity(limit),
            limit,
            seen: None,
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.runs.len()
    }

    /// Is there a byte of this frame already?
    pub(crate) fn has(&self, frame: &Run) -> bool {
        self.runs.iter().any(|run| run.overlaps(frame))
    }

    /// The place of the first run behind this one.
    fn place(&self, at: Position, frame: &Run) -> usize {
        let key = |run: &Run| (at.distance_to(run.msg_id), run.begin);
        self.runs.partition_point(|run| key(run) < key(frame))
    }

    /// Is there room for a frame of which nothing is there yet?
    pub(crate) fn has_room_for(&self, at: Position, frame: &Run) -> bool {
        self.runs.len() < self.limit || self.continues(at, frame)
    }

    fn continues(&self, at: Position, frame: &Run) -> bool {
        let place = self.place(at, frame);
        let before = place.checked_sub(1).and_then(|place| self.runs.get(place));
        let after = self.runs.get(place);
        before.is_some_and(|run| run.msg_id == frame.msg_id && run.end == frame.begin)
            || after.is_some_and(|run| run.msg_id == frame.msg_id && run.begin == frame.end)
    }

    /// Keeps a frame of which nothing is there yet, and for which there is room.
    pub(crate) fn add(&mut self, at: Position, frame: Run) {
        let place = self.place(at, &frame);
        let joins_after = self
            .runs
            .get(place)
            .is_some_and(|run| run.msg_id == frame.msg_id && run.begin == frame.end);
        let before = place
            .checked_sub(1)
            .filter(|at| self.runs[*at].msg_id == frame.msg_id)
            .filter(|at| self.runs[*at].end == frame.begin);
        match (before, joins_after) {
            (Some(before), true) => {
                let after = self.runs.remove(place);
                self.runs[before].end = after.end;
                self.runs[before].last = after.last;
            }
            (Some(before), false) => {
                self.runs[before].end = frame.end;
                self.runs[before].last = frame.last;
            }
            (None, true) => self.runs[place].begin = frame.begin,
            (None, false) if self.runs.len() < self.limit => self.runs.insert(place, frame),
            (None, false) => {}
        }
    }

    /// Takes the run that goes on at this position.
    pub(crate) fn take(&mut self, at: Position) -> Option<Run> {
        let first = self.runs.first()?;
        let fits = first.msg_id == at.msg_id && first.begin == at.placed_bytes;
        fits.then(|| self.runs.remove(0))
    }

    /// This message is whole: what a faulty peer sent behind its end is forgotten.
    pub(crate) fn forget(&mut self, msg_id: u32) {
        self.runs.retain(|run| run.msg_id != msg_id);
    }

    /// A frame came. True if there is a gap in front of it that nothing told of yet.
    pub(crate) fn saw(&mut self, at: Position, frame: Run) -> bool {
        let seen = self
            .seen
            .filter(|seen| at.distance_to(seen.msg_id) <= i32::MAX as u32);
        let key = |run: &Run| (at.distance_to(run.msg_id), run.end, run.last);
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

    /// Did any frame come of what is not whole?
    #[inline]
    pub(crate) fn saw_beyond(&self, at: Position) -> bool {
        let ahead = |seen: Run| at.distance_to(seen.msg_id) <= i32::MAX as u32;
        self.seen.is_some_and(ahead)
    }

    /// All that came is whole, and a message behind it comes as a whole.
    #[inline]
    pub(crate) fn goes_on_whole(&mut self) {
        // Two thousand million messages later it would seem to be ahead.
        self.seen = None;
    }

    /// Writes the gaps between this position and the furthest frame that came, oldest first, as
    /// far as one report holds them; returns how many.
    pub(crate) fn missing(&self, at: Position, out: &mut [MissingRange; MAX_RANGES]) -> usize {
        let Some(seen) = self.seen else {
            return 0;
        };
        let furthest = at.distance_to(seen.msg_id);
        if furthest > i32::MAX as u32 {
            return 0;
        }
        let mut gaps = Gaps { out, count: 0 };
        let mut runs = self.runs.iter().peekable();
        for distance in 0..=furthest {
            let msg_id = at.msg_id.wrapping_add(distance);
            let mut reached = if distance == 0 { at.placed_bytes } else { 0 };
            let mut whole = false;
            while let Some(run) = runs.next_if(|run| run.msg_id == msg_id) {
                if run.begin > reached {
                    gaps.add(msg_id, reached, run.begin - reached);
                }
                (reached, whole) = (run.end, run.last);
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

/// Gaps as they are found.
struct Gaps<'a> {
    out: &'a mut [MissingRange; MAX_RANGES],
    count: usize,
}

impl Gaps<'_> {
    fn add(&mut self, msg_id: u32, offset_bytes: u32, length_bytes: u32) {
        if let Some(place) = self.out.get_mut(self.count) {
            *place = MissingRange {
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

    fn run(ahead: u32, begin: u32, end: u32, last: bool) -> Run {
        Run {
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

    fn missing(islands: &Islands, at: Position) -> Vec<(u32, u32, u32)> {
        let mut out = [MissingRange::default(); MAX_RANGES];
        let count = islands.missing(at, &mut out);
        let gaps = out[..count].iter();
        gaps.map(|gap| {
            let ahead = gap.msg_id.wrapping_sub(FIRST);
            (ahead, gap.offset_bytes, gap.length_bytes)
        })
        .collect()
    }

    #[test]
    fn gaps_are_what_lies_between_the_position_and_the_furthest_frame() {
        let mut islands = Islands::new(8);
        assert_eq!(missing(&islands, at(0, 0)), []);
        for (frame, new, gaps) in [
            (run(0, 0, 10, false), false, vec![(0, 0, 10)]),
            (run(0, 20, 30, false), true, vec![(0, 0, 10), (0, 10, 10)]),
        ] {
            assert_eq!(islands.saw(at(0, 0), frame), new);
            // The first was not kept, the second is.
            if frame.begin == 20 {
                islands.add(at(0, 0), frame);
                assert_eq!(missing(&islands, at(0, 0)), [(0, 0, 20)]);
            } else {
                assert_eq!(missing(&islands, at(0, 0)), gaps);
            }
        }
        // Two messages on, without any of the one between.
        let frame = run(2, 0, 5, true);
        assert!(islands.saw(at(0, 10), frame));
        islands.add(at(0, 10), frame);
        let gaps = [(0, 10, 10), (0, 30, 0), (1, 0, 0)];
        assert_eq!(missing(&islands, at(0, 10)), gaps);
        // What goes on without a gap is no news.
        assert!(!islands.saw(at(0, 10), run(3, 0, 10, false)));
        assert!(!islands.saw(at(0, 10), run(3, 10, 20, false)));
        assert!(islands.saw(at(0, 10), run(3, 30, 40, true)));
        assert!(!islands.saw(at(0, 10), run(3, 20, 30, false)));
        assert!(!islands.saw(at(0, 10), run(1, 0, 5, true)));
        assert_eq!(missing(&islands, at(3, 40)), [(3, 40, 0)]);
        assert_eq!(missing(&islands, at(4, 0)), []);
        assert!(!islands.saw(at(4, 0), run(4, 0, 5, true)));
    }

    #[test]
    fn an_empty_message_is_a_run_of_its_own() {
        let mut islands = Islands::new(2);
        let empty = run(1, 0, 0, true);
        assert!(islands.saw(at(0, 0), empty));
        islands.add(at(0, 0), empty);
        assert!(islands.has(&empty));
        assert_eq!(missing(&islands, at(0, 0)), [(0, 0, 0)]);
        assert_eq!(islands.take(at(0, 0)), None);
        assert_eq!(islands.take(at(1, 0)), Some(empty));
    }

    #[test]
    fn a_full_list_takes_only_what_goes_on_from_a_run() {
        let mut islands = Islands::new(2);
        let here = at(0, 0);
        for begin in [10, 30] {
            islands.add(here, run(0, begin, begin + 10, false));
        }
        assert!(!islands.has_room_for(here, &run(0, 50, 60, false)));
        assert!(!islands.has_room_for(here, &run(1, 40, 50, false)));
        islands.add(here, run(0, 50, 60, false));
        assert_eq!(islands.len(), 2);
        for frame in [run(0, 40, 50, false), run(0, 20, 30, false)] {
            assert!(islands.has_room_for(here, &frame));
            islands.add(here, frame);
        }
        assert_eq!(islands.runs, [run(0, 10, 50, false)]);
    }

    /// Frames of a few messages in any order, against a set of them.
    #[test]
    fn every_order_comes_to_the_same_end() {
        const FRAME: u32 = 10;
        let seed = 0x15A4;
        println!("seed {seed:#x}");
        let mut rng = Rng::new(seed);
        for _ in 0..2_000 {
            let lengths: Vec<u32> = (0..4).map(|_| 1 + rng.below(6) as u32).collect();
            let frames = |(ahead, frames): (usize, &u32)| {
                let frames = *frames;
                (0..frames)
                    .map(move |n| run(ahead as u32, n * FRAME, (n + 1) * FRAME, n + 1 == frames))
            };
            let mut coming: Vec<Run> = lengths.iter().enumerate().flat_map(frames).collect();
            let mut islands = Islands::new(32);
            let mut here = at(0, 0);
            let mut there: Vec<Run> = Vec::new();
            while !coming.is_empty() {
                let frame = coming.swap_remove(rng.below(coming.len() as u64) as usize);
                assert!(!islands.has(&frame));
                islands.saw(here, frame);
                islands.add(here, frame);
                assert!(islands.has(&frame));
                there.push(frame);
                while let Some(run) = islands.take(here) {
                    here = if run.last {
                        islands.forget(run.msg_id);
                        at(here.msg_id.wrapping_sub(FIRST) + 1, 0)
                    } else {
                        Position {
                            placed_bytes: run.end,
                            ..here
                        }
                    };
                }
                check(&islands, here, &coming, &there);
            }
            assert_eq!((here, islands.len()), (at(4, 0), 0));
        }
    }

    /// A gap is told of exactly where frames are missing in front of one that came.
    fn check(islands: &Islands, here: Position, coming: &[Run], there: &[Run]) {
        let gaps = missing(islands, here);
        let key = |run: &Run| (run.msg_id.wrapping_sub(FIRST), run.begin);
        let furthest = there.iter().map(key).max().expect("one came");
        for frame in coming {
            let told = gaps.iter().any(|(ahead, offset, length)| {
                let end = if *length == 0 {
                    u32::MAX
                } else {
                    offset + length
                };
                key(frame).0 == *ahead && (*offset..end).contains(&frame.begin)
            });
            let in_front = key(frame) < furthest;
            assert_eq!(told, in_front, "{frame:?} in {gaps:?}");
        }
    }
}
