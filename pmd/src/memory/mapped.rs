//! Memory that a client offers to be mapped: a descriptor of it, and a range.
//!
//! Touching a page behind the end of a file ends the process, so only memory that cannot shrink
//! is taken. A page fault inside a range that is being punched waits for the end of the punch, so
//! a poller touches only files that are sealed against it and have all their pages ([`file`]).
//! Where the system has no page to give, the mapping becomes private zeros and says that it is
//! lost: the port's mappings all do. What is mapped for clients is counted: a process has a limit
//! for its mappings, and needs some for rings and threads whatever its clients register.

use core::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use std::sync::{Arc, OnceLock};

use pmd_port::mapping::{MAX_SHARED, Mapping, Watch};

use crate::memory::pages::{self, PAGE_BYTES};
use crate::sync::{AtomicU32, Ordering};

mod file;

pub(crate) use file::{ClientFile, FileId, seal};

/// Mappings of a process where the kernel does not say.
const DEFAULT_MAP_COUNT: u32 = 65530;

/// How many mappings there are for clients.
#[derive(Debug)]
struct Budget {
    used: AtomicU32,
    most: OnceLock<u32>,
}

static CLIENTS: Budget = Budget {
    used: AtomicU32::new(0),
    most: OnceLock::new(),
};

/// Three quarters of what a process may map: the rest is for its rings and threads.
fn share_of(max_map_count: Option<&str>) -> u32 {
    let all = max_map_count.and_then(|text| text.trim().parse::<u64>().ok());
    let all = all
        .unwrap_or(DEFAULT_MAP_COUNT.into())
        .min(MAX_SHARED as u64);
    (all / 4 * 3) as u32
}

impl Budget {
    fn most(&self) -> u32 {
        *self.most.get_or_init(|| {
            let limit = fs::read_to_string("/proc/sys/vm/max_map_count").ok();
            share_of(limit.as_deref())
        })
    }

    fn take(&'static self) -> Result<Counted, MapError> {
        let most = self.most();
        let one_more = |used| (used < most).then_some(used + 1);
        // Relaxed: a number, and nothing that hangs on it.
        let (won, lost) = (Ordering::Relaxed, Ordering::Relaxed);
        self.used
            .fetch_update(won, lost, one_more)
            .map(|_| Counted(self))
            .map_err(|_| MapError::TooMany { most })
    }
}

