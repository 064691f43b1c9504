//! What can stop a run.

use core::fmt;

use vipl::VipError;

/// What can stop a run.
#[derive(Debug)]
pub enum Error {
    /// A call of the stack failed.
    Call {
        /// The call.
        call: &'static str,
        /// What it answered.
        error: VipError,
        /// The stack's own words for it, if it has any.
        detail: Option<String>,
    },
    /// The other end said something that has no place here, or nothing in time.
    Peer(String),
    /// The raw port could not be used.
    Port(String),
    /// The command line asks for what cannot be.
    Usage(String),
    /// A file, a process or a pipe failed.
    Io {
        /// What was being done.
        what: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The results could not be printed.
    Output(std::io::Error),
    /// The connection is gone.
    Broken(String),
    /// What was measured is not what was asked for.
    Goal(String),
}

/// Short for a result with [`Error`].
pub type Result<T> = core::result::Result<T, Error>;

impl Error {
    /// Wraps the answer of a call, with the stack's own words for it.
    #[cold]
    pub fn call(call: &'static str, error: VipError) -> Self {
        Self::Call {
            call,
            error,
            detail: vipl::provider::last_error(),
        }
    }

    /// Wraps an answer of the system.
    #[cold]
    pub fn io(what: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io {
            what: what.into(),
            source,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call {
                call,
                error,
                detail: Some(detail),
            } => write!(f, "{call}: {error} ({detail})"),
            Self::Call {
                call,
                error,
                detail: None,
            } => write!(f, "{call}: {error}"),
            Self::Peer(text) => write!(f, "the other end: {text}"),
            Self::Port(text) => write!(f, "the raw port: {text}"),
            Self::Usage(text) | Self::Goal(text) => f.write_str(text),
            Self::Io { what, source } => write!(f, "{what}: {source}"),
            Self::Output(error) => write!(f, "standard output: {error}"),
            Self::Broken(text) => write!(f, "connection broken: {text}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } | Self::Output(source) => Some(source),
            Self::Call { error, .. } => Some(error),
            Self::Peer(_) | Self::Port(_) | Self::Usage(_) | Self::Broken(_) | Self::Goal(_) => {
                None
            }
        }
    }
}
