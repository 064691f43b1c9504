//! Test support: another process with memory of its own, and memory files.

use core::ptr::NonNull;
use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use crate::memory::client_mapping::MappedMemory;
use crate::memory::client_process::{ClientProcess, drop_cap_sys_ptrace};
use crate::memory::pages::PAGE_BYTES;

/// A forked child that does nothing and has pages which this process cannot access. It is killed on
/// drop, and when the thread that forked it ends.
pub struct Process {
    pid: libc::pid_t,
    /// Address of its pages; not accessible in this process.
    pub address: u64,
    /// Length of its pages.
    pub len_bytes: u64,
    /// `/proc/PID/mem`, for the test.
    memory: Option<File>,
}

impl Process {
    /// Forks a child with this many pages of zeros.
    pub fn with_pages(pages: u64) -> Self {
        Self::new(pages, 0, None)
    }

    /// Forks two such children.
    pub fn two_with_pages(pages: u64) -> [Self; 2] {
        let two = [(); 2].map(|()| Self::fork(pages * PAGE_BYTES, 0, None));
        drop_cap_sys_ptrace().unwrap();
        two
    }

    /// As [`Self::with_pages`], with the first page inaccessible.
    pub fn with_hole(pages: u64) -> Self {
        Self::new(pages, PAGE_BYTES, None)
    }

    /// Forks a child of another user; `None` without the privilege.
    pub fn of_another_user() -> Option<Self> {
        // SAFETY: takes no memory.
        let root = unsafe { libc::geteuid() } == 0;
        root.then(|| Self::new(1, 0, Some(65534)))
    }

    fn new(pages: u64, hole_bytes: u64, user: Option<libc::uid_t>) -> Self {
        let this = Self::fork(pages * PAGE_BYTES, hole_bytes, user);
        // After /proc/PID/mem is open, which may need the capability.
        drop_cap_sys_ptrace().unwrap();
        this
    }

    fn fork(len_bytes: u64, hole_bytes: u64, user: Option<libc::uid_t>) -> Self {
        let address = map_private(len_bytes);
        let hole = address as *mut libc::c_void;
        // SAFETY: a part of the pages, which are not used.
        let done = unsafe { libc::mprotect(hole, hole_bytes as usize, libc::PROT_NONE) };
        assert_eq!(done, 0);
        // SAFETY: the child makes only async-signal-safe calls.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "{}", io::Error::last_os_error());
        if pid == 0 {
            stop_forever(user);
        }
        // The child stops when it is set up.
        let mut status = 0;
        // SAFETY: a child of this process, and a local integer.
        let stopped = unsafe { libc::waitpid(pid, &raw mut status, libc::WUNTRACED) };
        assert!(stopped == pid && libc::WIFSTOPPED(status), "{status:x}");
        let start = address as *mut libc::c_void;
        // SAFETY: this process's copy of the pages, which is not used.
        let done = unsafe { libc::mprotect(start, len_bytes as usize, libc::PROT_NONE) };
        assert_eq!(done, 0, "{}", io::Error::last_os_error());
        let memory = File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"));
        Self {
            pid,
            address,
            len_bytes,
            memory: memory.ok(),
        }
    }

    /// Opens the process for access by system calls.
    pub fn client(&self) -> ClientProcess {
        ClientProcess::open(self.pid as u32).unwrap()
    }

    /// Reads bytes of its pages.
    pub fn read(&self, offset_bytes: u64, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        let memory = self.memory.as_ref().unwrap();
        memory
            .read_exact_at(&mut out, self.address + offset_bytes)
            .unwrap();
        out
    }

    /// Writes bytes to its pages.
    pub fn write(&self, offset_bytes: u64, bytes: &[u8]) {
        let memory = self.memory.as_ref().unwrap();
        memory
            .write_all_at(bytes, self.address + offset_bytes)
            .unwrap();
    }

    /// Kills the process. Its ID is not reused until this value is dropped.
    pub fn kill(&self) {
        // SAFETY: a child of this process that was not waited for.
        assert_eq!(unsafe { libc::kill(self.pid, libc::SIGKILL) }, 0);
        let mut info = core::mem::MaybeUninit::<libc::siginfo_t>::uninit();
        let flags = libc::WEXITED | libc::WNOWAIT;
        // SAFETY: writes a local structure; WNOWAIT leaves the child waitable.
        let done = unsafe { libc::waitid(libc::P_PID, self.pid as u32, info.as_mut_ptr(), flags) };
        assert_eq!(done, 0);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SAFETY: a child of this process that was not waited for.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        // SAFETY: writes no status.
        unsafe { libc::waitpid(self.pid, core::ptr::null_mut(), 0) };
        // SAFETY: mapped in `fork` and not used.
        unsafe { libc::munmap(self.address as *mut libc::c_void, self.len_bytes as usize) };
    }
}

