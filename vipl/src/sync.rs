//! The crate's one door to atomics.

pub(crate) use core::sync::atomic::{AtomicU64, Ordering};
