//! `fcvi-pmd`: looks at configurations, and at what a NIC sees of its network.
//!
//! | room | what is in it |
//! | --- | --- |
//! | [`cli`] | the command line |
//! | `check` | the NICs of a configuration |
//! | `neighbours` | a NIC's own port, and the ports that it finds |
//! | [`report`] | what is said of ports: as text, as JSON |

#![forbid(unsafe_code)]

pub mod cli;
pub mod report;

mod check;
mod neighbours;

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
    /// The NIC was closed, or failed, meanwhile.
    Nic(ControlError),
    /// What carries the NIC's frames failed.
    Failed(String),
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
            Self::Nic(error) => write!(f, "the NIC was closed: {error:?}"),
            Self::Failed(name) => write!(
                f,
                "{name}: its port failed: look whether the interface is there and up"
            ),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

/// Runs a command, and says on standard error what went wrong, if anything did.
#[must_use]
pub fn run(cli: &cli::Cli) -> ExitCode {
    let mut out = std::io::stdout().lock();
    let outcome = match &cli.command {
        cli::Command::Check { file } => check::run(file, &mut out),
        cli::Command::Neighbours(options) => neighbours::run(options, &mut out),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has enough.
        Err(Error::Io(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("fcvi-pmd: {error}");
            ExitCode::FAILURE
        }
    }
}
