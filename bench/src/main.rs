//! The program `vibench`: parses the command line and calls the library.

use std::process::ExitCode;

use clap::Parser;
use vibench::cli::Cli;

fn main() -> ExitCode {
    vipl::logger::install("vibench");
    match Cli::try_parse() {
        Ok(cli) => vibench::run(cli),
        Err(error) => vibench::report_parse_error(&error),
    }
}
