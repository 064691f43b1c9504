//! `fcvi-pmd`: the datapath process, and looks at it, at configurations and at what a NIC sees of its network.
//!
//! | room | what is in it |
//! | --- | --- |
//! | [`cli`] | the command line |
//! | `run` | the datapath process, from start to SIGTERM |
//! | `capture` | frames of a running process, to a file |
//! | `check` | the NICs of a configuration |
//! | `log_writer` | log lines, for which no other thread waits |
//! | `neighbours` | a NIC's own port, and the ports that it finds |
//! | [`report`] | what is said of ports: as text, as JSON |
//! | [`snapshot`] | what a running process says of itself |
//! | [`stat`], [`prometheus`] | a snapshot as text, as JSON, as metrics |
//! | `rates` | what happened between two snapshots |
//! | [`top`] | rates, live on a terminal |
//! | [`metrics`] | the Prometheus endpoint |
//! | `service_manager` | reports to systemd |
//! | `source` | where snapshots come from |
//! | `table` | aligned columns |

#![forbid(unsafe_code)]

pub mod cli;
pub mod metrics;
pub mod prometheus;
pub mod report;
pub mod snapshot;
pub mod stat;
pub mod top;

mod capture;
mod check;
mod journal;
mod log_writer;
mod neighbours;
mod paced;
mod rates;
mod run;
mod service_manager;
mod source;
mod table;
mod user_names;

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use pmd::{ControlError, OpenError};

/// What can stop a command.
#[derive(Debug)]
pub enum Error {
    /// The configuration cannot be used; says where and why.
    Config(pmd::config::ConfigError),
    /// The configuration has no such NIC.
    NoNic {
        /// The name that was given.
        device: String,
        /// Those that there are.
        known: Vec<String>,
    },
    /// The NIC cannot be opened.
    Open(OpenError),
    /// The capture's file cannot be made or written.
    File(std::path::PathBuf, std::io::Error),
    /// The NIC was closed, or failed, meanwhile.
    Nic(ControlError),
    /// What carries the NIC's frames failed.
    Failed(String),
    /// The configuration has no table `[process]`.
    NoProcess {
        /// The file.
        config: std::path::PathBuf,
        /// What to do.
        remedy: &'static str,
    },
    /// The process refuses.
    Refused {
        /// Its socket.
        socket: std::path::PathBuf,
        /// What it says.
        why: String,
    },
    /// The process does not answer.
    Unanswered {
        /// Its socket.
        socket: std::path::PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The Prometheus endpoint cannot be opened.
    Metrics {
        /// Where.
        address: std::net::SocketAddr,
        /// Why.
        error: std::io::Error,
    },
    /// The configuration cannot be used on this host; each line says why.
    Here(Vec<String>),
    /// The process is about to end.
    Ending,
    /// A live view was asked for where there is no terminal.
    NoTerminal,
    /// The terminal of a live view was closed.
    TerminalClosed,
    /// The output, a signal handler or a thread.
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
                write!(f, "no NIC {device:?}: there are {}", known.join(", "))
            }
            Self::Open(error) => error.fmt(f),
            Self::File(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Nic(error) => write!(f, "the NIC was closed: {error}"),
            Self::Failed(name) => write!(
                f,
                "{name}: its port failed: look whether the interface is there and up"
            ),
            Self::NoProcess { config, remedy } => {
                let config = config.display();
                write!(f, "{config}: has no table [process]: {remedy}")
            }
            Self::Refused { socket, why } => write!(f, "{}: {why}", socket.display()),
            Self::Unanswered { socket, error } => {
                let socket = socket.display();
                write!(f, "{socket}: {error}")?;
                f.write_str(match error.kind() {
                    // Nobody is there.
                    ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                        ": start the process with fcvi-pmd run, or name its socket with --socket PATH"
                    }
                    // Somebody else is.
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
            Self::Here(mistakes) => f.write_str(&mistakes.join("\nfcvi-pmd: ")),
            Self::Ending => f.write_str("the process is about to end"),
            Self::NoTerminal => f.write_str("no terminal to show it on: --once prints one frame"),
            Self::TerminalClosed => f.write_str("the terminal was closed"),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl Error {
    /// The line that reports it to the user.
    fn report(&self) -> String {
        match self {
            // It begins with its file and line, for editors that go there.
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

/// Runs a command, and reports an error on standard error.
#[must_use]
pub fn run(cli: &cli::Cli) -> ExitCode {
    let mut out = std::io::stdout().lock();
    let outcome = match &cli.command {
        cli::Command::Run { config } => return run::run(config),
        cli::Command::Stat { process, json } => source::stat(process, *json, &mut out),
        cli::Command::Top {
            process,
            interval,
            once,
        } => source::top(process, *interval, *once, &mut out),
        cli::Command::Capture(options) => capture::run(options, &mut out),
        cli::Command::Check { file, here } => check::run(file, *here, &mut out),
        cli::Command::Neighbours(options) => neighbours::run(options, &mut out),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the output has enough.
        Err(Error::Io(error)) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            complain(format_args!("{}", error.report()));
            ExitCode::FAILURE
        }
    }
}

/// Prints why the command line was not understood, or the help or version that it asked for.
#[must_use]
pub fn explain(error: &clap::Error) -> ExitCode {
    let code = ExitCode::from(error.exit_code() as u8);
    match error.print() {
        Err(failed) if !error.use_stderr() && failed.kind() != ErrorKind::BrokenPipe => {
            complain(format_args!("fcvi-pmd: standard output: {failed}"));
            ExitCode::FAILURE
        }
        _ => code,
    }
}

/// Prints a line to standard error; one that is full or closed changes nothing.
fn complain(line: std::fmt::Arguments<'_>) {
    drop(writeln!(std::io::stderr(), "{line}"));
}
