//! Keeps descriptors off the numbers of the standard streams.
//!
//! A program may run with standard input, output or error closed, and the system gives the lowest free number to the
//! next file opened. What it writes to standard error later must not reach a file or socket of the library.

#[cfg(feature = "dpdk")]
use std::fs::{File, OpenOptions};
use std::io;
#[cfg(feature = "dpdk")]
use std::os::fd::IntoRawFd;
use std::os::fd::{AsRawFd, OwnedFd};
#[cfg(feature = "dpdk")]
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

/// Moves a descriptor to a number above 2, unless it has one.
///
/// # Errors
/// No descriptor is left.
pub fn above_standard_streams(mut fd: OwnedFd) -> io::Result<OwnedFd> {
    move_above_standard_streams(&mut fd)?;
    Ok(fd)
}

/// As [`above_standard_streams`], in place; after an error the descriptor is unchanged.
///
/// # Errors
/// No descriptor is left.
pub fn move_above_standard_streams(fd: &mut OwnedFd) -> io::Result<()> {
    if fd.as_raw_fd() <= libc::STDERR_FILENO {
        // A clone never has one of these numbers.
        *fd = fd.try_clone()?;
    }
    Ok(())
}

/// Occupies the numbers of closed standard streams until dropped, so that foreign code such as EAL cannot get them.
/// Writes to them fail as on closed streams.
#[cfg(feature = "dpdk")]
#[derive(Debug)]
pub(crate) struct Placeholders(Vec<File>);

#[cfg(feature = "dpdk")]
impl Placeholders {
    pub(crate) fn new() -> Self {
        let mut placeholders = Vec::new();
        // The system gives the lowest free number. If none is left, foreign code gets none either.
        while let Ok(next) = Self::open()
            && next.as_raw_fd() <= libc::STDERR_FILENO
        {
            placeholders.push(next);
        }
        Self(placeholders)
    }

    fn open() -> io::Result<File> {
        // O_PATH: nothing can be read or written.
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_PATH).open("/")
    }
}

#[cfg(feature = "dpdk")]
impl Drop for Placeholders {
    fn drop(&mut self) {
        let id = |file: &File| file.metadata().map(|m| (m.dev(), m.ino())).ok();
        let own = Self::open().ok().and_then(|root| id(&root));
        for placeholder in self.0.drain(..) {
            // Another thread of the program may have replaced it by dup2(2).
            if id(&placeholder) != own {
                let _owned_by_the_program = placeholder.into_raw_fd();
            }
        }
    }
}
