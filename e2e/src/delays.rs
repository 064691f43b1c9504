//! How long news took, time after time.

use std::fmt::{self, Display, Formatter};
use std::time::{Duration, Instant};

use crate::process::Line;

/// Times between a deed and a line that tells of it.
#[derive(Clone, Debug, Default)]
pub struct Delays(Vec<Duration>);

impl Delays {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The deed was at `from`, and `line` tells of it.
    ///
    /// # Panics
    /// It does so later than `most`.
    pub fn note(&mut self, what: &str, from: Instant, line: &Line, most: Duration) {
        let after = line.at.saturating_duration_since(from);
        assert!(after < most, "{what}: known after {after:?}");
        self.0.push(after);
    }
}

impl Display for Delays {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut all = self.0.clone();
        all.sort();
        let milliseconds = |one: Option<&Duration>| one.map_or(0, Duration::as_millis);
        let (middle, last) = (all.get(all.len() / 2), all.last());
        write!(
            f,
            "{} ms (median), {} ms at most",
            milliseconds(middle),
            milliseconds(last)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_and_the_last_are_told() {
        let (from, most) = (Instant::now(), Duration::from_secs(1));
        let line = |ms| Line {
            at: from + Duration::from_millis(ms),
            text: String::new(),
        };
        let mut delays = Delays::default();
        for ms in [30, 10, 900] {
            delays.note("it", from, &line(ms), most);
        }
        assert_eq!(delays.count(), 3);
        assert_eq!(delays.to_string(), "30 ms (median), 900 ms at most");
        let late = std::panic::catch_unwind(|| {
            Delays::default().note("it", from, &line(1000), most);
        });
        assert!(late.is_err());
    }
}
