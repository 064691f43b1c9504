//! What is to be sent again, and what just was.

/// Runs of frames that are kept at a time; what is beyond is reported again.
pub(crate) const MAX_REPAIRS: usize = 32;

/// Frames of one message, by their numbers in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Repair {
    pub(crate) msg_id: u32,
    /// The next one to be sent again.
    pub(crate) next: u32,
    /// One behind the last one.
    pub(crate) end: u32,
    begin: u32,
    /// When the last one was sent again.
    sent_ns: Option<u64>,
}

/// Frames to be sent again, in the order in which they were asked for. Allocates nothing after
/// it was made.
#[derive(Debug)]
pub(crate) struct Repairs {
    list: Vec<Repair>,
}

impl Repairs {
    pub(crate) fn new() -> Self {
        Self {
            list: Vec::with_capacity(MAX_REPAIRS),
        }
    }

    /// These frames are missing at the other end; returns how many of them will be sent again:
    /// not those for which that is under way, or was done within the last `repeat_ns`, nor any
    /// for which there is no room.
    pub(crate) fn ask(
        &mut self,
        now_ns: u64,
        msg_id: u32,
        frames: core::ops::Range<u32>,
        repeat_ns: u64,
    ) -> u32 {
        let overlaps =
            |r: &Repair| r.msg_id == msg_id && r.begin < frames.end && frames.start < r.end;
        let fresh = |r: &Repair| r.sent_ns.is_none_or(|at| now_ns < at + repeat_ns);
        self.list.retain(|r| fresh(r) || !overlaps(r));
        if self.list.len() >= MAX_REPAIRS {
            // Of what was sent again nothing is remembered that is old.
            self.list.retain(fresh);
        }
        let mut asked = 0;
        let mut from = frames.start;
        while from < frames.end && self.list.len() < MAX_REPAIRS {
            let others = self.list.iter().filter(|r| overlaps(r));
            let next = others.filter(|r| r.end > from).min_by_key(|r| r.begin);
            let (to, then) = next.map_or((frames.end, frames.end), |r| (r.begin, r.end));
            if from < to {
                self.list.push(Repair {
                    msg_id,
                    next: from,
                    end: to,
                    begin: from,
                    sent_ns: None,
                });
                asked += to - from;
            }
            from = then;
        }
        asked
    }

    /// Is nothing to be sent again, nor was lately?
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// What is to be sent again next.
    pub(crate) fn next(&self) -> Option<Repair> {
        self.list.iter().find(|r| r.sent_ns.is_none()).copied()
    }

    /// Its frame was sent again.
    pub(crate) fn sent(&mut self, now_ns: u64) {
        if let Some(repair) = self.list.iter_mut().find(|r| r.sent_ns.is_none()) {
            repair.next += 1;
            if repair.next >= repair.end {
                repair.sent_ns = Some(now_ns);
            }
        }
    }

    /// The next one is of a message that needs nothing any more, like all that `keep` does not
    /// want.
    pub(crate) fn forget(&mut self, keep: impl Fn(&Repair) -> bool) {
        self.list.retain(keep);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_sent_again_once_a_round_trip() {
        let mut repairs = Repairs::new();
        assert_eq!(repairs.ask(100, 7, 2..4, 10), 2);
        assert_eq!(repairs.ask(150, 7, 3..4, 10), 0, "not sent yet");
        assert_eq!(repairs.ask(150, 8, 3..4, 10), 1, "another message");
        for frame in [2, 3] {
            let next = repairs.next().expect("two frames");
            assert_eq!((next.msg_id, next.next), (7, frame));
            repairs.sent(200);
        }
        assert_eq!(repairs.next().map(|r| r.msg_id), Some(8));
        repairs.sent(201);
        assert_eq!(repairs.next(), None);
        assert_eq!(repairs.ask(209, 7, 2..3, 10), 0, "just sent");
        assert_eq!(repairs.ask(210, 7, 2..3, 10), 1);
        assert_eq!(repairs.len(), 2);
        repairs.forget(|r| r.msg_id != 7);
        assert_eq!(repairs.next(), None);
    }

    #[test]
    fn what_is_under_way_is_left_out_of_a_longer_run() {
        let mut repairs = Repairs::new();
        assert_eq!(repairs.ask(0, 7, 9..10, 10), 1);
        assert_eq!(repairs.ask(0, 7, 4..6, 10), 2);
        assert_eq!(repairs.ask(0, 7, 2..12, 10), 2 + 3 + 2);
        let mut again = Vec::new();
        while let Some(next) = repairs.next() {
            again.push(next.next);
            repairs.sent(1);
        }
        assert_eq!(again, [9, 4, 5, 2, 3, 6, 7, 8, 10, 11]);
        assert_eq!(repairs.ask(5, 7, 0..20, 10), 2 + 8);
    }

    #[test]
    fn the_list_is_bounded_and_forgets_what_is_old() {
        let mut repairs = Repairs::new();
        for msg_id in 0..100 {
            let asked = repairs.ask(0, msg_id, 0..1, 10);
            assert_eq!(asked == 1, msg_id < MAX_REPAIRS as u32);
        }
        while repairs.next().is_some() {
            repairs.sent(5);
        }
        assert_eq!(repairs.ask(14, 100, 0..1, 10), 0);
        assert_eq!(repairs.ask(15, 100, 0..1, 10), 1);
        assert_eq!(repairs.len(), 1);
    }
}
