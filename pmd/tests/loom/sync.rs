//! The door to atomics as the models see it: loom's. Its types are those of `pmd/src/sync.rs`.

pub(crate) use loom::hint::spin_loop;
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
pub(crate) use loom::thread::yield_now;

use loom::sync::{Condvar, Mutex};

/// A flag. Its stores are exchanges: loom would let an exchange of another thread that came before a store in time
/// read past it and still come after it in the order of changes, so that a lock that was given back stays taken.
/// What a load may see, and what it orders, is the same.
pub(crate) struct AtomicBool(loom::sync::atomic::AtomicBool);

impl AtomicBool {
    pub(crate) fn new(value: bool) -> Self {
        Self(loom::sync::atomic::AtomicBool::new(value))
    }

    pub(crate) fn load(&self, order: Ordering) -> bool {
        self.0.load(order)
    }

    pub(crate) fn store(&self, value: bool, order: Ordering) {
        self.0.swap(value, order);
    }

    pub(crate) fn swap(&self, value: bool, order: Ordering) -> bool {
        self.0.swap(value, order)
    }
}

loom::thread_local! {
    static MARK: u64 = 0;
}

/// A number that no other living thread has: a multiple of 8, never 0.
pub(crate) fn thread_number() -> u64 {
    MARK.with(|mark| core::ptr::from_ref(mark) as u64)
}

/// Both sides of the asymmetric barrier are what it stands for: full fences.
pub(crate) fn light_barrier() {
    fence(Ordering::SeqCst);
}

/// The partner of [`light_barrier`].
pub(crate) fn heavy_barrier() {
    fence(Ordering::SeqCst);
}

/// What the kernel does for those who sleep on the one word of a model.
struct Futex {
    /// Who sleeps, and for which events.
    sleepers: Mutex<Vec<(u64, u32)>>,
    woken: Condvar,
}

loom::lazy_static! {
    static ref FUTEX: Futex = Futex {
        sleepers: Mutex::new(Vec::new()),
        woken: Condvar::new(),
    };
}

/// Sleeps until one of these events, unless the word does not hold `expected`. Nobody's time is over: a wake that
/// is lost is a sleep without end, which loom reports.
pub(crate) fn futex_wait_for(
    word: &AtomicU32,
    expected: u32,
    _timeout_ns: Option<u64>,
    events: u32,
) {
    let me = thread_number();
    let mut sleepers = FUTEX.sleepers.lock().expect("nobody panics");
    if word.load(Ordering::SeqCst) != expected {
        return;
    }
    sleepers.push((me, events));
    while sleepers.iter().any(|(thread, _)| *thread == me) {
        sleepers = FUTEX.woken.wait(sleepers).expect("nobody panics");
    }
}

/// Wakes who sleeps for one of these events.
pub(crate) fn futex_wake_for(_word: &AtomicU32, events: u32) -> usize {
    let mut sleepers = FUTEX.sleepers.lock().expect("nobody panics");
    let before = sleepers.len();
    sleepers.retain(|(_, wanted)| wanted & events == 0);
    FUTEX.woken.notify_all();
    before - sleepers.len()
}
