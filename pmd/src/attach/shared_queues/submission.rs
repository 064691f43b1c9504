//! The submission ring, from the application to the process: posted descriptors.

use vi_core::descriptor::DataSegment;
use vi_core::queue::Slot;
use vi_core::sync::Ordering;

use super::{LINE_WORDS, ProtocolViolation, SUBMISSIONS_TAKEN, SharedQueues, ViId, lap};

/// Data segments in the first line of a submission, and in each further line.
const FIRST_SEGMENTS: usize = 1;
const MORE_SEGMENTS: usize = 3;

/// The number of lines of a descriptor with this number of data segments.
pub(super) const fn lines_of(segments: usize) -> u32 {
    1 + segments
        .saturating_sub(FIRST_SEGMENTS)
        .div_ceil(MORE_SEGMENTS) as u32
}

/// A kind of submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Submission {
    /// A descriptor of the send queue, in the slot.
    Send,
    /// A descriptor of the receive queue, in the slot.
    Receive,
    /// A post failed in a way that takes the VI to the Error state.
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

/// Writes submissions: the application's side.
#[derive(Default)]
pub(crate) struct SubmissionProducer {
    next: u32,
    /// The number of lines that the process had taken, as read last.
    taken: u32,
}

impl SubmissionProducer {
    fn has_space(&mut self, queues: &SharedQueues, lines: u32) -> bool {
        let ring = queues.sizes.submissions;
        if ring - self.next.wrapping_sub(self.taken) >= lines {
            return true;
        }
        // Acquire: partner of the Release store in `SubmissionConsumer::release`: those lines were read.
        self.taken = queues.word(SUBMISSIONS_TAKEN).load(Ordering::Acquire);
        ring.saturating_sub(self.next.wrapping_sub(self.taken)) >= lines
    }

    /// True if [`Self::submit`] would find space for this slot.
    pub(crate) fn has_space_for(&mut self, queues: &SharedQueues, slot: &Slot) -> bool {
        self.has_space(queues, lines_of(slot.data().len()))
    }

    /// Writes a submission for a VI, with the descriptor in `slot` and the number of the inline buffer that has its data,
    /// or 0; false if there is no space.
    #[inline]
    pub(crate) fn submit(
        &mut self,
        queues: &SharedQueues,
        vi: ViId,
        kind: Submission,
        slot: Option<&Slot>,
        inline_buffer: u32,
    ) -> bool {
        let segments = slot.map_or(&[][..], Slot::data);
        let lines = lines_of(segments.len());
        if !self.has_space(queues, lines) {
            return false;
        }
        let ring = queues.sizes.submissions;
        let (first, more) = segments.split_at(segments.len().min(FIRST_SEGMENTS));
        for (number, chunk) in (1..).zip(more.chunks(MORE_SEGMENTS)) {
            let number = self.next.wrapping_add(number);
            let line = queues.line(number);
            for (words, segment) in line[1..].chunks_exact(2).zip(chunk) {
                for (word, value) in words.iter().zip(segment_words(segment)) {
                    word.store(value, Ordering::Relaxed);
                }
            }
            // Release: as for the first line, whose lap is stored last of all.
            line[0].store(lap(number, ring) << 32, Ordering::Release);
        }
        let line = queues.line(self.next);
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
            line[7].store(inline_buffer.into(), Ordering::Relaxed);
        }
        let fault = slot.map_or(0, |slot| slot.fault);
        line[4].store(
            u64::from(fault) << 32 | u64::from(vi.generation),
            Ordering::Relaxed,
        );
        let head = lap(self.next, ring) << 32 | u64::from(vi.index) << 16 | kind.code();
        // Release: partner of the Acquire load in `SubmissionConsumer::peek`.
        line[0].store(head, Ordering::Release);
        self.next = self.next.wrapping_add(lines);
        true
    }
}

/// A submission, with a copy of its first line: each word is read once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Submitted {
    pub(crate) vi: ViId,
    pub(crate) kind: Submission,
    pub(crate) segments: u16,
    lines: u32,
    /// The first line.
    words: [u64; LINE_WORDS],
}

impl Submitted {
    /// Returns the number of the inline buffer that has the data; 0 without one.
    #[inline]
    pub(crate) fn inline_buffer(&self) -> u32 {
        self.words[7] as u32
    }

    /// Returns the descriptor without its data segments, for one that is to fail.
    pub(crate) fn without_segments(self) -> Self {
        Self {
            segments: 0,
            ..self
        }
    }
}

/// Reads submissions: the process's side.
#[derive(Default)]
pub(crate) struct SubmissionConsumer {
    next: u32,
    released: u32,
}

