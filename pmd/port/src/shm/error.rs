//! Why a station could not join a segment.

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
        /// Its name.
        parameter: &'static str,
        /// What is allowed.
        allowed: &'static str,
        /// What was given.
        given: u64,
    },
    /// The segment's directory is a symbolic link or no directory at all.
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
    /// The segment's directory can be entered by others than its owner.
    WrongMode {
        /// The directory.
        path: PathBuf,
        /// Its permission bits; 0700 is expected.
        mode: u32,
    },
    /// Living stations use the segment with other parameters.
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
    /// Every station slot of the segment is taken by a living process.
    Full {
        /// How many stations the segment has.
        max_stations: u32,
    },
    /// Another process held the segment's lock for longer than joining may take.
    Busy {
        /// The lock file.
        path: PathBuf,
    },
    /// A system call failed; `ENOSPC` means that the memory file system is full.
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// What to do where a segment's directory cannot be used. Other users can make files in /dev/shm, the default where
/// XDG_RUNTIME_DIR is not set, but not in a user's runtime directory.
const ELSEWHERE: &str = "choose a directory in which only this user can make files, with \
                         directory in [[nic]] or with XDG_RUNTIME_DIR, the same for all programs of the segment";

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
                "{} is a symbolic link or not a directory: remove it, or {ELSEWHERE}",
                path.display()
            ),
            Self::WrongOwner {
                path,
                owner,
                expected,
            } => write!(
                f,
                "{} belongs to user {owner}, not to user {expected}: {ELSEWHERE}",
                path.display()
            ),
            Self::WrongMode { path, mode } => {
                let path = path.display();
                write!(
                    f,
                    "{path} has mode {mode:04o}, not 0700: end the programs that use the segment \
                     and remove the directory, or {ELSEWHERE}"
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
                "{} is held by another process that makes no progress",
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
