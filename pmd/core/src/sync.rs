//! Atomics, futexes, an asymmetric barrier and thread numbers: the only module that imports atomics.
//!
//! `tests/loom` replaces it by loom's atomics, for the modules that import all of theirs from here.

pub use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering, compiler_fence, fence,
};

/// Writes to memory that applications poll. The loom models replace them.
pub mod application {
    pub use core::ptr::copy_nonoverlapping;
    pub use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};
}

pub use core::hint::spin_loop;
pub(crate) use pmd_port::wake::monotonic_ns;
pub use std::thread::yield_now;

thread_local! {
    static MARK: u64 = const { 0 };
}

/// Returns a number that no other running thread has: a multiple of 8, never 0.
#[inline]
pub(crate) fn thread_number() -> u64 {
    MARK.with(|mark| core::ptr::from_ref(mark) as u64)
}

/// `MEMBARRIER_CMD_PRIVATE_EXPEDITED` of linux/membarrier.h.
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
/// `MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED`.
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

/// `MEMBARRIER_CMD_GLOBAL`: slow, and needs no registration.
const GLOBAL: libc::c_int = 1;
/// Attempts before a registered barrier counts as refused.
const BARRIER_TRIES: u32 = 1000;

/// True once expedited barriers are registered with the kernel.
static EXPEDITED: AtomicBool = AtomicBool::new(false);

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: membarrier(2) takes three integers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Registers expedited barriers with the kernel; without them both sides use full fences. Must be
/// called before the first thread starts that uses either barrier.
pub fn register_barrier() {
    if membarrier(REGISTER_PRIVATE_EXPEDITED) {
        EXPEDITED.store(true, Ordering::SeqCst);
    }
}

/// The barrier of the frequent side of a store-then-load handshake between two threads; its partner is
/// [`heavy_barrier`] on the rare side.
#[inline]
pub fn light_barrier() {
    if EXPEDITED.load(Ordering::Relaxed) {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// The barrier of the rare side: orders earlier stores and later loads of this thread against every
/// [`light_barrier`] of every thread of this process.
pub fn heavy_barrier() {
    fence(Ordering::SeqCst);
    if !EXPEDITED.load(Ordering::Relaxed) {
        return;
    }
    // Registered barriers fail only for lack of memory, or by a system call filter that the program
    // has installed. Without a barrier two threads could hold one lock: abort instead.
    for _ in 0..BARRIER_TRIES {
        if membarrier(PRIVATE_EXPEDITED) || membarrier(GLOBAL) {
            return;
        }
        yield_now();
    }
    log::error!("membarrier(2) was registered and is refused now: the process is aborted");
    std::process::abort();
}

/// Sleeps while `word` holds `expected`, at most `timeout_ns`; may return early for any reason.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout_ns: Option<u64>, shared: bool) {
    let timeout = timeout_ns.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    });
    let timeout = timeout
        .as_ref()
        .map_or(core::ptr::null(), core::ptr::from_ref);
    let op = libc::FUTEX_WAIT | if shared { 0 } else { libc::FUTEX_PRIVATE_FLAG };
    // SAFETY: the word lives as long as the borrow; `timeout` is null or points to a
    // timespec of this frame. The kernel reads both and keeps neither.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, expected, timeout) };
}

/// As [`futex_wait`] within the process, until a wake for any of the events whose bits are set.
pub(crate) fn futex_wait_for(
    word: &AtomicU32,
    expected: u32,
    timeout_ns: Option<u64>,
    events: u32,
) {
    // This call takes an absolute time, unlike FUTEX_WAIT.
    let end = timeout_ns.map(|ns| {
        let end_ns = monotonic_ns().saturating_add(ns);
        libc::timespec {
            tv_sec: (end_ns / 1_000_000_000) as libc::time_t,
            tv_nsec: (end_ns % 1_000_000_000) as libc::c_long,
        }
    });
    let end = end.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    let op = libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG;
    let unused = core::ptr::null::<u32>();
    // SAFETY: the word lives as long as the borrow; `end` is null or points to a timespec of
    // this frame. The kernel reads both and keeps neither.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            op,
            expected,
            end,
            unused,
            events,
        )
    };
}

/// Wakes the threads that sleep on `word` by [`futex_wait_for`] for any of these events; returns their
/// number.
pub(crate) fn futex_wake_for(word: &AtomicU32, events: u32) -> usize {
    let op = libc::FUTEX_WAKE_BITSET | libc::FUTEX_PRIVATE_FLAG;
    let unused = core::ptr::null::<u32>();
    // SAFETY: the kernel uses the address as a key only; the word lives as long as the borrow.
    let woken = unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            op,
            i32::MAX,
            unused,
            unused,
            events,
        )
    };
    usize::try_from(woken).unwrap_or(0)
}

/// Wakes up to `count` threads that sleep on `word`.
#[inline]
pub fn futex_wake(word: &AtomicU32, count: i32, shared: bool) {
    let op = libc::FUTEX_WAKE | if shared { 0 } else { libc::FUTEX_PRIVATE_FLAG };
    // SAFETY: the kernel uses the address as a key only; the word lives as long as the borrow.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, count) };
}
