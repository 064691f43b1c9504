//! State of the pages of a region in the kernel: mapped, writable, locked.

use crate::sync::{AtomicU8, Ordering};

/// Page size in bytes; regions are registered at this granularity (VIPL 3.4.3).
pub const PAGE_BYTES: u64 = 4096;

/// `MADV_POPULATE_READ` and `MADV_POPULATE_WRITE` of linux/mman.h.
const POPULATE_READ: libc::c_int = 22;
const POPULATE_WRITE: libc::c_int = 23;

/// Extends a range to whole pages and returns its begin and end; `None` if it exceeds the address space.
pub fn page_range(address: u64, length_bytes: u64) -> Option<(u64, u64)> {
    let base = address & !(PAGE_BYTES - 1);
    let end = address.checked_add(length_bytes)?;
    let end = end.checked_add(PAGE_BYTES - 1)? & !(PAGE_BYTES - 1);
    Some((base, end))
}

fn advise(base: u64, end: u64, advice: libc::c_int) -> Result<(), i32> {
    // SAFETY: populating page tables changes no content; a range that is not mapped
    // is an error of the call.
    let done = unsafe { libc::madvise(base as *mut _, (end - base) as usize, advice) };
    if done == 0 { Ok(()) } else { Err(last_error()) }
}

fn last_error() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Faults pages in and returns whether all of them are writable; `None` if a page is not mapped.
pub fn writable(base: u64, end: u64) -> Option<bool> {
    match advise(base, end, POPULATE_WRITE) {
        Ok(()) => Some(true),
        Err(libc::ENOMEM) => None,
        Err(_) => match advise(base, end, POPULATE_READ) {
            Ok(()) => Some(false),
            // Kernels before 5.14 know neither, and a seccomp filter may refuse both: read
            // the memory map.
            Err(libc::EINVAL | libc::EPERM | libc::ENOSYS) => from_maps(base, end),
            Err(_) => None,
        },
    }
}

/// Faults in the pages of a shared, writable mapping, so that later accesses cause no page fault. Their contents do not
/// change.
///
/// # Errors
/// Those of madvise(2): a page cannot be allocated.
pub(super) fn populate(base: u64, end: u64) -> std::io::Result<()> {
    match advise(base, end, POPULATE_WRITE) {
        // Kernels before 5.14 do not know it, and a seccomp filter may refuse it.
        Err(libc::EINVAL | libc::EPERM | libc::ENOSYS) => {
            for page in (base..end).step_by(PAGE_BYTES as usize) {
                // SAFETY: mapped, as the caller promises; other accesses use atomic bytes, too.
                let byte = unsafe { AtomicU8::from_ptr(page as *mut u8) };
                byte.load(Ordering::Relaxed);
            }
            Ok(())
        }
        done => done.map_err(std::io::Error::from_raw_os_error),
    }
}

/// Returns the same as [`writable`], from /proc/self/maps.
fn from_maps(base: u64, end: u64) -> Option<bool> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    coverage(&maps, base, end)
}

fn coverage(maps: &str, base: u64, end: u64) -> Option<bool> {
    let mut at = base;
    let mut writable = true;
    for line in maps.lines() {
        let mut fields = line.split_ascii_whitespace();
        let (range, rights) = (fields.next()?, fields.next()?);
        let (from, to) = range.split_once('-')?;
        let from = u64::from_str_radix(from, 16).ok()?;
        let to = u64::from_str_radix(to, 16).ok()?;
        if to <= at {
            continue;
        }
        if from > at || !rights.starts_with('r') {
            return None;
        }
        writable &= rights.as_bytes().get(1) == Some(&b'w');
        at = to;
        if at >= end {
            return Some(writable);
        }
    }
    None
}

/// Locks pages into memory.
///
/// # Errors
/// The error number of mlock(2).
pub fn lock(base: u64, end: u64) -> Result<(), i32> {
    // SAFETY: mlock(2) changes no content and fails on what is not mapped.
    let done = unsafe { libc::mlock(base as *const _, (end - base) as usize) };
    if done == 0 { Ok(()) } else { Err(last_error()) }
}

/// Unlocks pages. Ignores pages that have been unmapped meanwhile.
pub fn unlock(base: u64, end: u64) {
    // SAFETY: munlock(2) changes no content and fails on what is not mapped.
    unsafe { libc::munlock(base as *const _, (end - base) as usize) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_range_extends_to_whole_pages() {
        assert_eq!(page_range(0x1001, 1), Some((0x1000, 0x2000)));
        assert_eq!(page_range(0x1000, 0x1000), Some((0x1000, 0x2000)));
        assert_eq!(page_range(0x1fff, 2), Some((0x1000, 0x3000)));
        assert_eq!(page_range(u64::MAX - 1, 2), None);
        assert_eq!(page_range(u64::MAX - 1, 1), None);
    }

    #[test]
    fn coverage_reports_holes_and_rights() {
        let maps = "1000-3000 rw-p 00000000 00:00 0\n3000-4000 r--p 0 0:0 0 /lib/x\n5000-6000 ---p 0 0:0 0\n";
        assert_eq!(coverage(maps, 0x1000, 0x3000), Some(true));
        assert_eq!(coverage(maps, 0x2000, 0x4000), Some(false));
        assert_eq!(coverage(maps, 0x3000, 0x5000), None);
        assert_eq!(coverage(maps, 0x5000, 0x6000), None);
        assert_eq!(coverage(maps, 0x6000, 0x7000), None);
    }

    #[test]
    fn writable_distinguishes_writable_read_only_and_unmapped_pages() {
        let map = |prot| {
            // SAFETY: a fresh private mapping.
            let at = unsafe {
                libc::mmap(
                    core::ptr::null_mut(),
                    2 * PAGE_BYTES as usize,
                    prot,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                    -1,
                    0,
                )
            };
            assert_ne!(at, libc::MAP_FAILED);
            at as u64
        };
        let size = 2 * PAGE_BYTES;
        let rw = map(libc::PROT_READ | libc::PROT_WRITE);
        assert_eq!(writable(rw, rw + size), Some(true));
        let ro = map(libc::PROT_READ);
        assert_eq!(writable(ro, ro + size), Some(false));
        let none = map(libc::PROT_NONE);
        assert_eq!(writable(none, none + size), None);
        // SAFETY: mapped by this test and unused from here on.
        unsafe { libc::munmap(rw as *mut _, size as usize) };
        assert_eq!(writable(rw, rw + size), None);
    }
}
