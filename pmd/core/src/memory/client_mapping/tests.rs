use super::*;
use crate::memory::copy;
use crate::memory::testkit::{
    filled_file, locked_mappings_of, map_file, mappings_of, memory_file, punch, sealed_file,
    unlockable_memory,
};

fn refused(fd: OwnedFd, offset_bytes: u64, bytes: u64) -> MapError {
    MappedMemory::map(fd, offset_bytes, bytes).expect_err("not mapped")
}

#[test]
fn sealed_memory_is_mapped_at_the_requested_offset() {
    let fd = sealed_file(3 * PAGE_BYTES);
    let whole = MappedMemory::map(fd.try_clone().unwrap(), 0, 3 * PAGE_BYTES).unwrap();
    let last = MappedMemory::map(fd, 2 * PAGE_BYTES, PAGE_BYTES).unwrap();
    assert_eq!(last.len_bytes(), PAGE_BYTES);
    // SAFETY: inside the mapping.
    unsafe { copy::write(last.address() + 7, b"seen") };
    let mut seen = [0; 4];
    // SAFETY: likewise.
    unsafe { copy::read(whole.address() + 2 * PAGE_BYTES + 7, &mut seen) };
    assert_eq!(&seen, b"seen");
    assert!(!whole.is_lost() && !last.is_lost());
}

#[test]
fn memory_is_unmapped_on_drop() {
    let fd = sealed_file(PAGE_BYTES);
    let memory = MappedMemory::map(fd.try_clone().unwrap(), 0, PAGE_BYTES).unwrap();
    assert_eq!(mappings_of(&fd), 1);
    drop(memory);
    assert_eq!(mappings_of(&fd), 0);
}

#[test]
fn locked_pages_stay_in_memory_until_they_are_unmapped() {
    let bytes = LOCK_PIECE_BYTES + PAGE_BYTES;
    let fd = sealed_file(bytes);
    let memory = MappedMemory::map(fd.try_clone().unwrap(), 0, bytes).unwrap();
    assert_eq!(locked_mappings_of(&fd), 0);
    let last = memory.range(LOCK_PIECE_BYTES, PAGE_BYTES).unwrap();
    assert_eq!(last.lock_pages(), Ok(()));
    assert_eq!(
        (locked_mappings_of(&fd), mappings_of(&fd)),
        (1, 1),
        "all of it"
    );
    assert_eq!((memory.lock_pages(), memory.lock_error()), (Ok(()), None));
}

#[test]
fn memory_that_cannot_be_locked_reports_the_error_and_stays_unlocked() {
    let fd = sealed_file(2 * PAGE_BYTES);
    let memory = unlockable_memory(&fd);
    assert_eq!(memory.lock_error(), None, "not attempted");
    for _ in 0..2 {
        assert_eq!(memory.lock_pages(), Err(libc::ENOMEM));
    }
    assert_eq!(memory.lock_error(), Some(libc::ENOMEM));
    assert_eq!((locked_mappings_of(&fd), mappings_of(&fd)), (0, 1));
}

#[test]
fn memory_that_can_shrink_is_refused() {
    for (flags, seals) in [
        (0, 0),
        (libc::MFD_ALLOW_SEALING, 0),
        (libc::MFD_ALLOW_SEALING, libc::F_SEAL_GROW),
    ] {
        let refused = refused(memory_file(flags, PAGE_BYTES, seals), 0, PAGE_BYTES);
        assert!(matches!(refused, MapError::CanShrink), "{refused}");
        assert!(refused.to_string().contains("F_SEAL_SHRINK"), "the remedy");
    }
}

#[test]
fn short_memory_is_refused_and_a_partial_last_page_accepted() {
    let refused = refused(sealed_file(2 * PAGE_BYTES), PAGE_BYTES, 2 * PAGE_BYTES);
    let MapError::TooShort {
        have_bytes,
        end_bytes,
    } = refused
    else {
        panic!("{refused}");
    };
    assert_eq!((have_bytes, end_bytes), (2 * PAGE_BYTES, 3 * PAGE_BYTES));
    let shrunk = memory_file(libc::MFD_ALLOW_SEALING, 2 * PAGE_BYTES, 0);
    let file = fs::File::from(shrunk);
    file.set_len(0).unwrap();
    let fd = OwnedFd::from(file);
    // SAFETY: passes integers only.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
    let refused = MappedMemory::map(fd, 0, PAGE_BYTES).unwrap_err();
    assert!(matches!(refused, MapError::TooShort { have_bytes: 0, .. }));
    MappedMemory::map(sealed_file(PAGE_BYTES + 1), PAGE_BYTES, PAGE_BYTES).unwrap();
}

#[test]
fn files_other_than_memfd_are_refused() {
    let directory = std::env::temp_dir().join(format!("mapped-{}", std::process::id()));
    let file = fs::File::create_new(&directory).unwrap();
    file.set_len(PAGE_BYTES).unwrap();
    fs::remove_file(&directory).unwrap();
    let (pipe, _writer) = io::pipe().unwrap();
    for fd in [OwnedFd::from(file), OwnedFd::from(pipe)] {
        let refused = refused(fd, 0, PAGE_BYTES);
        let wrong = matches!(refused, MapError::NotMemory | MapError::CanShrink);
        assert!(wrong, "{refused}");
    }
    // SAFETY: the name is a terminated string.
    let huge = unsafe {
        libc::memfd_create(
            c"huge".as_ptr(),
            libc::MFD_HUGETLB | libc::MFD_ALLOW_SEALING,
        )
    };
    if huge < 0 {
        // The kernel has no huge pages.
        return;
    }
    // SAFETY: the descriptor is new and not owned elsewhere.
    let huge = unsafe { std::os::fd::FromRawFd::from_raw_fd(huge) };
    let refused = refused(huge, 0, PAGE_BYTES);
    assert!(matches!(refused, MapError::NotMemory), "{refused}");
    assert!(refused.to_string().contains("MFD_HUGETLB"), "the remedy");
}

