//! Sets file lengths within RLIMIT_FSIZE. Beyond it the kernel would send SIGXFSZ and so end the program.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Returns the maximum size in bytes of a file of this process: the soft limit RLIMIT_FSIZE.
///
/// # Errors
/// The error of getrlimit(2).
pub fn max_file_bytes() -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a structure on this stack frame is written.
    if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(limit.rlim_cur)
}

/// Sets the length of a file.
///
/// # Errors
/// EFBIG if RLIMIT_FSIZE does not allow it; EINVAL if no file can have that length; the error of ftruncate(2).
pub fn set_file_length(file: impl AsFd, bytes: u64) -> io::Result<()> {
    if bytes > max_file_bytes()? {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    let length =
        libc::off_t::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: takes integers only; the descriptor is open.
    if unsafe { libc::ftruncate(file.as_fd().as_raw_fd(), length) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
