//! Errors of opening a NIC.

use std::error::Error;
use std::io;

/// Error of opening a NIC; displayed with what to do.
#[derive(Debug)]
pub struct OpenError {
    text: String,
    unknown_name: bool,
}

impl OpenError {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            unknown_name: false,
        }
    }

    /// The error of a thread that could not be started.
    pub(crate) fn thread(error: io::Error) -> Self {
        Self::new(format!("cannot start a thread: {error}"))
    }

    /// The datapath process has no NIC of this name.
    pub(crate) fn unknown_name(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            unknown_name: true,
        }
    }

    /// Returns whether the error is only that the datapath process has no NIC of this name.
    #[must_use]
    pub fn is_unknown_name(&self) -> bool {
        self.unknown_name
    }
}

impl core::fmt::Display for OpenError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for OpenError {}
