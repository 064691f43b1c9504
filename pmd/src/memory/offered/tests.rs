use super::*;
use crate::memory::mapped::{ClientFile, MapError, MappedMemory};
use crate::memory::testkit::{map_file, map_private, memory_file, sealed_file};

const PAGE: u64 = 4096;
const RW: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

fn offered(address: u64, bytes: u64) -> Option<Offered> {
    shared_memory_of(address, bytes).unwrap()
}

fn unmap(address: u64, bytes: u64) {
    // SAFETY: mapped by a test and used by nobody any more.
    unsafe { libc::munmap(address as *mut libc::c_void, bytes as usize) };
}

#[test]
fn sealed_memory_that_the_program_mapped_itself_can_be_offered() {
    let fd = sealed_file(4 * PAGE);
    let at = map_file(&fd, 4 * PAGE, RW).as_ptr() as u64;
    let found = offered(at + PAGE + 10, PAGE).unwrap();
    assert_eq!(found.offset_bytes, PAGE);
    let theirs = MappedMemory::map(found.memory, found.offset_bytes, 2 * PAGE).unwrap();
    // SAFETY: inside the mapping.
    unsafe { crate::memory::copy::write(theirs.address() + 10, b"same") };
    let mut seen = [0; 4];
    // SAFETY: likewise.
    unsafe { crate::memory::copy::read(at + PAGE + 10, &mut seen) };
    assert_eq!(&seen, b"same");
    assert!(offered(at + 3 * PAGE, PAGE + 1).is_none(), "behind its end");
    drop(fd);
    assert!(offered(at, PAGE).is_none(), "the descriptor is closed");
    unmap(at, 4 * PAGE);
}

#[test]
fn offered_file_has_all_its_pages_unless_it_is_too_long() {
    let fd = sealed_file(4 * PAGE);
    let at = map_file(&fd, 4 * PAGE, RW).as_ptr() as u64;
    // SAFETY: the first page.
    unsafe { crate::memory::copy::write(at, b"kept") };
    let found = offered(at, PAGE).unwrap();
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
    let files = mapped_files().unwrap();
    let id = ClientFile::of(fd.try_clone().unwrap()).unwrap().id();
    assert!(files.contains(&id));
    unmap(at, 4 * PAGE);
    assert!(!mapped_files().unwrap().contains(&id));
}

#[test]
fn a_mapping_in_parts_is_one() {
    let fd = sealed_file(3 * PAGE);
    let at = map_file(&fd, 3 * PAGE, RW).as_ptr() as u64;
    let middle = (at + PAGE) as *mut libc::c_void;
    // SAFETY: a page of the mapping. The kernel keeps it apart from then on.
    let done = unsafe { libc::madvise(middle, PAGE as usize, libc::MADV_DONTDUMP) };
    assert_eq!(done, 0);
    assert!(offered(at, 3 * PAGE).is_some());
    // SAFETY: likewise.
    let done = unsafe { libc::mprotect(middle, PAGE as usize, libc::PROT_READ) };
    assert_eq!(done, 0);
    assert!(offered(at, 3 * PAGE).is_none(), "a page is read-only");
    assert!(offered(at, PAGE).is_some());
    unmap(at, 3 * PAGE);
}

#[test]
fn other_memory_cannot_be_offered() {
    let private = map_private(PAGE);
    assert!(offered(private, PAGE).is_none());
    assert!(offered(private, 0).is_none());
    assert!(offered(u64::MAX - 5, 100).is_none());
    unmap(private, PAGE);
    let unsealed = memory_file(libc::MFD_ALLOW_SEALING, PAGE, 0);
    let at = map_file(&unsealed, PAGE, RW).as_ptr() as u64;
    assert!(offered(at, PAGE).is_none(), "it can shrink");
    unmap(at, PAGE);
    let sealed = sealed_file(PAGE);
    let at = map_file(&sealed, PAGE, libc::PROT_READ).as_ptr() as u64;
    assert!(offered(at, PAGE).is_none(), "read-only");
    unmap(at, PAGE);
}

#[test]
fn a_descriptor_for_reading_only_cannot_be_offered() {
    let sealed = sealed_file(PAGE);
    let at = map_file(&sealed, PAGE, RW).as_ptr() as u64;
    let path = format!("/proc/self/fd/{}", sealed.as_raw_fd());
    let reader = fs::File::open(path).unwrap();
    assert!(offered(at, PAGE).is_some());
    drop(sealed);
    assert!(offered(at, PAGE).is_none());
    drop(reader);
    unmap(at, PAGE);
}

#[test]
fn lines_of_the_memory_map_are_understood() {
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
