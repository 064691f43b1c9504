//! Attributes of a VI that protocols need.

use crate::ReliabilityLevel;

/// Attributes of a VI, as its consumer chose them; of a local VI or of a peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ViParams {
    /// Reliability level.
    pub level: ReliabilityLevel,
    /// Maximum message length in bytes.
    pub max_transfer_bytes: u32,
    /// RDMA writes of the peer are accepted.
    pub rdma_write: bool,
    /// RDMA reads of the peer are accepted; not at Unreliable Delivery.
    pub rdma_read: bool,
}
