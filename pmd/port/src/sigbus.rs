//! A SIGBUS handler that keeps the process alive when a mapped file is truncated.
//!
//! Any process that may write a file may truncate it, and accessing a mapped page beyond its end
//! then raises SIGBUS, which ends the process. A guarded mapping is replaced by zeroed private
//! memory at that moment, and [`SigbusGuard::is_lost`] returns true from then on, so that its owner
//! can report the loss.
//!
//! The handler is installed when the first mapping is guarded. It forwards signals that it does not
//! handle to the previous handler; a program that installs its own handler later should do the same.
//! In a thread that blocks SIGBUS no handler runs: accessing such a page there ends the process.

use core::ptr::NonNull;
use std::io;
use std::sync::OnceLock;

use crate::sync::mapped::{AtomicBool, AtomicUsize, Ordering, fence};

/// Maximum number of guarded mappings: about as many as the kernel allows a process
/// (`vm.max_map_count`, unless it was raised).
pub(crate) const GUARDS_MAX: usize = 65536;

/// A table entry for one guarded range; empty while unused.
struct GuardSlot {
    in_use: AtomicBool,
    /// Odd while the range changes, so that a handler on another thread reads a consistent range (seqlock).
    version: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
    lost: AtomicBool,
}

impl GuardSlot {
    /// Sets the range; called by the owner of the slot.
    fn set(&self, start: usize, end: usize) {
        let version = self.version.load(Ordering::Relaxed);
        self.version
            .store(version.wrapping_add(1), Ordering::Relaxed);
        // Partner: the fence in `range`.
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        // Release, partner: the Acquire load in `range`.
        self.version
            .store(version.wrapping_add(2), Ordering::Release);
    }

    /// Returns start and end, or `None` while they are changing. Loads only, since it runs in a signal
    /// handler. The range of a mapping that is being accessed does not change.
    fn range(&self) -> Option<(usize, usize)> {
        // Acquire, partner: the Release store in `set`.
        let version = self.version.load(Ordering::Acquire);
        let range = (
            self.start.load(Ordering::Relaxed),
            self.end.load(Ordering::Relaxed),
        );
        // Partner: the fence in `set`.
        fence(Ordering::Acquire);
        let whole = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        whole.then_some(range)
    }
}

static TABLE: [GuardSlot; GUARDS_MAX] = [const {
    GuardSlot {
        in_use: AtomicBool::new(false),
        version: AtomicUsize::new(0),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        lost: AtomicBool::new(false),
    }
}; GUARDS_MAX];

/// Index at which the next search for a free slot starts: after the one found last.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// The SIGBUS action that was installed before ours.
static PREVIOUS_ACTION: OnceLock<Option<libc::sigaction>> = OnceLock::new();

/// Guards a mapping against SIGBUS until dropped.
pub(crate) struct SigbusGuard(&'static GuardSlot);

impl SigbusGuard {
    /// Guards a mapping that starts at a page boundary. The caller drops the guard before it unmaps
    /// the range.
    ///
    /// # Errors
    /// `OutOfMemory` if [`GUARDS_MAX`] mappings are guarded; the error of sigaction(2).
    pub(crate) fn new(start: NonNull<u8>, len_bytes: usize) -> io::Result<Self> {
        install()?;
        let start = start.as_ptr() as usize;
        let (before, after) = TABLE.split_at(NEXT.load(Ordering::Relaxed) % GUARDS_MAX);
        for (at, slot) in (before.len()..GUARDS_MAX)
            .chain(0..)
            .zip(after.iter().chain(before))
        {
            // Acquire, partner: the Release store in `drop`.
            if !slot.in_use.load(Ordering::Relaxed) && !slot.in_use.swap(true, Ordering::Acquire) {
                // Relaxed: only a hint where to search.
                NEXT.store(at + 1, Ordering::Relaxed);
                slot.lost.store(false, Ordering::Relaxed);
                slot.set(start, start + len_bytes);
                return Ok(Self(slot));
            }
        }
        Err(io::Error::from(io::ErrorKind::OutOfMemory))
    }

    /// Returns whether the memory is no longer the file's.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        // Relaxed: written by a handler on the thread that accessed the memory; other threads may
        // see it a little later.
        self.0.lost.load(Ordering::Relaxed)
    }
}

impl SigbusGuard {
    /// Returns a flag to check for the loss without the guard.
    #[inline]
    pub(crate) fn loss_flag(&self) -> LossFlag {
        LossFlag(&self.0.lost)
    }
}

/// Flag that is set when a guarded mapping is lost; valid while that mapping exists.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct LossFlag(&'static AtomicBool);