/// One of them, until it is dropped.
#[derive(Debug)]
struct Counted(&'static Budget);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.used.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Why memory that was offered is not mapped.
#[derive(Debug)]
pub(crate) enum MapError {
    /// The descriptor is no memory of memfd_create(2) in ordinary pages.
    NotMemory,
    /// It could be cut short under us.
    CanShrink,
    /// It is shorter than the range.
    TooShort {
        /// Bytes that there are.
        have_bytes: u64,
        /// Where the range ends.
        end_bytes: u64,
    },
    /// The descriptor is not open for reading and writing.
    NotWritable,
    /// It is sealed against new writable mappings, and this process has none for this user.
    SealedBefore,
    /// It can be sealed no more, and is not sealed against punching.
    SealsSealed,
    /// Not all of its pages are allocated.
    Holes,
    /// It is longer than the application may still have registered.
    TooLong {
        /// Of the file, in whole pages.
        file_bytes: u64,
        /// Of the quota that nothing else uses.
        left_bytes: u64,
        /// The quota.
        most_bytes: u64,
    },
    /// The application has as many files mapped as it may have regions.
    TooManyFiles {
        /// How many that is.
        most: u32,
    },
    /// The application ended meanwhile.
    Interrupted,
    /// The range is empty, does not begin and end with a page, or is longer than any.
    BadRange,
    /// There are as many mappings of clients' memory as this process can do with.
    TooMany {
        /// How many that is.
        most: u32,
    },
    /// What mmap(2) or a question about the descriptor gave.
    System(io::Error),
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMemory => f.write_str(
                "not memory that can be shared: offer a descriptor of memfd_create(2) without \
                 MFD_HUGETLB, or use memory of the library's allocator",
            ),
            Self::CanShrink => f.write_str(
                "memory that could be cut short: create it with MFD_ALLOW_SEALING and set \
                 F_SEAL_SHRINK by fcntl(F_ADD_SEALS)",
            ),
            Self::TooShort {
                have_bytes,
                end_bytes,
            } => write!(
                f,
                "memory of {have_bytes} bytes, wanted up to {end_bytes}: set its length by \
                 ftruncate(2) before it is offered"
            ),
            Self::NotWritable => f.write_str(
                "a descriptor that is not open for reading and writing: offer one that is",
            ),
            Self::SealedBefore => f.write_str(
                "memory that is sealed against writable mappings (F_SEAL_FUTURE_WRITE or \
                 F_SEAL_WRITE), by a datapath process that has ended or for another user: \
                 allocate it anew, and register it before anything seals it",
            ),
            Self::SealsSealed => f.write_str(
                "memory that cannot be sealed against punching (it has F_SEAL_SEAL): create it \
                 with MFD_ALLOW_SEALING, and set no F_SEAL_SEAL before it is registered",
            ),
            Self::Holes => f.write_str(
                "memory whose pages are not all allocated: write each page of the file before it \
                 is registered; if that was done, the system is short of memory",
            ),
            Self::TooLong {
                file_bytes,
                left_bytes,
                most_bytes,
            } => write!(
                f,
                "shared memory is mapped as a whole: its file has {file_bytes} bytes, and \
                 {left_bytes} are left of max_registered_bytes = {most_bytes}: raise that in \
                 [process.quota], or allocate less in one piece"
            ),
            Self::TooManyFiles { most } => write!(
                f,
                "max_regions = {most} files of shared memory are mapped: raise it in \
                 [process.quota], or allocate more in one piece"
            ),
            Self::Interrupted => f.write_str("the application ended meanwhile"),
            Self::BadRange => write!(
                f,
                "a range to be mapped begins and ends with a page of {PAGE_BYTES} bytes and is \
                 not empty"
            ),
            Self::TooMany { most } => write!(
                f,
                "no more shared memory can be mapped: the datapath process maps {most} files \
                 for its applications (three quarters of vm.max_map_count, {} at most): raise \
                 that, lower max_regions in [process.quota], or allocate fewer and longer pieces",
                MAX_SHARED / 4 * 3
            ),
            Self::System(error) => write!(
                f,
                "memory of a client: {error} (it must be open for reading and writing, and not \
                 sealed against writing)"
            ),
        }
    }
}

impl MapError {
    /// True if the memory itself is sound, but another process had it mapped before or seals are
    /// in the way: system calls reach it.
    pub(crate) fn leaves_system_calls(&self) -> bool {
        matches!(self, Self::SealedBefore | Self::SealsSealed)
    }
}

impl std::error::Error for MapError {}

/// What can be said of a descriptor of shared memory.
pub(crate) struct Facts {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) bytes: u64,
}

/// A descriptor of memory that may be mapped by another process and cannot shrink.
pub(crate) fn facts_of(fd: BorrowedFd<'_>) -> Result<Facts, MapError> {
    let fd = fd.as_raw_fd();
    // SAFETY: integers, valid as zeros.
    let mut system: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: an open descriptor, and a structure of this frame that is written.
    if unsafe { libc::fstatfs(fd, &raw mut system) } != 0 {
        return Err(MapError::System(io::Error::last_os_error()));
    }
    // Huge pages are of another file system, and fewer of them may be there than mapped.
    if system.f_type != libc::TMPFS_MAGIC {
        return Err(MapError::NotMemory);
    }
    // SAFETY: takes no memory of ours.
    let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
    if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
        return Err(MapError::CanShrink);
    }
    // Its length only now: it may have been another one before it was sealed.
    // SAFETY: integers, valid as zeros.
    let mut file: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: as above.
    if unsafe { libc::fstat(fd, &raw mut file) } != 0 {
        return Err(MapError::System(io::Error::last_os_error()));
    }
    Ok(Facts {
        device: file.st_dev,
        inode: file.st_ino,
        bytes: u64::try_from(file.st_size).unwrap_or(0),
    })
}

/// A mapping of a client's memory.
#[derive(Debug)]
struct CountedMapping {
    #[allow(dead_code, reason = "mapped until dropped")]
    mapping: Mapping,
    /// Until it is unmapped.
    _counted: Option<Counted>,
}

/// A client's memory in our address space, readable and writable: a range of a mapping, which is
/// unmapped when the last range of it is dropped.
#[derive(Clone, Debug)]
pub(crate) struct MappedMemory {
    address: u64,
    len_bytes: u64,
    watch: Watch,
    /// What the others are of.
    _mapping: Arc<CountedMapping>,
}

