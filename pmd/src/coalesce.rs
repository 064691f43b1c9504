//! Coalescing of sends into bursts to the port.
//!
//! On a port of a network card or of the kernel a burst costs little more than a frame. So a send that is posted soon
//! after a burst is delayed, until one of these:
//!
//! - the burst is full (`coalesce_frames`);
//! - a send is posted, and the last burst was sent [`SPACING_NS`] ago;
//! - the program makes another call of the data path, any but posting;
//! - the program makes no call for `takeover_us`, and the NIC's thread takes over.
//!
//! The first send after a pause is sent at once, and so is the first send after a receive: it may be the reply that the
//! peer waits for. Where a burst is a system call, this holds only while such replies are single: otherwise the first
//! of several would cost one more call each time, and a program that waits for a reply makes a call of the data path
//! soon.

use pmd_port::BURST;

/// The minimum interval of bursts that are sent by posting alone, unless they are full.
const SPACING_NS: u64 = 4_000;

/// The same interval for system calls on sockets.
const STREAM_SPACING_NS: u64 = 20_000;

/// Decides when posted sends are passed to the port.
#[derive(Debug)]
pub(crate) struct Coalescer {
    /// Frames of a full burst; 1 if frames are not coalesced.
    max_frames: usize,
    spacing_ns: u64,
    /// When the last burst was sent; `None` if the next send is not delayed.
    burst_ns: Option<u64>,
    /// Sends after a receive are no longer flushed at once if they turn out to be several.
    adaptive: bool,
    /// The first send after a receive is flushed at once.
    flush_first: bool,
    /// The first send after a receive was flushed, and nothing sent since.
    flushed_first: bool,
}

impl Coalescer {
    /// Creates a coalescer for bursts of this many frames; `alone`: frames are not coalesced.
    pub(crate) fn new(frames: u32, alone: bool) -> Self {
        Self {
            max_frames: if alone { 1 } else { frames as usize },
            spacing_ns: SPACING_NS,
            burst_ns: None,
            adaptive: false,
            flush_first: true,
            flushed_first: false,
        }
    }

    /// Creates a coalescer for system calls that send up to this many messages: such a call costs as
    /// much as a burst of frames.
    pub(crate) fn for_streams(messages: u32) -> Self {
        Self {
            spacing_ns: STREAM_SPACING_NS,
            adaptive: true,
            ..Self::new(messages, false)
        }
    }

    /// Creates a coalescer whose bursts are sent only when they are full.
    #[cfg(test)]
    pub(crate) fn without_time_limit(frames: u32) -> Self {
        Self {
            spacing_ns: u64::MAX / 2,
            burst_ns: Some(0),
            ..Self::new(frames, false)
        }
    }

    /// Returns true if the decision needs the time, with this many delayed frames: not for each frame of a burst.
    #[inline]
    pub(crate) fn needs_time(&self, waiting: usize) -> bool {
        self.max_frames > 1 && self.burst_ns.is_some() && waiting.count_ones() <= 1
    }

    /// Returns true if this many frames are to be delayed. Otherwise the caller sends them as a burst.
    #[inline]
    pub(crate) fn should_wait(&mut self, now_ns: u64, frames: usize) -> bool {
        let is_soon = |burst_ns| now_ns < burst_ns + self.spacing_ns;
        if frames == 0 || (frames < self.max_frames && self.burst_ns.is_some_and(is_soon)) {
            return true;
        }
        self.burst_ns = Some(now_ns);
        false
    }

    /// Called on a receive: the next send may be the reply to it.
    #[inline]
    pub(crate) fn on_receive(&mut self) {
        if self.flush_first {
            self.burst_ns = None;
            self.flushed_first = self.adaptive;
        }
    }

