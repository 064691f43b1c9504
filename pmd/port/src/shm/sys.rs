//! Safe wrappers of the driver's system calls.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::descriptor_number::above_standard_streams;
use crate::mapping::Mapping;

/// Converts the result `-1` of a system call into the error in `errno`.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Converts a path to a NUL-terminated string.
fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "NUL byte in a path"))
}

/// Requests huge pages if wanted, and populates every page of a mapping now rather
/// than at its first access. The caller reserved the memory ([`allocate`]).
pub(super) fn populate(map: &Mapping, hugepages: bool) {
    let advise = |advice| {
        // Advice only: a kernel without huge pages for tmpfs uses ordinary ones,
        // and before Linux 5.14 the first lap faults page by page.
        // SAFETY: exactly the range of a live mapping, and neither advice changes
        // what is in it.
        unsafe { libc::madvise(map.as_ptr().as_ptr().cast(), map.len(), advice) };
    };
    if hugepages {
        advise(libc::MADV_HUGEPAGE);
    }
    advise(libc::MADV_POPULATE_WRITE);
}

/// Reserves memory for a range of a tmpfs file, so that accessing it cannot fail.
pub(super) fn allocate(file: &File, offset_bytes: u64, len_bytes: u64) -> io::Result<()> {
    let offset = libc::off_t::try_from(offset_bytes)
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let len = libc::off_t::try_from(len_bytes)
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    loop {
        // SAFETY: takes integers only; the descriptor is open.
        match check(unsafe { libc::fallocate(file.as_raw_fd(), 0, offset, len) }) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns the size of the file system that contains a file.
pub(super) fn file_system_bytes(file: &File) -> io::Result<u64> {
    let mut found = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: the descriptor is open and `found` has the size of one statvfs.
    check(unsafe { libc::fstatvfs(file.as_raw_fd(), found.as_mut_ptr()) })?;
    // SAFETY: statvfs is plain integers, zeroed before and filled by the call.
    let found = unsafe { found.assume_init() };
    Ok(found.f_blocks.saturating_mul(found.f_frsize))
}

/// Returns the effective user id of this process.
pub(super) fn user() -> u32 {
    // SAFETY: takes nothing, cannot fail.
    unsafe { libc::geteuid() }
}

/// Returns whether `path` is on a tmpfs.
pub(super) fn is_tmpfs(path: &Path) -> bool {
    let Ok(path) = c_path(path) else { return false };
    let mut found = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the path is NUL-terminated and `found` has the size of one statfs.
    let result = unsafe { libc::statfs(path.as_ptr(), found.as_mut_ptr()) };
    if result != 0 {
        return false;
    }
    // SAFETY: statfs is plain integers, zeroed before and filled by the call.
    let found = unsafe { found.assume_init() };
    found.f_type == libc::TMPFS_MAGIC
}

/// Opens a directory without following a symbolic link in the last component.
pub(super) fn open_directory(path: &Path) -> io::Result<File> {
    let path = c_path(path)?;
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: the path is NUL-terminated and outlives the call.
    let fd = check(unsafe { libc::open(path.as_ptr(), flags) })?;
    // SAFETY: open returned this descriptor, and it has no other owner.
    above_standard_streams(unsafe { OwnedFd::from_raw_fd(fd) }).map(File::from)
}

/// Opens a file of `directory` for reading and writing, following no symbolic
/// link; `extra_flags` are `O_CREAT` and `O_EXCL`.
pub(super) fn open_at(directory: &File, name: &str, extra_flags: i32) -> io::Result<File> {
    let name = c_path(Path::new(name))?;
    let flags = libc::O_RDWR | libc::O_NOFOLLOW | libc::O_CLOEXEC | extra_flags;
    let mode: libc::c_uint = 0o600;
    // SAFETY: the name is NUL-terminated and outlives the call; the mode is
    // passed as openat requires it with O_CREAT and ignored otherwise.
    let fd = check(unsafe { libc::openat(directory.as_raw_fd(), name.as_ptr(), flags, mode) })?;
    // SAFETY: openat returned this descriptor, and it has no other owner.
    above_standard_streams(unsafe { OwnedFd::from_raw_fd(fd) }).map(File::from)
}

/// Removes a file of `directory`; succeeds if it does not exist.
pub(super) fn unlink_at(directory: &File, name: &str) -> io::Result<()> {
    let name = c_path(Path::new(name))?;
    // SAFETY: the name is NUL-terminated and outlives the call.
    match check(unsafe { libc::unlinkat(directory.as_raw_fd(), name.as_ptr(), 0) }) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Takes the exclusive `flock` of a file without waiting; returns false if it is held.
pub(super) fn try_flock(file: &impl AsRawFd) -> io::Result<bool> {
    // SAFETY: takes integers only; the descriptor is open.
    match check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        Err(error) => Err(error),
    }
}

/// Releases the lock of [`try_flock`], also for descriptors that a fork copied.
pub(super) fn unlock_flock(file: &impl AsRawFd) -> io::Result<()> {
    // SAFETY: takes integers only; the descriptor is open.
    check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_UN) }).map(drop)
}

/// Returns whether an open file still has a name.
pub(super) fn is_linked(file: &impl AsRawFd) -> io::Result<bool> {
    let mut found = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: `found` has the size of one stat; the descriptor is open.
    check(unsafe { libc::fstat(file.as_raw_fd(), found.as_mut_ptr()) })?;
    // SAFETY: stat is plain integers, zeroed before and filled by the call.
    Ok(unsafe { found.assume_init() }.st_nlink > 0)
}

/// Creates a lock request for `len_bytes` bytes from `start_byte` on (0: to the end of all files).
fn byte_lock(kind: libc::c_int, start_byte: u64, len_bytes: u64) -> libc::flock {
    // `l_pid` must be zero for locks of an open file description.
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start_byte as libc::off_t,
        l_len: len_bytes as libc::off_t,
        l_pid: 0,
    }
}

/// Locks one byte for this open file description; returns false if another holds it.
///
/// The lock is released when the last descriptor of the description is closed, which
/// the kernel does for a process that ends in any way.
pub(super) fn try_lock_byte(file: &File, byte: u64) -> io::Result<bool> {
    let mut lock = byte_lock(libc::F_WRLCK, byte, 1);
    // SAFETY: the lock is a valid `flock` that the call reads; the descriptor is open.
    match check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock) }) {
        Ok(_) => Ok(true),
        Err(error) => match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EACCES) => Ok(false),
            _ => Err(error),
        },
    }
}

/// Releases the lock of [`try_lock_byte`], also for descriptors that a fork copied.
pub(super) fn unlock_byte(file: &File, byte: u64) -> io::Result<()> {
    let mut lock = byte_lock(libc::F_UNLCK, byte, 1);
    // SAFETY: the lock is a valid `flock` that the call reads; the descriptor is open.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock) }).map(drop)
}

/// Returns whether another open file description holds a lock in the range (length 0: to the end).
pub(super) fn is_locked_by_another(file: &File, start: u64, len_bytes: u64) -> io::Result<bool> {
    let mut lock = byte_lock(libc::F_WRLCK, start, len_bytes);
    // SAFETY: the lock is a valid `flock` that the call reads and writes; the
    // descriptor is open.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) })?;
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

/// Calls `membarrier(2)` with a command and no flags.
fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: takes integers only and changes no memory.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Registers this process for the barriers of others; returns false if the kernel cannot.
pub(super) fn register_for_barriers() -> bool {
    membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED)
}

/// Executes a full memory barrier on every running thread of every registered process.
pub(super) fn barrier_on_all() -> bool {
    membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED)
}
