//! Errors that end a run.

use core::fmt;

use vipl::VipError;

/// An error that ends a run.
#[derive(Debug)]
pub enum Error {
    /// A call of the stack failed.
    Call {
        /// Name of the call.
        call: &'static str,
        /// Its error code.
        error: VipError,
        /// The stack's error text, if any.
        detail: Option<String>,
    },
    /// The peer sent an invalid or unexpected message, reported an error, or timed out.
    Peer(String),
    /// The raw port or the raw TCP connection failed.
    Port(String),
    /// The command line or the configuration is invalid.
    Usage(String),
    /// A file, a process or a pipe failed.
    Io {
        /// The operation, or the name of the file.
        what: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// Writing results to standard output failed.
    Output(std::io::Error),
    /// The connection was closed or lost.
    Broken(String),
    /// A signal ended the run before the peer was found.
    Interrupted,
    /// The measured value exceeds the requested limit.
    Goal(String),
}

/// A result with [`Error`].
pub type Result<T> = core::result::Result<T, Error>;

impl Error {
    /// Wraps the error of a call, with the stack's error text.
    #[cold]
    pub fn call(call: &'static str, error: VipError) -> Self {
        Self::Call {
            call,
            error,
            detail: vipl::provider::last_error(),
        }
    }

    /// Wraps an error of the operating system.
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
            Self::Peer(text) => write!(f, "peer: {text}"),
            Self::Port(text) => write!(f, "raw port: {text}"),
            Self::Usage(text) | Self::Goal(text) => f.write_str(text),
            Self::Io { what, source } => write!(f, "{what}: {source}"),
            Self::Output(error) => write!(f, "standard output: {error}"),
            Self::Broken(text) => write!(f, "connection broken: {text}"),
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } | Self::Output(source) => Some(source),
            Self::Call { error, .. } => Some(error),
            Self::Peer(_)
            | Self::Port(_)
            | Self::Usage(_)
            | Self::Broken(_)
            | Self::Interrupted
            | Self::Goal(_) => None,
        }
    }
}
