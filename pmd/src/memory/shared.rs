//! The allocator of memory that can be offered: pages of memfd_create(2), sealed at their size.
//!
//! A process that moves bytes for this program maps such memory and copies straight into it and
//! out of it; other memory it reaches by system calls. The process keeps a list of what it
//! allocated, so that an address is found to lie in it.

use core::ptr::NonNull;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pmd_port::descriptor_number::above_standard_streams;
use pmd_port::file_size::set_file_length;

use super::offered::Offered;
use super::pages::PAGE_BYTES;
use crate::attach::offers;
use crate::fork;

/// What is allocated, by its address.
static ALLOCATIONS: Mutex<BTreeMap<u64, Allocation>> = Mutex::new(BTreeMap::new());

/// No thread allocates or frees meanwhile.
pub(crate) struct Quiet(#[allow(dead_code, reason = "held until dropped")] Guard);

type Guard = MutexGuard<'static, BTreeMap<u64, Allocation>>;

/// Keeps every other thread from allocating and freeing.
pub(crate) fn hold() -> Quiet {
    Quiet(allocations())
}

/// Does any thread keep the others from it?
#[cfg(test)]
pub(crate) fn is_held() -> bool {
    ALLOCATIONS.try_lock().is_err()
}

struct Allocation {
    memory: OwnedFd,
    len_bytes: usize,
    /// Nobody's but the program's, which has the bare address.
    raw: bool,
}

fn allocations() -> Guard {
    ALLOCATIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Zeroed memory of whole pages that other processes can be given: a NIC whose datapath is a
/// process of its own copies into it and out of it without system calls.
///
/// It is freed on drop. Registered memory must not be freed before it is deregistered (VIPL
/// 3.4.3). After fork(2) parent and child see the same bytes: this is shared memory, and what one
/// writes the other reads. It counts as shared memory of the program (`Shmem` of
/// `/proc/meminfo`), and each allocation holds one descriptor open, which no safe call gives away:
/// by it the memory could be written as a file.
///
/// ```compile_fail,E0425
/// let memory = pmd::SharedMemory::allocate(4096)?;
/// pmd::shared_memory_of(memory.address().as_ptr().addr() as u64, 4096)?;
/// # Ok::<(), std::io::Error>(())
/// ```
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
    /// Allocates at least so many bytes, whole pages of zeros.
    ///
    /// # Errors
    /// `InvalidInput` for no bytes or more than can be addressed; what memfd_create(2),
    /// ftruncate(2), fcntl(2) or mmap(2) say: no memory, too many open descriptors.
    pub fn allocate(bytes: usize) -> io::Result<Self> {
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        let len_bytes = bytes
            .checked_next_multiple_of(PAGE_BYTES as usize)
            .filter(|len_bytes| *len_bytes > 0)
            .ok_or_else(invalid)?;
        // A child of this program may allocate and free, too.
        fork::watch().map_err(io::Error::other)?;
        let memory = sealed(len_bytes)?;
        let fd = memory.as_raw_fd();
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let (anywhere, shared) = (core::ptr::null_mut(), libc::MAP_SHARED);
        // SAFETY: without MAP_FIXED the kernel chooses a range that nobody uses.
        let address = unsafe { libc::mmap(anywhere, len_bytes, rights, shared, fd, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = NonNull::new(address.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let allocation = Allocation {
            memory,
            len_bytes,
            raw: false,
        };
        allocations().insert(key(address), allocation);
        Ok(Self { address, len_bytes })
    }

    /// The address of the first byte, which begins a page.
    pub fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// How many bytes there are: whole pages.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// The bare address, of which the program takes care until it gives it back by
    /// [`Self::from_raw`]; it is never unmapped otherwise.
    pub fn into_raw(self) -> NonNull<u8> {
        let this = core::mem::ManuallyDrop::new(self);
        if let Some(allocation) = allocations().get_mut(&key(this.address)) {
            allocation.raw = true;
        }
        this.address
    }

    /// What [`Self::into_raw`] gave this address for. `None`: it gave none such, or it was given
    /// back before.
    ///
    /// # Safety
    /// Whoever has the address from [`Self::into_raw`] leaves the memory to the value that this
    /// gives: it is unmapped with it.
    ///
    /// ```compile_fail,E0133
    /// let address = pmd::SharedMemory::allocate(4096)?.into_raw();
    /// drop(pmd::SharedMemory::from_raw(address));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub unsafe fn from_raw(address: NonNull<u8>) -> Option<Self> {
        let mut allocations = allocations();
        let allocation = allocations.get_mut(&key(address)).filter(|one| one.raw)?;
        allocation.raw = false;
        Some(Self {
            address,
            len_bytes: allocation.len_bytes,
        })
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // First, while the range cannot be that of another allocation.
        let allocation = allocations().remove(&key(self.address));
        // SAFETY: mapped in `allocate` with this length and owned by this value; who has the
        // address still is bound not to use it.
        let done = unsafe { libc::munmap(self.address.as_ptr().cast(), self.len_bytes) };
        debug_assert_eq!(done, 0, "munmap: {}", io::Error::last_os_error());
        if let Some(allocation) = allocation {
            offers::free(allocation.memory.as_fd());
        }
    }
}

fn key(address: NonNull<u8>) -> u64 {
    address.as_ptr().expose_provenance() as u64
}

/// Memory of so many bytes that nobody can make shorter or longer.
pub(crate) fn sealed(bytes: usize) -> io::Result<OwnedFd> {
    let memory = create()?;
    let fd = memory.as_raw_fd();
    set_file_length(&memory, bytes as u64)?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: takes no memory of ours.
    if unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(memory)
}

/// Memory that can be sealed, and from which nothing can be executed where the kernel knows that.
fn create() -> io::Result<OwnedFd> {
    let plain = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let mut last = io::Error::from(io::ErrorKind::Unsupported);
    for flags in [plain | libc::MFD_NOEXEC_SEAL, plain] {
        // SAFETY: the name is a terminated string; the call touches no other memory.
        let fd = unsafe { libc::memfd_create(c"viaduct".as_ptr(), flags) };
        if fd >= 0 {
            // SAFETY: the descriptor is new and nobody else has it.
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

/// The allocation that pages lie in, and where; `None` if they lie in none, or not wholly.
pub(super) fn find(base: u64, end: u64) -> io::Result<Option<Offered>> {
    let allocations = allocations();
    let Some((start, allocation)) = allocations.range(..=base).next_back() else {
        return Ok(None);
    };
    let inside = base - start;
    if end - start > allocation.len_bytes as u64 {
        return Ok(None);
    }
    Ok(Some(Offered {
        memory: allocation.memory.try_clone()?,
        offset_bytes: inside,
        is_own: false,
    }))
}

#[cfg(test)]
mod tests;
