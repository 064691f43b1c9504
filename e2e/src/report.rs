//! What `vi-peer` tells: names and numbers, a line each at its end, or all in one line when it is asked.

use std::collections::BTreeMap;

/// Numbers by name.
#[derive(Clone, Debug, Default)]
pub struct Report(BTreeMap<String, u64>);

impl Report {
    /// Reads the lines `count NAME NUMBER` of a program's output.
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

    /// Reads the line `counters NAME=NUMBER ...` of a program that was asked for it.
    pub fn of_line(line: &str) -> Self {
        let pairs = line.split(' ').filter_map(|word| {
            let (name, number) = word.split_once('=')?;
            Some((name.to_owned(), number.parse().ok()?))
        });
        Self(pairs.collect())
    }

    /// By how much each number has grown since an earlier report; not at all if it fell.
    pub fn since(&self, earlier: &Self) -> Self {
        let grown = self.0.iter().map(|(name, now)| {
            let before = earlier.0.get(name).copied().unwrap_or_default();
            (name.clone(), now.saturating_sub(before))
        });
        Self(grown.collect())
    }

    /// All of them.
    pub fn numbers(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, number)| (name.as_str(), *number))
    }

    /// A number that must be there.
    ///
    /// # Panics
    /// If it is not.
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
    fn numbers_grow_from_one_line_to_the_next() {
        let before = Report::of_line("counters frames=3 level=7");
        let now = Report::of_line("counters frames=8 level=5 late=2");
        let grown = now.since(&before);
        let numbers: Vec<_> = grown.numbers().collect();
        assert_eq!(numbers, [("frames", 5), ("late", 2), ("level", 0)]);
    }
}
