//! Memory mappings that are unmapped on drop.

use core::ptr::NonNull;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use crate::fork;
pub use crate::sigbus::LossFlag;
use crate::sigbus::SigbusGuard;

/// Size of requested huge pages: the smallest of x86-64 and of AArch64 with 4 KiB pages.
const HUGE_PAGE_BYTES: usize = 2 * 1024 * 1024;

/// Bytes of a file mapping that one system call unmaps: other threads of the process, pollers among them, can neither
/// map nor unmap memory meanwhile.
const UNMAP_PIECE_BYTES: usize = 2 * 1024 * 1024;

/// Maximum number of file mappings ([`Mapping::shared`]) of a process at a time.
pub const MAX_SHARED: usize = crate::sigbus::GUARDS_MAX;

/// A range of mapped memory, readable and writable, unmapped on drop.
///
/// Gives out an address only, never a reference: the driver that owns the mapping
/// decides which code may access which byte when.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len_bytes: usize,
    huge: bool,
    /// Set for a mapping of a file, which another process may truncate.
    sigbus_guard: Option<SigbusGuard>,
    /// Set for a mapping of kernel memory, which is replaced in forked children.
    fork_range: Option<fork::Range>,
}

// SAFETY: a Mapping is an address range without access to it through `&self`;
// munmap may be called from any thread.
unsafe impl Send for Mapping {}
// SAFETY: as for Send: the shared methods only read plain fields.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps zeroed private memory of ordinary pages.
    ///
    /// # Errors
    /// The error of mmap(2); `InvalidInput` for a length of zero.
    pub fn anonymous(len_bytes: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        Self::map(len_bytes, flags, -1, 0, false)
    }

    /// Maps zeroed private memory of huge pages, or of ordinary pages if no huge pages are
    /// free; see [`Mapping::is_huge`]. With huge pages the length is rounded up to whole ones.
    ///
    /// # Errors
    /// The error of mmap(2) for ordinary pages; `InvalidInput` for a length of zero.
    pub fn anonymous_huge(len_bytes: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB;
        if let Some(rounded_bytes) = len_bytes.checked_next_multiple_of(HUGE_PAGE_BYTES)
            && let Ok(mapping) = Self::map(rounded_bytes, flags, -1, 0, true)
        {
            return Ok(mapping);
        }
        Self::anonymous(len_bytes)
    }

    /// Maps a range of a file, shared with all other mappings of it.
    ///
    /// The caller keeps the file long enough. If a page beyond its end is accessed, the
    /// whole mapping becomes zeroed private memory, and [`Mapping::is_lost`] returns true.
    ///
    /// # Errors
    /// The error of mmap(2); `InvalidInput` for a length of zero, or an offset
    /// that is too large or no multiple of the page size; `OutOfMemory` if the
    /// process has too many such mappings.
    pub fn shared(fd: BorrowedFd<'_>, offset_bytes: u64, len_bytes: usize) -> io::Result<Self> {
        let offset_bytes = libc::off_t::try_from(offset_bytes)
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let mut mapping = Self::map(
            len_bytes,
            libc::MAP_SHARED,
            fd.as_raw_fd(),
            offset_bytes,
            false,
        )?;
        mapping.sigbus_guard = Some(SigbusGuard::new(mapping.start, len_bytes)?);
        Ok(mapping)
    }

    /// Maps a range that the kernel shares through a descriptor, such as a socket's ring.
    ///
    /// In a forked child the range is replaced by private zeroed memory, so that the kernel
    /// object is released when the parent unmaps it.
    ///
    /// # Errors
    /// The error of mmap(2) or pthread_atfork(3); `InvalidInput` for a length of zero, or an
    /// offset that is too large or no multiple of the page size.
    pub fn of_kernel(fd: BorrowedFd<'_>, offset_bytes: u64, len_bytes: usize) -> io::Result<Self> {
        let offset_bytes = libc::off_t::try_from(offset_bytes)
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let (start, range) = fork::Range::make(len_bytes, || {
            Self::map_range(len_bytes, libc::MAP_SHARED, fd.as_raw_fd(), offset_bytes)
        })?;
        let mut mapping = Self::new(start, len_bytes, false);
        mapping.fork_range = Some(range);
        Ok(mapping)
    }

    /// Makes the range start as zeroed memory in forked children: the pages stay this
    /// process's, and a fork copies none of them, even if the kernel has them pinned.
    ///
    /// # Errors
    /// The error of madvise(2); `InvalidInput` for memory that is not private or of huge pages.
    pub fn wipe_in_children(&self) -> io::Result<()> {
        // SAFETY: exactly the range of this mapping; the memory of this process does not change.
        let result = unsafe {
            libc::madvise(
                self.start.as_ptr().cast(),
                self.len_bytes,
                libc::MADV_WIPEONFORK,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Returns whether a page beyond the end of the mapped file was accessed: the memory is no
    /// longer the file's.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.sigbus_guard.as_ref().is_some_and(SigbusGuard::is_lost)
    }

    /// Returns a flag with the value of [`Mapping::is_lost`], valid while the mapping exists;
    /// `None` if it cannot be lost.
    #[inline]
    pub fn loss_flag(&self) -> Option<LossFlag> {
        self.sigbus_guard.as_ref().map(SigbusGuard::loss_flag)
    }

    fn map(
        len_bytes: usize,
        flags: libc::c_int,
        fd: RawFd,
        offset_bytes: libc::off_t,
        huge: bool,
    ) -> io::Result<Self> {
        let start = Self::map_range(len_bytes, flags, fd, offset_bytes)?;
        Ok(Self::new(start, len_bytes, huge))
    }

    /// Wraps a range that was just mapped.
    fn new(start: NonNull<u8>, len_bytes: usize, huge: bool) -> Self {
        Self {
            start,
            len_bytes,
            huge,
            sigbus_guard: None,
            fork_range: None,
        }
    }

    fn map_range(
        len_bytes: usize,
        flags: libc::c_int,
        fd: RawFd,
        offset_bytes: libc::off_t,
    ) -> io::Result<NonNull<u8>> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: without MAP_FIXED the kernel chooses an unused range, so no
        // live memory of this process changes; mmap checks every argument
        // itself.
        let address = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                len_bytes,
                protection,
                flags,
                fd,
                offset_bytes,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(address.cast::<u8>())
            .ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))
    }

    /// Returns the address of the first byte.
    #[inline]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len_bytes
    }

    /// Returns false: an empty range cannot be mapped.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// Returns whether the memory consists of huge pages.
    #[inline]
    pub fn is_huge(&self) -> bool {
        self.huge
    }

    /// Returns whether the byte at `address` lies in this mapping.
    #[inline]
    pub fn contains(&self, address: *const u8) -> bool {
        (address as usize)
            .checked_sub(self.start.as_ptr() as usize)
            .is_some_and(|offset_bytes| offset_bytes < self.len_bytes)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Before the range can be reused by another mapping.
        let is_file = self.sigbus_guard.take().is_some();
        let _lock = self.fork_range.take().map(fork::Range::unregister);
        let piece_bytes = if is_file {
            UNMAP_PIECE_BYTES
        } else {
            self.len_bytes
        };
        for at in (0..self.len_bytes).step_by(piece_bytes) {
            let start = self.start.as_ptr().wrapping_add(at);
            // SAFETY: a part of the range that was mapped by `map_range` with this length and is
            // unmapped only here; that no pointer into it is used any more is the
            // obligation of the callers of `as_ptr`.
            let result =
                unsafe { libc::munmap(start.cast(), piece_bytes.min(self.len_bytes - at)) };
            // At the limit of mappings (vm.max_map_count) a range that the kernel merged with its neighbours cannot be
            // split from them, and stays mapped until the process exits.
            let error = io::Error::last_os_error();
            debug_assert!(
                result == 0 || error.raw_os_error() == Some(libc::ENOMEM),
                "munmap: {error}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::{AsFd, FromRawFd};

    fn read(mapping: &Mapping, offset_bytes: usize) -> u8 {
        assert!(offset_bytes < mapping.len());
        // SAFETY: the offset lies in the mapping, as just checked.
        let address = unsafe { mapping.as_ptr().add(offset_bytes) };
        // SAFETY: mapped and readable while `mapping` lives; one thread.
        unsafe { address.read_volatile() }
    }

    fn write(mapping: &Mapping, offset_bytes: usize, value: u8) {
        assert!(offset_bytes < mapping.len());
        // SAFETY: the offset lies in the mapping, as just checked.
        let address = unsafe { mapping.as_ptr().add(offset_bytes) };
        // SAFETY: mapped and writable while `mapping` lives; one thread.
        unsafe { address.write_volatile(value) };
    }

    fn memory_file(len_bytes: u64) -> File {
        // SAFETY: the name is a terminated string; the call touches no other memory.
        let fd = unsafe { libc::memfd_create(c"mapping-test".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0, "memfd_create: {}", io::Error::last_os_error());
        // SAFETY: the descriptor is new and has no other owner.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(len_bytes).expect("a memory file can grow");
        file
    }

    #[test]
    fn anonymous_memory_is_zeroed_and_writable_to_its_last_byte() {
        let mapping = Mapping::anonymous(10_000).expect("a small mapping");
        assert_eq!(mapping.len(), 10_000);
        assert!(!mapping.is_huge());
        for offset_bytes in 0..mapping.len() {
            assert_eq!(read(&mapping, offset_bytes), 0);
        }
        write(&mapping, 9_999, 7);
        assert_eq!(read(&mapping, 9_999), 7);
    }

    #[test]
    fn file_mapping_of_several_pieces_is_unmapped_to_its_last_page() {
        const PAGE_BYTES: usize = 4096;
        let len_bytes = 2 * UNMAP_PIECE_BYTES + PAGE_BYTES;
        let file = memory_file(len_bytes as u64);
        let mapping = Mapping::shared(file.as_fd(), 0, len_bytes).expect("a mapping");
        let start = mapping.as_ptr().as_ptr();
        let is_mapped = |at: usize| {
            let mut page = 0;
            let address = start.wrapping_add(at).cast();
            // SAFETY: writes one byte of this frame; fails on what is not mapped.
            unsafe { libc::mincore(address, PAGE_BYTES, &raw mut page) == 0 }
        };
        let offsets = [0, UNMAP_PIECE_BYTES, 2 * UNMAP_PIECE_BYTES];
        assert_eq!(offsets.map(is_mapped), [true; 3]);
        drop(mapping);
        assert_eq!(offsets.map(is_mapped), [false; 3]);
    }

    #[test]
    fn huge_memory_works_with_and_without_huge_pages() {
        let mapping = Mapping::anonymous_huge(5_000).expect("a small mapping");
        if mapping.is_huge() {
            assert_eq!(mapping.len(), HUGE_PAGE_BYTES);
        } else {
            assert_eq!(mapping.len(), 5_000);
        }
        write(&mapping, 4_999, 9);
        assert_eq!(read(&mapping, 4_999), 9);
    }

    #[test]
    fn two_shared_mappings_of_a_file_are_the_same_bytes() {
        let file = memory_file(3 * 4096);
        let whole = Mapping::shared(file.as_fd(), 0, 3 * 4096).expect("whole file");
        let last = Mapping::shared(file.as_fd(), 2 * 4096, 4096).expect("last page");
        write(&last, 5, 42);
        assert_eq!(read(&whole, 2 * 4096 + 5), 42);
    }

    #[test]
    fn truncated_file_loses_its_mapping_only() {
        let file = memory_file(3 * 4096);
        let whole = Mapping::shared(file.as_fd(), 0, 3 * 4096).expect("whole file");
        let first = Mapping::shared(file.as_fd(), 0, 4096).expect("first page");
        write(&whole, 0, 1);
        write(&whole, 2 * 4096, 3);
        file.set_len(4096).expect("a memory file can shrink");
        assert_eq!(read(&whole, 0), 1, "the first page is still the file's");
        assert!(!whole.is_lost());
        assert_eq!(read(&whole, 2 * 4096), 0);
        assert!(whole.is_lost());
        assert!(!first.is_lost());
        write(&whole, 2 * 4096, 4);
        write(&whole, 0, 5);
        assert_eq!((read(&whole, 0), read(&whole, 2 * 4096)), (5, 4));
        assert_eq!(read(&first, 0), 1, "not the private memory");
        drop(whole);
        // The guard of the range is released; its table entry serves the next mapping.
        let again = Mapping::shared(file.as_fd(), 0, 4096).expect("first page");
        assert!(!again.is_lost());
    }

    #[test]
    fn invalid_mappings_are_rejected() {
        assert!(Mapping::anonymous(0).is_err());
        assert!(Mapping::anonymous_huge(usize::MAX).is_err());
        let file = memory_file(4096);
        assert!(Mapping::shared(file.as_fd(), 17, 4096).is_err());
        assert!(Mapping::shared(file.as_fd(), u64::MAX, 4096).is_err());
    }

    #[test]
    fn contains_is_exact_at_both_ends() {
        let mapping = Mapping::anonymous(4096).expect("one page");
        let start = mapping.as_ptr().as_ptr().cast_const();
        assert!(mapping.contains(start));
        assert!(mapping.contains(start.wrapping_add(4095)));
        assert!(!mapping.contains(start.wrapping_add(4096)));
        assert!(!mapping.contains(start.wrapping_sub(1)));
    }
}