impl LossFlag {
    /// As [`Mapping::is_lost`](crate::mapping::Mapping::is_lost).
    #[inline]
    pub fn is_lost(self) -> bool {
        // Relaxed: as in `SigbusGuard::is_lost`.
        self.0.load(Ordering::Relaxed)
    }
}

impl core::fmt::Debug for SigbusGuard {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SigbusGuard")
            .field("lost", &self.is_lost())
            .finish()
    }
}

impl Drop for SigbusGuard {
    fn drop(&mut self) {
        self.0.set(0, 0);
        // Release, partner: the Acquire swap in `new`.
        self.0.in_use.store(false, Ordering::Release);
    }
}

/// Finds the guarded range that contains an address: slot, start, length.
fn slot_of(address: usize) -> Option<(&'static GuardSlot, usize, usize)> {
    TABLE.iter().find_map(|slot| {
        let (start, end) = slot.range()?;
        (start..end)
            .contains(&address)
            .then(|| (slot, start, end - start))
    })
}

fn install() -> io::Result<()> {
    let previous = PREVIOUS_ACTION.get_or_init(|| {
        // SAFETY: sigaction is a C struct of integers and an optional function, valid as zeros.
        let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
        // SAFETY: only queries; the struct is ours.
        let queried = unsafe { libc::sigaction(libc::SIGBUS, core::ptr::null(), &raw mut action) };
        (queried == 0).then_some(action)
    });
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    // After `PREVIOUS_ACTION` is set, since the handler reads it.
    let done = INSTALLED.get_or_init(|| {
        // SAFETY: as above.
        let mut ours: libc::sigaction = unsafe { core::mem::zeroed() };
        ours.sa_sigaction = on_sigbus as *const () as usize;
        // On the alternative stack, if the thread has one: its own may be nearly exhausted.
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        // SAFETY: the handler is async-signal-safe.
        unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, core::ptr::null_mut()) == 0 }
    });
    if previous.is_some() && *done {
        Ok(())
    } else {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }
}

/// Replaces a guarded mapping whose file was truncated; forwards every other signal.
extern "C" fn on_sigbus(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid structure.
    let info_ref = unsafe { &*info };
    // The address lies beyond the end of its file; other causes, and signals that were sent,
    // are not handled here.
    if info_ref.si_code == libc::BUS_ADRERR {
        // SAFETY: with this code the member is set.
        let address = unsafe { info_ref.si_addr() } as usize;
        if let Some((slot, start, len_bytes)) = slot_of(address) {
            slot.lost.store(true, Ordering::Relaxed);
            if replace(start, len_bytes) {
                return;
            }
        }
    }
    forward_signal(signal, info, context);
}

/// Maps zeroed private memory over a guarded range; preserves `errno`.
fn replace(start: usize, len_bytes: usize) -> bool {
    // SAFETY: always valid for the calling thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let saved = unsafe { *errno };
    // SAFETY: exactly the range of a guarded mapping, whose every byte other processes may
    // change at any time, so zeros are as valid as any contents. mmap is one system call,
    // which a handler may make.
    let mapped = unsafe {
        libc::mmap(
            core::ptr::without_provenance_mut(start),
            len_bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    // SAFETY: as above.
    unsafe { *errno = saved };
    mapped != libc::MAP_FAILED
}

/// Forwards the signal to the previous handler, or to the kernel's default, which ends the
/// process. A signal that was sent is ignored if it was ignored before.
fn forward_signal(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let previous = PREVIOUS_ACTION.get().copied().flatten();
    match previous {
        Some(action)
            if action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN =>
        {
            if action.sa_flags & libc::SA_SIGINFO != 0 {
                type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
                // SAFETY: with this flag the address is that of such a function.
                let handler =
                    unsafe { core::mem::transmute::<usize, Handler>(action.sa_sigaction) };
                handler(signal, info, context);
            } else {
                // SAFETY: without the flag the address is that of such a function.
                let handler = unsafe {
                    core::mem::transmute::<usize, extern "C" fn(libc::c_int)>(action.sa_sigaction)
                };
                handler(signal);
            }
        }
        _ => {
            // SAFETY: with SA_SIGINFO the kernel passes a valid structure.
            let sent = unsafe { (*info).si_code } <= 0;
            let ignored = previous.is_some_and(|action| action.sa_sigaction == libc::SIG_IGN);
            if sent && ignored {
                return;
            }
            // SAFETY: restores the default; takes no memory of ours.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
            if sent {
                // No faulting instruction is repeated: the raised signal is pending until this handler returns.
                // SAFETY: takes no memory of ours.
                unsafe { libc::raise(signal) };
            }
        }
    }
}
