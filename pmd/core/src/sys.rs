//! System calls beside the data path: random numbers, eventfds on which a thread can sleep together
//! with a port, signal masks, pidfds, resource limits and fork handlers.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{self, EfdFlags};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{getpid, gettid, read, write};
use pmd_port::descriptor_number::above_standard_streams;
use pmd_port::thread;

/// Returns the index of a network interface, by name.
pub fn interface_index(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: a string that ends with NUL and lives as long as the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    (index != 0).then_some(index)
}

/// Fills `out` with unpredictable bytes.
pub fn random_bytes(out: &mut [u8]) {
    let mut done = 0;
    while done < out.len() {
        let rest = &mut out[done..];
        // SAFETY: the kernel writes at most `rest.len()` bytes at `rest`.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        if got > 0 {
            done += got as usize;
            continue;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            // A system call filter may refuse it.
            let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(rest));
            assert!(read.is_ok(), "the kernel has no random numbers: {error}");
            return;
        }
    }
}

/// Allows another process to access this one's memory by process_vm_readv(2) where Yama is in force;
/// without Yama it has no effect.
pub fn allow_tracing_by(pid: libc::pid_t) {
    let pid = libc::c_ulong::try_from(pid).unwrap_or(0);
    // SAFETY: integers only.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, pid, 0, 0, 0) };
}

/// Returns the poll(2) entry that waits until a descriptor is readable or hung up.
fn poll_entry(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::new(fd, PollFlags::POLLIN)
}

/// Sleeps until one of these descriptors is readable or hung up.
pub fn await_any(fds: [BorrowedFd<'_>; 2]) {
    let mut fds = fds.map(poll_entry);
    // The call returns early only for a signal.
    while !matches!(poll(&mut fds, PollTimeout::NONE), Ok(1..)) {}
}

/// Sleeps until this descriptor is readable or hung up, at most for `limit`.
pub fn await_one(fd: BorrowedFd<'_>, limit: Duration) {
    let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
    // The call may return early for a signal.
    let _ready = poll(&mut [poll_entry(fd)], limit);
}

/// Opens a pidfd, which becomes readable when the process that has this number now ends.
pub fn pidfd_open(pid: libc::pid_t) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open(2) takes two integers and returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    above_standard_streams(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Returns true if the process of this pidfd has ended.
pub fn has_exited(pidfd: &OwnedFd) -> bool {
    poll(&mut [poll_entry(pidfd.as_fd())], PollTimeout::ZERO) != Ok(0)
}

/// Raises the soft limit of open descriptors (`RLIMIT_NOFILE`) to the hard limit. Returns the previous
/// soft limit and the new one.
///
/// # Errors
/// Those of getrlimit(2) and setrlimit(2).
pub fn raise_descriptor_limit() -> io::Result<(u64, u64)> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    Ok((soft, hard))
}

/// Returns the soft limit of open descriptors of this process.
pub fn soft_descriptor_limit() -> io::Result<u64> {
    Ok(getrlimit(Resource::RLIMIT_NOFILE)?.0)
}

/// Returns true for an error because this process, or the system, has no descriptor left.
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

mod interrupts;
mod wakeup;

pub use interrupts::CallTimer;
pub use wakeup::{ClientWakeup, Waker, WakeupSet};

/// Creates an eventfd that does not block.
fn new_eventfd() -> io::Result<OwnedFd> {
    let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
    above_standard_streams(eventfd::EventFd::from_flags(flags)?.into())
}

/// An eventfd, on which a thread can sleep together with a port's descriptor.
pub struct EventFd(OwnedFd);

impl EventFd {
    /// Creates an event that is not signalled.
    pub fn new() -> io::Result<Self> {
        new_eventfd().map(Self)
    }

    /// Resets the event.
    pub fn clear(&self) {
        // It fails if the event is not signalled.
        let _count = read(&self.0, &mut [0; 8]);
    }

    /// Wakes the thread that sleeps on this event, or the next one that does.
    pub fn signal(&self) {
        // If the counter is full, the thread is being woken already.
        let _written = write(&self.0, &1u64.to_ne_bytes());
    }

    /// Duplicates the descriptor of the event.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Sleeps until the event is signalled or `other` (if any) is readable, at most for `limit`.
    pub fn sleep(&self, other: Option<RawFd>, limit: Duration) {
        // poll(2) ignores a negative descriptor.
        let mut fds = [self.0.as_raw_fd(), other.unwrap_or(-1)].map(raw_poll_entry);
        self.sleep_on(&mut fds, limit);
    }

    /// As [`EventFd::sleep`], with any number of descriptors.
    pub fn sleep_with(&self, others: &[RawFd], limit: Duration) {
        let fds = core::iter::once(self.0.as_raw_fd()).chain(others.iter().copied());
        self.sleep_on(&mut fds.map(raw_poll_entry).collect::<Vec<_>>(), limit);
    }

    /// Sleeps until any of the entries is ready; the first is this event's.
    fn sleep_on(&self, fds: &mut [libc::pollfd], limit: Duration) {
        let limit = libc::timespec {
            tv_sec: limit.as_secs() as libc::time_t,
            tv_nsec: limit.subsec_nanos().into(),
        };
        let count = fds.len() as libc::nfds_t;
        // SAFETY: `count` entries and a time, which live during the call; no signal mask.
        unsafe { libc::ppoll(fds.as_mut_ptr(), count, &limit, core::ptr::null()) };
        if fds.first().is_some_and(|own| own.revents != 0) {
            self.clear();
        }
    }
}

/// As [`poll_entry`], for a descriptor that the caller keeps open.
fn raw_poll_entry(fd: RawFd) -> libc::pollfd {
    libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Signals that an instruction of a thread raises. If blocked they kill the process without a handler
/// call: also not of the handler for a shared file that was truncated.
const SYNCHRONOUS_SIGNALS: [libc::c_int; 5] = [
    libc::SIGBUS,
    libc::SIGSEGV,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
];

/// Runs `start` with all asynchronous signals blocked, which a thread started in it inherits: signals of
/// the program are for the program's own threads.
pub fn with_signals_blocked<T>(start: impl FnOnce() -> T) -> T {
    let mut all = core::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the whole set is written.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    for signal in SYNCHRONOUS_SIGNALS {
        // SAFETY: the set was written just now; the number is a signal's.
        unsafe { libc::sigdelset(all.as_mut_ptr(), signal) };
    }
    let mut before = core::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: one initialised set is read, and one of this frame is written.
    let failed =
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    let result = start();
    if failed == 0 {
        // SAFETY: the set that the successful call above has written.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut()) };
    }
    result
}

/// The signal mask of a thread.
pub(crate) struct SignalMask(libc::sigset_t);

impl SignalMask {
    pub(crate) fn of_this_thread() -> Self {
        let mut mask = core::mem::MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: no new mask is given; the old one is written. It cannot fail.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, core::ptr::null(), mask.as_mut_ptr()) };
        // SAFETY: all zeros are a valid set: the empty one.
        Self(unsafe { mask.assume_init() })
    }

    /// Sets the mask of the calling thread.
    pub(crate) fn set(&self) {
        // SAFETY: an initialised set is read, and nothing is written.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, core::ptr::null_mut())
        };
    }
}

