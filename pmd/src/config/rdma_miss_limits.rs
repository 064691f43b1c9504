//! Limits on RDMA accesses of peers with handles that name no region (ADR 0041).

use vi_engine::MissLimits;

use super::NicConfig;
use super::error::{Number, number};

/// One hour.
const HOUR_NS: u64 = 3_600_000_000_000;
const MAX: u64 = 1_000_000;

/// Returns the number of tokens that are added per hour.
pub(super) fn per_hour(limits: &MissLimits) -> u32 {
    (HOUR_NS / limits.interval_ns.max(1)) as u32
}

impl NicConfig {
    /// Returns the limits for the transports.
    pub(crate) fn miss_limits(&self) -> MissLimits {
        MissLimits {
            burst: self.rdma_miss_burst,
            interval_ns: HOUR_NS / u64::from(self.rdma_misses_per_hour.max(1)),
            per_connection: self.rdma_misses_per_connection,
        }
    }

    pub(super) fn miss_numbers(&self) -> [Number; 3] {
        [
            number("rdma_miss_burst", self.rdma_miss_burst, 1, MAX),
            number("rdma_misses_per_hour", self.rdma_misses_per_hour, 1, MAX),
            number(
                "rdma_misses_per_connection",
                self.rdma_misses_per_connection,
                1,
                MAX,
            ),
        ]
    }
}
