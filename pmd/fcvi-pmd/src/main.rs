//! The program `fcvi-pmd`; everything it does is in the library beside it.

use std::process::ExitCode;

use clap::Parser;
use fcvi_pmd::cli::Cli;

/// What applications ask for must not end the process for want of memory.
#[global_allocator]
static ALLOCATOR: pmd::reserve::ReserveAllocator = pmd::reserve::ReserveAllocator;

fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => fcvi_pmd::run(&cli),
        Err(error) => fcvi_pmd::explain(&error),
    }
}
