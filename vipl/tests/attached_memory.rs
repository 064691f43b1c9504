//! Shared memory of a program that is attached to a datapath process: mapped once, and kept mapped while the program
//! may register it again.

mod common;

use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use common::datapath::{DatapathProcess, with_process};
use common::forked::in_forked_child;
use common::{READ_WRITE, raw, wait_until};
use vipl::{Nic, Ptag, SharedMemory, VipError, provider};

const PAGE_BYTES: u64 = 4096;
const PAGES: u64 = 16;
const BYTES: u64 = PAGES * PAGE_BYTES;
/// Quota for two blocks of [`BYTES`].
const QUOTA: &str = "foreign_memory = false\n[process.quota]\nmax_registered_bytes = 131072";

/// A NIC handle with a tag.
struct AttachedNic {
    ptag: Ptag,
    nic: Nic,
}

impl AttachedNic {
    fn new(process: &DatapathProcess) -> Self {
        let nic = process.attach();
        let ptag = nic.create_ptag().unwrap();
        Self { ptag, nic }
    }

    fn register(&self, address: u64, bytes: u64) -> Result<vipl::MemoryHandle, VipError> {
        let ptag = Some(self.ptag.handle());
        raw::register(self.nic.handle(), ptag, address, bytes as usize, READ_WRITE)
    }

    fn register_and_deregister(&self, address: u64, bytes: u64) {
        let region = self.register(address, bytes).unwrap();
        provider::deregister_mem(self.nic.handle(), address, region).unwrap();
    }
}

fn address_of(memory: &SharedMemory) -> u64 {
    memory.address().as_ptr() as u64
}

/// Counts the files of this name and of [`BYTES`] that the process has mapped.
fn mapped_files(process: &DatapathProcess, name: &str) -> usize {
    let maps = fs::read_to_string(format!("/proc/{}/maps", process.id())).unwrap();
    let size = |line: &&str| {
        let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        line.contains(name) && number(to) - number(from) == BYTES
    };
    maps.lines().filter(size).count()
}

/// Waits until the process has this number of files mapped: a close by another test may report memory that this one
/// has freed.
fn await_files(process: &DatapathProcess, name: &str, count: usize) {
    wait_until("the files are mapped", || {
        mapped_files(process, name) == count
    });
}

#[test]
fn shared_memory_is_reregistered_by_range_handle_and_child() {
    let test = "shared_memory_is_reregistered_by_range_handle_and_child";
    with_process(test, QUOTA, |process| {
        let memory = SharedMemory::allocate(BYTES as usize).unwrap();
        let at = address_of(&memory);
        let first = AttachedNic::new(process);
        let whole = first.register(at, BYTES).unwrap();
        for page in 0..PAGES {
            first.register_and_deregister(at + page * PAGE_BYTES, PAGE_BYTES);
        }
        let second = AttachedNic::new(process);
        second.register_and_deregister(at, BYTES);
        assert_eq!(mapped_files(process, "/memfd:viaduct"), 1);
        provider::deregister_mem(first.nic.handle(), at, whole).unwrap();
        drop((first, second));
        for _ in 0..20 {
            let again = AttachedNic::new(process);
            again.register_and_deregister(at, BYTES);
            again.register_and_deregister(at + PAGE_BYTES, PAGE_BYTES);
        }
        assert_eq!(mapped_files(process, "/memfd:viaduct"), 1);
        in_forked_child(|| {
            AttachedNic::new(process).register_and_deregister(at, BYTES);
            true
        });
        AttachedNic::new(process).register_and_deregister(at, BYTES);
        drop(memory);
        // The mapping of the child is removed shortly after its exit.
        await_files(process, "/memfd:viaduct", 0);
    });
}

