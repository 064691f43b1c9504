//! How much may be unacknowledged, and how long an answer takes.

use crate::recovery::{NS_PER_US, RecoveryConfig};

/// Before the first answer nobody knows how long one takes.
const FIRST_TIMEOUT_NS: u64 = 10_000 * NS_PER_US;
/// Answers that take longer are those of a peer whose program was not scheduled: to ask it once
/// too often costs a frame, to wait for it where a frame was lost costs all that time.
const LONGEST_ANSWER_NS: u64 = 20_000 * NS_PER_US;
/// A silent peer is asked at least so often,
const LONGEST_TIMEOUT_NS: u64 = 1_000_000 * NS_PER_US;
/// and so often in FCVI_ULP_TIMEOUT: what is lost by chance must not be lost for good because
/// there was no time to ask again.
const QUESTIONS_IN_ULP_TIMEOUT: u64 = 16;
/// However short that is: questions in a row that a program misses while it is not scheduled
/// would say that it is gone.
const LEAST_LONGEST_NS: u64 = 100_000 * NS_PER_US;
/// Of so many frames one may be lost by chance; if more are, the network has too many.
const FRAMES_A_LOSS: u32 = 8;

/// How many frames may be unacknowledged.
///
/// It doubles from round trip to round trip until frames are lost by crowding for the first
/// time, then grows by a frame in each. A round trip in which more than one frame in eight was
/// lost makes it an eighth smaller, a time-out halves it.
#[derive(Debug)]
pub(crate) struct Window {
    frames: u32,
    least: u32,
    most: u32,
    doubling: bool,
    /// Since the round trip began.
    acked: u32,
    lost: u32,
}

impl Window {
    pub(crate) fn new(config: &RecoveryConfig) -> Self {
        let least = config.min_window_frames.max(2);
        let most = config.max_window_frames.max(least);
        Self {
            frames: least.saturating_mul(2).min(most),
            least,
            most,
            doubling: true,
            acked: 0,
            lost: 0,
        }
    }

    /// Frames that may be unacknowledged.
    #[inline]
    pub(crate) fn frames(&self) -> u32 {
        self.frames
    }

    /// So many more are acknowledged.
    pub(crate) fn acked(&mut self, frames: u32) {
        self.acked = self.acked.saturating_add(frames);
        if self.acked < self.frames {
            return;
        }
        if self.lost > self.acked / FRAMES_A_LOSS {
            self.doubling = false;
            self.set(self.frames - self.frames / 8);
        } else if self.doubling {
            self.set(self.frames.saturating_mul(2));
        } else {
            self.set(self.frames.saturating_add(1));
        }
    }

    /// So many more are lost.
    pub(crate) fn lost(&mut self, frames: u32) {
        self.lost = self.lost.saturating_add(frames);
    }

    /// The other end was silent for too long.
    pub(crate) fn timed_out(&mut self) {
        self.doubling = false;
        self.set(self.frames / 2);
    }

    /// A round trip begins.
    fn set(&mut self, frames: u32) {
        self.frames = frames.clamp(self.least, self.most);
        (self.acked, self.lost) = (0, 0);
    }
}

/// How long an answer takes: a smoothed mean and its deviation, as TCP keeps them.
#[derive(Debug)]
pub(crate) struct RoundTrip {
    /// Mean and deviation, once there was an answer.
    measured: Option<(u64, u64)>,
    ack_delay_ns: u64,
    least_ns: u64,
    longest_ns: u64,
    /// Time-outs in a row.
    doublings: u32,
}

impl RoundTrip {
    pub(crate) fn new(config: &RecoveryConfig, ulp_timeout_ns: u64) -> Self {
        let longest_ns =
            (ulp_timeout_ns / QUESTIONS_IN_ULP_TIMEOUT).clamp(LEAST_LONGEST_NS, LONGEST_TIMEOUT_NS);
        Self {
            measured: None,
            ack_delay_ns: config.ack_delay_ns,
            least_ns: config.min_timeout_ns,
            longest_ns: longest_ns.max(config.min_timeout_ns),
            doublings: 0,
        }
    }

    /// A message that was sent once was answered after so long.
    pub(crate) fn measured(&mut self, round_trip_ns: u64) {
        self.measured = Some(match self.measured {
            None => (round_trip_ns, round_trip_ns / 2),
            Some((mean, deviation)) => (
                mean - mean / 8 + round_trip_ns / 8,
                deviation - deviation / 4 + mean.abs_diff(round_trip_ns) / 4,
            ),
        });
    }

    /// The other end gave a sign of life.
    pub(crate) fn answered(&mut self) {
        self.doublings = 0;
    }

    /// It was silent for too long.
    pub(crate) fn timed_out(&mut self) {
        self.doublings += 1;
    }

