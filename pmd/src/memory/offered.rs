//! What a process can offer of its memory so that another one maps it: allocations of
//! [`super::SharedMemory`], and memory of memfd_create(2) that the program mapped itself.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::mapped::{FileId, facts_of};
use super::pages::page_range;

/// Pages that another process can map.
#[derive(Debug)]
pub(crate) struct Offered {
    /// A descriptor of the memory, of its own; for reading and writing, sealed against shrinking.
    pub(crate) memory: OwnedFd,
    /// Where in it the first page is.
    pub(crate) offset_bytes: u64,
    /// The program mapped it itself.
    pub(crate) is_own: bool,
}

impl Offered {
    /// Allocates all pages of the file, not only those of the range: a process that maps it takes
    /// none that it would have to allocate itself. What fails here it finds missing. A file longer
    /// than `most_bytes` is not mapped, and left as it is.
    pub(crate) fn allocate_pages(&self, most_bytes: u64) {
        let fd = self.memory.as_raw_fd();
        // SAFETY: takes no memory of ours.
        let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
        let bytes = facts_of(self.memory.as_fd()).map_or(0, |facts| facts.bytes);
        // Sealed against punching it has its pages.
        if seals & libc::F_SEAL_FUTURE_WRITE != 0 || bytes == 0 || bytes > most_bytes {
            return;
        }
        let (anywhere, kind) = (core::ptr::null_mut(), libc::MAP_SHARED | libc::MAP_POPULATE);
        let len_bytes = bytes as usize;
        // SAFETY: without MAP_FIXED the kernel chooses a range that nobody uses.
        let pages = unsafe { libc::mmap(anywhere, len_bytes, libc::PROT_READ, kind, fd, 0) };
        if pages != libc::MAP_FAILED {
            // SAFETY: mapped above, and used by nobody.
            unsafe { libc::munmap(pages, len_bytes) };
        }
    }
}

/// The files that are mapped shared and writable; `None` if the memory map cannot be read.
pub(crate) fn mapped_files() -> Option<HashSet<FileId>> {
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

/// Finds the shared memory in which the pages of a range wholly lie: those that a registration of
/// the range covers. `None`: they are no such memory, and another process can only reach them by
/// system calls.
///
/// Memory of the program's own counts if all pages are of one mapping with `MAP_SHARED`, for
/// reading and writing, of memory that has `F_SEAL_SHRINK`, and if one of the program's open
/// descriptors, for reading and writing, is of that memory still.
///
/// Not for programs: by the descriptor safe code could write, as a file, what others have borrowed
/// as a slice.
///
/// # Errors
/// What a descriptor costs: `EMFILE`, `ENFILE`.
pub(crate) fn shared_memory_of(address: u64, bytes: u64) -> io::Result<Option<Offered>> {
    let Some((base, end)) = page_range(address, bytes).filter(|(base, end)| base < end) else {
        return Ok(None);
    };
    if let Some(offered) = super::shared::find(base, end)? {
        return Ok(Some(offered));
    }
    // Without /proc nothing is found.
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let Some(mapped) = mapped_file(&maps, base, end) else {
        return Ok(None);
    };
    let Some(memory) = open_descriptor(&mapped)? else {
        return Ok(None);
    };
    Ok(Some(Offered {
        memory,
        offset_bytes: mapped.offset_bytes,
        is_own: true,
    }))
}

/// A file as the memory map names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MappedFile {
    device: (u32, u32),
    inode: u64,
    /// Where in it the range begins.
    offset_bytes: u64,
}

/// The file that backs a range, shared, readable, writable and without a gap.
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
        let here = MappedFile {
            offset_bytes: file?.offset_bytes + (at - from),
            ..file?
        };
        let first = *found.get_or_insert(here);
        // Parts of one mapping stand apart where they were treated differently.
        let expected = MappedFile {
            offset_bytes: first.offset_bytes + (at - base),
            ..first
        };
        if here != expected {
            return None;
        }
        at = to;
        if at >= end {
            return found;
        }
    }
    None
}

/// Begin and end of a mapping, and its file if the mapping is shared, readable and writable.
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

/// A copy of an open descriptor of this file, if it can be offered.
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
        // SAFETY: takes and gives a number; another thread may have closed it meanwhile.
        let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, libc::STDERR_FILENO + 1) };
        if copy < 0 {
            match io::Error::last_os_error() {
                closed if closed.raw_os_error() == Some(libc::EBADF) => continue,
                error => return Err(error),
            }
        }
        // SAFETY: the descriptor is new and nobody else has it.
        let copy = unsafe { OwnedFd::from_raw_fd(copy) };
        // The number may mean another file by now: the copy is what is offered.
        if can_be_offered(copy.as_fd(), file) {
            return Ok(Some(copy));
        }
    }
    Ok(None)
}

/// Does this number name the file at the moment?
fn is_of(number: RawFd, file: &MappedFile) -> bool {
    // SAFETY: integers, valid as zeros.
    let mut found: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: any number is allowed; a structure of this frame is written.
    let there = unsafe { libc::fstat(number, &raw mut found) } == 0;
    there && (found.st_ino, device(found.st_dev)) == (file.inode, file.device)
}

fn device(number: u64) -> (u32, u32) {
    (libc::major(number), libc::minor(number))
}

fn can_be_offered(fd: BorrowedFd<'_>, file: &MappedFile) -> bool {
    // SAFETY: takes no memory of ours.
    let mode = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    mode >= 0
        && mode & libc::O_ACCMODE == libc::O_RDWR
        && facts_of(fd)
            .is_ok_and(|facts| (facts.inode, device(facts.device)) == (file.inode, file.device))
}

#[cfg(test)]
mod tests;
