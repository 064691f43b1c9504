//! The program `vibench`; everything it does is in the library beside it.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    vibench::run(vibench::cli::Cli::parse())
}
