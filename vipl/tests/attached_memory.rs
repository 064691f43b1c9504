//! Shared memory of a program that is attached to a datapath process: mapped once, and kept while
//! the program may register it again.

mod common;

use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use common::datapath::{DatapathProcess, has_served};
use vipl::{MemAttributes, Nic, Ptag, SharedMemory, VipError, provider};

const PAGE_BYTES: u64 = 4096;
const PAGES: u64 = 16;
const BYTES: u64 = PAGES * PAGE_BYTES;
/// Of two such pieces, and nothing else.
const QUOTA: &str = "foreign_memory = false\n[process.quota]\nmax_registered_bytes = 131072";

/// An opening with a tag.
struct Opening {
    ptag: Ptag,
    nic: Nic,
}

impl Opening {
    fn new(process: &DatapathProcess) -> Self {
        let nic = Nic::attach(&process.socket(), "VINIC0").unwrap();
        let ptag = nic.create_ptag().unwrap();
        Self { ptag, nic }
    }

    fn register(&self, address: u64, bytes: u64) -> Result<vipl::MemoryHandle, VipError> {
        let attributes = MemAttributes {
            ptag: Some(self.ptag.handle()),
            rdma_write: true,
            rdma_read: true,
        };
        // SAFETY: the memory outlives the registration.
        unsafe { provider::register_mem(self.nic.handle(), address, bytes, &attributes) }
    }

    fn register_and_deregister(&self, address: u64, bytes: u64) {
        let region = self.register(address, bytes).unwrap();
        provider::deregister_mem(self.nic.handle(), address, region).unwrap();
    }
}

fn address_of(memory: &SharedMemory) -> u64 {
    memory.address().as_ptr() as u64
}

/// How many files of applications the process has mapped, beside rings.
fn files_of(process: &DatapathProcess, name: &str) -> usize {
    let maps = fs::read_to_string(format!("/proc/{}/maps", process.id())).unwrap();
    let size = |line: &&str| {
        let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        line.contains(name) && number(to) - number(from) == BYTES
    };
    maps.lines().filter(size).count()
}

/// Waits until the process has so many files mapped: a close of another test may report what this one has freed.
fn await_files(process: &DatapathProcess, name: &str, count: usize) {
    common::persist_while(VipError::ErrorResource, || {
        let is_so = files_of(process, name) == count;
        is_so.then_some(()).ok_or(VipError::ErrorResource)
    })
    .unwrap();
}

#[test]
fn memory_is_registered_again_in_ranges_openings_and_children() {
    if has_served() {
        return;
    }
    let test = "memory_is_registered_again_in_ranges_openings_and_children";
    let process = DatapathProcess::start(test, QUOTA);
    let memory = SharedMemory::allocate(BYTES as usize).unwrap();
    let at = address_of(&memory);
    let first = Opening::new(&process);
    let whole = first.register(at, BYTES).unwrap();
    for page in 0..PAGES {
        first.register_and_deregister(at + page * PAGE_BYTES, PAGE_BYTES);
    }
    let second = Opening::new(&process);
    second.register_and_deregister(at, BYTES);
    assert_eq!(files_of(&process, "/memfd:viaduct"), 1);
    provider::deregister_mem(first.nic.handle(), at, whole).unwrap();
    drop((first, second));
    for _ in 0..20 {
        let again = Opening::new(&process);
        again.register_and_deregister(at, BYTES);
        again.register_and_deregister(at + PAGE_BYTES, PAGE_BYTES);
    }
    assert_eq!(files_of(&process, "/memfd:viaduct"), 1);
    // SAFETY: the child runs this program's own code and ends without its destructors.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let done = std::panic::catch_unwind(|| {
            let own = Opening::new(&process);
            own.register_and_deregister(at, BYTES);
        });
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    let mut status = 0;
    // SAFETY: a child of ours, and an integer of this frame.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0, "the child could not register it");
    Opening::new(&process).register_and_deregister(at, BYTES);
    drop(memory);
    // That of the child goes with it, a moment after it.
    await_files(&process, "/memfd:viaduct", 0);
    process.stop();
}

