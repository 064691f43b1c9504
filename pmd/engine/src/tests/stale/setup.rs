//! The parameters of the scenarios.

use vi_types::ReliabilityLevel;

/// The parameters of a scenario.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) seed: u64,
    pub(super) level: ReliabilityLevel,
    pub(super) recovery: bool,
    pub(super) nodes: usize,
    /// Lengths of messages in bytes, one of which is chosen.
    pub(super) lengths: &'static [usize],
    /// Also writes and reads.
    pub(super) rdma: bool,
    /// Also from the server to the client.
    pub(super) both_ways: bool,
    /// Frames per million that arrive late or never.
    pub(super) withheld: u32,
    /// Number of free OX_IDs of a port; the others are occupied. `None`: all.
    pub(super) ox_ids: Option<usize>,
    /// Bits of the random numbers for handles and first message IDs.
    pub(super) random_mask: u32,
    pub(super) data_field_bytes: u16,
}

impl Setup {
    pub(super) fn new(seed: u64, level: ReliabilityLevel) -> Self {
        Self {
            seed,
            level,
            recovery: false,
            nodes: 2,
            lengths: &[16, 64, 2096, 5000, 9000],
            rdma: true,
            both_ways: true,
            withheld: 0,
            ox_ids: None,
            random_mask: u32::MAX,
            data_field_bytes: 2112,
        }
    }

    pub(super) fn longest(&self) -> usize {
        self.lengths.iter().copied().max().unwrap_or(0)
    }
}
