//! The door to atomics as the models see it: loom's. Its types are those of `pmd/src/sync.rs`.

pub(crate) use loom::hint::spin_loop;
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
pub(crate) use loom::thread::yield_now;

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