impl SubmissionConsumer {
    /// Returns the oldest submission, which stays in the ring until [`SubmissionConsumer::advance`].
    ///
    /// # Errors
    /// Its kind is unknown, or it has more than `max_segments` data segments.
    #[inline]
    pub(crate) fn peek(
        &self,
        queues: &SharedQueues,
        max_segments: u32,
    ) -> Result<Option<Submitted>, ProtocolViolation> {
        let ring = queues.sizes.submissions;
        let line = queues.line(self.next);
        let mut words = [0; LINE_WORDS];
        // Acquire: partner of the Release store in `SubmissionProducer::submit`.
        words[0] = line[0].load(Ordering::Acquire);
        let head = words[0];
        if head >> 32 != lap(self.next, ring) {
            return Ok(None);
        }
        for (word, there) in words.iter_mut().zip(line).skip(1) {
            *word = there.load(Ordering::Relaxed);
        }
        let kind = Submission::of(head & 0xFFFF)
            .ok_or(ProtocolViolation("submission of an unknown kind"))?;
        let segments = if kind == Submission::Break {
            0
        } else {
            (words[1] >> 32) as u16
        };
        if u32::from(segments) > max_segments {
            return Err(ProtocolViolation(
                "descriptor with more segments than the NIC allows",
            ));
        }
        let lines = lines_of(segments.into());
        Ok(Some(Submitted {
            vi: ViId {
                index: (head >> 16) as u16,
                generation: words[4] as u32,
            },
            kind,
            segments,
            lines,
            words,
        }))
    }

    /// Copies the descriptor of a submission into a slot.
    ///
    /// # Errors
    /// The lines behind the first one are missing.
    #[inline]
    pub(crate) fn copy(
        &self,
        queues: &SharedQueues,
        submitted: &Submitted,
        slot: &mut Slot,
    ) -> Result<(), ProtocolViolation> {
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
        self.copy_more(queues, more)
    }

    /// Copies the segments in the lines behind the first one.
    fn copy_more(
        &self,
        queues: &SharedQueues,
        more: &mut [DataSegment],
    ) -> Result<(), ProtocolViolation> {
        let ring = queues.sizes.submissions;
        for (number, chunk) in (1..).zip(more.chunks_mut(MORE_SEGMENTS)) {
            let number = self.next.wrapping_add(number);
            let line = queues.line(number);
            // Acquire: partner of the Release store in `SubmissionProducer::submit`.
            if line[0].load(Ordering::Acquire) >> 32 != lap(number, ring) {
                return Err(ProtocolViolation("incomplete descriptor"));
            }
            for (words, segment) in line[1..].chunks_exact(2).zip(chunk) {
                *segment =
                    segment_of([0, 1].map(|word: usize| words[word].load(Ordering::Relaxed)));
            }
        }
        Ok(())
    }

    /// The index one ring length behind the oldest submission: the end of all that is in the ring now.
    pub(crate) fn end_of_ring(&self, queues: &SharedQueues) -> u32 {
        self.next.wrapping_add(queues.sizes.submissions)
    }

    /// True if all submissions before this index are taken.
    #[inline]
    pub(crate) fn has_reached(&self, end: u32) -> bool {
        end.wrapping_sub(self.next).cast_signed() <= 0
    }

    /// Removes the submission that [`Self::peek`] returned.
    #[inline]
    pub(crate) fn advance(&mut self, submitted: &Submitted) {
        self.next = self.next.wrapping_add(submitted.lines);
    }

    /// Returns the space of the removed submissions to the application.
    #[inline]
    pub(crate) fn release(&mut self, queues: &SharedQueues) {
        if self.released != self.next {
            self.released = self.next;
            // Release: partner of the Acquire load in `SubmissionProducer::has_space`.
            queues
                .word(SUBMISSIONS_TAKEN)
                .store(self.next, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::RingSizes;
    use super::*;

    /// A writer that refills each line as soon as it is taken cannot keep the reader busy forever.
    #[test]
    fn end_of_ring_excludes_submissions_written_while_the_ring_is_read() {
        let sizes = RingSizes {
            submissions: 64,
            completions: 128,
            inline_buffers: 0,
        };
        let (queues, _fd) = SharedQueues::create(sizes).unwrap();
        let write = |number| {
            let head = lap(number, sizes.submissions) << 32 | Submission::Break.code();
            queues.line(number)[0].store(head, Ordering::Release);
        };
        (0..64).for_each(write);
        let mut consumer = SubmissionConsumer::default();
        for round in 1..4 {
            let end = consumer.end_of_ring(&queues);
            while !consumer.has_reached(end) {
                let submitted = consumer.peek(&queues, 1).unwrap().unwrap();
                let number = consumer.next;
                consumer.advance(&submitted);
                write(number + 64);
            }
            assert_eq!(consumer.next, round * 64);
        }
    }
}
