//! The program `fcvi-pmd`; everything it does is in the library beside it.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    fcvi_pmd::run(&fcvi_pmd::cli::Cli::parse())
}
