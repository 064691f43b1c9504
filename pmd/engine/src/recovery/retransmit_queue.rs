//! Frames to retransmit, and those just retransmitted.

/// Maximum ranges in the queue; what exceeds it is reported missing again.
pub(crate) const MAX_RETRANSMITS: usize = 32;

/// A range of frames of one message, by their numbers in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RetransmitRange {
    pub(crate) msg_id: u32,
    /// The next frame to retransmit.
    pub(crate) next: u32,
    /// One past the last frame.
    pub(crate) end: u32,
    begin: u32,
    /// When the last frame was retransmitted.
    sent_ns: Option<u64>,
}

/// Frames to retransmit, in the order in which they were reported missing. Allocates at
/// construction only.
#[derive(Debug)]
pub(crate) struct RetransmitQueue {
    ranges: Vec<RetransmitRange>,
}

impl RetransmitQueue {
    pub(crate) fn new() -> Self {
        Self {
            ranges: Vec::with_capacity(MAX_RETRANSMITS),
        }
    }

    /// Adds frames that are missing at the peer. Returns how many will be retransmitted: not those
    /// that are queued, or were retransmitted within the last `repeat_ns`, nor any for which there
    /// is no room.
    pub(crate) fn add(
        &mut self,
        now_ns: u64,
        msg_id: u32,
        frames: core::ops::Range<u32>,
        repeat_ns: u64,
    ) -> u32 {
        let overlaps = |r: &RetransmitRange| {
            r.msg_id == msg_id && r.begin < frames.end && frames.start < r.end
        };
        let is_recent = |r: &RetransmitRange| r.sent_ns.is_none_or(|at| now_ns < at + repeat_ns);
        self.ranges.retain(|r| is_recent(r) || !overlaps(r));
        if self.ranges.len() >= MAX_RETRANSMITS {
            // Old retransmissions need not be remembered.
            self.ranges.retain(is_recent);
        }
        let mut added = 0;
        let mut from = frames.start;
        while from < frames.end && self.ranges.len() < MAX_RETRANSMITS {
            let queued = self.ranges.iter().filter(|r| overlaps(r));
            let next = queued.filter(|r| r.end > from).min_by_key(|r| r.begin);
            let (to, then) = next.map_or((frames.end, frames.end), |r| (r.begin, r.end));
            if from < to {
                self.ranges.push(RetransmitRange {
                    msg_id,
                    next: from,
                    end: to,
                    begin: from,
                    sent_ns: None,
                });
                added += to - from;
            }
            from = then;
        }
        added
    }

    /// Reports whether nothing is to be retransmitted, nor was recently.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the next range to retransmit.
    pub(crate) fn next(&self) -> Option<RetransmitRange> {
        self.ranges.iter().find(|r| r.sent_ns.is_none()).copied()
    }

    /// Notes that its next frame was retransmitted.
    pub(crate) fn frame_sent(&mut self, now_ns: u64) {
        if let Some(range) = self.ranges.iter_mut().find(|r| r.sent_ns.is_none()) {
            range.next += 1;
            if range.next >= range.end {
                range.sent_ns = Some(now_ns);
            }
        }
    }

    /// Removes all ranges that `keep` rejects.
    pub(crate) fn retain(&mut self, keep: impl Fn(&RetransmitRange) -> bool) {
        self.ranges.retain(keep);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_retransmitted_once_per_round_trip() {
        let mut queue = RetransmitQueue::new();
        assert_eq!(queue.add(100, 7, 2..4, 10), 2);
        assert_eq!(queue.add(150, 7, 3..4, 10), 0, "not sent yet");
        assert_eq!(queue.add(150, 8, 3..4, 10), 1, "another message");
        for frame in [2, 3] {
            let next = queue.next().expect("two frames");
            assert_eq!((next.msg_id, next.next), (7, frame));
            queue.frame_sent(200);
        }
        assert_eq!(queue.next().map(|r| r.msg_id), Some(8));
        queue.frame_sent(201);
        assert_eq!(queue.next(), None);
        assert_eq!(queue.add(209, 7, 2..3, 10), 0, "just sent");
        assert_eq!(queue.add(210, 7, 2..3, 10), 1);
        assert_eq!(queue.len(), 2);
        queue.retain(|r| r.msg_id != 7);
        assert_eq!(queue.next(), None);
    }

    #[test]
    fn queued_frames_are_omitted_from_a_longer_range() {
        let mut queue = RetransmitQueue::new();
        assert_eq!(queue.add(0, 7, 9..10, 10), 1);
        assert_eq!(queue.add(0, 7, 4..6, 10), 2);
        assert_eq!(queue.add(0, 7, 2..12, 10), 2 + 3 + 2);
        let mut again = Vec::new();
        while let Some(next) = queue.next() {
            again.push(next.next);
            queue.frame_sent(1);
        }
        assert_eq!(again, [9, 4, 5, 2, 3, 6, 7, 8, 10, 11]);
        assert_eq!(queue.add(5, 7, 0..20, 10), 2 + 8);
    }

    #[test]
    fn queue_is_bounded_and_drops_old_retransmissions() {
        let mut queue = RetransmitQueue::new();
        for msg_id in 0..100 {
            let added = queue.add(0, msg_id, 0..1, 10);
            assert_eq!(added == 1, msg_id < MAX_RETRANSMITS as u32);
        }
        while queue.next().is_some() {
            queue.frame_sent(5);
        }
        assert_eq!(queue.add(14, 100, 0..1, 10), 0);
        assert_eq!(queue.add(15, 100, 0..1, 10), 1);
        assert_eq!(queue.len(), 1);
    }
}
