//! Counters of a port.

use crate::af_packet::link::LinkMonitor;
use crate::port::{Counter, PortStats};

/// Counters since the port was opened.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) rx_frames: u64,
    pub(super) rx_bytes: u64,
    pub(super) tx_frames: u64,
    pub(super) tx_bytes: u64,
    pub(super) drop_rx_too_long: u64,
    pub(super) drop_rx_vlan: u64,
    pub(super) drop_rx_misplaced: u64,
    pub(super) drop_tx_runt: u64,
    pub(super) drop_tx_too_long: u64,
    pub(super) drop_tx_link_down: u64,
    pub(super) drop_tx_refused: u64,
    pub(super) drop_tx_not_lent: u64,
    pub(super) rx_priority_tagged: u64,
    pub(super) rx_other_queue: u64,
    pub(super) rx_kicks: u64,
    pub(super) tx_self: u64,
    pub(super) tx_kicks: u64,
    pub(super) tx_busy: u64,
    pub(super) tx_refusals: u64,
    pub(super) foreign_mbufs: u64,
    pub(super) kernel: KernelCounts,
}

/// The kernel's counters summed over all sockets of the port, as of the last upkeep.
#[derive(Debug, Default)]
pub(super) struct KernelCounts {
    pub(super) drop_rx_no_buffer: u64,
    pub(super) drop_rx_ring_full: u64,
    pub(super) rx_fill_ring_empty: u64,
    pub(super) drop_tx_invalid: u64,
}

impl KernelCounts {
    /// Adds the kernel's counters of one socket.
    pub(super) fn add(&mut self, statistics: &libc::xdp_statistics) {
        self.drop_rx_no_buffer += statistics.rx_dropped;
        self.drop_rx_ring_full += statistics.rx_ring_full;
        self.rx_fill_ring_empty += statistics.rx_fill_ring_empty_descs;
        self.drop_tx_invalid += statistics.tx_invalid_descs;
    }
}

/// How frames are transferred between the interface and this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct TransferMode {
    pub(super) native: bool,
    pub(super) zero_copy: bool,
}

impl Counts {
    /// Converts the counters to port statistics.
    pub(super) fn stats(
        &self,
        link: &LinkMonitor,
        mode: TransferMode,
        under_way: u32,
    ) -> PortStats {
        let counters = [
            ("drop_rx_no_buffer", self.kernel.drop_rx_no_buffer),
            ("drop_rx_ring_full", self.kernel.drop_rx_ring_full),
            ("drop_rx_too_long", self.drop_rx_too_long),
            ("drop_rx_vlan", self.drop_rx_vlan),
            ("drop_rx_misplaced", self.drop_rx_misplaced),
            ("drop_tx_runt", self.drop_tx_runt),
            ("drop_tx_too_long", self.drop_tx_too_long),
            ("drop_tx_link_down", self.drop_tx_link_down),
            ("drop_tx_refused", self.drop_tx_refused),
            ("drop_tx_not_lent", self.drop_tx_not_lent),
            ("drop_tx_invalid", self.kernel.drop_tx_invalid),
            ("rx_priority_tagged", self.rx_priority_tagged),
            ("rx_other_queue", self.rx_other_queue),
            ("rx_fill_ring_empty", self.kernel.rx_fill_ring_empty),
            ("rx_kicks", self.rx_kicks),
            ("tx_self", self.tx_self),
            ("tx_kicks", self.tx_kicks),
            ("tx_busy", self.tx_busy),
            ("tx_refusals", self.tx_refusals),
            ("tx_under_way", under_way.into()),
            ("foreign_mbufs", self.foreign_mbufs),
            ("link_changes", link.changes()),
            ("link_up", link.state().running.into()),
            ("native", mode.native.into()),
            ("zero_copy", mode.zero_copy.into()),
        ];
        PortStats {
            rx_frames: self.rx_frames,
            rx_bytes: self.rx_bytes,
            tx_frames: self.tx_frames,
            tx_bytes: self.tx_bytes,
            counters: counters
                .into_iter()
                .map(|(name, value)| Counter { name, value })
                .collect(),
        }
    }
}
