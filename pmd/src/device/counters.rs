//! Counters of a NIC.

use super::Device;
use crate::datapath::PathCounters;

/// Number of entries that full completion queues have dropped.
const CQ_OVERRUNS: &str = "cq_overruns";

impl Device {
    /// Replaces, in the counters of the datapath process, those that this program counts itself: its completion
    /// queues are local.
    pub(crate) fn add_own_counts(&self, counters: &mut [(String, u64)]) {
        let overruns = counters.iter_mut().filter(|(name, _)| name == CQ_OVERRUNS);
        overruns.for_each(|(_, count)| *count = self.shared.cq_overruns());
    }

    /// Returns the counters of the data path and the transport by name.
    pub(crate) fn counters(&self) -> Vec<(String, u64)> {
        let held = self.lock();
        let Some((transport, poller)) = held.as_ref().and_then(|backend| backend.local()) else {
            return Vec::new();
        };
        // The names are formatted after the backend lock is released.
        let protocol = transport.counters();
        let discovery = transport.discovery_counters();
        let PathCounters {
            lost_descriptors,
            tx_no_room,
            breaks_by_mtu,
            sent_in_one_step,
        } = poller.path.counters;
        let client_faults = poller.path.mover.client_faults;
        let mut stats = poller.path.port.stats();
        transport.add_traffic(&mut stats);
        let usage = self.shared.regions.usage();
        let vis = poller.path.vis.iter().flatten().count();
        let (exchanges_open, exchanges_dead) = transport.exchange_usage();
        let own = [
            (CQ_OVERRUNS, self.shared.cq_overruns()),
            ("lost_descriptors", lost_descriptors),
            ("tx_no_room", tx_no_room),
            ("breaks_by_mtu", breaks_by_mtu),
            ("sent_in_one_step", sent_in_one_step),
            ("client_memory_faults", client_faults),
            ("events_dropped", self.shared.events.dropped()),
            ("vis", vis as u64),
            ("exchanges_open", exchanges_open as u64),
            ("exchanges_dead", exchanges_dead as u64),
            ("regions", usage.regions),
            ("registered_bytes", usage.bytes),
            ("registrations_unlocked", usage.unlocked),
            ("port_failed", u64::from(poller.failure.is_some())),
            ("turns", poller.polls),
            ("busy_turns", poller.busy_polls),
            ("timed_turns", poller.timed_polls),
            ("timed_ns", poller.timed_ns),
            ("port_rx_frames", stats.rx_frames),
            ("port_rx_bytes", stats.rx_bytes),
            ("port_tx_frames", stats.tx_frames),
            ("port_tx_bytes", stats.tx_bytes),
        ];
        drop(held);
        let all = protocol.into_iter().chain(own);
        let all = all.map(|(name, value)| (name.to_owned(), value));
        let port = stats.counters.iter();
        let port = port.map(|c| (format!("port_{}", c.name), c.value));
        let discovery = discovery.into_iter();
        let discovery = discovery.map(|(name, value)| (format!("vn_port_{name}"), value));
        all.chain(port).chain(discovery).collect()
    }
}
