//! From the application to the process: descriptors that were posted.

use super::{Arena, LINE_WORDS, Nonsense, SUBMISSIONS_TAKEN, ViName, lap};
use crate::descriptor::DataSegment;
use crate::queue::Slot;
use crate::sync::Ordering;

/// Data segments in a first line, and in each line that continues it.
const FIRST_SEGMENTS: usize = 1;
const MORE_SEGMENTS: usize = 3;

/// Lines that a descriptor of so many data segments takes.
pub(super) const fn lines_of(segments: usize) -> u32 {
    1 + segments
        .saturating_sub(FIRST_SEGMENTS)
        .div_ceil(MORE_SEGMENTS) as u32
}

/// What is submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Submission {
    /// A descriptor of the send queue, in the slot.
    Send,
    /// A descriptor of the receive queue, in the slot.
    Receive,
    /// A post failed in a way that breaks the VI.
    Break,
}

impl Submission {
    fn code(self) -> u64 {
        match self {
            Self::Send => 0,
            Self::Receive => 1,
            Self::Break => 2,
        }
    }

    fn of(code: u64) -> Option<Self> {
        match code {
            0 => Some(Self::Send),
            1 => Some(Self::Receive),
            2 => Some(Self::Break),
            _ => None,
        }
    }
}

fn segment_words(segment: &DataSegment) -> [u64; 2] {
    [
        segment.address,
        u64::from(segment.handle) << 32 | u64::from(segment.length),
    ]
}

fn segment_of([address, rest]: [u64; 2]) -> DataSegment {
    DataSegment {
        address,
        handle: (rest >> 32) as u32,
        length: rest as u32,
    }
}

/// The application's end of the submission ring.
#[derive(Default)]
pub(crate) struct Submitter {
    next: u32,
    /// What the process had taken when it was looked at last.
    taken: u32,
}

impl Submitter {
    fn has_room(&mut self, arena: &Arena, lines: u32) -> bool {
        let ring = arena.sizes.submissions;
        if ring - self.next.wrapping_sub(self.taken) >= lines {
            return true;
        }
        // Acquire: partner of the Release store in `Taker::give_back`: those lines were read.
        self.taken = arena.word(SUBMISSIONS_TAKEN).load(Ordering::Acquire);
        ring.saturating_sub(self.next.wrapping_sub(self.taken)) >= lines
    }

    /// Would [`Self::submit`] find room for this slot?
    pub(crate) fn has_room_for(&mut self, arena: &Arena, slot: &Slot) -> bool {
        self.has_room(arena, lines_of(slot.data().len()))
    }

    /// Submits a slot of a VI; false if there is no room.
    #[inline]
    pub(crate) fn submit(
        &mut self,
        arena: &Arena,
        vi: ViName,
        what: Submission,
        slot: Option<&Slot>,
    ) -> bool {
        let segments = slot.map_or(&[][..], Slot::data);
        let lines = lines_of(segments.len());
        if !self.has_room(arena, lines) {
            return false;
        }
        let ring = arena.sizes.submissions;
        let (first, more) = segments.split_at(segments.len().min(FIRST_SEGMENTS));
        for (number, piece) in (1..).zip(more.chunks(MORE_SEGMENTS)) {
            let number = self.next.wrapping_add(number);
            let line = arena.line(number);
            for (place, segment) in line[1..].chunks_exact(2).zip(piece) {
                for (word, value) in place.iter().zip(segment_words(segment)) {
                    word.store(value, Ordering::Relaxed);
                }
            }
            // Release: as of the first line, whose lap is stored last of all.
            line[0].store(lap(number, ring) << 32, Ordering::Release);
        }
        let line = arena.line(self.next);
        if let Some(slot) = slot {
            let sizes = u64::from(slot.control) << 48
                | (segments.len() as u64 & 0xFFFF) << 32
                | u64::from(slot.length_bytes);
            line[1].store(sizes, Ordering::Relaxed);
            line[2].store(slot.remote_address, Ordering::Relaxed);
            line[3].store(
                u64::from(slot.remote_handle) << 32 | u64::from(slot.immediate),
                Ordering::Relaxed,
            );
            if let Some(segment) = first.first() {
                let [address, rest] = segment_words(segment);
                line[5].store(address, Ordering::Relaxed);
                line[6].store(rest, Ordering::Relaxed);
            }
        }
        let fault = slot.map_or(0, |slot| slot.fault);
        line[4].store(
            u64::from(fault) << 32 | u64::from(vi.generation),
            Ordering::Relaxed,
        );
        let head = lap(self.next, ring) << 32 | u64::from(vi.index) << 16 | what.code();
        // Release: partner of the Acquire load in `Taker::take`.
        line[0].store(head, Ordering::Release);
        self.next = self.next.wrapping_add(lines);
        true
    }
}

/// A submission as it was found: each word of its first line is read once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Submitted {
    pub(crate) vi: ViName,
    pub(crate) what: Submission,
    pub(crate) segments: u16,
    lines: u32,
    /// The first line.
    words: [u64; LINE_WORDS],
}

