//! Errors of joining a segment.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why [`ShmPort::open`](super::ShmPort::open) failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum ShmError {
    /// The segment's name is empty, too long or has a character outside `[A-Za-z0-9._-]`.
    BadName {
        /// The name as given.
        segment: String,
    },
    /// A parameter of the configuration is out of range.
    BadParameter {
        /// The parameter.
        parameter: &'static str,
        /// The allowed values.
        allowed: &'static str,
        /// The configured value.
        given: u64,
    },
    /// The segment's directory is a symbolic link or not a directory.
    NotADirectory {
        /// The directory.
        path: PathBuf,
    },
    /// The segment's directory belongs to another user.
    WrongOwner {
        /// The directory.
        path: PathBuf,
        /// The user it belongs to.
        owner: u32,
        /// This process's effective user.
        expected: u32,
    },
    /// The segment's directory is accessible to other users.
    WrongMode {
        /// The directory.
        path: PathBuf,
        /// Its permission bits; 0700 is expected.
        mode: u32,
    },
    /// Running stations use the segment with other parameters.
    Mismatch {
        /// The segment's file.
        path: PathBuf,
        /// The parameter.
        parameter: &'static str,
        /// The value in the segment.
        found: u64,
        /// The value of this program or its configuration.
        expected: u64,
    },
    /// Every station slot of the segment is in use.
    Full {
        /// The number of station slots.
        max_stations: u32,
    },
    /// Another process held the segment's lock until the timeout of joining.
    Busy {
        /// The lock file.
        path: PathBuf,
    },
    /// A system call failed; `ENOSPC` means that the memory file system is full.
    Io {
        /// The failed operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
}

/// Advice for a segment directory that cannot be used. Other users can create files in /dev/shm, the default if
/// XDG_RUNTIME_DIR is not set, but not in a user's runtime directory.
const ADVICE: &str = "choose a directory in which only this user can create files, with \
                      directory in [nic.shm] or with XDG_RUNTIME_DIR, the same for all programs \
                      of the segment";

impl fmt::Display for ShmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadName { segment } => write!(
                f,
                "segment name {segment:?}: 1 to 64 characters of A-Z a-z 0-9 . _ - are allowed"
            ),
            Self::BadParameter {
                parameter,
                allowed,
                given,
            } => write!(f, "{parameter} is {given}, allowed is {allowed}"),
            Self::NotADirectory { path } => write!(
                f,
                "{} is a symbolic link or not a directory: remove it, or {ADVICE}",
                path.display()
            ),
            Self::WrongOwner {
                path,
                owner,
                expected,
            } => write!(
                f,
                "{} belongs to user {owner}, not to user {expected}: {ADVICE}",
                path.display()
            ),
            Self::WrongMode { path, mode } => {
                let path = path.display();
                write!(
                    f,
                    "{path} has mode {mode:04o}, not 0700: end the programs that use the segment \
                     and remove the directory, or {ADVICE}"
                )
            }
            Self::Mismatch {
                path,
                parameter,
                found,
                expected,
            } => write!(
                f,
                "{} is in use with {parameter} {found:#x}, this station wants {expected:#x}",
                path.display()
            ),
            Self::Full { max_stations } => {
                write!(f, "all {max_stations} stations of the segment are taken")
            }
            Self::Busy { path } => write!(
                f,
                "timed out waiting for the lock {}, which another process holds",
                path.display()
            ),
            Self::Io {
                action,
                path,
                source,
            } => write!(f, "cannot {action} {}: {source}", path.display()),
        }
    }
}

impl Error for ShmError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
