//! The crate's one door to atomics.

pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