#[test]
fn freed_memory_leaves_the_process_and_the_quota() {
    if has_served() {
        return;
    }
    let test = "freed_memory_leaves_the_process_and_the_quota";
    let process = DatapathProcess::start(test, QUOTA);
    let opening = Opening::new(&process);
    let kept = SharedMemory::allocate(BYTES as usize).unwrap();
    let region = opening.register(address_of(&kept), PAGE_BYTES).unwrap();
    for _ in 0..50 {
        let memory = SharedMemory::allocate(BYTES as usize).unwrap();
        opening.register_and_deregister(address_of(&memory), BYTES);
        assert_eq!(files_of(&process, "/memfd:viaduct"), 2);
        drop(memory);
        await_files(&process, "/memfd:viaduct", 1);
    }
    let long = SharedMemory::allocate(2 * BYTES as usize).unwrap();
    let refused = opening.register(address_of(&long), PAGE_BYTES);
    assert_eq!(
        refused,
        Err(VipError::ErrorResource),
        "as a whole it is too long"
    );
    provider::deregister_mem(opening.nic.handle(), address_of(&kept), region).unwrap();
    // What is freed after the NIC was closed leaves it, too.
    drop(opening);
    assert_eq!(files_of(&process, "/memfd:viaduct"), 1);
    drop(kept);
    await_files(&process, "/memfd:viaduct", 0);
    process.stop();
}

/// Memory of the program's own, without a page that was touched.
fn own_memory() -> (OwnedFd, u64) {
    // SAFETY: the name is a terminated string.
    let fd = unsafe { libc::memfd_create(c"own".as_ptr(), libc::MFD_ALLOW_SEALING) };
    // SAFETY: the descriptor is new and nobody else has it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let raw = fd.as_raw_fd();
    // SAFETY: takes no memory of ours.
    let cut = unsafe { libc::ftruncate(raw, BYTES as libc::off_t) };
    // SAFETY: likewise.
    let sealed = unsafe { libc::fcntl(raw, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
    assert_eq!((cut, sealed), (0, 0));
    let (rights, anywhere) = (libc::PROT_READ | libc::PROT_WRITE, core::ptr::null_mut());
    // SAFETY: a fresh mapping.
    let at = unsafe { libc::mmap(anywhere, BYTES as usize, rights, libc::MAP_SHARED, raw, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    (fd, at as u64)
}

#[test]
fn memory_of_the_programs_own_leaves_the_process_after_it_was_unmapped() {
    if has_served() {
        return;
    }
    let test = "memory_of_the_programs_own_leaves_the_process_after_it_was_unmapped";
    let process = DatapathProcess::start(test, QUOTA);
    let opening = Opening::new(&process);
    for _ in 0..20 {
        let (fd, at) = own_memory();
        opening.register_and_deregister(at + PAGE_BYTES, PAGE_BYTES);
        opening.register_and_deregister(at, BYTES);
        // Not those before.
        await_files(&process, "/memfd:own", 1);
        // SAFETY: mapped above and used by nobody any more.
        unsafe { libc::munmap(at as *mut libc::c_void, BYTES as usize) };
        drop(fd);
    }
    drop(opening);
    await_files(&process, "/memfd:own", 0);
    process.stop();
}

#[test]
fn memory_that_an_ended_process_had_mapped_is_reached_by_system_calls() {
    if has_served() {
        return;
    }
    let test = "memory_that_an_ended_process_had_mapped_is_reached_by_system_calls";
    let memory = SharedMemory::allocate(BYTES as usize).unwrap();
    let at = address_of(&memory);
    let first = DatapathProcess::start(test, "");
    Opening::new(&first).register_and_deregister(at, BYTES);
    assert_eq!(files_of(&first, "/memfd:viaduct"), 1);
    first.stop();
    let second = DatapathProcess::start(test, "");
    Opening::new(&second).register_and_deregister(at, BYTES);
    assert_eq!(files_of(&second, "/memfd:viaduct"), 0);
    let anew = SharedMemory::allocate(BYTES as usize).unwrap();
    Opening::new(&second).register_and_deregister(address_of(&anew), BYTES);
    assert_eq!(files_of(&second, "/memfd:viaduct"), 1);
    second.stop();
    let strict = DatapathProcess::start(test, "foreign_memory = false");
    let refused = Opening::new(&strict).register(at, BYTES);
    assert_eq!(refused, Err(VipError::ErrorResource));
    strict.stop();
}
