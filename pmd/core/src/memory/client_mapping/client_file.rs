//! Maps whole memory files of applications, sealed against hole punching.
//!
//! A page fault inside a range of a file that is being punched waits until that is done, and a
//! large punch takes long. F_SEAL_FUTURE_WRITE prevents punching, and also new writable
//! mappings, permanently. So a file is mapped once, as a whole, and then sealed. Its owner must have
//! allocated all of its pages: a page that this process allocates would be charged to this process.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::{Budget, CLIENTS, MapError, MappedMemory, memfd_info};
use crate::memory::pages::PAGE_BYTES;

/// Bytes that one system call faults in; other threads can map and unmap between the calls.
const PIECE_BYTES: u64 = 2 << 20;

/// Identifies a file while it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    /// `st_dev` of stat(2).
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
}

/// Memory file that an application passed.
#[derive(Debug)]
pub struct ClientFile {
    fd: OwnedFd,
    id: FileId,
    bytes: u64,
}

impl ClientFile {
    /// Checks that the file may be mapped for an application, by its file descriptor.
    ///
    /// # Errors
    /// [`MapError`]: each names the remedy.
    pub fn of(fd: OwnedFd) -> Result<Self, MapError> {
        let info = memfd_info(fd.as_fd())?;
        // The file may be mapped already, so that no mmap(2) checks the descriptor.
        if !is_writable(fd.as_fd()) {
            return Err(MapError::NotWritable);
        }
        let (device, inode) = (info.device, info.inode);
        let rounded = info.bytes.checked_next_multiple_of(PAGE_BYTES);
        let bytes = rounded.filter(|bytes| *bytes > 0);
        Ok(Self {
            fd,
            id: FileId { device, inode },
            bytes: bytes.ok_or(MapError::BadRange)?,
        })
    }

    /// Returns the identity of the file.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// Returns the length in whole pages, as of [`Self::of`]; the file may have grown since.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Maps the whole file, seals it and faults its pages in, which may take long; stops with
    /// [`MapError::Interrupted`] when `keep_going` returns false.
    ///
    /// # Errors
    /// [`MapError`]: each names the remedy.
    pub fn map(&self, keep_going: impl Fn() -> bool) -> Result<MappedMemory, MapError> {
        self.map_within(&CLIENTS, keep_going)
    }

    pub(super) fn map_within(
        &self,
        budget: &'static Budget,
        keep_going: impl Fn() -> bool,
    ) -> Result<MappedMemory, MapError> {
        let seals = seals_of(self.fd.as_fd())?;
        if seals & (libc::F_SEAL_WRITE | libc::F_SEAL_FUTURE_WRITE) != 0 {
            return Err(MapError::SealedBefore);
        }
        if seals & libc::F_SEAL_SEAL != 0 {
            return Err(MapError::SealsSealed);
        }
        // Before it is sealed, so that the application can fill a refused file and pass it again.
        self.check_pages()?;
        let memory = MappedMemory::map_for_client(self.fd.as_fd(), (0, self.bytes), budget)?;
        seal(self.fd.as_fd())?;
        // From here on pages cannot be punched; one may have been punched before.
        self.check_pages()?;
        for at in (0..self.bytes).step_by(PIECE_BYTES as usize) {
            if !keep_going() {
                return Err(MapError::Interrupted);
            }
            let piece = memory.range(at, PIECE_BYTES.min(self.bytes - at))?;
            piece.populate().map_err(MapError::System)?;
        }
        Ok(memory)
    }

    /// Checks that the file has all its pages.
    fn check_pages(&self) -> Result<(), MapError> {
        // A separate open file: seeking with the passed descriptor would move the position of its owner.
        let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        let own = File::open(path).map_err(MapError::System)?;
        // SAFETY: passes integers only.
        let hole = unsafe { libc::lseek(own.as_raw_fd(), 0, libc::SEEK_HOLE) };
        match u64::try_from(hole) {
            Ok(hole) if hole.next_multiple_of(PAGE_BYTES) >= self.bytes => Ok(()),
            Ok(_) => Err(MapError::Holes),
            Err(_) => Err(MapError::System(io::Error::last_os_error())),
        }
    }
}

fn is_writable(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: passes integers only.
    let mode = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    mode >= 0 && mode & libc::O_ACCMODE == libc::O_RDWR
}

/// Returns the seals of a file.
fn seals_of(fd: BorrowedFd<'_>) -> Result<libc::c_int, MapError> {
    // SAFETY: passes integers only.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 {
        return Err(MapError::System(io::Error::last_os_error()));
    }
    Ok(seals)
}

/// Seals a file against punching and new writable mappings; existing mappings stay
/// writable.
///
/// # Errors
/// [`MapError::SealsSealed`]; [`MapError::System`], `EINVAL` before Linux 5.1.
pub fn seal(fd: BorrowedFd<'_>) -> Result<(), MapError> {
    let seal = libc::F_SEAL_FUTURE_WRITE;
    // SAFETY: passes integers only.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seal) } != 0 {
        return Err(match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::EPERM) => MapError::SealsSealed,
            error => MapError::System(error),
        });
    }
    if seals_of(fd)? & seal == 0 {
        return Err(MapError::SealsSealed);
    }
    Ok(())
}
