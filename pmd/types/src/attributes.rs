//! Attributes of VIs and of memory regions (VIPL 4.6, 4.7).

use crate::{PtagHandle, ViState};

/// Attributes of a VI (VIPL 4.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ViAttributes {
    /// Bit of the reliability level.
    pub reliability: u16,
    /// Longest message in bytes.
    pub max_transfer_bytes: u64,
    /// Quality of service; only 0, for none, is supported.
    pub qos: u64,
    /// Protection tag.
    pub ptag: Option<PtagHandle>,
    /// The peer's RDMA writes are accepted.
    pub rdma_write: bool,
    /// The peer's RDMA reads are accepted.
    pub rdma_read: bool,
}

/// Attributes of a memory region (VIPL 4.7). By default no tag and no RDMA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MemAttributes {
    /// Protection tag.
    pub ptag: Option<PtagHandle>,
    /// Peers may write.
    pub rdma_write: bool,
    /// Peers may read.
    pub rdma_read: bool,
}

/// State and attributes of a VI (VIPL 3.7.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViInfo {
    /// State.
    pub state: ViState,
    /// Attributes.
    pub attributes: ViAttributes,
    /// The send queue is empty.
    pub send_queue_empty: bool,
    /// The receive queue is empty.
    pub recv_queue_empty: bool,
}
