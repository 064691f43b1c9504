//! Whole files of shared memory, mapped where nobody can punch holes into them.
//!
//! A page fault inside a range of a file that is being punched waits until that is done, and a
//! large punch takes long. F_SEAL_FUTURE_WRITE refuses every punch, and with it every new writable
//! mapping, for ever. So a file is mapped once, whole, and sealed then. All of its pages must have
//! been allocated by its owner: a page that this process allocates would be charged to it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::{Budget, CLIENTS, MapError, MappedMemory, facts_of};
use crate::memory::pages::PAGE_BYTES;

/// Bytes whose pages are faulted in by one system call: other threads map and unmap in between.
const PIECE_BYTES: u64 = 2 << 20;

/// Names a file while it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileId {
    /// `st_dev` of stat(2).
    pub(crate) device: u64,
    /// `st_ino`.
    pub(crate) inode: u64,
}

/// A file of shared memory that an application offers.
#[derive(Debug)]
pub(crate) struct ClientFile {
    fd: OwnedFd,
    id: FileId,
    bytes: u64,
}

impl ClientFile {
    /// Checks that the file may be mapped for an application with this descriptor.
    ///
    /// # Errors
    /// [`MapError`]: each names the remedy.
    pub(crate) fn of(fd: OwnedFd) -> Result<Self, MapError> {
        let facts = facts_of(fd.as_fd())?;
        // The file may be mapped already: then no mmap(2) checks the descriptor.
        if !is_writable(fd.as_fd()) {
            return Err(MapError::NotWritable);
        }
        let (device, inode) = (facts.device, facts.inode);
        let rounded = facts.bytes.checked_next_multiple_of(PAGE_BYTES);
        let bytes = rounded.filter(|bytes| *bytes > 0);
        Ok(Self {
            fd,
            id: FileId { device, inode },
            bytes: bytes.ok_or(MapError::BadRange)?,
        })
    }

    pub(crate) fn id(&self) -> FileId {
        self.id
    }

    /// Its length, in whole pages. It may be longer by now.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Maps the whole file, seals it and faults its pages in, which may take long; gives up when
    /// `goes_on` is false.
    ///
    /// # Errors
    /// [`MapError`]: each names the remedy.
    pub(crate) fn map(&self, goes_on: impl Fn() -> bool) -> Result<MappedMemory, MapError> {
        self.map_within(&CLIENTS, goes_on)
    }

    pub(super) fn map_within(
        &self,
        budget: &'static Budget,
        goes_on: impl Fn() -> bool,
    ) -> Result<MappedMemory, MapError> {
        let seals = seals_of(self.fd.as_fd())?;
        if seals & (libc::F_SEAL_WRITE | libc::F_SEAL_FUTURE_WRITE) != 0 {
            return Err(MapError::SealedBefore);
        }
        if seals & libc::F_SEAL_SEAL != 0 {
            return Err(MapError::SealsSealed);
        }
        // Before it is sealed: one that is refused can be filled and offered again.
        self.check_pages()?;
        let memory = MappedMemory::map_for_client(self.fd.as_fd(), (0, self.bytes), budget)?;
        seal(self.fd.as_fd())?;
        // From here on no page can be taken away; one may have been until here.
        self.check_pages()?;
        for at in (0..self.bytes).step_by(PIECE_BYTES as usize) {
            if !goes_on() {
                return Err(MapError::Interrupted);
            }
            let piece = memory.range(at, PIECE_BYTES.min(self.bytes - at))?;
            piece.populate().map_err(MapError::System)?;
        }
        Ok(memory)
    }

    /// Checks that the file has all its pages.
    fn check_pages(&self) -> Result<(), MapError> {
        // Of its own: seeking with the one that was offered would move the position of its owner.
        let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        let own = File::open(path).map_err(MapError::System)?;
        // SAFETY: takes no memory of ours.
        let hole = unsafe { libc::lseek(own.as_raw_fd(), 0, libc::SEEK_HOLE) };
        match u64::try_from(hole) {
            Ok(hole) if hole.next_multiple_of(PAGE_BYTES) >= self.bytes => Ok(()),
            Ok(_) => Err(MapError::Holes),
            Err(_) => Err(MapError::System(io::Error::last_os_error())),
        }
    }
}

fn is_writable(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: takes no memory of ours.
    let mode = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    mode >= 0 && mode & libc::O_ACCMODE == libc::O_RDWR
}

/// The seals that are in force.
fn seals_of(fd: BorrowedFd<'_>) -> Result<libc::c_int, MapError> {
    // SAFETY: takes no memory of ours.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 {
        return Err(MapError::System(io::Error::last_os_error()));
    }
    Ok(seals)
}

/// Seals a file against punching, and against new writable mappings; those that there are stay
/// writable.
///
/// # Errors
/// [`MapError::SealsSealed`]; [`MapError::System`], `EINVAL` before Linux 5.1.
pub(crate) fn seal(fd: BorrowedFd<'_>) -> Result<(), MapError> {
    let seal = libc::F_SEAL_FUTURE_WRITE;
    // SAFETY: takes no memory of ours.
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
