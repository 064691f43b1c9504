//! Maps memory files of clients, which they pass as a file descriptor and a range.
//!
//! Touching a page past the end of a file raises SIGBUS, so only memory that cannot shrink is accepted. A page fault
//! inside a range that is being punched waits for the end of the punch, so pollers touch only files that are sealed
//! against punching and have all their pages (`client_file`). If the system is out of pages, the mapping becomes
//! private zeros and reports that it is lost, as all mappings of the port do. Mappings for clients are counted: the
//! process has a limit for its mappings, and needs some for rings and threads.

use core::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use std::sync::{Arc, OnceLock};

use pmd_port::mapping::{LossFlag, MAX_SHARED, Mapping};

use crate::memory::backing::MappedAddress;
use crate::memory::pages::{self, PAGE_BYTES};
use crate::sync::{AtomicU32, Ordering};

mod client_file;

pub use client_file::{ClientFile, FileId, seal};

/// Limit on mappings of a process where the kernel does not report one.
const DEFAULT_MAP_COUNT: u32 = 65530;

/// Bytes that one system call locks; other threads can map and unmap between the calls.
const LOCK_PIECE_BYTES: u64 = 2 << 20;

/// Budget of mappings for clients, and for other stations of a segment.
#[derive(Debug)]
pub(super) struct Budget {
    used: AtomicU32,
    limit: OnceLock<u32>,
}

pub(super) static CLIENTS: Budget = Budget {
    used: AtomicU32::new(0),
    limit: OnceLock::new(),
};

/// Returns three quarters of the limit of the process; the remainder is for its rings and threads.
fn client_limit(max_map_count: Option<&str>) -> u32 {
    let max_mappings = max_map_count.and_then(|text| text.trim().parse::<u64>().ok());
    let max_mappings = max_mappings
        .unwrap_or(DEFAULT_MAP_COUNT.into())
        .min(MAX_SHARED as u64);
    (max_mappings / 4 * 3) as u32
}

impl Budget {
    fn limit(&self) -> u32 {
        *self.limit.get_or_init(|| {
            let max_map_count = fs::read_to_string("/proc/sys/vm/max_map_count").ok();
            client_limit(max_map_count.as_deref())
        })
    }

    pub(super) fn take(&'static self) -> Result<BudgetPermit, MapError> {
        let limit = self.limit();
        let one_more = |used| (used < limit).then_some(used + 1);
        // Relaxed: a counter that orders no other memory access.
        let (success, failure) = (Ordering::Relaxed, Ordering::Relaxed);
        self.used
            .fetch_update(success, failure, one_more)
            .map(|_| BudgetPermit(self))
            .map_err(|_| MapError::TooMany { limit })
    }
}

