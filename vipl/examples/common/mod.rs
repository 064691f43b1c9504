//! Output and exit code of the examples.

use std::error::Error;
use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

/// Prints a line; unlike `println!` it does not panic if the disk is full or the pipe is closed.
pub(crate) fn print(line: Arguments<'_>) -> io::Result<()> {
    writeln!(io::stdout(), "{line}")
}

/// Prints a line to standard error, ignoring write errors.
pub(crate) fn print_error(line: Arguments<'_>) {
    drop(writeln!(io::stderr(), "{line}"));
}

/// Returns the exit code for a result; prints an error, except that of a closed output pipe.
pub(crate) fn exit_code(program: &str, result: Result<(), Box<dyn Error>>) -> ExitCode {
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    let io_error = error.downcast_ref::<io::Error>();
    if io_error.is_some_and(|error| error.kind() == ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    let reason = vipl::provider::last_error().unwrap_or_default();
    print_error(format_args!("{program}: {error} {reason}"));
    ExitCode::FAILURE
}
