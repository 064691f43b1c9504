use super::*;
use crate::memory::client_mapping::{ClientFile, MapError, MappedMemory};
use crate::memory::testkit::{map_file, map_private, memory_file, sealed_file};

const PAGE: u64 = 4096;
const RW: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

fn find(address: u64, bytes: u64) -> Option<MemfdRange> {
    find_memfd(address, bytes).unwrap()
}

fn unmap(address: u64, bytes: u64) {
    // SAFETY: mapped by a test and not used any more.
    unsafe { libc::munmap(address as *mut libc::c_void, bytes as usize) };
}

#[test]
fn sealed_memfd_that_the_program_mapped_is_found() {
    let fd = sealed_file(4 * PAGE);
    let at = map_file(&fd, 4 * PAGE, RW).as_ptr() as u64;
    let found = find(at + PAGE + 10, PAGE).unwrap();
    assert_eq!(found.offset_bytes, PAGE);
    let theirs = MappedMemory::map(found.memory, found.offset_bytes, 2 * PAGE).unwrap();
    // SAFETY: inside the mapping.
    unsafe { crate::memory::copy::write(theirs.address() + 10, b"same") };
    let mut seen = [0; 4];
    // SAFETY: likewise.
    unsafe { crate::memory::copy::read(at + PAGE + 10, &mut seen) };
    assert_eq!(&seen, b"same");
    assert!(find(at + 3 * PAGE, PAGE + 1).is_none(), "past its end");
    drop(fd);
    assert!(find(at, PAGE).is_none(), "the descriptor is closed");
    unmap(at, 4 * PAGE);
}

#[test]
fn allocate_pages_fills_the_file_up_to_the_limit() {
    let fd = sealed_file(4 * PAGE);
    let at = map_file(&fd, 4 * PAGE, RW).as_ptr() as u64;
    // SAFETY: the first page.
    unsafe { crate::memory::copy::write(at, b"kept") };
    let found = find(at, PAGE).unwrap();
    let map = || {
        ClientFile::of(fd.try_clone().unwrap())
            .unwrap()
            .map(|| true)
    };
    found.allocate_pages(3 * PAGE);
    let holes = map().unwrap_err();
    assert!(matches!(holes, MapError::Holes), "{holes}");
    found.allocate_pages(4 * PAGE);
    map().unwrap();
    let mut seen = [0; 4];
    // SAFETY: likewise.
    unsafe { crate::memory::copy::read(at, &mut seen) };
    assert_eq!(&seen, b"kept");
    let files = mapped_file_ids().unwrap();
    let id = ClientFile::of(fd.try_clone().unwrap()).unwrap().id();
    assert!(files.contains(&id));
    unmap(at, 4 * PAGE);
    assert!(!mapped_file_ids().unwrap().contains(&id));
}

#[test]
fn mapping_that_the_kernel_lists_in_parts_is_found() {
    let fd = sealed_file(3 * PAGE);
    let at = map_file(&fd, 3 * PAGE, RW).as_ptr() as u64;
    let middle = (at + PAGE) as *mut libc::c_void;
    // SAFETY: a page of the mapping. The kernel lists it separately from then on.
    let done = unsafe { libc::madvise(middle, PAGE as usize, libc::MADV_DONTDUMP) };
    assert_eq!(done, 0);
    assert!(find(at, 3 * PAGE).is_some());
    // SAFETY: likewise.
    let done = unsafe { libc::mprotect(middle, PAGE as usize, libc::PROT_READ) };
    assert_eq!(done, 0);
    assert!(find(at, 3 * PAGE).is_none(), "a page is read-only");
    assert!(find(at, PAGE).is_some());
    unmap(at, 3 * PAGE);
}

#[test]
fn private_unsealed_and_read_only_memory_is_not_found() {
    let private = map_private(PAGE);
    assert!(find(private, PAGE).is_none());
    assert!(find(private, 0).is_none());
    assert!(find(u64::MAX - 5, 100).is_none());
    unmap(private, PAGE);
    let unsealed = memory_file(libc::MFD_ALLOW_SEALING, PAGE, 0);
    let at = map_file(&unsealed, PAGE, RW).as_ptr() as u64;
    assert!(find(at, PAGE).is_none(), "it can shrink");
    unmap(at, PAGE);
    let sealed = sealed_file(PAGE);
    let at = map_file(&sealed, PAGE, libc::PROT_READ).as_ptr() as u64;
    assert!(find(at, PAGE).is_none(), "read-only");
    unmap(at, PAGE);
}

#[test]
fn memfd_with_a_read_only_descriptor_is_not_found() {
    let sealed = sealed_file(PAGE);
    let at = map_file(&sealed, PAGE, RW).as_ptr() as u64;
    let path = format!("/proc/self/fd/{}", sealed.as_raw_fd());
    let reader = fs::File::open(path).unwrap();
    assert!(find(at, PAGE).is_some());
    drop(sealed);
    assert!(find(at, PAGE).is_none());
    drop(reader);
    unmap(at, PAGE);
}

#[test]
fn memory_map_lines_are_parsed() {
    let maps = "\
1000-3000 rw-s 00002000 00:01 77 /memfd:a (deleted)
3000-4000 rw-s 00004000 00:01 77 /memfd:a (deleted)
4000-5000 rw-s 00004000 00:01 77 /memfd:a (deleted)
6000-7000 rw-p 00000000 00:00 0
7000-8000 rw-s 00000000 fd:1f 9 /b\n";
    let at = |offset_bytes| MappedFile {
        device: (0, 1),
        inode: 77,
        offset_bytes,
    };
    assert_eq!(mapped_file(maps, 0x1000, 0x2000), Some(at(0x2000)));
    assert_eq!(mapped_file(maps, 0x2000, 0x4000), Some(at(0x3000)));
    assert_eq!(
        mapped_file(maps, 0x3000, 0x5000),
        None,
        "the same page twice"
    );
    assert_eq!(mapped_file(maps, 0x4000, 0x6000), None, "a gap");
    assert_eq!(mapped_file(maps, 0x5000, 0x6000), None);
    assert_eq!(mapped_file(maps, 0x6000, 0x7000), None, "private");
    assert_eq!(mapped_file(maps, 0x6000, 0x8000), None);
    assert_eq!(
        mapped_file(maps, 0x7000, 0x8000).unwrap().device,
        (0xfd, 0x1f)
    );
    assert_eq!(mapped_file(maps, 0x8000, 0x9000), None);
    assert_eq!(mapped_file("nonsense\n", 0x1000, 0x2000), None);
}
