//! The program `vibench`; everything it does is in the library beside it.

use std::process::ExitCode;

use clap::Parser;
use vibench::cli::Cli;

fn main() -> ExitCode {
    vipl::logger::install("vibench");
    match Cli::try_parse() {
        Ok(cli) => vibench::run(cli),
        Err(error) => vibench::explain(&error),
    }
}
