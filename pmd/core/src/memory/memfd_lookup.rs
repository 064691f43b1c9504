//! Finds the memfd behind an address range, so that another process can map it: allocations of
//! [`super::SharedMemory`], and memory of memfd_create(2) that the application mapped itself.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::client_mapping::{FileId, memfd_info};
use super::pages::page_range;

/// Range of a memfd that another process can map.
#[derive(Debug)]
pub struct MemfdRange {
    /// A duplicate file descriptor, for reading and writing; the file is sealed against shrinking.
    pub memory: OwnedFd,
    /// Offset of the first page.
    pub offset_bytes: u64,
    /// Mapped by the application itself, not by the allocator of [`super::SharedMemory`].
    pub is_application_mapped: bool,
}

impl MemfdRange {
    /// Allocates all pages of the file, not only those of the range, since a process that maps the file must not have
    /// to allocate any itself. A failure is not reported: the other process then finds pages missing. Does nothing
    /// for a file longer than `max_bytes`, which is not mapped.
    pub fn allocate_pages(&self, max_bytes: u64) {
        let fd = self.memory.as_raw_fd();
        // SAFETY: passes integers only.
        let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
        let bytes = memfd_info(self.memory.as_fd()).map_or(0, |info| info.bytes);
        // A file that is sealed against punching has all its pages.
        if seals & libc::F_SEAL_FUTURE_WRITE != 0 || bytes == 0 || bytes > max_bytes {
            return;
        }
        let (anywhere, kind) = (core::ptr::null_mut(), libc::MAP_SHARED | libc::MAP_POPULATE);
        let len_bytes = bytes as usize;
        // SAFETY: without MAP_FIXED the kernel chooses an unused range.
        let pages = unsafe { libc::mmap(anywhere, len_bytes, libc::PROT_READ, kind, fd, 0) };
        if pages != libc::MAP_FAILED {
            // SAFETY: mapped above and not used.
            unsafe { libc::munmap(pages, len_bytes) };
        }
    }
}

/// Returns the files that are mapped shared and writable; `None` if the memory map cannot be read.
pub fn mapped_file_ids() -> Option<HashSet<FileId>> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let file = |line| parse(line)?.2;
    let id = |file: MappedFile| {
        let (major, minor) = file.device;
        FileId {
            device: libc::makedev(major, minor),
            inode: file.inode,
        }
    };
    Some(maps.lines().filter_map(file).map(id).collect())
}

/// Finds the memfd that contains all pages of a range, as a registration of the range covers them. `None` if there is
/// none: another process can then access the pages by system calls only.
///
/// Memory that the application mapped itself qualifies if all pages are of one mapping with `MAP_SHARED`, for
/// reading and writing, of a file that has `F_SEAL_SHRINK`, and if the program still has an open
/// file descriptor of that file for reading and writing.
///
/// Not public: through the file descriptor safe code could write, as a file, memory that is
/// borrowed as a slice.
///
/// # Errors
/// Those of duplicating a file descriptor: `EMFILE`, `ENFILE`.
pub fn find_memfd(address: u64, bytes: u64) -> io::Result<Option<MemfdRange>> {
    let Some((base, end)) = page_range(address, bytes).filter(|(base, end)| base < end) else {
        return Ok(None);
    };
    if let Some(range) = super::shared_allocator::find(base, end)? {
        return Ok(Some(range));
    }
    // Without /proc nothing is found.
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let Some(mapped) = mapped_file(&maps, base, end) else {
        return Ok(None);
    };
    let Some(memory) = open_descriptor(&mapped)? else {
        return Ok(None);
    };
    Ok(Some(MemfdRange {
        memory,
        offset_bytes: mapped.offset_bytes,
        is_application_mapped: true,
    }))
}

/// File of a mapping in /proc/self/maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MappedFile {
    device: (u32, u32),
    inode: u64,
    /// Offset of the range in the file.
    offset_bytes: u64,
}

/// Returns the file that backs a range, if all of the range is a shared, readable and writable mapping of it.
fn mapped_file(maps: &str, base: u64, end: u64) -> Option<MappedFile> {
    let mut found: Option<MappedFile> = None;
    let mut at = base;
    for line in maps.lines() {
        let (from, to, file) = parse(line)?;
        if to <= at {
            continue;
        }
        if from > at {
            return None;
        }
        let part = MappedFile {
            offset_bytes: file?.offset_bytes + (at - from),
            ..file?
        };
        let first = *found.get_or_insert(part);
        // One mapping has several lines where its parts have different attributes.
        let expected = MappedFile {
            offset_bytes: first.offset_bytes + (at - base),
            ..first
        };
        if part != expected {
            return None;
        }
        at = to;
        if at >= end {
            return found;
        }
    }
    None
}

/// Parses the begin and end of a mapping, and its file if the mapping is shared, readable and writable.
fn parse(line: &str) -> Option<(u64, u64, Option<MappedFile>)> {
    let mut fields = line.split_ascii_whitespace();
    let (range, rights, offset) = (fields.next()?, fields.next()?, fields.next()?);
    let (device, inode) = (fields.next()?, fields.next()?);
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let (from, to) = range.split_once('-')?;
    let (major, minor) = device.split_once(':')?;
    let file = MappedFile {
        device: (hex(major)? as u32, hex(minor)? as u32),
        inode: inode.parse().ok()?,
        offset_bytes: hex(offset)?,
    };
    let usable = rights.starts_with("rw") && rights.ends_with('s');
    Some((hex(from)?, hex(to)?, usable.then_some(file)))
}

/// Duplicates an open file descriptor of this file, if one is suitable for mapping by another process.
fn open_descriptor(file: &MappedFile) -> io::Result<Option<OwnedFd>> {
    let Ok(open) = fs::read_dir("/proc/self/fd") else {
        return Ok(None);
    };
    for entry in open.flatten() {
        let number = entry.file_name();
        let Some(number) = number.to_str().and_then(|text| text.parse::<RawFd>().ok()) else {
            continue;
        };
        if !is_of(number, file) {
            continue;
        }
        // SAFETY: passes integers only; another thread may have closed the descriptor meanwhile.
        let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, libc::STDERR_FILENO + 1) };
        if copy < 0 {
            match io::Error::last_os_error() {
                closed if closed.raw_os_error() == Some(libc::EBADF) => continue,
                error => return Err(error),
            }
        }
        // SAFETY: the descriptor is new and not owned elsewhere.
        let copy = unsafe { OwnedFd::from_raw_fd(copy) };
        // The number may name another file by now: the duplicate is checked.
        if is_mappable(copy.as_fd(), file) {
            return Ok(Some(copy));
        }
    }
    Ok(None)
}

/// Returns whether this file descriptor number names the file at the moment.
fn is_of(number: RawFd, file: &MappedFile) -> bool {
    // SAFETY: integers, valid as zeros.
    let mut found: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: any number is allowed; writes a local structure.
    let there = unsafe { libc::fstat(number, &raw mut found) } == 0;
    there && (found.st_ino, device(found.st_dev)) == (file.inode, file.device)
}

fn device(number: u64) -> (u32, u32) {
    (libc::major(number), libc::minor(number))
}

fn is_mappable(fd: BorrowedFd<'_>, file: &MappedFile) -> bool {
    // SAFETY: passes integers only.
    let mode = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    mode >= 0
        && mode & libc::O_ACCMODE == libc::O_RDWR
        && memfd_info(fd)
            .is_ok_and(|info| (info.inode, device(info.device)) == (file.inode, file.device))
}

#[cfg(test)]
mod tests;
