//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

/// Looks at configurations, and at what a NIC sees of its network.
#[derive(Debug, Parser)]
#[command(name = "fcvi-pmd", version, about)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Reads a configuration: prints each of its NICs in a line, or what is wrong and what to do.
    Check {
        /// The configuration.
        file: PathBuf,
    },
    /// Opens a NIC as a port of its own and lists the ports that it finds.
    ///
    /// The first line is our own port. The port leaves the network when the command ends; the
    /// others are told.
    Neighbours(NeighboursOptions),
}

/// Options of `neighbours`.
#[derive(Debug, Args)]
pub struct NeighboursOptions {
    /// The configuration.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The NIC.
    #[arg(long, default_value = "VINIC0", value_name = "NAME")]
    pub device: String,
    /// How long to look for others once our port is up; or Ctrl-C.
    #[arg(long = "for", default_value = "3", value_parser = parse_seconds, value_name = "SECONDS")]
    pub limit: Duration,
    /// Print a line whenever a neighbour appears, changes or goes, instead of a list at the end.
    #[arg(long)]
    pub watch: bool,
    /// Print JSON: one object; with --watch, one for each line.
    #[arg(long)]
    pub json: bool,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "must be a number".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn seconds_are_not_negative() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["-1", "x", "", "1e99", "NaN"] {
            assert!(parse_seconds(wrong).is_err(), "{wrong}");
        }
    }
}
