use super::*;
use crate::memory::client_mapping::MappedMemory;
use crate::memory::testkit::mappings_of;
use crate::memory::{copy, find_memfd};

fn bytes_at(address: u64, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    // SAFETY: mapped memory of the test.
    unsafe { copy::read(address, &mut out) };
    out
}

#[test]
fn memory_is_whole_pages_of_zeros() {
    for (asked, given) in [(1, 4096), (4096, 4096), (4097, 8192)] {
        let memory = SharedMemory::allocate(asked).unwrap();
        assert_eq!(memory.len_bytes(), given);
        let at = key(memory.address());
        assert!(at.is_multiple_of(PAGE_BYTES));
        assert!(bytes_at(at, given).iter().all(|b| *b == 0));
        // SAFETY: the last byte.
        unsafe { copy::write(at + given as u64 - 1, &[7]) };
        assert_eq!(bytes_at(at + given as u64 - 1, 1), [7]);
    }
    for bytes in [0, usize::MAX, usize::MAX - 5000] {
        let refused = SharedMemory::allocate(bytes).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL), "{bytes}");
    }
    let refused = SharedMemory::allocate(1 << 62).unwrap_err();
    assert!(refused.raw_os_error().is_some(), "{refused}");
}

#[test]
fn allocation_can_be_mapped_by_another_process() {
    let memory = SharedMemory::allocate(3 * 4096).unwrap();
    let at = key(memory.address());
    let range = find_memfd(at + 5000, 100).unwrap().unwrap();
    assert_eq!(range.offset_bytes, 4096);
    let fd = range.memory.try_clone().unwrap();
    let theirs = MappedMemory::map(range.memory, range.offset_bytes, 4096).unwrap();
    // SAFETY: inside the mapping.
    unsafe { copy::write(theirs.address() + (5000 - 4096), b"theirs") };
    assert_eq!(bytes_at(at + 5000, 6), b"theirs");
    // A mapping of another process outlives the allocation.
    drop(memory);
    assert_eq!(bytes_at(theirs.address() + (5000 - 4096), 6), b"theirs");
    assert_eq!(mappings_of(&fd), 1, "theirs");
}

#[test]
fn range_beyond_its_allocation_is_not_found() {
    let memory = SharedMemory::allocate(2 * 4096).unwrap();
    let at = key(memory.address());
    assert!(find(at, at + 2 * 4096).unwrap().is_some());
    assert!(find(at, at + 3 * 4096).unwrap().is_none());
    assert!(find(at + 4096, at + 3 * 4096).unwrap().is_none());
    // Below: nothing, or an allocation of another test that ends there.
    assert!(find(at - 4096, at + 4096).unwrap().is_none());
}

#[test]
fn from_raw_takes_an_address_back_once() {
    // SAFETY: the addresses of this test are not used.
    let take = |address| unsafe { SharedMemory::from_raw(address) };
    let memory = SharedMemory::allocate(1).unwrap();
    let address = memory.address();
    assert!(take(address).is_none(), "it has an owner");
    let raw = memory.into_raw();
    assert_eq!(raw, address);
    // SAFETY: one byte on, inside the allocation.
    let inside = unsafe { raw.add(1) };
    assert!(take(inside).is_none(), "not its start");
    let memory = take(raw).unwrap();
    assert!(take(raw).is_none(), "it has an owner again");
    assert_eq!(memory.len_bytes(), 4096);
    let fd = find(key(raw), key(raw) + 4096).unwrap().unwrap().memory;
    assert_eq!(mappings_of(&fd), 1);
    drop(memory);
    assert_eq!(mappings_of(&fd), 0);
}

#[test]
fn memory_is_shared_with_a_forked_child() {
    let memory = SharedMemory::allocate(1).unwrap();
    let at = key(memory.address());
    // SAFETY: the child calls only what may be called after a fork.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: inside the allocation.
        unsafe { copy::write(at, b"child") };
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: a child of this process; no status is written.
    assert_eq!(unsafe { libc::waitpid(pid, core::ptr::null_mut(), 0) }, pid);
    assert_eq!(bytes_at(at, 5), b"child");
}
