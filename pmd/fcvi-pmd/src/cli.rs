//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::UnknownArgumentValueParser;
use clap::{Args, Parser, Subcommand};
use fcvi_frame::NPortId;

/// The datapath process: runs it, shows its status and rates, captures frames, checks configurations, lists neighbours.
#[derive(Debug, Parser)]
#[command(name = "fcvi-pmd", version, about)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Runs the datapath process: opens the NICs of a configuration, polls them on pinned cores, and serves attached
    /// applications.
    ///
    /// SIGTERM and SIGINT end it; a second one ends it immediately. SIGHUP makes it reload the configuration.
    Run {
        /// The configuration, with a table `[process]`.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Prints the status of a process: cores, NICs, drops, applications and VIs.
    Stat {
        /// The process.
        #[command(flatten)]
        process: ProcessOptions,
        /// Print JSON, with every counter.
        #[arg(long)]
        json: bool,
    },
    /// Shows rates, queue depths and drops of a process, live on the terminal.
    ///
    /// Keys: q quits, s sorts, p pauses, arrows and page keys scroll.
    Top {
        /// The process.
        #[command(flatten)]
        process: ProcessOptions,
        /// Update interval.
        #[arg(long, default_value = "1", value_parser = parse_seconds, value_name = "SECONDS")]
        interval: Duration,
        /// Print the rates of one interval as plain text and exit.
        #[arg(long)]
        once: bool,
    },
    /// Checks a configuration: prints a line for each NIC, or each error and its remedy.
    Check {
        /// The configuration.
        #[arg(required_unless_present = "print_reference")]
        file: Option<PathBuf>,
        /// Print the reference of the configuration file, every table and key, as Markdown.
        #[arg(long, conflicts_with_all = ["file", "here"])]
        print_reference: bool,
        /// Also check that this user can use it on this host now: cores, interfaces, permissions, addresses and files.
        /// Removes everything that it creates, except the directory of the socket.
        #[arg(long)]
        here: bool,
    },
    /// Captures frames of a NIC of a running process to a pcapng file.
    ///
    /// Ctrl-C ends the capture. The process does not wait for the file: frames that cannot be written in time are
    /// dropped and counted. Messages that the process copies from memory to memory (`shortcut = true`) have no frames,
    /// and are not captured.
    ///
    /// Display filters of tshark select frames: fcvi-pmd capture -w - | tshark -r - -Y 'fc.type == 0x58'
    Capture(CaptureOptions),
    /// Opens a NIC and lists the neighbour ports that it discovers.
    ///
    /// The first line is the own port. It logs out and leaves the network when the command ends.
    Neighbours(NeighboursOptions),
}

/// Options that select the process.
#[derive(Debug, Args)]
pub struct ProcessOptions {
    /// The configuration of the process, which names its socket. Default: the file named by VIADUCT_CONFIG.
    #[arg(long, value_name = "FILE", conflicts_with = "socket")]
    pub config: Option<PathBuf>,
    /// The socket of the process. Default: that of the configuration, or the built-in default.
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
    /// The pcapng file to write; "-" is standard output.
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    pub file: PathBuf,
    /// Capture only FC frames from or to this N_Port_ID, such as 00.01.02. Default: all frames.
    #[arg(long, value_name = "ID")]
    pub n_port_id: Option<NPortId>,
    /// Always refused: earlier versions had filter expressions.
    #[arg(long, hide = true, value_parser = UnknownArgumentValueParser::suggest(FILTER_TIP))]
    pub filter: Option<String>,
    /// Capture at most this number of bytes of each frame. Default: all.
    #[arg(long, value_parser = clap::value_parser!(u32).range(52..), value_name = "BYTES")]
    pub snaplen: Option<u32>,
    /// Size of the frame buffer in the process, in KiB.
    #[arg(long, default_value = "16384", value_parser = clap::value_parser!(u64).range(64..=65536), value_name = "KIB")]
    pub buffer: u64,
    /// End after this time.
    #[arg(long = "for", value_parser = parse_seconds, value_name = "SECONDS")]
    pub limit: Option<Duration>,
    /// End after this number of frames.
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
}

/// What replaces `--filter`; clap prints it after `tip: `.
const FILTER_TIP: &str =
    "select frames with tshark: fcvi-pmd capture -w - | tshark -r - -Y 'DISPLAY FILTER'";

/// Options of `neighbours`.
#[derive(Debug, Args)]
pub struct NeighboursOptions {
    /// The configuration.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// The NIC.
    #[arg(long, default_value = "VINIC0", value_name = "NAME")]
    pub device: String,
    /// How long to search for neighbours once the own port is up; Ctrl-C ends the search.
    #[arg(long = "for", default_value = "3", value_parser = parse_seconds, value_name = "SECONDS")]
    pub limit: Duration,
    /// Print a line whenever a neighbour appears, changes or disappears, instead of a list at the end.
    #[arg(long)]
    pub watch: bool,
    /// Print JSON: one object; with --watch, one per line.
    #[arg(long)]
    pub json: bool,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "must be a number".to_owned())?;
    let time = Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())?;
    // Longer times could overflow clocks.
    if time > LONGEST {
        return Err(format!("must be at most {}, a year", LONGEST.as_secs()));
    }
    Ok(time)
}

/// The longest time that a command accepts.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_is_valid() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn capture_takes_the_process_options() {
        for words in ["", "--config x.toml", "--socket /run/x.sock"] {
            let line = format!("fcvi-pmd capture -w x.pcapng {words}");
            assert!(
                Cli::try_parse_from(line.split_whitespace()).is_ok(),
                "{line}"
            );
        }
    }

    #[test]
    fn capture_takes_an_n_port_id_and_refuses_a_filter_expression() {
        let parse = |words: &str| {
            let line = format!("fcvi-pmd capture -w - {words}");
            Cli::try_parse_from(line.split_whitespace())
        };
        let Command::Capture(options) = parse("--n-port-id 00.01.02").unwrap().command else {
            panic!("another command");
        };
        assert_eq!(options.n_port_id, NPortId::new(0x102));
        assert!(parse("--n-port-id 258").is_err());
        let error = parse("--filter vi").unwrap_err().to_string();
        assert!(error.contains("unexpected argument '--filter"), "{error}");
        let tip = "tip: select frames with tshark: fcvi-pmd capture -w - | tshark -r - -Y '";
        assert!(error.contains(tip), "{error}");
        let help = parse("--help").unwrap_err().to_string();
        assert!(help.contains("tshark -r - -Y"), "{help}");
        assert!(!help.contains("--filter"), "{help}");
    }

    #[test]
    fn seconds_are_not_negative_and_at_most_a_year() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_seconds("31536000"), Ok(LONGEST));
        for wrong in ["-1", "x", "", "31536001", "1e19", "1e99", "NaN"] {
            assert!(parse_seconds(wrong).is_err(), "{wrong}");
        }
    }
}
