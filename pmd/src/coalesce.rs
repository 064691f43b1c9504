//! Sends that follow each other, in bursts to the port.
//!
//! A port that goes to a card or to the kernel takes a burst for little more than a frame. So what is posted shortly after
//! a burst waits for what follows, until one of these:
//!
//! - the burst is full (`coalesce_frames`);
//! - a send is posted, and the burst before is [`SPACING_NS`] ago;
//! - the program makes another call of the data path, any but posting;
//! - the program makes no call for `takeover_us`, and the NIC's thread takes over.
//!
//! A send that follows no other goes at once, and so does the first one after something came: it may be the answer that
//! somebody waits for. Where a burst is a system call, only as long as such answers are alone: the first of several would
//! be one call more each time, and who waits for an answer makes a call of the data path soon.

use pmd_port::BURST;

/// Bursts that follow from posting alone are so far from each other, unless they are full.
const SPACING_NS: u64 = 4_000;

/// The same of system calls on sockets.
const STREAM_SPACING_NS: u64 = 20_000;

/// Decides when what is posted goes to the port.
#[derive(Debug)]
pub(crate) struct Coalescer {
    /// Frames of a full burst; one if each goes alone.
    most: usize,
    spacing_ns: u64,
    /// When the last burst went; `None` if what is posted next waits for nothing.
    burst_ns: Option<u64>,
    /// Answers that turn out to be several are no more sent one by one.
    learns: bool,
    /// The first send after something came goes at once.
    hastens: bool,
    /// It did, and nothing since.
    hastened: bool,
}

impl Coalescer {
    /// For bursts of so many frames; `alone`: none gains by waiting for others.
    pub(crate) fn new(frames: u32, alone: bool) -> Self {
        Self {
            most: if alone { 1 } else { frames as usize },
            spacing_ns: SPACING_NS,
            burst_ns: None,
            learns: false,
            hastens: true,
            hastened: false,
        }
    }

    /// For messages that a system call takes together, up to so many: it costs as much as a burst
    /// of frames, and more than a frame.
    pub(crate) fn for_streams(messages: u32) -> Self {
        Self {
            spacing_ns: STREAM_SPACING_NS,
            learns: true,
            ..Self::new(messages, false)
        }
    }

    /// For bursts of so many frames that no time makes smaller.
    #[cfg(test)]
    pub(crate) fn patient(frames: u32) -> Self {
        Self {
            spacing_ns: u64::MAX / 2,
            burst_ns: Some(0),
            ..Self::new(frames, false)
        }
    }

    /// Does it take the time to decide, with so many frames that wait already? Not for each frame of a burst.
    #[inline]
    pub(crate) fn wants_time(&self, waiting: usize) -> bool {
        self.most > 1 && self.burst_ns.is_some() && waiting.count_ones() <= 1
    }

    /// Shall so many frames wait for others? If not, they are a burst.
    #[inline]
    pub(crate) fn waits(&mut self, now_ns: u64, frames: usize) -> bool {
        let is_soon = |burst_ns| now_ns < burst_ns + self.spacing_ns;
        if frames == 0 || (frames < self.most && self.burst_ns.is_some_and(is_soon)) {
            return true;
        }
        self.burst_ns = Some(now_ns);
        false
    }

    /// Something came: what is posted next may be the answer to it.
    #[inline]
    pub(crate) fn answers(&mut self) {
        if self.hastens {
            self.burst_ns = None;
            self.hastened = self.learns;
        }
    }

    /// What waited was sent for another reason: so many.
    #[inline]
    pub(crate) fn sent(&mut self, now_ns: u64, frames: usize) {
        self.burst_ns = Some(now_ns);
        if self.learns && frames > 0 {
            // One alone was an answer, of which the next may go at once; several were not.
            self.hastens = !self.hastened && (self.hastens || frames == 1);
        }
    }

    /// A turn with nothing that waits.
    #[inline]
    pub(crate) fn turned(&mut self) {
        self.hastened = false;
    }
}

/// The largest burst that may be asked for.
pub(crate) const MOST_FRAMES: u32 = BURST as u32;

#[cfg(test)]
mod tests {
    use super::*;

    const LATER_NS: u64 = 1_000_000;

    #[test]
    fn the_first_goes_at_once_and_those_behind_it_together() {
        let mut coalescer = Coalescer::new(8, false);
        assert!(!coalescer.waits(LATER_NS, 1));
        for frames in 1..8 {
            assert!(coalescer.waits(LATER_NS + 10, frames));
        }
        assert!(!coalescer.waits(LATER_NS + 20, 8), "full");
        assert!(coalescer.waits(LATER_NS + 20 + SPACING_NS - 1, 1));
        assert!(!coalescer.waits(LATER_NS + 20 + SPACING_NS, 2), "long ago");
    }

    #[test]
    fn a_burst_for_another_reason_counts() {
        let mut coalescer = Coalescer::new(8, false);
        assert!(!coalescer.waits(LATER_NS, 1));
        coalescer.sent(2 * LATER_NS, 1);
        assert!(coalescer.waits(2 * LATER_NS + 1, 1));
    }

    #[test]
    fn an_answer_goes_at_once_and_what_follows_it_waits() {
        let mut coalescer = Coalescer::new(8, false);
        assert!(!coalescer.waits(LATER_NS, 1));
        coalescer.answers();
        assert!(!coalescer.waits(LATER_NS + 10, 1));
        assert!(coalescer.waits(LATER_NS + 20, 1));
    }

    #[test]
    fn answers_of_several_messages_wait_for_each_other() {
        let mut coalescer = Coalescer::for_streams(32);
        let answer = |coalescer: &mut Coalescer, messages: usize| {
            coalescer.sent(LATER_NS, 0);
            coalescer.answers();
            let mut waiting = 0;
            let mut calls = 0;
            for _ in 0..messages {
                waiting += 1;
                if !coalescer.waits(LATER_NS, waiting) {
                    (waiting, calls) = (0, calls + 1);
                }
            }
            coalescer.sent(LATER_NS, waiting);
            coalescer.turned();
            (calls, waiting)
        };
        assert_eq!(answer(&mut coalescer, 1), (1, 0));
        assert_eq!(answer(&mut coalescer, 3), (1, 2), "not known yet");
        assert_eq!(answer(&mut coalescer, 3), (0, 3));
        assert_eq!(answer(&mut coalescer, 1), (0, 1), "not known yet");
        assert_eq!(answer(&mut coalescer, 1), (1, 0));
    }

    #[test]
    fn frames_that_gain_nothing_never_wait() {
        for mut coalescer in [Coalescer::new(8, true), Coalescer::new(1, false)] {
            assert!(!coalescer.wants_time(0));
            for now_ns in [LATER_NS, LATER_NS, LATER_NS + 1] {
                assert!(!coalescer.waits(now_ns, 1));
            }
        }
    }

    #[test]
    fn a_slow_program_is_noticed_by_the_second_frame_that_waits() {
        let mut coalescer = Coalescer::new(32, false);
        coalescer.sent(LATER_NS, 0);
        let looks: Vec<usize> = (0..32).filter(|n| coalescer.wants_time(*n)).collect();
        assert_eq!(looks, [0, 1, 2, 4, 8, 16]);
    }
}
