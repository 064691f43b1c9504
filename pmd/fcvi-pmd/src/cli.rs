//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

/// The datapath process: runs it, looks at it and its frames, at configurations and networks.
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
    /// Opens the NICs of a configuration, polls them on pinned cores, and serves the applications
    /// that attach, until SIGTERM or SIGINT; the second one ends it at once. SIGHUP has it read the
    /// configuration again.
    Run {
        /// The configuration; it has a table `[process]`.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Tells what a process does, once: its cores, NICs, applications and VIs, and what was dropped.
    Stat {
        /// The process.
        #[command(flatten)]
        process: ProcessOptions,
        /// Print JSON, with every counter.
        #[arg(long)]
        json: bool,
    },
    /// Shows what a process does, again and again: rates, depths, drops by reason.
    ///
    /// Keys: q ends, s sorts, p pauses, arrows and page keys scroll.
    Top {
        /// The process.
        #[command(flatten)]
        process: ProcessOptions,
        /// From one look to the next.
        #[arg(long, default_value = "1", value_parser = parse_seconds, value_name = "SECONDS")]
        interval: Duration,
        /// Print one plain frame, after one interval, instead.
        #[arg(long)]
        once: bool,
    },
    /// Reads a configuration: prints each of its NICs in a line, or what is wrong and what to do.
    Check {
        /// The configuration.
        file: PathBuf,
        /// Also check that it can be used on this host by this user now: cores, interfaces, permissions, addresses,
        /// and the files that it names. It leaves nothing behind but the directory of the socket.
        #[arg(long)]
        here: bool,
    },
    /// Writes the frames of a NIC of a running process to a pcapng file.
    ///
    /// Ctrl-C ends it. The process waits for nothing: frames that the disk cannot take in time are
    /// left out of the file and counted. Messages that the process moves from memory to memory
    /// (`shortcut = true`) are no frames, and not seen.
    Capture(CaptureOptions),
    /// Opens a NIC as a port of its own and lists the ports that it finds.
    ///
    /// The first line is our own port. The port leaves the network when the command ends; the
    /// others are told.
    Neighbours(NeighboursOptions),
}

/// Which process.
#[derive(Debug, Args)]
pub struct ProcessOptions {
    /// Its configuration, which names its socket. Default: the file that VIADUCT_CONFIG names.
    #[arg(long, value_name = "FILE", conflicts_with = "socket")]
    pub config: Option<PathBuf>,
    /// Its socket. Default: that of the configuration, or where it is without one.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

/// Options of `capture`.
#[derive(Debug, Args)]
pub struct CaptureOptions {
    /// The process.
    #[command(flatten)]
    pub process: ProcessOptions,
    /// The NIC.
    #[arg(long, default_value = "VINIC0", value_name = "NAME")]
    pub device: String,
    /// The file to write, of pcapng; "-" is standard output.
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    pub file: PathBuf,
    /// Which frames, such as "vi and (s_id == 00.01.02 or ox_id == 0x1234)".
    ///
    /// Flags: in, out, fcoe, fip, vi, els, bls. Fields, with == or !=: ethertype, n_port_id (source
    /// or destination), s_id, d_id, ox_id, rx_id, r_ctl, type, handle (of the receiver's VI), opcode,
    /// msg_id. They are joined by and, or, not and parentheses.
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "EXPR"
    )]
    pub filter: String,
    /// Keep so many bytes of each frame; all if not given.
    #[arg(long, value_parser = clap::value_parser!(u32).range(52..), value_name = "BYTES")]
    pub snaplen: Option<u32>,
    /// How much of the process's memory frames may wait in, in KiB.
    #[arg(long, default_value = "16384", value_parser = clap::value_parser!(u64).range(64..=65536), value_name = "KIB")]
    pub buffer: u64,
    /// End after so long.
    #[arg(long = "for", value_parser = parse_seconds, value_name = "SECONDS")]
    pub limit: Option<Duration>,
    /// End after so many frames.
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
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
    let time = Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())?;
    // No clock comes to its end in that time.
    if time > LONGEST {
        return Err(format!("must be at most {}, a year", LONGEST.as_secs()));
    }
    Ok(time)
}

/// The longest time that a command can be given.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn captures_find_their_process_as_looks_do() {
        for words in ["", "--config x.toml", "--socket /run/x.sock"] {
            let line = format!("fcvi-pmd capture -w x.pcapng {words}");
            assert!(
                Cli::try_parse_from(line.split_whitespace()).is_ok(),
                "{line}"
            );
        }
    }

    #[test]
    fn seconds_are_neither_negative_nor_for_ever() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_seconds("31536000"), Ok(LONGEST));
        for wrong in ["-1", "x", "", "31536001", "1e19", "1e99", "NaN"] {
            assert!(parse_seconds(wrong).is_err(), "{wrong}");
        }
    }
}
