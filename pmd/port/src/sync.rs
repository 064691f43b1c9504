//! The crate's one door to atomics.
//!
//! The rings between threads use what stands here, which under `cfg(loom)` is
//! loom's, so that a model checker runs through every interleaving. Words that
//! lie in mapped memory, or that the kernel compares in a futex call, must be
//! the machine's own: they come from [`mapped`] under either cfg.

#[cfg(not(loom))]
pub(crate) use std::sync::{Arc, atomic::*};

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::{Arc, atomic::*},
};

/// Atomics for words in mapped memory and for futex words: always the machine's own.
pub(crate) mod mapped {
    pub(crate) use std::sync::atomic::*;
}

/// A cell with loom's way of access, at no cost without loom.
#[cfg(not(loom))]
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    /// Wraps a value.
    pub(crate) const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    /// Calls `f` with the address of the value, for reading.
    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    /// Calls `f` with the address of the value, for writing.
    #[inline]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}
