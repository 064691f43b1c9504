//! What the examples print, and how they end.

use std::error::Error;
use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

/// Prints a line; `println!` would panic when the disk is full or the reader has gone.
pub(crate) fn print(line: Arguments<'_>) -> io::Result<()> {
    writeln!(io::stdout(), "{line}")
}

/// Prints a line to standard error; one that is full or closed changes nothing.
pub(crate) fn complain(line: Arguments<'_>) {
    drop(writeln!(io::stderr(), "{line}"));
}

/// The end of a program: an error is printed, unless it is that nobody reads the output any more.
pub(crate) fn end(program: &str, outcome: Result<(), Box<dyn Error>>) -> ExitCode {
    let Err(error) = outcome else {
        return ExitCode::SUCCESS;
    };
    let is_output = error.downcast_ref::<io::Error>();
    if is_output.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    let reason = vipl::provider::last_error().unwrap_or_default();
    complain(format_args!("{program}: {error} {reason}"));
    ExitCode::FAILURE
}