fn stop_forever(user: Option<libc::uid_t>) -> ! {
    if let Some(user) = user {
        // SAFETY: takes no memory; the child has one thread.
        let done = unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) };
        if done != 0 {
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(1) };
        }
    }
    // SAFETY: as above.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    loop {
        // SAFETY: likewise.
        unsafe { libc::raise(libc::SIGSTOP) };
    }
}

/// Maps zeroed private pages.
pub fn map_private(len_bytes: u64) -> u64 {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping.
    let at = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            len_bytes as usize,
            rights,
            kind,
            -1,
            0,
        )
    };
    assert_ne!(at, libc::MAP_FAILED);
    at as u64
}

/// Creates a memfd with these flags, of this length, with these seals.
pub fn memory_file(flags: libc::c_uint, bytes: u64, seals: libc::c_int) -> OwnedFd {
    // SAFETY: the name is a terminated string.
    let fd = unsafe { libc::memfd_create(c"test".as_ptr(), flags | libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    // SAFETY: the descriptor is new and not owned elsewhere.
    let owned = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: passes integers only.
    let cut = unsafe { libc::ftruncate(fd, bytes as libc::off_t) };
    assert_eq!(cut, 0);
    // SAFETY: likewise.
    let sealed = seals == 0 || unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) } == 0;
    assert!(sealed, "{}", io::Error::last_os_error());
    owned
}

/// As [`memory_file`], sealed as an application would pass it.
pub fn sealed_file(bytes: u64) -> OwnedFd {
    memory_file(libc::MFD_ALLOW_SEALING, bytes, libc::F_SEAL_SHRINK)
}

/// As [`sealed_file`], with all pages allocated.
pub fn filled_file(bytes: u64) -> OwnedFd {
    let file = File::from(sealed_file(bytes));
    file.write_all_at(&vec![0; bytes as usize], 0).unwrap();
    file.into()
}

/// Punches a hole into a file; returns false if that is refused.
pub fn punch(fd: &OwnedFd, offset_bytes: u64, bytes: u64) -> bool {
    use std::os::fd::AsRawFd;
    let (at, len) = (offset_bytes as libc::off_t, bytes as libc::off_t);
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: passes integers only.
    unsafe { libc::fallocate(fd.as_raw_fd(), mode, at, len) == 0 }
}

/// Maps a whole file, shared.
pub fn map_file(fd: &OwnedFd, bytes: u64, rights: libc::c_int) -> NonNull<u8> {
    use std::os::fd::AsRawFd;
    // SAFETY: a fresh mapping.
    let at = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            bytes as usize,
            rights,
            libc::MAP_SHARED,
            fd.as_raw_fd(),
            0,
        )
    };
    assert_ne!(at, libc::MAP_FAILED, "{}", io::Error::last_os_error());
    NonNull::new(at.cast()).unwrap()
}

/// Returns the number of mappings of this file in this process.
pub fn mappings_of(fd: &OwnedFd) -> usize {
    use std::os::unix::fs::MetadataExt;
    let inode = File::from(fd.try_clone().unwrap())
        .metadata()
        .unwrap()
        .ino();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let of = |line: &&str| {
        let mut fields = line.split_ascii_whitespace().skip(4);
        let (number, name) = (fields.next(), fields.next());
        number == Some(&inode.to_string()) && name.is_some_and(|name| name.starts_with("/memfd:"))
    };
    maps.lines().filter(of).count()
}

/// Returns the number of mappings of a memfd in this process whose pages are locked into memory.
pub fn locked_mappings_of(fd: &OwnedFd) -> usize {
    use std::os::unix::fs::MetadataExt;
    let file = File::from(fd.try_clone().unwrap());
    let inode = file.metadata().unwrap().ino().to_string();
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut is_its, mut count) = (false, 0);
    for line in smaps.lines() {
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        if fields[0] == "VmFlags:" {
            count += usize::from(is_its && fields.contains(&"lo"));
        } else if !fields[0].ends_with(':') {
            let name = fields.get(5).copied().unwrap_or_default();
            is_its = fields.get(4) == Some(&inode.as_str()) && name.starts_with("/memfd:");
        }
    }
    count
}

/// Maps memory that cannot be locked: its second page is replaced by an inaccessible one. It is not unmapped, since another
/// thread could get its address before the whole mapping is.
pub fn unlockable_memory(fd: &OwnedFd) -> MappedMemory {
    let memory = MappedMemory::map(fd.try_clone().unwrap(), 0, 2 * PAGE_BYTES).unwrap();
    let second = (memory.address() + PAGE_BYTES) as *mut libc::c_void;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: a page of the mapping, which the test does not access.
    let at = unsafe { libc::mmap(second, PAGE_BYTES as usize, libc::PROT_NONE, kind, -1, 0) };
    assert_eq!(at, second);
    memory
}
