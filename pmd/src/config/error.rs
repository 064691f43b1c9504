//! Errors of a configuration, with their location in the file.

use std::path::{Path, PathBuf};

/// All errors of a configuration. Displayed as one line per error: file, line, key, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    file: Option<PathBuf>,
    errors: Vec<LocatedError>,
}

/// An error and the line of its key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LocatedError {
    /// Counted from 1; `None` if the error has no line.
    pub(super) line: Option<usize>,
    /// The table, the key, its value, and what is required.
    pub(super) text: String,
}

impl ConfigError {
    /// Makes an error without a line.
    pub(super) fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        Self::of(vec![LocatedError { line: None, text }])
    }

    /// Collects the errors of one text, ordered by line.
    pub(super) fn of(mut errors: Vec<LocatedError>) -> Self {
        errors.sort();
        errors.dedup();
        let file = None;
        Self { file, errors }
    }

    /// Decodes the contents of a file, which must be UTF-8.
    pub(super) fn decode(bytes: Vec<u8>) -> Result<String, Self> {
        String::from_utf8(bytes).map_err(|error| {
            let before = error
                .as_bytes()
                .iter()
                .take(error.utf8_error().valid_up_to());
            let line = Some(1 + before.filter(|byte| **byte == b'\n').count());
            let text = "not UTF-8 text: encode all characters in UTF-8, or remove them".to_owned();
            Self::of(vec![LocatedError { line, text }])
        })
    }

    /// Sets the file that contains the errors.
    pub(super) fn in_file(mut self, file: &Path) -> Self {
        self.file = Some(file.to_owned());
        self
    }

    /// Returns the number of errors, at least one.
    pub fn count(&self) -> usize {
        self.errors.len()
    }
}

impl core::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            match (&self.file, error.line) {
                (Some(file), Some(line)) => write!(f, "{}:{line}: ", file.display())?,
                (Some(file), None) => write!(f, "{}: ", file.display())?,
                (None, Some(line)) => write!(f, "line {line}: ")?,
                (None, None) => {}
            }
            f.write_str(&error.text)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// An error in the values of one table, before its line is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ValueError {
    /// The key whose line is reported.
    pub(super) key: &'static str,
    /// The key, its value, and what is required.
    pub(super) text: String,
}

impl ValueError {
    pub(super) fn new(key: &'static str, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { key, text }
    }
}

/// A numeric key: its value and its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number {
    pub(super) key: &'static str,
    pub(super) value: u64,
    pub(super) low: u64,
    pub(super) high: u64,
}

/// Makes a [`Number`] of any unsigned type.
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
    /// Checks the range.
    pub(super) fn error(&self) -> Option<ValueError> {
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
        Some(ValueError::new(key, text))
    }
}
