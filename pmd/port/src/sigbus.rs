//! Shared mappings outlive their file.
//!
//! Whoever may write a file may cut it short, and touching a mapped page behind its end then
//! raises SIGBUS, which ends the process. A mapping that is watched here is replaced by zeroed
//! private memory at that moment, and [`Watched::is_lost`] says so from then on: whoever owns it
//! can tell the loss instead of dying of it.
//!
//! The handler is installed when the first mapping is watched. It passes on what is not its own;
//! a program that installs a handler of its own later should do the same. A thread that blocks
//! SIGBUS has no handler: such a thread dies with its process when it touches such a page.

use core::ptr::NonNull;
use std::io;
use std::sync::OnceLock;

use crate::sync::mapped::{AtomicBool, AtomicUsize, Ordering};

/// Mappings that can be watched at a time: rings of many segments full of stations.
const ENTRIES: usize = 4096;

/// A range of memory; free while `start` is 0.
struct Entry {
    start: AtomicUsize,
    /// 0 until the range is complete.
    end: AtomicUsize,
    lost: AtomicBool,
}

static TABLE: [Entry; ENTRIES] = [const {
    Entry {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        lost: AtomicBool::new(false),
    }
}; ENTRIES];

/// What handled SIGBUS before us.
static BEFORE: OnceLock<Option<libc::sigaction>> = OnceLock::new();

/// A watched mapping, until this is dropped.
pub(crate) struct Watched(&'static Entry);

impl Watched {
    /// Watches a mapping that starts with a page. The caller drops this before it unmaps the
    /// range.
    ///
    /// # Errors
    /// `OutOfMemory` if too many are watched, or what sigaction(2) says.
    pub(crate) fn new(start: NonNull<u8>, len_bytes: usize) -> io::Result<Self> {
        install()?;
        let start = start.as_ptr() as usize;
        for entry in &TABLE {
            // Acquire, partner: the Release store in `drop`; the entry is ours if it was free.
            let claimed =
                entry
                    .start
                    .compare_exchange(0, start, Ordering::Acquire, Ordering::Relaxed);
            if claimed.is_ok() {
                entry.lost.store(false, Ordering::Relaxed);
                // Release, partner: the Acquire load in `entry_of`.
                entry.end.store(start + len_bytes, Ordering::Release);
                return Ok(Self(entry));
            }
        }
        Err(io::Error::from(io::ErrorKind::OutOfMemory))
    }

    /// True once the memory is no longer the file's.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        // Relaxed: written by a handler on the thread that touched the memory; others learn of
        // it a little later.
        self.0.lost.load(Ordering::Relaxed)
    }
}

impl core::fmt::Debug for Watched {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Watched")
            .field("lost", &self.is_lost())
            .finish()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.end.store(0, Ordering::Relaxed);
        // Release, partner: the Acquire exchange in `new`.
        self.0.start.store(0, Ordering::Release);
    }
}

/// The watched range that an address lies in. Only loads: it runs in a signal handler.
fn entry_of(address: usize) -> Option<(&'static Entry, usize, usize)> {
    TABLE.iter().find_map(|entry| {
        // Acquire, partner: the Release store in `new`. The range of a mapping that is being
        // touched stays in its entry.
        let end = entry.end.load(Ordering::Acquire);
        let start = entry.start.load(Ordering::Relaxed);
        (start != 0 && (start..end).contains(&address)).then_some((entry, start, end - start))
    })
}

fn install() -> io::Result<()> {
    let installed = BEFORE.get_or_init(|| {
        // SAFETY: sigaction is a C struct of integers and an optional function, valid as zeros.
        let mut before: libc::sigaction = unsafe { core::mem::zeroed() };
        // SAFETY: only asks; the struct is ours.
        let asked = unsafe { libc::sigaction(libc::SIGBUS, core::ptr::null(), &raw mut before) };
        (asked == 0).then_some(before)
    });
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    // After `BEFORE` is set, since the handler reads it.
    let done = INSTALLED.get_or_init(|| {
        // SAFETY: as above.
        let mut ours: libc::sigaction = unsafe { core::mem::zeroed() };
        ours.sa_sigaction = on_sigbus as *const () as usize;
        // On the alternative stack, if the thread has one: it may have little of its own left.
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        // SAFETY: the handler does only what is allowed in one.
        unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, core::ptr::null_mut()) == 0 }
    });
    if installed.is_some() && *done {
        Ok(())
    } else {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }
}

/// Replaces a watched mapping whose file is shorter than it was; passes everything else on.
extern "C" fn on_sigbus(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid structure.
    let info_ref = unsafe { &*info };
    // SAFETY: for SIGBUS this member is set.
    let address = unsafe { info_ref.si_addr() } as usize;
    if let Some((entry, start, len_bytes)) = entry_of(address) {
        entry.lost.store(true, Ordering::Relaxed);
        if replace(start, len_bytes) {
            return;
        }
    }
    pass_on(signal, info, context);
}

/// Maps zeroed private memory over a watched range; keeps `errno` as it was.
fn replace(start: usize, len_bytes: usize) -> bool {
    // SAFETY: always valid for the calling thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let kept = unsafe { *errno };
    // SAFETY: exactly the range of a mapping of ours, of whose bytes every one is read and
    // written as another process left it: zeros are as good as anything. mmap is one system
    // call, which a handler may make.
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
    unsafe { *errno = kept };
    mapped != libc::MAP_FAILED
}

/// Gives the signal to whoever handled it before, or to the kernel's default, which ends the
/// process when the instruction is tried again.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let before = BEFORE.get().copied().flatten();
    match before {
        Some(action)
            if action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN =>
        {
            if action.sa_flags & libc::SA_SIGINFO != 0 {
                type Informed = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
                // SAFETY: with this flag the address is that of such a function.
                let handler =
                    unsafe { core::mem::transmute::<usize, Informed>(action.sa_sigaction) };
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
            // SAFETY: restores the default; takes no memory of ours.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}
