//! Accesses memory of another process by process_vm_readv(2) and process_vm_writev(2).
//!
//! The kernel checks each call by the rules of ptrace(2): the same user, no program that gained privileges, and the
//! rules of Yama (`kernel.yama.ptrace_scope` of 1 or more requires the client to name this process by
//! `prctl(PR_SET_PTRACER, pid)`). A capability that overrides these rules would permit writes into any program that the
//! client executes next, which may have more privileges than the client. So [`ClientProcess::of_process`] fails in a
//! thread whose effective capabilities contain `CAP_SYS_PTRACE`; [`drop_cap_sys_ptrace`] drops it.
//!
//! A process ID may name another process once its own has ended and was waited for. A pidfd, which
//! names this process only, is checked once per poll.
//!
//! If the kernel must read a page of the client from a slow or hostile file system, the call blocks,
//! and so does the poll loop. Mapped memory ([`super::client_mapping`]) does not have that problem.

use core::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::sync::{AtomicU64, Ordering};

/// Maximum number of iovecs of one system call; the kernel allows 1024 (`IOV_MAX`).
pub const MAX_IOVECS: usize = 256;

/// `CAP_SYS_PTRACE` of linux/capability.h.
const CAP_SYS_PTRACE: u32 = 19;
/// `_LINUX_CAPABILITY_VERSION_3`.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// Marks a client that was found dead; no poll has this number.
const DEAD: u64 = u64::MAX;

/// Reason why the memory of a process cannot be accessed.
#[derive(Debug)]
pub enum ClientError {
    /// `CAP_SYS_PTRACE` is effective in this thread.
    Privileged,
    /// There is no such process, or the kernel does not support pidfds.
    NoProcess(io::Error),
    /// The kernel denies the access.
    Denied,
    /// No memory is mapped at the address, or the process has ended.
    Unreachable(io::Error),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Privileged => f.write_str(
                "private memory of applications is not accessed with CAP_SYS_PTRACE: \
                 run this process without that capability",
            ),
            Self::NoProcess(error) => write!(f, "the application's process: {error}"),
            Self::Denied => f.write_str(
                "the application's memory cannot be accessed: run both as the same user and, where \
                 kernel.yama.ptrace_scope is not 0, let the application call \
                 prctl(PR_SET_PTRACER), or use memory of the library's allocator",
            ),
            Self::Unreachable(error) => write!(f, "the application's memory: {error}"),
        }
    }
}

impl std::error::Error for ClientError {}

/// Process whose memory is accessed by process_vm_readv(2) and process_vm_writev(2).
#[derive(Debug)]
pub struct ClientProcess {
    pid: libc::pid_t,
    process: OwnedFd,
    /// The number of the poll in which it was last found alive, or [`DEAD`]; used by the holder of the backend
    /// lock only.
    alive_in: AtomicU64,
}

impl ClientProcess {
    /// Makes an accessor of a process by its ID and pidfd.
    ///
    /// # Errors
    /// [`ClientError::Privileged`], [`ClientError::NoProcess`].
    pub fn of_process(pid: libc::pid_t, process: OwnedFd) -> Result<Self, ClientError> {
        if has_cap_sys_ptrace().map_err(ClientError::NoProcess)? {
            return Err(ClientError::Privileged);
        }
        Ok(Self {
            pid,
            process,
            alive_in: AtomicU64::new(0),
        })
    }

    /// Makes an accessor of a process by its ID. The caller ensures that the ID still names the intended
    /// process, such as a child that was not waited for.
    ///
    /// # Errors
    /// [`ClientError::Privileged`], [`ClientError::NoProcess`].
    #[cfg(any(test, feature = "testkit"))]
    pub fn open(pid: u32) -> Result<Self, ClientError> {
        let pid = libc::pid_t::try_from(pid)
            .map_err(|_| ClientError::NoProcess(io::ErrorKind::InvalidInput.into()))?;
        let process = crate::sys::pidfd_open(pid).map_err(ClientError::NoProcess)?;
        Self::of_process(pid, process)
    }

    /// Checks that the first and the last byte of a range can be read. Called when memory is registered, to report an
    /// error early; later accesses may still fail.
    ///
    /// # Errors
    /// [`ClientError::Denied`], [`ClientError::Unreachable`].
    pub fn probe(&self, address: u64, bytes: u64) -> Result<(), ClientError> {
        let last = address.saturating_add(bytes.saturating_sub(1));
        for at in [address, last] {
            let mut byte = 0u8;
            let local = [iovec(&raw mut byte as u64, 1)];
            // SAFETY: writes one local byte.
            let read = unsafe { self.read(&local, &[iovec(at, 1)]) };
            read.map_err(|error| match error.raw_os_error() {
                Some(libc::EPERM) => ClientError::Denied,
                _ => ClientError::Unreachable(error),
            })?;
        }
        Ok(())
    }

