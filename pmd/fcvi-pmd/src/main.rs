//! The program `fcvi-pmd`: a wrapper of the library of this crate.

use std::process::ExitCode;

use clap::Parser;
use fcvi_pmd::cli::Cli;

/// Keeps a reserve: requests of applications must not abort the process for lack of memory.
#[global_allocator]
static ALLOCATOR: vi_core::reserve::ReserveAllocator = vi_core::reserve::ReserveAllocator;

fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => fcvi_pmd::run(&cli),
        Err(error) => fcvi_pmd::print_usage_error(&error),
    }
}
