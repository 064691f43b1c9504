//! What is printed: results on standard output, the rest on standard error.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use crate::error::{Error, Result};

/// Prints a line of results.
///
/// # Errors
/// [`Error::Output`]: the disk is full, or the reader has gone.
pub(crate) fn line(text: Arguments<'_>) -> Result<()> {
    writeln!(io::stdout(), "{text}").map_err(Error::Output)
}

/// Prints a line for the user; a standard error that is full or closed changes nothing.
pub(crate) fn note(text: Arguments<'_>) {
    drop(writeln!(io::stderr(), "vibench: {text}"));
}

/// Shows how far a run is, on a terminal.
pub(crate) fn progress(text: Arguments<'_>) {
    drop(write!(io::stderr(), "{text}"));
}

/// Reports how the program ends.
pub(crate) fn exit_code(outcome: Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the results has enough.
        Err(Error::Output(error)) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            note(format_args!("{error}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints why the command line was not understood, or the help or version that it asked for.
pub fn explain(error: &clap::Error) -> ExitCode {
    match error.print() {
        Err(failed) if !error.use_stderr() => exit_code(Err(Error::Output(failed))),
        _ => ExitCode::from(error.exit_code() as u8),
    }
}
