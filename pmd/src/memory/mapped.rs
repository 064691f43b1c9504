//! Memory that a client offers to be mapped: a descriptor of it, and a range.
//!
//! Touching a page behind the end of a file ends the process, so only memory that cannot shrink
//! is taken. Where the system has no page to give (strict overcommit, a hole punched by the
//! client), the mapping becomes private zeros and says that it is lost: the port's mappings all
//! do. What is mapped for clients is counted: a process has a limit for its mappings, and needs
//! some for rings and threads whatever its clients register.

use core::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use std::sync::OnceLock;

use pmd_port::mapping::{MAX_SHARED, Mapping, Watch};

use crate::memory::pages::PAGE_BYTES;
use crate::sync::{AtomicU32, Ordering};

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
            Self::BadRange => write!(
                f,
                "a range to be mapped begins and ends with a page of {PAGE_BYTES} bytes and is \
                 not empty"
            ),
            Self::TooMany { most } => write!(
                f,
                "no more shared memory can be mapped: the datapath process maps {most} regions \
                 for its applications (three quarters of vm.max_map_count, {} at most): raise \
                 that, lower max_regions in [process.quota], or register fewer and longer regions",
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

/// A client's memory in our address space, readable and writable, unmapped on drop.
#[derive(Debug)]
pub(crate) struct MappedMemory {
    mapping: Mapping,
    /// Until it is unmapped.
    _counted: Option<Counted>,
}

impl MappedMemory {
    /// Maps `bytes` from `offset_bytes` on, both whole pages; a page that the memory ends in
    /// counts as there, as it does for whoever maps it. The descriptor is closed.
    ///
    /// # Errors
    /// [`MapError`]: each names the remedy.
    pub(crate) fn map(fd: OwnedFd, offset_bytes: u64, bytes: u64) -> Result<Self, MapError> {
        let whole_pages = (offset_bytes | bytes).is_multiple_of(PAGE_BYTES);
        let end_bytes = offset_bytes.checked_add(bytes);
        let (Some(end_bytes), Ok(len_bytes)) = (end_bytes, usize::try_from(bytes)) else {
            return Err(MapError::BadRange);
        };
        if bytes == 0 || !whole_pages {
            return Err(MapError::BadRange);
        }
        let facts = facts_of(fd.as_fd())?;
        if facts.bytes.next_multiple_of(PAGE_BYTES) < end_bytes {
            return Err(MapError::TooShort {
                have_bytes: facts.bytes,
                end_bytes,
            });
        }
        // From here on the length holds: what cannot shrink was long enough.
        Mapping::shared(fd.as_fd(), offset_bytes, len_bytes)
            .map(|mapping| Self {
                mapping,
                _counted: None,
            })
            .map_err(MapError::System)
    }

    /// As [`Self::map`], for a client, as long as the process has mappings to spare.
    ///
    /// # Errors
    /// [`MapError`]; [`MapError::TooMany`] if it has none.
    pub(crate) fn map_for_client(
        fd: OwnedFd,
        offset_bytes: u64,
        bytes: u64,
    ) -> Result<Self, MapError> {
        Self::map_counted(fd, offset_bytes, bytes, &CLIENTS)
    }

    fn map_counted(
        fd: OwnedFd,
        offset_bytes: u64,
        bytes: u64,
        budget: &'static Budget,
    ) -> Result<Self, MapError> {
        let counted = budget.take()?;
        match Self::map(fd, offset_bytes, bytes) {
            Ok(memory) => Ok(Self {
                _counted: Some(counted),
                ..memory
            }),
            // Rings, threads or whatever else the process maps have taken more than their part.
            Err(MapError::System(error)) if error.kind() == io::ErrorKind::OutOfMemory => {
                let most = budget.used.load(Ordering::Relaxed);
                Err(MapError::TooMany { most })
            }
            Err(error) => Err(error),
        }
    }

    /// The address of the first byte.
    #[inline]
    pub(crate) fn address(&self) -> u64 {
        self.mapping.as_ptr().as_ptr().expose_provenance() as u64
    }

    /// How many bytes are mapped.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.mapping.len() as u64
    }

    /// Says [`Self::is_lost`] as long as the memory is mapped.
    #[inline]
    pub(crate) fn watch(&self) -> Option<Watch> {
        self.mapping.watch()
    }

    /// True once the system had no page to give: these are not the client's bytes any more.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.mapping.is_lost()
    }
}

#[cfg(test)]
mod tests;
