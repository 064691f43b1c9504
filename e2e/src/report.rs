//! What `vi-peer` tells at its end: names and numbers, a line each.

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
