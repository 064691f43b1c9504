//! Times from an event to the line that reports it.

use std::fmt::{self, Display, Formatter};
use std::time::{Duration, Instant};

use crate::process::Line;

/// Latencies of reports.
#[derive(Clone, Debug, Default)]
pub struct Latencies(Vec<Duration>);

impl Latencies {
    /// Returns the number of recorded latencies.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Records the time from an event at `from` to `line`, which reports it.
    ///
    /// # Panics
    /// It is `limit` or more.
    pub fn record(&mut self, what: &str, from: Instant, line: &Line, limit: Duration) {
        let after = line.at.saturating_duration_since(from);
        assert!(after < limit, "{what}: reported after {after:?}");
        self.0.push(after);
    }
}

impl Display for Latencies {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut all = self.0.clone();
        all.sort();
        let milliseconds = |one: Option<&Duration>| one.map_or(0, Duration::as_millis);
        let (median, longest) = (all.get(all.len() / 2), all.last());
        write!(
            f,
            "{} ms (median), {} ms at most",
            milliseconds(median),
            milliseconds(longest)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_shows_median_and_maximum() {
        let (from, limit) = (Instant::now(), Duration::from_secs(1));
        let line = |ms| Line {
            at: from + Duration::from_millis(ms),
            text: String::new(),
        };
        let mut latencies = Latencies::default();
        for ms in [30, 10, 900] {
            latencies.record("it", from, &line(ms), limit);
        }
        assert_eq!(latencies.count(), 3);
        assert_eq!(latencies.to_string(), "30 ms (median), 900 ms at most");
        let late = std::panic::catch_unwind(|| {
            Latencies::default().record("it", from, &line(1000), limit);
        });
        assert!(late.is_err());
    }
}
