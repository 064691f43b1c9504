//! Accumulated rounds of one measurement, of the stack or of its control.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::channel::RoundResult;
use crate::error::{Error, Result};
use crate::report::{self, Figures, Percentiles};

/// Creates a histogram of 1 ns to 10 s with three significant digits; all memory is allocated here, before the
/// measurement.
pub(crate) fn new_histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, 10_000_000_000, 3)
        .map_err(|error| Error::Usage(format!("histogram: {error}")))
}

/// Messages per round trip of a ping-pong, one each way; an RDMA read counts as one message.
pub(crate) const PING_PONG: u64 = 2;

/// Accumulated results of the rounds of one measurement.
pub(crate) struct Totals {
    round_trips_ns: Histogram<u64>,
    /// Result of each round: p50 of half of the round trip in ns, or messages per second.
    round_values: Vec<f64>,
    rates: Vec<f64>,
}

impl Totals {
    /// Creates empty totals.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            round_trips_ns: new_histogram()?,
            round_values: Vec::new(),
            rates: Vec::new(),
        })
    }

    /// Adds a round of a latency test with `messages_each` messages per round trip.
    pub(crate) fn add_pings(
        &mut self,
        round: &Histogram<u64>,
        elapsed: Duration,
        messages_each: u64,
    ) {
        if let Some(half) = Percentiles::half_of(round) {
            self.round_values.push(half.p50);
            let messages = round.len() * messages_each;
            self.rates.push(messages as f64 / elapsed.as_secs_f64());
            // Both histograms have the same bounds, so adding cannot fail.
            let _ = self.round_trips_ns.add(round);
        }
    }

    /// Adds a round of a stream.
    pub(crate) fn add_stream(&mut self, result: &RoundResult) {
        if result.elapsed_ns > 0 {
            let rate = result.timed as f64 * 1e9 / result.elapsed_ns as f64;
            self.round_values.push(rate);
            self.rates.push(rate);
        }
    }

    /// Computes the result of all rounds.
    pub(crate) fn figures(&mut self, size_bytes: u32) -> Figures {
        let messages_per_s = report::median(&mut self.rates).unwrap_or(0.0);
        Figures {
            half_round_trip_ns: Percentiles::half_of(&self.round_trips_ns),
            messages_per_s,
            bytes_per_s: messages_per_s * f64::from(size_bytes),
        }
    }

    /// Returns the largest round result divided by the smallest; `None` with fewer than two rounds.
    pub(crate) fn spread(&self) -> Option<f64> {
        let largest = self.round_values.iter().copied().max_by(f64::total_cmp)?;
        let smallest = self.round_values.iter().copied().min_by(f64::total_cmp)?;
        (self.round_values.len() > 1).then_some(largest / smallest)
    }

    /// Returns the median round result: p50 of half of the round trip in ns, or messages per second.
    pub(crate) fn median_round(&mut self) -> Option<f64> {
        report::median(&mut self.round_values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(timed: u64, elapsed_ns: u64) -> RoundResult {
        RoundResult {
            delivered: timed + 1,
            timed,
            elapsed_ns,
            broken: None,
        }
    }

    #[test]
    fn stream_figures_are_of_median_round() {
        let mut totals = Totals::new().unwrap();
        for timed in [100, 900, 300] {
            totals.add_stream(&result(timed, 1_000_000));
        }
        totals.add_stream(&result(0, 0));
        let figures = totals.figures(64);
        assert_eq!(figures.messages_per_s, 300_000.0);
        assert_eq!(figures.bytes_per_s, 19_200_000.0);
        assert!(figures.half_round_trip_ns.is_none());
        assert_eq!(totals.median_round(), Some(300_000.0));
        assert_eq!(totals.spread(), Some(9.0));
    }

    #[test]
    fn ping_pong_counts_two_messages_per_round_trip() {
        let mut totals = Totals::new().unwrap();
        let mut round = new_histogram().unwrap();
        for _ in 0..1000 {
            round.record(800).unwrap();
        }
        totals.add_pings(&round, Duration::from_millis(1), PING_PONG);
        let figures = totals.figures(8);
        assert_eq!(figures.messages_per_s, 2_000_000.0);
        assert_eq!(figures.half_round_trip_ns.unwrap().p50, 400.0);
        assert_eq!(totals.median_round(), Some(400.0));
    }

    #[test]
    fn empty_round_gives_no_figures() {
        let mut totals = Totals::new().unwrap();
        totals.add_pings(&new_histogram().unwrap(), Duration::ZERO, 1);
        assert_eq!(totals.median_round(), None);
        assert_eq!(totals.figures(8), Figures::default());
    }
}
