//! Counters that `vi-peer` prints: one line each at its end, or all in one line on request.

use std::collections::BTreeMap;
use std::fmt;

/// Counters by name.
#[derive(Clone, Default)]
pub struct Report(BTreeMap<String, u64>);

/// Lists the counters that are not 0.
impl fmt::Debug for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = self.numbers().filter(|(_, number)| *number > 0);
        out.debug_map().entries(counted).finish()
    }
}

impl Report {
    /// Parses the lines `count NAME NUMBER` of a program's output.
    pub fn read(text: &str) -> Self {
        let lines = text.lines().filter_map(|line| line.strip_prefix("count "));
        Self(
            lines
                .filter_map(|line| {
                    let (name, number) = line.split_once(' ')?;
                    Some((name.to_owned(), number.parse().ok()?))
                })
                .collect(),
        )
    }

    /// Parses a line `counters NAME=NUMBER ...`.
    pub fn of_line(line: &str) -> Self {
        let pairs = line.split(' ').filter_map(|word| {
            let (name, number) = word.split_once('=')?;
            Some((name.to_owned(), number.parse().ok()?))
        });
        Self(pairs.collect())
    }

    /// Returns the increase of each counter since an earlier report; 0 for decreases.
    pub fn since(&self, earlier: &Self) -> Self {
        let grown = self.0.iter().map(|(name, now)| {
            let before = earlier.0.get(name).copied().unwrap_or_default();
            (name.clone(), now.saturating_sub(before))
        });
        Self(grown.collect())
    }

    /// Iterates over all counters.
    pub fn numbers(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, number)| (name.as_str(), *number))
    }

    /// Returns a counter.
    ///
    /// # Panics
    /// If it is missing.
    pub fn get(&self, name: &str) -> u64 {
        *self
            .0
            .get(name)
            .unwrap_or_else(|| panic!("no {name} in {self:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_returns_increases_only() {
        let before = Report::of_line("counters frames=3 level=7");
        let now = Report::of_line("counters frames=8 level=5 late=2");
        let grown = now.since(&before);
        let numbers: Vec<_> = grown.numbers().collect();
        assert_eq!(numbers, [("frames", 5), ("late", 2), ("level", 0)]);
    }
}
