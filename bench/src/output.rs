//! Results on standard output; notes, progress and errors on standard error.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use crate::error::{Error, Result};

/// Prints a line of results.
///
/// # Errors
/// [`Error::Output`] when standard output is full or closed.
pub(crate) fn line(text: Arguments<'_>) -> Result<()> {
    writeln!(io::stdout(), "{text}").map_err(Error::Output)
}

/// Prints a line on standard error; ignores write errors.
pub(crate) fn note(text: Arguments<'_>) {
    drop(writeln!(io::stderr(), "vibench: {text}"));
}

/// Prints progress on standard error, without a line end; ignores write errors.
pub(crate) fn progress(text: Arguments<'_>) {
    drop(write!(io::stderr(), "{text}"));
}

/// Prints the error of a run, if any, and returns the exit code. A closed pipe is not a failure.
pub(crate) fn exit_code(outcome: Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Error::Output(error)) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            note(format_args!("{error}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints a command-line error, or the requested help or version, and returns the exit code.
pub fn report_parse_error(error: &clap::Error) -> ExitCode {
    match error.print() {
        Err(failed) if !error.use_stderr() => exit_code(Err(Error::Output(failed))),
        _ => ExitCode::from(error.exit_code() as u8),
    }
}