    /// After so long a silent peer is asked.
    pub(crate) fn timeout_ns(&self) -> u64 {
        let expected = match self.measured {
            None => FIRST_TIMEOUT_NS,
            Some((mean, deviation)) => {
                (mean + 4 * deviation + self.ack_delay_ns).min(LONGEST_ANSWER_NS)
            }
        };
        let least = expected.max(self.least_ns);
        least
            .saturating_mul(1 << self.doublings.min(32))
            .min(self.longest_ns)
    }

    /// What was sent again cannot have been answered sooner.
    pub(crate) fn repeat_ns(&self) -> u64 {
        self.measured
            .map_or(self.least_ns, |(mean, _)| mean.min(LONGEST_ANSWER_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window() -> Window {
        Window::new(&RecoveryConfig {
            min_window_frames: 16,
            max_window_frames: 256,
            ..RecoveryConfig::default()
        })
    }

    #[test]
    fn the_window_doubles_up_to_its_most() {
        let mut window = window();
        let mut seen = Vec::new();
        for _ in 0..5 {
            seen.push(window.frames());
            window.acked(window.frames());
        }
        assert_eq!(seen, [32, 64, 128, 256, 256]);
    }

    #[test]
    fn loss_by_chance_leaves_it_and_crowding_takes_an_eighth_a_round_trip() {
        let mut window = window();
        for _ in 0..10 {
            window.lost(window.frames() / 8);
            window.acked(window.frames());
        }
        assert_eq!(window.frames(), 256);
        for expected in [224, 196, 172] {
            window.lost(window.frames() / 8 + 1);
            window.acked(window.frames() - 1);
            assert_ne!(window.frames(), expected, "the round trip is not over");
            window.acked(1);
            assert_eq!(window.frames(), expected);
        }
        window.acked(172);
        assert_eq!(window.frames(), 173);
        for _ in 0..100 {
            window.lost(100);
            window.acked(window.frames());
        }
        assert_eq!(window.frames(), 16);
    }

    #[test]
    fn a_time_out_halves_it_down_to_its_least() {
        let mut window = window();
        window.acked(32);
        window.timed_out();
        assert_eq!(window.frames(), 32);
        window.acked(32);
        assert_eq!(window.frames(), 33, "it doubles no more");
        window.timed_out();
        window.timed_out();
        assert_eq!(window.frames(), 16);
    }

    #[test]
    fn time_outs_follow_the_round_trip_and_double() {
        let config = RecoveryConfig::default();
        let mut round_trip = RoundTrip::new(&config, 40 * LONGEST_TIMEOUT_NS);
        assert_eq!(round_trip.timeout_ns(), FIRST_TIMEOUT_NS);
        round_trip.measured(80 * NS_PER_US);
        assert_eq!(round_trip.timeout_ns(), config.min_timeout_ns);
        assert_eq!(round_trip.repeat_ns(), 80 * NS_PER_US);
        for _ in 0..200 {
            round_trip.measured(2_000 * NS_PER_US);
        }
        let timeout = round_trip.timeout_ns();
        assert!((2_100 * NS_PER_US..2_300 * NS_PER_US).contains(&timeout));
        round_trip.timed_out();
        round_trip.timed_out();
        assert_eq!(round_trip.timeout_ns(), 4 * timeout);
        for _ in 0..100 {
            round_trip.timed_out();
        }
        assert_eq!(round_trip.timeout_ns(), LONGEST_TIMEOUT_NS);
        round_trip.answered();
        assert_eq!(round_trip.timeout_ns(), timeout);
        round_trip.measured(500_000 * NS_PER_US);
        assert_eq!(round_trip.timeout_ns(), LONGEST_ANSWER_NS);
    }

    #[test]
    fn a_peer_is_asked_often_in_ulp_timeout_however_slow_it_was() {
        let ulp_timeout_ns = 2 * LONGEST_TIMEOUT_NS;
        let mut round_trip = RoundTrip::new(&RecoveryConfig::default(), ulp_timeout_ns);
        round_trip.measured(LONGEST_ANSWER_NS);
        let mut asked_ns = 0;
        let mut questions = 0;
        while asked_ns < ulp_timeout_ns {
            asked_ns += round_trip.timeout_ns();
            round_trip.timed_out();
            questions += 1;
        }
        assert!(questions > QUESTIONS_IN_ULP_TIMEOUT, "{questions}");
        let mut hurried = RoundTrip::new(&RecoveryConfig::default(), LEAST_LONGEST_NS);
        for _ in 0..64 {
            hurried.timed_out();
        }
        assert_eq!(hurried.timeout_ns(), LEAST_LONGEST_NS, "no more often");
    }
}
