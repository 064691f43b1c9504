//! Atomics and cells of this crate: std's, or loom's under `cfg(loom)`.
//!
//! The rings between threads use these types, so that loom explores every
//! interleaving. Words in mapped memory, and words that the kernel compares in
//! a futex call, must be real atomics: they come from [`mapped`] under either cfg.

#[cfg(not(loom))]
pub(crate) use std::sync::{Arc, atomic::*};

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::{Arc, atomic::*},
};

/// Atomics for words in mapped memory and for futex words: std's under either cfg.
pub(crate) mod mapped {
    pub(crate) use std::sync::atomic::*;
}

/// A cell with loom's interface, at no cost without loom.
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
