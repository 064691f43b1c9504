//! Errors that end a program of the tests.

use std::error::Error;

/// An error with a text for the user.
pub type Failure = Box<dyn Error + Send + Sync>;
