//! Allocator of memory that other processes can map: pages of memfd_create(2), sealed at their size.
//!
//! A datapath process maps such memory and copies directly into it and out of it; it accesses other
//! memory by system calls. This process keeps a table of its allocations, to look addresses up in.

use core::ptr::NonNull;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use nix::sys::stat::fstat;
use pmd_port::descriptor_number::above_standard_streams;
use pmd_port::file_size::set_file_length;

use super::memfd_lookup::MemfdRange;
use super::pages::PAGE_BYTES;
use crate::fork::{self, ForkHooks};

/// All allocations, by address.
static ALLOCATIONS: Mutex<BTreeMap<u64, Allocation>> = Mutex::new(BTreeMap::new());

type Guard = MutexGuard<'static, BTreeMap<u64, Allocation>>;

/// No other thread allocates or frees while a thread forks; a child may do both.
static FORK_HOOKS: ForkHooks = ForkHooks {
    lock: || Box::new(allocations()),
    in_child: || (),
};

/// Called with the descriptor of each allocation that is freed.
static FREE_HOOK: OnceLock<fn(BorrowedFd<'_>)> = OnceLock::new();

/// Sets the function that is called with the descriptor of each allocation that is freed, once.
pub fn set_free_hook(hook: fn(BorrowedFd<'_>)) {
    FREE_HOOK.get_or_init(|| hook);
}

/// Returns whether the allocator is locked.
#[cfg(test)]
pub(crate) fn is_locked() -> bool {
    ALLOCATIONS.try_lock().is_err()
}

struct Allocation {
    memory: OwnedFd,
    inode: u64,
    len_bytes: usize,
    /// Owned by the program, through the address of [`SharedMemory::into_raw`].
    raw: bool,
}

fn allocations() -> Guard {
    ALLOCATIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Zeroed memory of whole pages that other processes can map: a datapath process copies into it and
/// out of it without system calls.
///
/// Freed on drop. Registered memory must not be freed before it is deregistered (VIPL
/// 3.4.3). After fork(2) parent and child share the memory. It counts as shared memory of the
/// program (`Shmem` of `/proc/meminfo`), and each allocation holds one file descriptor open, which no safe call
/// of `vipl` returns: the memory could be written through it as a file.
#[derive(Debug)]
pub struct SharedMemory {
    address: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: an address range that this value owns; no access to it through `&self`.
unsafe impl Send for SharedMemory {}
// SAFETY: as above: the shared methods only read plain fields.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Allocates at least this many bytes, as whole pages of zeros.
    ///
    /// # Errors
    /// `InvalidInput` for no bytes or more than can be addressed; the errors of memfd_create(2),
    /// ftruncate(2), fcntl(2) and mmap(2): no memory, too many open file descriptors.
    pub fn allocate(bytes: usize) -> io::Result<Self> {
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        let len_bytes = bytes
            .checked_next_multiple_of(PAGE_BYTES as usize)
            .filter(|len_bytes| *len_bytes > 0)
            .ok_or_else(invalid)?;
        fork::register(&FORK_HOOKS)?;
        let memory = create_sealed(len_bytes)?;
        let inode = fstat(&memory)?.st_ino;
        let fd = memory.as_raw_fd();
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let (anywhere, shared) = (core::ptr::null_mut(), libc::MAP_SHARED);
        // SAFETY: without MAP_FIXED the kernel chooses an unused range.
        let address = unsafe { libc::mmap(anywhere, len_bytes, rights, shared, fd, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = NonNull::new(address.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let allocation = Allocation {
            memory,
            inode,
            len_bytes,
            raw: false,
        };
        allocations().insert(key(address), allocation);
        Ok(Self { address, len_bytes })
    }

    /// Returns the address of the first byte, which is page-aligned.
    pub fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// Returns the length in bytes, a multiple of the page size.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Releases ownership and returns the address. The memory stays mapped until it is passed to
    /// [`Self::from_raw`] and dropped.
    pub fn into_raw(self) -> NonNull<u8> {
        let this = core::mem::ManuallyDrop::new(self);
        if let Some(allocation) = allocations().get_mut(&key(this.address)) {
            allocation.raw = true;
        }
        this.address
    }

    /// Takes ownership back, by the address that [`Self::into_raw`] returned. `None` for any other address, and if
    /// ownership was taken back already.
    ///
    /// # Safety
    /// The memory is not used through the address any more except through the returned value,
    /// which unmaps it on drop.
    ///
    /// ```compile_fail,E0133
    /// let address = vi_core::memory::SharedMemory::allocate(4096)?.into_raw();
    /// drop(vi_core::memory::SharedMemory::from_raw(address));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub unsafe fn from_raw(address: NonNull<u8>) -> Option<Self> {
        let mut allocations = allocations();
        let allocation = allocations
            .get_mut(&key(address))
            .filter(|allocation| allocation.raw)?;
        allocation.raw = false;
        Some(Self {
            address,
            len_bytes: allocation.len_bytes,
        })
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // First, while the range cannot belong to another allocation.
        let allocation = allocations().remove(&key(self.address));
        // SAFETY: mapped in `allocate` with this length and owned by this value; the address must not
        // be used after this.
        let done = unsafe { libc::munmap(self.address.as_ptr().cast(), self.len_bytes) };
        debug_assert_eq!(done, 0, "munmap: {}", io::Error::last_os_error());
        if let (Some(allocation), Some(hook)) = (allocation, FREE_HOOK.get()) {
            hook(allocation.memory.as_fd());
        }
    }
}

fn key(address: NonNull<u8>) -> u64 {
    address.as_ptr().expose_provenance() as u64
}

/// Creates a memfd of this many bytes, sealed against shrinking and growing.
pub fn create_sealed(bytes: usize) -> io::Result<OwnedFd> {
    let memory = create()?;
    let fd = memory.as_raw_fd();
    set_file_length(&memory, bytes as u64)?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: passes integers only.
    if unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(memory)
}

/// Creates a memfd that can be sealed; not executable, where the kernel supports that.
fn create() -> io::Result<OwnedFd> {
    let plain = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let mut last = io::Error::from(io::ErrorKind::Unsupported);
    for flags in [plain | libc::MFD_NOEXEC_SEAL, plain] {
        // SAFETY: the name is a terminated string; the call touches no other memory.
        let fd = unsafe { libc::memfd_create(c"viaduct".as_ptr(), flags) };
        if fd >= 0 {
            // SAFETY: the descriptor is new and not owned elsewhere.
            return above_standard_streams(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        last = io::Error::last_os_error();
        // Kernels before 6.3 do not know the flag.
        if last.raw_os_error() != Some(libc::EINVAL) {
            break;
        }
    }
    Err(last)
}

/// Calls `found` with the allocation that contains all of these pages, and their offset in it.
fn within<R>(base: u64, end: u64, found: impl FnOnce(&Allocation, u64) -> R) -> Option<R> {
    let allocations = allocations();
    let (start, allocation) = allocations.range(..=base).next_back()?;
    let is_inside = end - start <= allocation.len_bytes as u64;
    is_inside.then(|| found(allocation, base - start))
}

/// Pages of an allocation, as another process finds them: valid until the allocation is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SharedPages {
    /// The number of its file descriptor in this process.
    pub(super) fd: u32,
    /// The inode of the file, by which a descriptor that was reused is noticed.
    pub(super) inode: u64,
    /// Offset of the first page.
    pub(super) offset_bytes: u64,
}

/// Finds the allocation that contains all of these pages.
pub(super) fn find_pages(base: u64, end: u64) -> Option<SharedPages> {
    within(base, end, |allocation, offset_bytes| SharedPages {
        fd: allocation.memory.as_raw_fd() as u32,
        inode: allocation.inode,
        offset_bytes,
    })
}

/// As [`find_pages`], with a duplicate of the file descriptor.
pub(super) fn find(base: u64, end: u64) -> io::Result<Option<MemfdRange>> {
    let range = within(base, end, |allocation, offset_bytes| {
        Ok(MemfdRange {
            memory: allocation.memory.try_clone()?,
            offset_bytes,
            is_application_mapped: false,
        })
    });
    range.transpose()
}

#[cfg(test)]
mod tests;