    /// Called when `frames` delayed frames were sent for another reason.
    #[inline]
    pub(crate) fn on_sent(&mut self, now_ns: u64, frames: usize) {
        self.burst_ns = Some(now_ns);
        if self.adaptive && frames > 0 {
            // A single send was a reply, after which the next may be flushed at once; several were not.
            self.flush_first = !self.flushed_first && (self.flush_first || frames == 1);
        }
    }

    /// Called in a poll without delayed sends.
    #[inline]
    pub(crate) fn on_idle(&mut self) {
        self.flushed_first = false;
    }
}

/// The largest burst that may be configured.
const _: () = assert!(crate::config::MAX_COALESCE_FRAMES == BURST as u32);

#[cfg(test)]
mod tests {
    use super::*;

    const LATER_NS: u64 = 1_000_000;

    #[test]
    fn first_send_is_sent_at_once_and_later_ones_coalesced() {
        let mut coalescer = Coalescer::new(8, false);
        assert!(!coalescer.should_wait(LATER_NS, 1));
        for frames in 1..8 {
            assert!(coalescer.should_wait(LATER_NS + 10, frames));
        }
        assert!(!coalescer.should_wait(LATER_NS + 20, 8), "full");
        assert!(coalescer.should_wait(LATER_NS + 20 + SPACING_NS - 1, 1));
        assert!(
            !coalescer.should_wait(LATER_NS + 20 + SPACING_NS, 2),
            "after the interval"
        );
    }

    #[test]
    fn burst_for_another_reason_starts_interval() {
        let mut coalescer = Coalescer::new(8, false);
        assert!(!coalescer.should_wait(LATER_NS, 1));
        coalescer.on_sent(2 * LATER_NS, 1);
        assert!(coalescer.should_wait(2 * LATER_NS + 1, 1));
    }

    #[test]
    fn first_send_after_receive_is_sent_at_once_and_next_delayed() {
        let mut coalescer = Coalescer::new(8, false);
        assert!(!coalescer.should_wait(LATER_NS, 1));
        coalescer.on_receive();
        assert!(!coalescer.should_wait(LATER_NS + 10, 1));
        assert!(coalescer.should_wait(LATER_NS + 20, 1));
    }

    #[test]
    fn replies_of_several_messages_are_coalesced() {
        let mut coalescer = Coalescer::for_streams(32);
        let reply = |coalescer: &mut Coalescer, messages: usize| {
            coalescer.on_sent(LATER_NS, 0);
            coalescer.on_receive();
            let mut waiting = 0;
            let mut calls = 0;
            for _ in 0..messages {
                waiting += 1;
                if !coalescer.should_wait(LATER_NS, waiting) {
                    (waiting, calls) = (0, calls + 1);
                }
            }
            coalescer.on_sent(LATER_NS, waiting);
            coalescer.on_idle();
            (calls, waiting)
        };
        assert_eq!(reply(&mut coalescer, 1), (1, 0));
        assert_eq!(reply(&mut coalescer, 3), (1, 2), "not adapted yet");
        assert_eq!(reply(&mut coalescer, 3), (0, 3));
        assert_eq!(reply(&mut coalescer, 1), (0, 1), "not adapted yet");
        assert_eq!(reply(&mut coalescer, 1), (1, 0));
    }

    #[test]
    fn frames_are_never_delayed_without_coalescing() {
        for mut coalescer in [Coalescer::new(8, true), Coalescer::new(1, false)] {
            assert!(!coalescer.needs_time(0));
            for now_ns in [LATER_NS, LATER_NS, LATER_NS + 1] {
                assert!(!coalescer.should_wait(now_ns, 1));
            }
        }
    }

    #[test]
    fn time_is_needed_only_for_powers_of_two_of_delayed_frames() {
        let mut coalescer = Coalescer::new(32, false);
        coalescer.on_sent(LATER_NS, 0);
        let needed: Vec<usize> = (0..32).filter(|n| coalescer.needs_time(*n)).collect();
        assert_eq!(needed, [0, 1, 2, 4, 8, 16]);
    }
}
