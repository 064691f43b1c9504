//! The only module of this crate that imports atomics.

pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
