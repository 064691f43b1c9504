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
pub(crate) struct LocatedError {
    /// Counted from 1; `None` if the error has no line.
    pub(crate) line: Option<usize>,
    /// The table, the key, its value, and what is required.
    pub(crate) text: String,
}

impl ConfigError {
    /// Makes an error without a line.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        Self::of(vec![LocatedError { line: None, text }])
    }

    /// Collects the errors of one text, ordered by line.
    pub(crate) fn of(mut errors: Vec<LocatedError>) -> Self {
        errors.sort();
        errors.dedup();
        let file = None;
        Self { file, errors }
    }

    /// Makes an error of the errors of a file, each with its line, counted from 1, if it has one.
    #[must_use]
    pub fn of_lines(errors: Vec<(Option<usize>, String)>) -> Self {
        let located = |(line, text)| LocatedError { line, text };
        Self::of(errors.into_iter().map(located).collect())
    }

    /// Decodes the contents of a file, which must be UTF-8.
    pub(crate) fn decode(bytes: Vec<u8>) -> Result<String, Self> {
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
    #[must_use]
    pub fn in_file(mut self, file: &Path) -> Self {
        self.file = Some(file.to_owned());
        self
    }

    /// Returns the number of errors, at least one.
    #[must_use]
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
pub(crate) struct ValueError {
    /// The key whose line is reported.
    pub(crate) key: &'static str,
    /// The key, its value, and what is required.
    pub(crate) text: String,
    /// The table of the key, from the table that was checked.
    pub(crate) tables: Vec<Step>,
}

/// One step of the path to a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A table.
    Table(&'static str),
    /// An element of an array of tables.
    Element(&'static str, usize),
}

impl ValueError {
    pub(crate) fn new(key: &'static str, text: impl Into<String>) -> Self {
        Self {
            key,
            text: text.into(),
            tables: Vec::new(),
        }
    }

    /// Sets the table of the key, in the table that has been set.
    pub(crate) fn under(mut self, step: Step) -> Self {
        self.tables.insert(0, step);
        self
    }
}
