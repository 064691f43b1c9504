//! Counters of a port.

use super::link::LinkMonitor;
use crate::port::{Counter, PortStats};

/// Counters since the port was opened.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) rx_frames: u64,
    pub(super) rx_bytes: u64,
    pub(super) tx_frames: u64,
    pub(super) tx_bytes: u64,
    pub(super) drop_rx_ring_full: u64,
    pub(super) drop_rx_too_long: u64,
    pub(super) drop_rx_runt: u64,
    pub(super) drop_rx_vlan: u64,
    pub(super) drop_tx_runt: u64,
    pub(super) drop_tx_too_long: u64,
    pub(super) drop_tx_link_down: u64,
    pub(super) drop_tx_misaddressed: u64,
    pub(super) drop_tx_not_lent: u64,
    pub(super) rx_priority_tagged: u64,
    pub(super) tx_self: u64,
    pub(super) tx_kicks: u64,
    pub(super) tx_busy: u64,
    pub(super) foreign_mbufs: u64,
}

impl Counts {
    /// Converts the counters to port statistics.
    pub(super) fn stats(&self, link: &LinkMonitor) -> PortStats {
        let counters = [
            ("drop_rx_ring_full", self.drop_rx_ring_full),
            ("drop_rx_too_long", self.drop_rx_too_long),
            ("drop_rx_runt", self.drop_rx_runt),
            ("drop_rx_vlan", self.drop_rx_vlan),
            ("drop_tx_runt", self.drop_tx_runt),
            ("drop_tx_too_long", self.drop_tx_too_long),
            ("drop_tx_link_down", self.drop_tx_link_down),
            ("drop_tx_misaddressed", self.drop_tx_misaddressed),
            ("drop_tx_not_lent", self.drop_tx_not_lent),
            ("rx_priority_tagged", self.rx_priority_tagged),
            ("tx_self", self.tx_self),
            ("tx_kicks", self.tx_kicks),
            ("tx_busy", self.tx_busy),
            ("foreign_mbufs", self.foreign_mbufs),
            ("link_changes", link.changes()),
            ("link_up", link.state().running.into()),
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
