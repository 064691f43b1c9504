//! `fcvi-pmd`: the datapath process, and commands that show its status, capture its frames, check configurations and
//! list the neighbours of a NIC.
//!
//! | module | contents |
//! | --- | --- |
//! | [`cli`] | the command line |
//! | `run` | the datapath process, from start to SIGTERM |
//! | `capture` | capture of frames of a running process to a file |
//! | `check` | check of a configuration |
//! | `journal` | log lines for systemd's journal |
//! | `log_writer` | log lines, written without blocking other threads |
//! | `neighbours` | own port and neighbour ports of a NIC |
//! | [`neighbour_report`] | ports as text and as JSON |
//! | [`snapshot`] | the state of a running process as plain data |
//! | `snapshot_cache` | snapshots shared by concurrent clients |
//! | `snapshot_source` | creation and queries of snapshots |
//! | [`stat`], [`prometheus`] | a snapshot as text, as JSON, as metrics |
//! | `rates` | rates between two snapshots |
//! | [`top`] | rates, live on a terminal |
//! | [`metrics`] | the Prometheus endpoint |
//! | `service_manager` | notifications to systemd |
//! | `table` | tables with aligned columns |
//! | `user_names` | names of users |

#![forbid(unsafe_code)]

pub mod cli;
pub mod metrics;
pub mod neighbour_report;
pub mod prometheus;
pub mod snapshot;
pub mod stat;
pub mod top;

mod capture;
mod check;
mod journal;
mod log_writer;
mod neighbours;
mod rates;
mod run;
mod service_manager;
mod snapshot_cache;
mod snapshot_source;
mod table;
mod user_names;

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use pmd::OpenError;
use vi_types::CallError;

/// Errors of the commands.
#[derive(Debug)]
pub enum Error {
    /// The configuration is invalid; the text names line and cause.
    Config(pmd::config::ConfigError),
    /// The configuration has no NIC of this name.
    NoNic {
        /// The requested name.
        device: String,
        /// The names in the configuration.
        known: Vec<String>,
    },
    /// The NIC cannot be opened.
    Open(OpenError),
    /// The capture file cannot be created or written.
    File(std::path::PathBuf, std::io::Error),
    /// The NIC was closed or failed during the command.
    Nic(CallError),
    /// The port of the NIC failed.
    Failed(String),
    /// The configuration has no table `[process]`.
    NoProcess {
        /// The path of the configuration.
        config: std::path::PathBuf,
        /// The remedy.
        remedy: &'static str,
    },
    /// The process refuses the request.
    Refused {
        /// Its socket.
        socket: std::path::PathBuf,
        /// The reason.
        why: String,
    },
    /// The process does not reply.
    NoReply {
        /// Its socket.
        socket: std::path::PathBuf,
        /// The cause.
        error: std::io::Error,
    },
    /// The Prometheus endpoint cannot be opened.
    Metrics {
        /// The configured address.
        address: std::net::SocketAddr,
        /// The cause.
        error: std::io::Error,
    },
    /// The configuration cannot be used on this host; each line names a cause.
    UnusableOnHost(Vec<String>),
    /// The process is stopping.
    Stopping,
    /// Standard input or output is no terminal.
    NoTerminal,
    /// The terminal was closed.
    TerminalClosed,
    /// An error of the output, of a signal handler or of a thread.
    Io(std::io::Error),
}

impl core::fmt::Display for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::NoNic { device, known } if known.is_empty() => {
                write!(
                    f,
                    "no NIC {device:?}: the configuration has none; add [[nic]]"
                )
            }
            Self::NoNic { device, known } => {
                let known = known.join(", ");
                write!(f, "no NIC {device:?}: the configuration has {known}")
            }
            Self::Open(error) => error.fmt(f),
            Self::File(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Nic(error) => write!(f, "the NIC was closed: {error}"),
            Self::Failed(name) => write!(
                f,
                "{name}: port failed: check that the interface exists and is up"
            ),
            Self::NoProcess { config, remedy } => {
                let config = config.display();
                write!(f, "{config}: no table [process]: {remedy}")
            }
            Self::Refused { socket, why } => write!(f, "{}: {why}", socket.display()),
            Self::NoReply { socket, error } => {
                let socket = socket.display();
                write!(f, "{socket}: {error}")?;
                f.write_str(match error.kind() {
                    // No process listens.
                    ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                        ": start the process with fcvi-pmd run, or name its socket with --socket PATH"
                    }
                    // Another program listens.
                    ErrorKind::UnexpectedEof | ErrorKind::InvalidData => {
                        ": what listens there is not a datapath process of this release"
                    }
                    _ => "",
                })
            }
            Self::Metrics { address, error } => write!(
                f,
                "metrics = \"{address}\": {error}: choose another address in [process]"
            ),
            Self::UnusableOnHost(errors) => f.write_str(&errors.join("\nfcvi-pmd: ")),
            Self::Stopping => f.write_str("the process is stopping"),
            Self::NoTerminal => f.write_str("standard input or output is no terminal: use --once"),
            Self::TerminalClosed => f.write_str("the terminal was closed"),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl Error {
    /// The error as a line for the user.
    fn report(&self) -> String {
        match self {
            // Begins with file and line, for editors that jump there.
            Self::Config(error) => error.to_string(),
            _ => format!("fcvi-pmd: {self}"),
        }
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

/// Runs a command, and prints an error to standard error.
#[must_use]
pub fn run(cli: &cli::Cli) -> ExitCode {
    let mut out = std::io::stdout().lock();
    let outcome = match &cli.command {
        cli::Command::Run { config } => return run::run(config),
        cli::Command::Stat { process, json } => snapshot_source::stat(process, *json, &mut out),
        cli::Command::Top {
            process,
            interval,
            once,
        } => snapshot_source::top(process, *interval, *once, &mut out),
        cli::Command::Capture(options) => capture::run(options, &mut out),
        cli::Command::Check { file, here, .. } => check::run(file.as_deref(), *here, &mut out),
        cli::Command::Neighbours(options) => neighbours::run(options, &mut out),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has closed the output.
        Err(Error::Io(error)) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            print_error(format_args!("{}", error.report()));
            ExitCode::FAILURE
        }
    }
}

/// Prints an error of the command line, or the requested help or version.
#[must_use]
pub fn print_usage_error(error: &clap::Error) -> ExitCode {
    let code = ExitCode::from(error.exit_code() as u8);
    match error.print() {
        Err(failed) if !error.use_stderr() && failed.kind() != ErrorKind::BrokenPipe => {
            print_error(format_args!("fcvi-pmd: standard output: {failed}"));
            ExitCode::FAILURE
        }
        _ => code,
    }
}

/// Prints a line to standard error; ignores errors of standard error itself.
fn print_error(line: std::fmt::Arguments<'_>) {
    drop(writeln!(std::io::stderr(), "{line}"));
}
