//! The rounds of one side, ours or the control's, added up.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::channel::Seen;
use crate::error::{Error, Result};
use crate::report::{self, Figures, Percentiles};

/// Round trips from a nanosecond to ten seconds, to three digits: the histogram
/// takes its memory before the measurement.
pub(crate) fn new_histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, 10_000_000_000, 3)
        .map_err(|error| Error::Usage(format!("histogram: {error}")))
}

/// Messages of a round trip: one each way. A read is one alone.
pub(crate) const PING_PONG: u64 = 2;

/// What the rounds of one side gave so far.
pub(crate) struct Tally {
    round_trips_ns: Histogram<u64>,
    /// Of each round: p50 of the half round trip, or messages in a second.
    of_rounds: Vec<f64>,
    rates: Vec<f64>,
}

impl Tally {
    /// Nothing yet.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            round_trips_ns: new_histogram()?,
            of_rounds: Vec::new(),
            rates: Vec::new(),
        })
    }

    /// Adds a round of a latency test, whose round trips are of so many messages each.
    pub(crate) fn add_pings(
        &mut self,
        round: &Histogram<u64>,
        elapsed: Duration,
        messages_each: u64,
    ) {
        if let Some(half) = Percentiles::half_of(round) {
            self.of_rounds.push(half.p50);
            let messages = round.len() * messages_each;
            self.rates.push(messages as f64 / elapsed.as_secs_f64());
            // Both histograms have the same bounds, so adding cannot fail.
            let _ = self.round_trips_ns.add(round);
        }
    }

    /// Adds a round of a stream.
    pub(crate) fn add_stream(&mut self, seen: &Seen) {
        if seen.elapsed_ns > 0 {
            let rate = seen.timed as f64 * 1e9 / seen.elapsed_ns as f64;
            self.of_rounds.push(rate);
            self.rates.push(rate);
        }
    }

    /// What all rounds together say.
    pub(crate) fn figures(&mut self, size_bytes: u32) -> Figures {
        let messages_per_s = report::median(&mut self.rates).unwrap_or(0.0);
        Figures {
            half_round_trip_ns: Percentiles::half_of(&self.round_trips_ns),
            messages_per_s,
            bytes_per_s: messages_per_s * f64::from(size_bytes),
        }
    }

    /// The largest round divided by the smallest; `None` of fewer than two.
    pub(crate) fn spread(&self) -> Option<f64> {
        let largest = self.of_rounds.iter().copied().max_by(f64::total_cmp)?;
        let smallest = self.of_rounds.iter().copied().min_by(f64::total_cmp)?;
        (self.of_rounds.len() > 1).then_some(largest / smallest)
    }

    /// The median round: p50 of the half round trip, or messages in a second.
    pub(crate) fn typical_round(&mut self) -> Option<f64> {
        report::median(&mut self.of_rounds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(timed: u64, elapsed_ns: u64) -> Seen {
        Seen {
            delivered: timed + 1,
            timed,
            elapsed_ns,
            broken: None,
        }
    }

    #[test]
    fn a_stream_is_its_median_round() {
        let mut tally = Tally::new().unwrap();
        for timed in [100, 900, 300] {
            tally.add_stream(&seen(timed, 1_000_000));
        }
        tally.add_stream(&seen(0, 0));
        let figures = tally.figures(64);
        assert_eq!(figures.messages_per_s, 300_000.0);
        assert_eq!(figures.bytes_per_s, 19_200_000.0);
        assert!(figures.half_round_trip_ns.is_none());
        assert_eq!(tally.typical_round(), Some(300_000.0));
        assert_eq!(tally.spread(), Some(9.0));
    }

    #[test]
    fn pings_count_a_message_each_way() {
        let mut tally = Tally::new().unwrap();
        let mut round = new_histogram().unwrap();
        for _ in 0..1000 {
            round.record(800).unwrap();
        }
        tally.add_pings(&round, Duration::from_millis(1), PING_PONG);
        let figures = tally.figures(8);
        assert_eq!(figures.messages_per_s, 2_000_000.0);
        assert_eq!(figures.half_round_trip_ns.unwrap().p50, 400.0);
        assert_eq!(tally.typical_round(), Some(400.0));
    }

    #[test]
    fn nothing_measured_is_no_figure() {
        let mut tally = Tally::new().unwrap();
        tally.add_pings(&new_histogram().unwrap(), Duration::ZERO, 1);
        assert_eq!(tally.typical_round(), None);
        assert_eq!(tally.figures(8), Figures::default());
    }
}
