//! Limits on RDMA accesses of peers whose handle names no region (ADR 0041).

use vi_engine::MissLimits;

use super::NicConfig;
use super::mistake::{Number, number};

/// An hour.
const HOUR_NS: u64 = 3_600_000_000_000;
const MOST: u64 = 1_000_000;

/// Tokens that are added in an hour.
pub(super) fn per_hour(limits: &MissLimits) -> u32 {
    (HOUR_NS / limits.interval_ns.max(1)) as u32
}

impl NicConfig {
    /// The limits as the transports want them.
    pub(crate) fn miss_limits(&self) -> MissLimits {
        MissLimits {
            burst: self.rdma_miss_burst,
            interval_ns: HOUR_NS / u64::from(self.rdma_misses_per_hour.max(1)),
            per_connection: self.rdma_misses_per_connection,
        }
    }

    pub(super) fn miss_numbers(&self) -> [Number; 3] {
        [
            number("rdma_miss_burst", self.rdma_miss_burst, 1, MOST),
            number("rdma_misses_per_hour", self.rdma_misses_per_hour, 1, MOST),
            number(
                "rdma_misses_per_connection",
                self.rdma_misses_per_connection,
                1,
                MOST,
            ),
        ]
    }
}