    /// Returns whether the process is alive. Queries the kernel at the first call of a poll: the
    /// process ID cannot be reused while bytes are copied, unless all IDs are used up within the
    /// same poll.
    #[inline]
    pub(crate) fn is_alive(&self, poll_number: u64) -> bool {
        // Relaxed, here and below: only the holder of the backend lock calls this.
        match self.alive_in.load(Ordering::Relaxed) {
            DEAD => false,
            seen if seen == poll_number => true,
            _ => self.query_liveness(poll_number),
        }
    }

    fn query_liveness(&self, poll_number: u64) -> bool {
        let mut ended = libc::pollfd {
            fd: self.process.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let alive = loop {
            // SAFETY: one local entry.
            match unsafe { libc::poll(&raw mut ended, 1, 0) } {
                // A signal is reported even if the call does not wait.
                -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                events => break events == 0,
            }
        };
        self.alive_in
            .store(if alive { poll_number } else { DEAD }, Ordering::Relaxed);
        alive
    }

    /// Reads the ranges `remote` of the client's memory into the ranges `local` of this process.
    ///
    /// # Errors
    /// Those of process_vm_readv(2); `UnexpectedEof` after a partial read.
    ///
    /// # Safety
    /// The local ranges are writable, and there are no references to their bytes.
    pub unsafe fn read(&self, local: &[libc::iovec], remote: &[libc::iovec]) -> io::Result<()> {
        // SAFETY: the kernel writes to `local`, for which the caller vouches, and checks
        // everything else.
        let copied = unsafe {
            libc::process_vm_readv(
                self.pid,
                local.as_ptr(),
                local.len() as libc::c_ulong,
                remote.as_ptr(),
                remote.len() as libc::c_ulong,
                0,
            )
        };
        check_complete(copied, remote)
    }

    /// Writes the ranges `local` of this process to the ranges `remote` of the client's memory, in the order
    /// of the ranges (process_vm_writev(2)).
    ///
    /// # Errors
    /// As for [`Self::read`]; part of the bytes may be written then.
    ///
    /// # Safety
    /// The local ranges are readable.
    pub unsafe fn write(&self, local: &[libc::iovec], remote: &[libc::iovec]) -> io::Result<()> {
        // SAFETY: the kernel reads from `local`, for which the caller vouches, and writes to
        // the other process only, as far as it is permitted.
        let copied = unsafe {
            libc::process_vm_writev(
                self.pid,
                local.as_ptr(),
                local.len() as libc::c_ulong,
                remote.as_ptr(),
                remote.len() as libc::c_ulong,
                0,
            )
        };
        check_complete(copied, remote)
    }
}

/// Returns the iovec of a memory range.
#[inline]
pub fn iovec(address: u64, bytes: usize) -> libc::iovec {
    libc::iovec {
        iov_base: core::ptr::with_exposed_provenance_mut(address as usize),
        iov_len: bytes,
    }
}

/// Checks that a system call copied all bytes of its iovecs.
fn check_complete(copied: libc::ssize_t, remote: &[libc::iovec]) -> io::Result<()> {
    let expected: usize = remote.iter().map(|range| range.iov_len).sum();
    match usize::try_from(copied) {
        Ok(copied) if copied == expected => Ok(()),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Header of capget(2).
#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: libc::c_int,
}

/// Data of capget(2): thirty-two capabilities.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilityWord {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Returns the capabilities of the calling thread.
fn capabilities() -> io::Result<[CapabilityWord; 2]> {
    let mut header = CapabilityHeader {
        version: CAPABILITY_VERSION,
        pid: 0,
    };
    let mut words = [CapabilityWord::default(); 2];
    // SAFETY: version 3 writes two words and the header, both local.
    let done = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, words.as_mut_ptr()) };
    if done == 0 {
        Ok(words)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Returns whether `CAP_SYS_PTRACE` is effective in this thread.
fn has_cap_sys_ptrace() -> io::Result<bool> {
    Ok(capabilities()?[0].effective & (1 << CAP_SYS_PTRACE) != 0)
}

/// Removes `CAP_SYS_PTRACE` from the effective capabilities of this thread and of those that it starts from now on:
/// they can then access only the memory of processes that any process of this user may access.
///
/// # Errors
/// Those of capget(2) and capset(2).
pub fn drop_cap_sys_ptrace() -> io::Result<()> {
    let mut words = capabilities()?;
    words[0].effective &= !(1 << CAP_SYS_PTRACE);
    let mut header = CapabilityHeader {
        version: CAPABILITY_VERSION,
        pid: 0,
    };
    // SAFETY: version 3 reads two words; all is local.
    let done = unsafe { libc::syscall(libc::SYS_capset, &raw mut header, words.as_ptr()) };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests;