#[test]
fn memory_that_cannot_be_written_is_refused() {
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_WRITE;
    let sealed = memory_file(libc::MFD_ALLOW_SEALING, PAGE_BYTES, seals);
    let refused = refused(sealed, 0, PAGE_BYTES);
    assert!(matches!(refused, MapError::System(_)), "{refused}");
}

#[test]
fn unaligned_and_empty_ranges_are_refused() {
    for (offset, bytes) in [
        (0, 0),
        (1, PAGE_BYTES),
        (0, PAGE_BYTES - 1),
        (PAGE_BYTES, u64::MAX - PAGE_BYTES + 1),
    ] {
        let refused = refused(sealed_file(2 * PAGE_BYTES), offset, bytes);
        assert!(
            matches!(refused, MapError::BadRange),
            "{offset} {bytes}: {refused}"
        );
    }
}

#[test]
fn mappings_for_clients_are_limited() {
    for (max_map_count, limit) in [
        (Some("65530\n"), 49146),
        (None, 49146),
        (Some("no number"), 49146),
        (Some("1000000\n"), 49152),
        (Some("1000\n"), 750),
    ] {
        assert_eq!(client_limit(max_map_count), limit, "{max_map_count:?}");
    }
    static FEW: Budget = Budget {
        used: AtomicU32::new(0),
        limit: OnceLock::new(),
    };
    FEW.limit.set(2).unwrap();
    let fd = sealed_file(PAGE_BYTES);
    let map = |bytes| MappedMemory::map_for_client(fd.as_fd(), (0, bytes), &FEW);
    let first = map(PAGE_BYTES).unwrap();
    let impossible = map(PAGE_BYTES + 1).unwrap_err();
    assert!(matches!(impossible, MapError::BadRange), "{impossible}");
    let _second = map(PAGE_BYTES).unwrap();
    let third = map(PAGE_BYTES).unwrap_err();
    assert!(matches!(third, MapError::TooMany { limit: 2 }), "{third}");
    assert!(third.to_string().contains("vm.max_map_count"), "{third}");
    assert_eq!(mappings_of(&fd), 2);
    let range = first.range(0, PAGE_BYTES).unwrap();
    drop(first);
    assert!(map(PAGE_BYTES).is_err(), "a range of it is left");
    drop(range);
    assert!(map(PAGE_BYTES).is_ok());
}

fn client_file(fd: &OwnedFd) -> ClientFile {
    ClientFile::of(fd.try_clone().unwrap()).unwrap()
}

#[test]
fn mapped_client_file_cannot_be_punched_or_mapped_again() {
    let fd = filled_file(3 * PAGE_BYTES);
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let own = map_file(&fd, 3 * PAGE_BYTES, rights).as_ptr() as u64;
    assert!(punch(&fd, PAGE_BYTES, 1), "less than a page makes no hole");
    let whole = client_file(&fd).map(|| true).unwrap();
    assert!(!punch(&fd, 0, PAGE_BYTES));
    let pages = own as *mut libc::c_void;
    // SAFETY: pages of this test; the call is refused.
    let removed = unsafe { libc::madvise(pages, PAGE_BYTES as usize, libc::MADV_REMOVE) };
    assert_eq!(removed, -1);
    // SAFETY: inside the mappings.
    unsafe { copy::write(own + 5, b"still") };
    let mut seen = [0; 5];
    let range = whole.range(0, PAGE_BYTES).unwrap();
    // SAFETY: likewise.
    unsafe { copy::read(range.address() + 5, &mut seen) };
    assert_eq!(&seen, b"still");
    let again = client_file(&fd).map(|| true).unwrap_err();
    assert!(matches!(again, MapError::SealedBefore), "{again}");
    let beyond = whole.range(2 * PAGE_BYTES, 2 * PAGE_BYTES).unwrap_err();
    assert!(matches!(beyond, MapError::TooShort { .. }), "{beyond}");
}

#[test]
fn client_file_whose_last_page_is_partial_is_mapped() {
    let fd = filled_file(PAGE_BYTES + 1);
    let file = client_file(&fd);
    assert_eq!(file.bytes(), 2 * PAGE_BYTES);
    assert_eq!(file.map(|| true).unwrap().len_bytes(), 2 * PAGE_BYTES);
}

#[test]
fn client_file_of_an_application_that_ends_is_unmapped() {
    let fd = filled_file(PAGE_BYTES);
    let refused = client_file(&fd).map(|| false).unwrap_err();
    assert!(matches!(refused, MapError::Interrupted), "{refused}");
    assert_eq!(mappings_of(&fd), 0);
}

#[test]
fn client_file_check_keeps_the_file_position_of_its_owner() {
    use std::io::{Seek, Write};
    let fd = filled_file(2 * PAGE_BYTES);
    let mut owners = fs::File::from(fd.try_clone().unwrap());
    owners.rewind().unwrap();
    owners.write_all(b"here").unwrap();
    client_file(&fd).map(|| true).unwrap();
    assert_eq!(owners.stream_position().unwrap(), 4);
}
