//! Descriptors that do not have the numbers of the standard streams.
//!
//! A program may run with standard input, output or error closed, and the system gives the lowest free number to what
//! is opened next. What it writes to standard error later must not reach a file or socket of the library.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Moves a descriptor to a number above 2, unless it has one.
///
/// # Errors
/// No descriptor is left.
pub fn above_standard_streams(mut fd: OwnedFd) -> io::Result<OwnedFd> {
    move_above_standard_streams(&mut fd)?;
    Ok(fd)
}

/// As [`above_standard_streams`]; after an error the descriptor is what it was.
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
