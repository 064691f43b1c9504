//! The atomics of this crate, imported in one place.

pub(crate) use core::sync::atomic::{AtomicU64, Ordering};
