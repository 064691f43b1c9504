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

use crate::sync::mapped::{AtomicBool, AtomicUsize, Ordering, fence};

/// Mappings that can be watched at a time: about as many as the kernel allows a process
/// (`vm.max_map_count`, unless it was raised).
pub(crate) const ENTRIES: usize = 65536;

/// A range of memory; empty while nobody has it.
struct Entry {
    taken: AtomicBool,
    /// Odd while the range changes: a handler on another thread reads both ends, or neither.
    version: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
    lost: AtomicBool,
}

impl Entry {
    /// For whoever has the entry.
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

    /// Start and end, unless they are changing. Only loads: it runs in a signal handler. That
    /// of a mapping which is being touched does not change.
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

static TABLE: [Entry; ENTRIES] = [const {
    Entry {
        taken: AtomicBool::new(false),
        version: AtomicUsize::new(0),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        lost: AtomicBool::new(false),
    }
}; ENTRIES];

/// Where the next search for a free entry begins: behind the one that was found last.
static NEXT: AtomicUsize = AtomicUsize::new(0);

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
        let (before, behind) = TABLE.split_at(NEXT.load(Ordering::Relaxed) % ENTRIES);
        for (at, entry) in (before.len()..ENTRIES)
            .chain(0..)
            .zip(behind.iter().chain(before))
        {
            // Acquire, partner: the Release store in `drop`.
            if !entry.taken.load(Ordering::Relaxed) && !entry.taken.swap(true, Ordering::Acquire) {
                // Relaxed: any place is as good as another one.
                NEXT.store(at + 1, Ordering::Relaxed);
                entry.lost.store(false, Ordering::Relaxed);
                entry.set(start, start + len_bytes);
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

impl Watched {
    /// What says it after the mapping was lent.
    #[inline]
    pub(crate) fn watch(&self) -> Watch {
        Watch(&self.0.lost)
    }
}

/// Says whether a watched mapping is lost, as long as that mapping lives.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct Watch(&'static AtomicBool);

impl Watch {
    /// As [`Mapping::is_lost`](crate::mapping::Mapping::is_lost).
    #[inline]
    pub fn is_lost(self) -> bool {
        // Relaxed: as in `Watched::is_lost`.
        self.0.load(Ordering::Relaxed)
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
        self.0.set(0, 0);
        // Release, partner: the Acquire swap in `new`.
        self.0.taken.store(false, Ordering::Release);
    }
}

/// The watched range that an address lies in: entry, start, length.
fn entry_of(address: usize) -> Option<(&'static Entry, usize, usize)> {
    TABLE.iter().find_map(|entry| {
        let (start, end) = entry.range()?;
        (start..end)
            .contains(&address)
            .then(|| (entry, start, end - start))
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
    // What was touched lies behind the end of its file; other causes, and signals that were sent,
    // are not ours.
    if info_ref.si_code == libc::BUS_ADRERR {
        // SAFETY: with this code the member is set.
        let address = unsafe { info_ref.si_addr() } as usize;
        if let Some((entry, start, len_bytes)) = entry_of(address) {
            entry.lost.store(true, Ordering::Relaxed);
            if replace(start, len_bytes) {
                return;
            }
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
/// process. One that was sent is ignored where it was before.
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
            // SAFETY: with SA_SIGINFO the kernel passes a valid structure.
            let sent = unsafe { (*info).si_code } <= 0;
            let ignored = before.is_some_and(|action| action.sa_sigaction == libc::SIG_IGN);
            if sent && ignored {
                return;
            }
            // SAFETY: restores the default; takes no memory of ours.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
            if sent {
                // No instruction is tried again: the signal waits until this handler returns.
                // SAFETY: takes no memory of ours.
                unsafe { libc::raise(signal) };
            }
        }
    }
}