/// One mapping of the budget, returned on drop.
#[derive(Debug)]
pub(super) struct BudgetPermit(&'static Budget);

impl Drop for BudgetPermit {
    fn drop(&mut self) {
        self.0.used.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Reason why memory of a client cannot be mapped.
#[derive(Debug)]
pub enum MapError {
    /// The file descriptor is not a memfd in ordinary pages.
    NotMemory,
    /// The file is not sealed against shrinking.
    CanShrink,
    /// The file is shorter than the range.
    TooShort {
        /// Length of the file.
        have_bytes: u64,
        /// End of the range.
        end_bytes: u64,
    },
    /// The file descriptor is not open for reading and writing.
    NotWritable,
    /// The file is sealed against new writable mappings, and this process has none for this user.
    SealedBefore,
    /// No seal can be added to the file, and it is not sealed against punching.
    SealsSealed,
    /// Not all pages of the file are allocated.
    Holes,
    /// The file is longer than the remaining quota of the application.
    TooLong {
        /// Length of the file, in whole pages.
        file_bytes: u64,
        /// Unused part of the quota.
        left_bytes: u64,
        /// The quota.
        quota_bytes: u64,
    },
    /// The application shares more memory than all applications of its user may register together.
    TooLongForUser {
        /// Length of the file, in whole pages.
        file_bytes: u64,
        /// What the user has left.
        left_bytes: u64,
        /// The limit of the user.
        of_user_bytes: u64,
    },
    /// The application has reached the limit of mapped files, which is that of regions.
    TooManyFiles {
        /// The limit.
        limit: u32,
    },
    /// The application ended during the mapping.
    Interrupted,
    /// This process cannot lock the pages, which the configuration requires: the error number of mlock(2).
    NotLocked(i32),
    /// The range is empty, not page-aligned, or too long.
    BadRange,
    /// This process has reached its limit of mappings for clients.
    TooMany {
        /// The limit.
        limit: u32,
    },
    /// A system call failed.
    System(io::Error),
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMemory => f.write_str(
                "not memory that can be shared: pass a descriptor of memfd_create(2) without \
                 MFD_HUGETLB, or use memory of the library's allocator",
            ),
            Self::CanShrink => f.write_str(
                "memory that can shrink: create it with MFD_ALLOW_SEALING and set \
                 F_SEAL_SHRINK by fcntl(F_ADD_SEALS)",
            ),
            Self::TooShort {
                have_bytes,
                end_bytes,
            } => write!(
                f,
                "memory of {have_bytes} bytes, but the range ends at {end_bytes}: set its length by \
                 ftruncate(2) before it is registered"
            ),
            Self::NotWritable => f.write_str(
                "a descriptor that is not open for reading and writing: pass one that is",
            ),
            Self::SealedBefore => f.write_str(
                "memory that is sealed against writable mappings (F_SEAL_FUTURE_WRITE or \
                 F_SEAL_WRITE), by a datapath process that has ended or for another user: \
                 allocate new memory, and register it before it is sealed",
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
                quota_bytes,
            } => write!(
                f,
                "shared memory is mapped as a whole: its file has {file_bytes} bytes, and \
                 {left_bytes} are left of max_registered_bytes = {quota_bytes}: raise that in \
                 [process.quota], or allocate less in one piece"
            ),
            Self::TooLongForUser {
                file_bytes,
                left_bytes,
                of_user_bytes,
            } => write!(
                f,
                "shared memory is mapped as a whole: its file has {file_bytes} bytes, and \
                 {left_bytes} are left of max_registered_bytes = {of_user_bytes} of its user: lower \
                 user_share in [process.quota], or allocate less in all programs of the user"
            ),
            Self::TooManyFiles { limit } => write!(
                f,
                "max_regions = {limit} files of shared memory are mapped: raise it in \
                 [process.quota], or allocate more in one piece"
            ),
            Self::Interrupted => f.write_str("the application has ended"),
            Self::NotLocked(number) => write!(
                f,
                "the datapath process cannot lock the memory, which lock_memory = \"required\" demands: \
                 mlock: {}; raise its RLIMIT_MEMLOCK (LimitMEMLOCK= of its unit)",
                io::Error::from_raw_os_error(*number)
            ),
            Self::BadRange => write!(
                f,
                "the range to map must be aligned to pages of {PAGE_BYTES} bytes and not be \
                 empty"
            ),
            Self::TooMany { limit } => write!(
                f,
                "no more shared memory can be mapped: the datapath process maps {limit} files \
                 for its applications (three quarters of vm.max_map_count, {} at most): raise \
                 that, lower max_regions in [process.quota], or allocate fewer and longer pieces",
                MAX_SHARED / 4 * 3
            ),
            Self::System(error) => write!(
                f,
                "memory of the application: {error} (it must be open for reading and writing, and not \
                 sealed against writing)"
            ),
        }
    }
}

impl MapError {
    /// Returns whether the memory can still be accessed by system calls: it is valid, but another
    /// process has mapped it before, or its seals prevent the mapping.
    pub fn allows_system_calls(&self) -> bool {
        matches!(self, Self::SealedBefore | Self::SealsSealed)
    }
}

impl std::error::Error for MapError {}

/// Identity and length of a memfd.
pub struct MemfdInfo {
    /// `st_dev` of the file.
    pub device: u64,
    /// `st_ino` of the file.
    pub inode: u64,
    /// Length of the file.
    pub bytes: u64,
}

/// Checks that a file descriptor is a memfd that cannot shrink, and returns its identity and length.
pub fn memfd_info(fd: BorrowedFd<'_>) -> Result<MemfdInfo, MapError> {
    let fd = fd.as_raw_fd();
    // SAFETY: integers, valid as zeros.
    let mut system: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: an open descriptor; writes a local structure.
    if unsafe { libc::fstatfs(fd, &raw mut system) } != 0 {
        return Err(MapError::System(io::Error::last_os_error()));
    }
    // Huge pages are of another file system, and fewer of them may exist than are mapped.
    if system.f_type != libc::TMPFS_MAGIC {
        return Err(MapError::NotMemory);
    }
    // SAFETY: passes integers only.
    let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
    if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
        return Err(MapError::CanShrink);
    }
    // The length is read after the seal is checked: it may have changed before the file was sealed.
    // SAFETY: integers, valid as zeros.
    let mut file: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: as above.
    if unsafe { libc::fstat(fd, &raw mut file) } != 0 {
        return Err(MapError::System(io::Error::last_os_error()));
    }
    Ok(MemfdInfo {
        device: file.st_dev,
        inode: file.st_ino,
        bytes: u64::try_from(file.st_size).unwrap_or(0),
    })
}

/// A mapping of a client's memory.
#[derive(Debug)]
struct CountedMapping {
    mapping: Mapping,
    /// The result of locking its pages, once that was attempted.
    locked: OnceLock<Result<(), i32>>,
    /// Held until the memory is unmapped.
    _permit: Option<BudgetPermit>,
}

/// Memory of a client mapped here, readable and writable: a range of a mapping, which is
/// unmapped when its last range is dropped.
#[derive(Clone, Debug)]
pub struct MappedMemory {
    address: u64,
    len_bytes: u64,
    loss_flag: LossFlag,
    /// The mapping that contains the range.
    mapping: Arc<CountedMapping>,
}