#[test]
fn freed_memory_is_unmapped_and_returned_to_the_quota() {
    let test = "freed_memory_is_unmapped_and_returned_to_the_quota";
    with_process(test, QUOTA, |process| {
        let attached = AttachedNic::new(process);
        let kept = SharedMemory::allocate(BYTES as usize).unwrap();
        let region = attached.register(address_of(&kept), PAGE_BYTES).unwrap();
        for _ in 0..50 {
            let memory = SharedMemory::allocate(BYTES as usize).unwrap();
            attached.register_and_deregister(address_of(&memory), BYTES);
            assert_eq!(mapped_files(process, "/memfd:viaduct"), 2);
            drop(memory);
            await_files(process, "/memfd:viaduct", 1);
        }
        let long = SharedMemory::allocate(2 * BYTES as usize).unwrap();
        let refused = attached.register(address_of(&long), PAGE_BYTES);
        assert_eq!(
            refused,
            Err(VipError::ErrorResource),
            "the whole file exceeds the quota"
        );
        provider::deregister_mem(attached.nic.handle(), address_of(&kept), region).unwrap();
        // Memory that is freed after the NIC was closed is unmapped, too.
        drop(attached);
        assert_eq!(mapped_files(process, "/memfd:viaduct"), 1);
        drop(kept);
        await_files(process, "/memfd:viaduct", 0);
    });
}

/// Maps a memfd of the application, without touching a page.
fn application_memfd() -> (OwnedFd, u64) {
    // SAFETY: the name is a terminated string.
    let fd = unsafe { libc::memfd_create(c"own".as_ptr(), libc::MFD_ALLOW_SEALING) };
    // SAFETY: the descriptor is new and owned by no other value.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let raw = fd.as_raw_fd();
    // SAFETY: accesses no memory of this process.
    let resized = unsafe { libc::ftruncate(raw, BYTES as libc::off_t) };
    // SAFETY: likewise.
    let sealed = unsafe { libc::fcntl(raw, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
    assert_eq!((resized, sealed), (0, 0));
    let (rights, anywhere) = (libc::PROT_READ | libc::PROT_WRITE, core::ptr::null_mut());
    // SAFETY: a fresh mapping.
    let at = unsafe { libc::mmap(anywhere, BYTES as usize, rights, libc::MAP_SHARED, raw, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    (fd, at as u64)
}

#[test]
fn application_memfd_is_unmapped_in_the_process_after_munmap() {
    let test = "application_memfd_is_unmapped_in_the_process_after_munmap";
    with_process(test, QUOTA, |process| {
        let attached = AttachedNic::new(process);
        for _ in 0..20 {
            let (fd, at) = application_memfd();
            attached.register_and_deregister(at + PAGE_BYTES, PAGE_BYTES);
            attached.register_and_deregister(at, BYTES);
            // The previous ones are unmapped.
            await_files(process, "/memfd:own", 1);
            // SAFETY: mapped above and no longer used.
            unsafe { libc::munmap(at as *mut libc::c_void, BYTES as usize) };
            drop(fd);
        }
        drop(attached);
        await_files(process, "/memfd:own", 0);
    });
}

#[test]
fn memory_mapped_by_an_exited_process_uses_system_calls() {
    let test = "memory_mapped_by_an_exited_process_uses_system_calls";
    let mut memory = None;
    with_process(test, "", |first| {
        let memory = memory.insert(SharedMemory::allocate(BYTES as usize).unwrap());
        AttachedNic::new(first).register_and_deregister(address_of(memory), BYTES);
        assert_eq!(mapped_files(first, "/memfd:viaduct"), 1);
    });
    let memory = memory.unwrap();
    let at = address_of(&memory);
    with_process(test, "", |second| {
        AttachedNic::new(second).register_and_deregister(at, BYTES);
        assert_eq!(mapped_files(second, "/memfd:viaduct"), 0);
        let new_memory = SharedMemory::allocate(BYTES as usize).unwrap();
        AttachedNic::new(second).register_and_deregister(address_of(&new_memory), BYTES);
        assert_eq!(mapped_files(second, "/memfd:viaduct"), 1);
    });
    with_process(test, "foreign_memory = false", |strict| {
        let refused = AttachedNic::new(strict).register(at, BYTES);
        assert_eq!(refused, Err(VipError::ErrorResource));
    });
}
