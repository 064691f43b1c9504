//! Congestion window and round-trip time.

use crate::recovery::{NS_PER_US, RecoveryConfig};

/// Timeout before the round trip has been measured.
const FIRST_TIMEOUT_NS: u64 = 10_000 * NS_PER_US;
/// Maximum round trip taken into account. A longer one is that of a peer whose process was not
/// scheduled: an unnecessary probe costs a frame, waiting after a lost frame costs all that time.
const MAX_ROUND_TRIP_NS: u64 = 20_000 * NS_PER_US;
/// Maximum timeout of a silent peer.
const MAX_TIMEOUT_NS: u64 = 1_000_000 * NS_PER_US;
/// Minimum number of probes within FCVI_ULP_TIMEOUT, so that random loss does not break the
/// connection.
const PROBES_PER_ULP_TIMEOUT: u64 = 16;
/// Lower bound of the maximum timeout, so that a process that is not scheduled for a while does not
/// miss all probes.
const MIN_MAX_TIMEOUT_NS: u64 = 100_000 * NS_PER_US;
/// One lost frame in this many counts as random loss; more are congestion.
const FRAMES_PER_RANDOM_LOSS: u32 = 8;

/// Congestion window: the number of frames that may be unacknowledged.
///
/// It doubles every round trip until frames are lost by congestion for the first time, then grows
/// by one frame per round trip. A round trip in which more than one frame in eight was lost reduces
/// it by an eighth, a timeout halves it.
#[derive(Debug)]
pub(crate) struct Window {
    frames: u32,
    min_frames: u32,
    max_frames: u32,
    doubling: bool,
    /// Since the round trip began.
    acked: u32,
    lost: u32,
}

impl Window {
    pub(crate) fn new(config: &RecoveryConfig) -> Self {
        let min_frames = config.min_window_frames.max(2);
        let max_frames = config.max_window_frames.max(min_frames);
        Self {
            frames: min_frames.saturating_mul(2).min(max_frames),
            min_frames,
            max_frames,
            doubling: true,
            acked: 0,
            lost: 0,
        }
    }

    /// Returns the window in frames.
    #[inline]
    pub(crate) fn frames(&self) -> u32 {
        self.frames
    }

    /// Counts acknowledged frames.
    pub(crate) fn acked(&mut self, frames: u32) {
        self.acked = self.acked.saturating_add(frames);
        if self.acked < self.frames {
            return;
        }
        if self.lost > self.acked / FRAMES_PER_RANDOM_LOSS {
            self.doubling = false;
            self.set(self.frames - self.frames / 8);
        } else if self.doubling {
            self.set(self.frames.saturating_mul(2));
        } else {
            self.set(self.frames.saturating_add(1));
        }
    }

    /// Counts lost frames.
    pub(crate) fn lost(&mut self, frames: u32) {
        self.lost = self.lost.saturating_add(frames);
    }

    /// Halves the window after a timeout.
    pub(crate) fn timed_out(&mut self) {
        self.doubling = false;
        self.set(self.frames / 2);
    }

    /// Sets the window and begins a round trip.
    fn set(&mut self, frames: u32) {
        self.frames = frames.clamp(self.min_frames, self.max_frames);
        (self.acked, self.lost) = (0, 0);
    }
}

/// Round-trip time: a smoothed mean and its deviation, as in TCP.
#[derive(Debug)]
pub(crate) struct RoundTrip {
    /// Mean and deviation, after the first measurement.
    measured: Option<(u64, u64)>,
    ack_delay_ns: u64,
    min_timeout_ns: u64,
    max_timeout_ns: u64,
    /// Timeouts in a row.
    doublings: u32,
}

impl RoundTrip {
    pub(crate) fn new(config: &RecoveryConfig, ulp_timeout_ns: u64) -> Self {
        let max_timeout_ns =
            (ulp_timeout_ns / PROBES_PER_ULP_TIMEOUT).clamp(MIN_MAX_TIMEOUT_NS, MAX_TIMEOUT_NS);
        Self {
            measured: None,
            ack_delay_ns: config.ack_delay_ns,
            min_timeout_ns: config.min_timeout_ns,
            max_timeout_ns: max_timeout_ns.max(config.min_timeout_ns),
            doublings: 0,
        }
    }