impl MappedMemory {
    /// Maps `bytes` bytes at `offset_bytes`, both page-aligned; a partial last page counts as a whole
    /// one. Closes the descriptor.
    ///
    /// # Errors
    /// [`MapError`]: each names the remedy.
    pub fn map(fd: OwnedFd, offset_bytes: u64, bytes: u64) -> Result<Self, MapError> {
        let (end_bytes, _) = checked_range(offset_bytes, bytes)?;
        let have_bytes = memfd_info(fd.as_fd())?.bytes;
        if have_bytes.next_multiple_of(PAGE_BYTES) < end_bytes {
            return Err(MapError::TooShort {
                have_bytes,
                end_bytes,
            });
        }
        // The length remains sufficient: the file cannot shrink.
        Self::map_with(fd.as_fd(), (offset_bytes, bytes), None)
    }

    /// Maps a range of a client's memory, which is at least as long, within the budget.
    ///
    /// # Errors
    /// [`MapError::TooMany`] if the budget is used up; [`MapError::System`].
    fn map_for_client(
        fd: BorrowedFd<'_>,
        range: (u64, u64),
        budget: &'static Budget,
    ) -> Result<Self, MapError> {
        let permit = budget.take()?;
        match Self::map_with(fd, range, Some(permit)) {
            // Rings, threads and other mappings of the process use more than their share.
            Err(MapError::System(error)) if error.kind() == io::ErrorKind::OutOfMemory => {
                let limit = budget.used.load(Ordering::Relaxed);
                Err(MapError::TooMany { limit })
            }
            mapped => mapped,
        }
    }

    fn map_with(
        fd: BorrowedFd<'_>,
        (offset_bytes, bytes): (u64, u64),
        permit: Option<BudgetPermit>,
    ) -> Result<Self, MapError> {
        let (_, len_bytes) = checked_range(offset_bytes, bytes)?;
        let mapping = Mapping::shared(fd, offset_bytes, len_bytes).map_err(MapError::System)?;
        let no_loss_flag = || MapError::System(io::ErrorKind::Unsupported.into());
        Ok(Self {
            address: mapping.as_ptr().as_ptr().expose_provenance() as u64,
            len_bytes: bytes,
            loss_flag: mapping.loss_flag().ok_or_else(no_loss_flag)?,
            mapping: Arc::new(CountedMapping {
                mapping,
                locked: OnceLock::new(),
                _permit: permit,
            }),
        })
    }

    /// Returns a page-aligned range of this memory.
    ///
    /// # Errors
    /// [`MapError::BadRange`], [`MapError::TooShort`].
    pub fn range(&self, offset_bytes: u64, bytes: u64) -> Result<Self, MapError> {
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

    /// Returns the mapping that contains the range: its address, which no other mapping has while the range exists, and
    /// its length in bytes.
    pub(crate) fn mapping(&self) -> (u64, u64) {
        let mapping = &self.mapping.mapping;
        let address = mapping.as_ptr().as_ptr().expose_provenance() as u64;
        (address, mapping.len() as u64)
    }

    /// Faults the pages in, so that later accesses cause no page fault.
    ///
    /// # Errors
    /// Those of madvise(2): a page cannot be allocated.
    pub fn populate(&self) -> io::Result<()> {
        pages::populate(self.address, self.address + self.len_bytes)
    }

    /// Locks the pages of the whole mapping into memory until it is unmapped: the kernel does not swap them out. Later
    /// calls return the result of the first one.
    ///
    /// # Errors
    /// The error number of mlock(2); then no page is locked.
    pub fn lock_pages(&self) -> Result<(), i32> {
        let mapping = &self.mapping.mapping;
        let base = mapping.as_ptr().as_ptr().addr() as u64;
        let end = base + mapping.len() as u64;
        *self.mapping.locked.get_or_init(|| {
            for at in (base..end).step_by(LOCK_PIECE_BYTES as usize) {
                let piece_end = end.min(at + LOCK_PIECE_BYTES);
                pages::lock(at, piece_end).inspect_err(|_| pages::unlock(base, piece_end))?;
            }
            Ok(())
        })
    }

    /// Returns the error number of [`Self::lock_pages`] if it failed.
    pub(crate) fn lock_error(&self) -> Option<i32> {
        self.mapping.locked.get().and_then(|locked| locked.err())
    }

    /// Returns the address of the first byte.
    #[inline]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Returns the address of the byte at this offset, which is inside.
    #[inline]
    pub fn at(&self, offset_bytes: u64) -> MappedAddress {
        MappedAddress {
            address: self.address + offset_bytes,
            loss_flag: self.loss_flag,
        }
    }

    /// Returns true once the system was out of pages: the bytes are not the client's any more.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.loss_flag.is_lost()
    }
}

/// Checks that a range is page-aligned and not empty; returns its end and its length.
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