/// The process's end of the submission ring.
#[derive(Default)]
pub(crate) struct Taker {
    next: u32,
    given_back: u32,
}

impl Taker {
    /// The oldest submission, if there is one. It stays until [`Taker::advance`].
    #[inline]
    pub(crate) fn peek(
        &self,
        arena: &Arena,
        max_segments: u32,
    ) -> Result<Option<Submitted>, Nonsense> {
        let ring = arena.sizes.submissions;
        let line = arena.line(self.next);
        let mut words = [0; LINE_WORDS];
        // Acquire: partner of the Release store in `Submitter::submit`.
        words[0] = line[0].load(Ordering::Acquire);
        let head = words[0];
        if head >> 32 != lap(self.next, ring) {
            return Ok(None);
        }
        for (word, there) in words.iter_mut().zip(line).skip(1) {
            *word = there.load(Ordering::Relaxed);
        }
        let what = Submission::of(head & 0xFFFF).ok_or(Nonsense("an unknown submission"))?;
        let segments = if what == Submission::Break {
            0
        } else {
            (words[1] >> 32) as u16
        };
        if u32::from(segments) > max_segments {
            return Err(Nonsense("more segments than the NIC allows"));
        }
        let lines = lines_of(segments.into());
        Ok(Some(Submitted {
            vi: ViName {
                index: (head >> 16) as u16,
                generation: words[4] as u32,
            },
            what,
            segments,
            lines,
            words,
        }))
    }

    /// Copies a submission into a slot.
    #[inline]
    pub(crate) fn copy(
        &self,
        arena: &Arena,
        submitted: &Submitted,
        slot: &mut Slot,
    ) -> Result<(), Nonsense> {
        let [_, sizes, remote_address, remote, fault, segment @ .., _] = submitted.words;
        slot.control = (sizes >> 48) as u16;
        slot.length_bytes = sizes as u32;
        slot.remote_address = remote_address;
        slot.remote_handle = (remote >> 32) as u32;
        slot.immediate = remote as u32;
        slot.fault = (fault >> 32) as u32;
        slot.begin(0, 0);
        slot.status = 0;
        let to = slot.segments_mut(submitted.segments.into());
        let (first, more) = to.split_at_mut(to.len().min(FIRST_SEGMENTS));
        if let [first] = first {
            *first = segment_of(segment);
        }
        if more.is_empty() {
            return Ok(());
        }
        self.copy_more(arena, more)
    }

    /// Copies the segments that stand in the lines behind the first.
    fn copy_more(&self, arena: &Arena, more: &mut [DataSegment]) -> Result<(), Nonsense> {
        let ring = arena.sizes.submissions;
        for (number, piece) in (1..).zip(more.chunks_mut(MORE_SEGMENTS)) {
            let number = self.next.wrapping_add(number);
            let line = arena.line(number);
            // Acquire: partner of the Release store in `Submitter::submit`.
            if line[0].load(Ordering::Acquire) >> 32 != lap(number, ring) {
                return Err(Nonsense("half a descriptor"));
            }
            for (place, segment) in line[1..].chunks_exact(2).zip(piece) {
                *segment =
                    segment_of([0, 1].map(|word: usize| place[word].load(Ordering::Relaxed)));
            }
        }
        Ok(())
    }

    /// Where what the ring holds now ends, at the latest.
    pub(crate) fn end_of_ring(&self, arena: &Arena) -> u32 {
        self.next.wrapping_add(arena.sizes.submissions)
    }

    /// Is everything taken that stands before this end?
    #[inline]
    pub(crate) fn is_at(&self, end: u32) -> bool {
        end.wrapping_sub(self.next).cast_signed() <= 0
    }

    /// The submission was taken.
    #[inline]
    pub(crate) fn advance(&mut self, submitted: &Submitted) {
        self.next = self.next.wrapping_add(submitted.lines);
    }

    /// Gives the room of what was taken back to the application.
    #[inline]
    pub(crate) fn give_back(&mut self, arena: &Arena) {
        if self.given_back != self.next {
            self.given_back = self.next;
            // Release: partner of the Acquire load in `Submitter::has_room`.
            arena
                .word(SUBMISSIONS_TAKEN)
                .store(self.next, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::RingSizes;
    use super::*;

    /// Who writes a line anew as soon as it is taken keeps nobody for ever.
    #[test]
    fn what_is_written_while_the_ring_is_taken_waits() {
        let sizes = RingSizes {
            submissions: 64,
            completions: 128,
        };
        let (arena, _fd) = Arena::create(sizes).unwrap();
        let write = |number| {
            let head = lap(number, sizes.submissions) << 32 | Submission::Break.code();
            arena.line(number)[0].store(head, Ordering::Release);
        };
        (0..64).for_each(write);
        let mut taker = Taker::default();
        for round in 1..4 {
            let end = taker.end_of_ring(&arena);
            while !taker.is_at(end) {
                let submitted = taker.peek(&arena, 1).unwrap().unwrap();
                let number = taker.next;
                taker.advance(&submitted);
                write(number + 64);
            }
            assert_eq!(taker.next, round * 64);
        }
    }
}
