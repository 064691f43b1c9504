//! Counters of a port.

use crate::port::{Counter, PortStats};

/// Counters of one port; `stats` reports them under the names of the fields.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    pub(super) rx_frames: u64,
    pub(super) rx_bytes: u64,
    pub(super) tx_frames: u64,
    pub(super) tx_bytes: u64,
    pub(super) drop_unknown_destination: u64,
    pub(super) drop_station_left: u64,
    pub(super) drop_no_ring: u64,
    pub(super) drop_group_ring_full: u64,
    pub(super) drop_empty_frame: u64,
    pub(super) drop_bad_length: u64,
    pub(super) foreign_buffers: u64,
    pub(super) ring_full: u64,
    pub(super) void_slots_sent: u64,
    pub(super) void_slots_received: u64,
    pub(super) rings_mapped: u64,
    pub(super) ring_failures: u64,
    pub(super) wakes_sent: u64,
    pub(super) arms: u64,
    pub(super) membership_changes: u64,
    pub(super) stations_reaped: u64,
    pub(super) stations_cut_off: u64,
    pub(super) upkeep_failures: u64,
}

impl Counters {
    /// Converts the counters to port statistics.
    pub(super) fn stats(&self) -> PortStats {
        let named = [
            ("drop_unknown_destination", self.drop_unknown_destination),
            ("drop_station_left", self.drop_station_left),
            ("drop_no_ring", self.drop_no_ring),
            ("drop_group_ring_full", self.drop_group_ring_full),
            ("drop_empty_frame", self.drop_empty_frame),
            ("drop_bad_length", self.drop_bad_length),
            ("foreign_buffers", self.foreign_buffers),
            ("ring_full", self.ring_full),
            ("void_slots_sent", self.void_slots_sent),
            ("void_slots_received", self.void_slots_received),
            ("rings_mapped", self.rings_mapped),
            ("ring_failures", self.ring_failures),
            ("wakes_sent", self.wakes_sent),
            ("arms", self.arms),
            ("membership_changes", self.membership_changes),
            ("stations_reaped", self.stations_reaped),
            ("stations_cut_off", self.stations_cut_off),
            ("upkeep_failures", self.upkeep_failures),
        ];
        PortStats {
            rx_frames: self.rx_frames,
            rx_bytes: self.rx_bytes,
            tx_frames: self.tx_frames,
            tx_bytes: self.tx_bytes,
            counters: named
                .into_iter()
                .map(|(name, value)| Counter { name, value })
                .collect(),
        }
    }
}