impl MappedMemory {
    /// Maps `bytes` from `offset_bytes` on, both whole pages; a page that the memory ends in
    /// counts as there, as it does for whoever maps it. The descriptor is closed.
    ///
    /// # Errors
    /// [`MapError`]: each names the remedy.
    pub(crate) fn map(fd: OwnedFd, offset_bytes: u64, bytes: u64) -> Result<Self, MapError> {
        let (end_bytes, _) = checked_range(offset_bytes, bytes)?;
        let have_bytes = facts_of(fd.as_fd())?.bytes;
        if have_bytes.next_multiple_of(PAGE_BYTES) < end_bytes {
            return Err(MapError::TooShort {
                have_bytes,
                end_bytes,
            });
        }
        // From here on the length holds: what cannot shrink was long enough.
        Self::map_counted(fd.as_fd(), (offset_bytes, bytes), None)
    }

    /// Maps a range of a client's memory that is as long, as long as the process has mappings to
    /// spare.
    ///
    /// # Errors
    /// [`MapError::TooMany`] if it has none; [`MapError::System`].
    fn map_for_client(
        fd: BorrowedFd<'_>,
        range: (u64, u64),
        budget: &'static Budget,
    ) -> Result<Self, MapError> {
        let counted = budget.take()?;
        match Self::map_counted(fd, range, Some(counted)) {
            // Rings, threads or whatever else the process maps have taken more than their part.
            Err(MapError::System(error)) if error.kind() == io::ErrorKind::OutOfMemory => {
                let most = budget.used.load(Ordering::Relaxed);
                Err(MapError::TooMany { most })
            }
            mapped => mapped,
        }
    }

    fn map_counted(
        fd: BorrowedFd<'_>,
        (offset_bytes, bytes): (u64, u64),
        counted: Option<Counted>,
    ) -> Result<Self, MapError> {
        let (_, len_bytes) = checked_range(offset_bytes, bytes)?;
        let mapping = Mapping::shared(fd, offset_bytes, len_bytes).map_err(MapError::System)?;
        let unwatched = || MapError::System(io::ErrorKind::Unsupported.into());
        Ok(Self {
            address: mapping.as_ptr().as_ptr().expose_provenance() as u64,
            len_bytes: bytes,
            watch: mapping.watch().ok_or_else(unwatched)?,
            _mapping: Arc::new(CountedMapping {
                mapping,
                _counted: counted,
            }),
        })
    }

    /// A range of it, of whole pages.
    ///
    /// # Errors
    /// [`MapError::BadRange`], [`MapError::TooShort`].
    pub(crate) fn range(&self, offset_bytes: u64, bytes: u64) -> Result<Self, MapError> {
        let (end_bytes, _) = checked_range(offset_bytes, bytes)?;
        if end_bytes > self.len_bytes {
            return Err(MapError::TooShort {
                have_bytes: self.len_bytes,
                end_bytes,
            });
        }
        Ok(Self {
            address: self.address + offset_bytes,
            len_bytes: bytes,
            ..self.clone()
        })
    }

    /// Has its pages there, so that touching them is no page fault.
    ///
    /// # Errors
    /// What madvise(2) says: a page cannot be had.
    pub(crate) fn populate(&self) -> io::Result<()> {
        pages::populate(self.address, self.address + self.len_bytes)
    }

    /// The address of the first byte.
    #[inline]
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes there are.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Says [`Self::is_lost`] as long as the memory is mapped.
    #[inline]
    pub(crate) fn watch(&self) -> Watch {
        self.watch
    }

    /// True once the system had no page to give: these are not the client's bytes any more.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.watch.is_lost()
    }
}

/// The end of a range of whole pages, and its length.
fn checked_range(offset_bytes: u64, bytes: u64) -> Result<(u64, usize), MapError> {
    let end_bytes = offset_bytes.checked_add(bytes);
    match (end_bytes, usize::try_from(bytes)) {
        (Some(end_bytes), Ok(len_bytes))
            if bytes > 0 && (offset_bytes | bytes).is_multiple_of(PAGE_BYTES) =>
        {
            Ok((end_bytes, len_bytes))
        }
        _ => Err(MapError::BadRange),
    }
}

#[cfg(test)]
mod tests;
