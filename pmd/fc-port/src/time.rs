//! Units of time in nanoseconds.

/// Nanoseconds in a millisecond.
pub(crate) const NS_PER_MS: u64 = 1_000_000;
/// Nanoseconds in a second.
pub(crate) const NS_PER_S: u64 = 1_000 * NS_PER_MS;
