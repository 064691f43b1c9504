//! Another process whose memory we read and write by system calls.
//!
//! The kernel decides at each call whether we may, by the rules of ptrace(2): the same user, no
//! program that gained rights, and what Yama adds (`kernel.yama.ptrace_scope` of 1 or more wants
//! the client to name us by `prctl(PR_SET_PTRACER, our pid)`). A capability that overrides these
//! rules would let us write into whatever the client executes next, a program with more rights
//! than its own among them. So a [`Client`] is refused to a thread that has `CAP_SYS_PTRACE` in
//! force; [`obey_ptrace_rules`] puts it down.
//!
//! A process id names another process once its own is gone and waited for. Whether it lives is
//! asked of a descriptor that means this process and no other, once a turn.
//!
//! A page of the client that the kernel has to fetch from a slow or hostile file system holds up
//! the call and with it the poll loop. Memory that is mapped ([`super::mapped`]) cannot do that.

use core::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::sync::{AtomicU64, Ordering};

/// Pieces that one system call moves, at most; the kernel allows 1024 (`IOV_MAX`).
pub(crate) const MAX_PIECES: usize = 256;

/// `CAP_SYS_PTRACE` of linux/capability.h.
const CAP_SYS_PTRACE: u32 = 19;
/// `_LINUX_CAPABILITY_VERSION_3`.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// No turn has this number: the client was found dead.
const DEAD: u64 = u64::MAX;

/// Why the memory of a process cannot be reached.
#[derive(Debug)]
pub(crate) enum ClientError {
    /// This thread has `CAP_SYS_PTRACE` in force.
    Privileged,
    /// There is no such process, or the kernel has no descriptors for processes.
    NoProcess(io::Error),
    /// The kernel does not let us.
    Denied,
    /// The process has nothing at the address, or is gone.
    Unreachable(io::Error),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Privileged => f.write_str(
                "memory that is not shared is not reached with CAP_SYS_PTRACE: \
                 run this process without that capability",
            ),
            Self::NoProcess(error) => write!(f, "the client's process: {error}"),
            Self::Denied => f.write_str(
                "the client's memory may not be reached: run both as the same user and, where \
                 kernel.yama.ptrace_scope is not 0, have the client call \
                 prctl(PR_SET_PTRACER), or use memory of the library's allocator",
            ),
            Self::Unreachable(error) => write!(f, "the client's memory: {error}"),
        }
    }
}

impl std::error::Error for ClientError {}

/// A process whose memory we reach by process_vm_readv(2) and process_vm_writev(2).
#[derive(Debug)]
pub(crate) struct Client {
    pid: libc::pid_t,
    process: OwnedFd,
    /// The turn in which it was last found alive, or [`DEAD`]; the holder of the turn's.
    alive_in: AtomicU64,
}

impl Client {
    /// The process that has this number, by a descriptor of it.
    ///
    /// # Errors
    /// [`ClientError::Privileged`], [`ClientError::NoProcess`].
    pub(crate) fn of_process(pid: libc::pid_t, process: OwnedFd) -> Result<Self, ClientError> {
        if overrides_ptrace_rules().map_err(ClientError::NoProcess)? {
            return Err(ClientError::Privileged);
        }
        Ok(Self {
            pid,
            process,
            alive_in: AtomicU64::new(0),
        })
    }

    /// The process with this number, which lives: whoever calls knows that the number still
    /// means the process it is to mean, as of an own child.
    ///
    /// # Errors
    /// [`ClientError::Privileged`], [`ClientError::NoProcess`].
    #[cfg(test)]
    pub(crate) fn open(pid: u32) -> Result<Self, ClientError> {
        let pid = libc::pid_t::try_from(pid)
            .map_err(|_| ClientError::NoProcess(io::ErrorKind::InvalidInput.into()))?;
        let process = crate::sys::process(pid).map_err(ClientError::NoProcess)?;
        Self::of_process(pid, process)
    }

    /// Can the first and the last of so many bytes be read? Told when memory is registered, so
    /// that what is missing has a name; it holds for no later moment.
    ///
    /// # Errors
    /// [`ClientError::Denied`], [`ClientError::Unreachable`].
    pub(crate) fn probe(&self, address: u64, bytes: u64) -> Result<(), ClientError> {
        let last = address.saturating_add(bytes.saturating_sub(1));
        for at in [address, last] {
            let mut byte = 0u8;
            let near = [piece(&raw mut byte as u64, 1)];
            // SAFETY: one byte of this frame is written.
            let moved = unsafe { self.read(&near, &[piece(at, 1)]) };
            moved.map_err(|error| match error.raw_os_error() {
                Some(libc::EPERM) => ClientError::Denied,
                _ => ClientError::Unreachable(error),
            })?;
        }
        Ok(())
    }