    /// Adds the measurement of a message that was sent once.
    pub(crate) fn measured(&mut self, round_trip_ns: u64) {
        self.measured = Some(match self.measured {
            None => (round_trip_ns, round_trip_ns / 2),
            Some((mean, deviation)) => (
                mean - mean / 8 + round_trip_ns / 8,
                deviation - deviation / 4 + mean.abs_diff(round_trip_ns) / 4,
            ),
        });
    }

    /// Resets the back-off after a response of the peer.
    pub(crate) fn answered(&mut self) {
        self.doublings = 0;
    }

    /// Doubles the timeout after one expired.
    pub(crate) fn timed_out(&mut self) {
        self.doublings += 1;
    }

    /// Returns the timeout after which a silent peer is probed.
    pub(crate) fn timeout_ns(&self) -> u64 {
        let expected = match self.measured {
            None => FIRST_TIMEOUT_NS,
            Some((mean, deviation)) => {
                (mean + 4 * deviation + self.ack_delay_ns).min(MAX_ROUND_TRIP_NS)
            }
        };
        let timeout_ns = expected.max(self.min_timeout_ns);
        timeout_ns
            .saturating_mul(1 << self.doublings.min(32))
            .min(self.max_timeout_ns)
    }

    /// Returns the minimum time before the same frame is retransmitted again.
    pub(crate) fn repeat_ns(&self) -> u64 {
        self.measured
            .map_or(self.min_timeout_ns, |(mean, _)| mean.min(MAX_ROUND_TRIP_NS))
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
    fn window_doubles_up_to_its_maximum() {
        let mut window = window();
        let mut seen = Vec::new();
        for _ in 0..5 {
            seen.push(window.frames());
            window.acked(window.frames());
        }
        assert_eq!(seen, [32, 64, 128, 256, 256]);
    }

    #[test]
    fn window_ignores_random_loss_and_shrinks_by_an_eighth_per_congested_round_trip() {
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
    fn timeout_halves_the_window_down_to_its_minimum() {
        let mut window = window();
        window.acked(32);
        window.timed_out();
        assert_eq!(window.frames(), 32);
        window.acked(32);
        assert_eq!(window.frames(), 33, "it does not double any more");
        window.timed_out();
        window.timed_out();
        assert_eq!(window.frames(), 16);
    }

    #[test]
    fn timeouts_follow_the_round_trip_and_double() {
        let config = RecoveryConfig::default();
        let mut round_trip = RoundTrip::new(&config, 40 * MAX_TIMEOUT_NS);
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
        assert_eq!(round_trip.timeout_ns(), MAX_TIMEOUT_NS);
        round_trip.answered();
        assert_eq!(round_trip.timeout_ns(), timeout);
        round_trip.measured(500_000 * NS_PER_US);
        assert_eq!(round_trip.timeout_ns(), MAX_ROUND_TRIP_NS);
    }

    #[test]
    fn silent_peer_is_probed_often_within_ulp_timeout_after_slow_round_trips() {
        let ulp_timeout_ns = 2 * MAX_TIMEOUT_NS;
        let mut round_trip = RoundTrip::new(&RecoveryConfig::default(), ulp_timeout_ns);
        round_trip.measured(MAX_ROUND_TRIP_NS);
        let mut elapsed_ns = 0;
        let mut probes = 0;
        while elapsed_ns < ulp_timeout_ns {
            elapsed_ns += round_trip.timeout_ns();
            round_trip.timed_out();
            probes += 1;
        }
        assert!(probes > PROBES_PER_ULP_TIMEOUT, "{probes}");
        let mut short = RoundTrip::new(&RecoveryConfig::default(), MIN_MAX_TIMEOUT_NS);
        for _ in 0..64 {
            short.timed_out();
        }
        assert_eq!(short.timeout_ns(), MIN_MAX_TIMEOUT_NS, "the lower bound");
    }
}
