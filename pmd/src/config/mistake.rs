//! What is wrong with a configuration, and where.

use std::path::{Path, PathBuf};

/// Why a configuration cannot be used: every mistake in a line of its own, with file, line and key, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    file: Option<PathBuf>,
    mistakes: Vec<Located>,
}

/// One mistake, and the line of its key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Located {
    /// Counted from 1; `None` if there is no such line.
    pub(super) line: Option<usize>,
    /// Whose key, which value, and what it must be.
    pub(super) text: String,
}

impl ConfigError {
    /// A mistake that no line of a file made.
    pub(super) fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        Self::of(vec![Located { line: None, text }])
    }

    /// Mistakes of one text, in the order of its lines.
    pub(super) fn of(mut mistakes: Vec<Located>) -> Self {
        mistakes.sort();
        mistakes.dedup();
        let file = None;
        Self { file, mistakes }
    }

    /// The text of a file.
    pub(super) fn text(bytes: Vec<u8>) -> Result<String, Self> {
        String::from_utf8(bytes).map_err(|error| {
            let before = error
                .as_bytes()
                .iter()
                .take(error.utf8_error().valid_up_to());
            let line = Some(1 + before.filter(|byte| **byte == b'\n').count());
            let text = "not UTF-8 text: write other characters in UTF-8, or remove them".to_owned();
            Self::of(vec![Located { line, text }])
        })
    }

    /// The file whose mistakes these are.
    pub(super) fn in_file(mut self, file: &Path) -> Self {
        self.file = Some(file.to_owned());
        self
    }

    /// How many mistakes there are; at least one.
    pub fn count(&self) -> usize {
        self.mistakes.len()
    }
}

impl core::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        for (index, mistake) in self.mistakes.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            match (&self.file, mistake.line) {
                (Some(file), Some(line)) => write!(f, "{}:{line}: ", file.display())?,
                (Some(file), None) => write!(f, "{}: ", file.display())?,
                (None, Some(line)) => write!(f, "line {line}: ")?,
                (None, None) => {}
            }
            f.write_str(&mistake.text)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// A mistake in the values of one table, before its line is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mistake {
    /// The key whose line it is.
    pub(super) key: &'static str,
    /// The key, its value, and what it must be.
    pub(super) text: String,
}

impl Mistake {
    pub(super) fn new(key: &'static str, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { key, text }
    }
}

/// A key that is a number: what it is and what it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number {
    pub(super) key: &'static str,
    pub(super) value: u64,
    pub(super) low: u64,
    pub(super) high: u64,
}

/// A [`Number`] of any unsigned type.
pub(super) fn number(key: &'static str, value: impl Into<u64>, low: u64, high: u64) -> Number {
    let value = value.into();
    Number {
        key,
        value,
        low,
        high,
    }
}

impl Number {
    /// What is wrong with it, if anything is.
    pub(super) fn mistake(&self) -> Option<Mistake> {
        let Self {
            key,
            value,
            low,
            high,
        } = *self;
        if (low..=high).contains(&value) {
            return None;
        }
        let text = format!("{key} = {value}: must be {low} to {high}");
        Some(Mistake::new(key, text))
    }
}