    /// Does the process live? The kernel is asked at the first look in a turn: that one cannot
    /// have been waited for and its number used again while we copy, short of all numbers
    /// having been used in the same turn.
    #[inline]
    pub(crate) fn is_alive(&self, turn: u64) -> bool {
        // Relaxed, here and below: only the holder of the turn comes here.
        match self.alive_in.load(Ordering::Relaxed) {
            DEAD => false,
            seen if seen == turn => true,
            _ => self.look(turn),
        }
    }

    fn look(&self, turn: u64) -> bool {
        let mut ended = libc::pollfd {
            fd: self.process.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry of this frame.
        let events = unsafe { libc::poll(&raw mut ended, 1, 0) };
        let alive = events == 0;
        self.alive_in
            .store(if alive { turn } else { DEAD }, Ordering::Relaxed);
        alive
    }

    /// Reads the pieces `far` of the client's memory into the pieces `near` of ours, all of them.
    ///
    /// # Errors
    /// What the kernel says; `UnexpectedEof` if it read a part only.
    ///
    /// # Safety
    /// The pieces of ours are writable and nobody has a reference to their bytes.
    pub(crate) unsafe fn read(&self, near: &[libc::iovec], far: &[libc::iovec]) -> io::Result<()> {
        // SAFETY: the kernel writes what `near` names, which our caller vouches for, and checks
        // everything else.
        let moved = unsafe {
            libc::process_vm_readv(
                self.pid,
                near.as_ptr(),
                near.len() as libc::c_ulong,
                far.as_ptr(),
                far.len() as libc::c_ulong,
                0,
            )
        };
        whole(moved, far)
    }

    /// Writes the pieces `near` of our memory into the pieces `far` of the client's, in the order
    /// of the pieces (process_vm_writev(2)).
    ///
    /// # Errors
    /// As for [`Self::read`]; then a part may be written.
    ///
    /// # Safety
    /// The pieces of ours are readable.
    pub(crate) unsafe fn write(&self, near: &[libc::iovec], far: &[libc::iovec]) -> io::Result<()> {
        // SAFETY: the kernel reads what `near` names, which our caller vouches for, and writes
        // the other process only, as far as that is allowed.
        let moved = unsafe {
            libc::process_vm_writev(
                self.pid,
                near.as_ptr(),
                near.len() as libc::c_ulong,
                far.as_ptr(),
                far.len() as libc::c_ulong,
                0,
            )
        };
        whole(moved, far)
    }
}

/// A piece of memory as the kernel wants to have it named.
#[inline]
pub(crate) fn piece(address: u64, bytes: usize) -> libc::iovec {
    libc::iovec {
        iov_base: core::ptr::with_exposed_provenance_mut(address as usize),
        iov_len: bytes,
    }
}

fn whole(moved: libc::ssize_t, far: &[libc::iovec]) -> io::Result<()> {
    let wanted: usize = far.iter().map(|piece| piece.iov_len).sum();
    match usize::try_from(moved) {
        Ok(moved) if moved == wanted => Ok(()),
        Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Header and data of capget(2).
#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: libc::c_int,
}

/// Thirty-two capabilities.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilityWord {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// The calling thread's capabilities.
fn capabilities() -> io::Result<[CapabilityWord; 2]> {
    let mut header = CapabilityHeader {
        version: CAPABILITY_VERSION,
        pid: 0,
    };
    let mut words = [CapabilityWord::default(); 2];
    // SAFETY: version 3 writes two words, and the header; both are of this frame.
    let done = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, words.as_mut_ptr()) };
    if done == 0 {
        Ok(words)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Does this thread reach the memory of processes that it could not reach as its user?
fn overrides_ptrace_rules() -> io::Result<bool> {
    Ok(capabilities()?[0].effective & (1 << CAP_SYS_PTRACE) != 0)
}

/// Takes `CAP_SYS_PTRACE` out of force for this thread and those that it starts from now on: the
/// memory of another process is then reached only where any process of our user may.
///
/// # Errors
/// What capget(2) or capset(2) says.
pub fn obey_ptrace_rules() -> io::Result<()> {
    let mut words = capabilities()?;
    words[0].effective &= !(1 << CAP_SYS_PTRACE);
    let mut header = CapabilityHeader {
        version: CAPABILITY_VERSION,
        pid: 0,
    };
    // SAFETY: version 3 reads two words; both are of this frame.
    let done = unsafe { libc::syscall(libc::SYS_capset, &raw mut header, words.as_ptr()) };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests;
