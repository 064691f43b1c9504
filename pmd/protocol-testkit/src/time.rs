//! Units of a simulated clock, in nanoseconds.

/// A millisecond.
pub const MS: u64 = 1_000_000;
/// A second.
pub const S: u64 = 1_000 * MS;