/// Returns true for the initial thread of the process, or of the forked child.
pub(crate) fn is_main_thread() -> bool {
    gettid() == getpid()
}

/// Registers a function to be called when this thread ends, but not when the process exits. Rust's thread locals are
/// not dropped when the main thread ends by pthread_exit(3).
pub(crate) fn at_thread_exit(function: extern "C" fn()) -> io::Result<()> {
    extern "C" fn call(function: *mut libc::c_void) {
        // SAFETY: the pointer was made from such a function below.
        let function: extern "C" fn() = unsafe { core::mem::transmute(function) };
        function();
    }
    let checked = |error: libc::c_int| match error {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    };
    let mut key = 0;
    // SAFETY: a number of this frame is written; the function lives as long as the process.
    checked(unsafe { libc::pthread_key_create(&raw mut key, Some(call)) })?;
    // SAFETY: the key was made just now; its value is used only by `call`.
    checked(unsafe { libc::pthread_setspecific(key, function as *const libc::c_void) })
}

/// Starts a thread that blocks all asynchronous signals.
pub fn start_thread(
    name: String,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    with_signals_blocked(|| thread::start(name, run))
}

/// Registers functions to be called around every fork(2) of this process: before it, after it in the
/// parent, and after it in the child.
pub(crate) fn at_fork(
    before: extern "C" fn(),
    parent: extern "C" fn(),
    child: extern "C" fn(),
) -> io::Result<()> {
    // SAFETY: the functions live as long as the process and do not unwind.
    let error = unsafe { libc::pthread_atfork(Some(before), Some(parent), Some(child)) };
    if error == 0 {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(error))
    }
}

/// Random numbers from the kernel, fetched many at a time.
pub struct RandomWords {
    bytes: [u8; 256],
    left_bytes: usize,
}

impl Default for RandomWords {
    fn default() -> Self {
        Self {
            bytes: [0; 256],
            left_bytes: 0,
        }
    }
}

impl RandomWords {
    /// Returns 32 unpredictable bits, not returned before.
    pub fn word(&mut self) -> u32 {
        if self.left_bytes == 0 {
            random_bytes(&mut self.bytes);
            self.left_bytes = self.bytes.len();
        }
        self.left_bytes -= 4;
        let word = self.bytes[self.left_bytes..].first_chunk_mut::<4>();
        word.map_or(0, |word| u32::from_ne_bytes(core::mem::take(word)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn random_bytes_differ() {
        let (mut one, mut other) = ([0u8; 16], [0u8; 16]);
        random_bytes(&mut one);
        random_bytes(&mut other);
        assert_ne!(one, other);
    }

    #[test]
    fn signal_and_other_descriptor_each_end_a_sleep() {
        let event = EventFd::new().unwrap();
        let long = Duration::from_secs(20);
        let begun = Instant::now();
        event.signal();
        event.signal();
        event.sleep(None, long);
        let (reader, mut writer) = io::pipe().unwrap();
        io::Write::write_all(&mut writer, b"x").unwrap();
        event.sleep(Some(reader.as_raw_fd()), long);
        assert!(begun.elapsed() < long);
        let short = Duration::from_millis(5);
        let begun = Instant::now();
        event.sleep(None, short);
        assert!(begun.elapsed() >= short, "the signals were consumed");
    }

    #[test]
    fn started_thread_blocks_signals_and_caller_does_not() {
        fn blocked() -> bool {
            let mut mask = core::mem::MaybeUninit::<libc::sigset_t>::zeroed();
            // SAFETY: no new mask is given; the old one is written.
            unsafe {
                libc::pthread_sigmask(libc::SIG_SETMASK, core::ptr::null(), mask.as_mut_ptr())
            };
            // SAFETY: an initialised set is read.
            unsafe { libc::sigismember(mask.as_ptr(), libc::SIGUSR1) == 1 }
        }
        let thread = with_signals_blocked(|| std::thread::spawn(blocked));
        assert!(thread.join().unwrap());
        assert!(!blocked());
    }

    #[test]
    fn descriptor_limit_is_raised_to_hard_limit() {
        let (before, now) = raise_descriptor_limit().unwrap();
        assert!(before <= now);
        assert_eq!(raise_descriptor_limit().unwrap(), (now, now));
    }
}
