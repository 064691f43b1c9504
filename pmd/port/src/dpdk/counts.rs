//! Counters of a port and of its device.

use core::ptr;
use std::collections::BTreeSet;
use std::ffi::CStr;
use std::sync::Mutex;

use dpdk_sys::{rte_eth_xstat, rte_eth_xstat_name, rte_eth_xstats_get, rte_eth_xstats_get_names};

use crate::port::{Counter, PortStats};

/// Counters since the port was opened.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) rx_frames: u64,
    pub(super) rx_bytes: u64,
    pub(super) tx_frames: u64,
    pub(super) tx_bytes: u64,
    pub(super) drop_rx_runt: u64,
    pub(super) drop_rx_too_long: u64,
    pub(super) drop_rx_vlan: u64,
    pub(super) drop_rx_other_address: u64,
    pub(super) drop_rx_other_ethertype: u64,
    pub(super) drop_rx_foreign_buffer: u64,
    pub(super) drop_tx_runt: u64,
    pub(super) drop_tx_too_long: u64,
    pub(super) drop_tx_link_down: u64,
    pub(super) drop_tx_not_lent: u64,
    pub(super) rx_priority_tagged: u64,
    pub(super) tx_self: u64,
    pub(super) tx_busy: u64,
    pub(super) foreign_mbufs: u64,
    pub(super) buffers_recovered: u64,
    pub(super) restarts: u64,
}

/// State that is reported with the counters.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    /// Received frames of several mbuf segments, which were freed.
    pub(super) drop_rx_in_pieces: u64,
    /// Bursts that faulted and were aborted.
    pub(super) bursts_given_up: u64,
    pub(super) link_changes: u64,
    pub(super) link_up: bool,
    pub(super) promiscuous: bool,
}

impl Counts {
    /// Returns the counters with their names, then the device's counters.
    pub(super) fn stats(&self, state: State, device: &DeviceCounts) -> PortStats {
        let counters = [
            ("drop_rx_runt", self.drop_rx_runt),
            ("drop_rx_too_long", self.drop_rx_too_long),
            ("drop_rx_in_pieces", state.drop_rx_in_pieces),
            ("drop_rx_vlan", self.drop_rx_vlan),
            ("drop_rx_other_address", self.drop_rx_other_address),
            ("drop_rx_other_ethertype", self.drop_rx_other_ethertype),
            ("drop_rx_foreign_buffer", self.drop_rx_foreign_buffer),
            ("drop_tx_runt", self.drop_tx_runt),
            ("drop_tx_too_long", self.drop_tx_too_long),
            ("drop_tx_link_down", self.drop_tx_link_down),
            ("drop_tx_not_lent", self.drop_tx_not_lent),
            ("rx_priority_tagged", self.rx_priority_tagged),
            ("tx_self", self.tx_self),
            ("tx_busy", self.tx_busy),
            ("foreign_mbufs", self.foreign_mbufs),
            ("bursts_given_up", state.bursts_given_up),
            ("buffers_recovered", self.buffers_recovered),
            ("restarts", self.restarts),
            ("link_changes", state.link_changes),
            ("link_up", state.link_up.into()),
            ("promiscuous", state.promiscuous.into()),
        ];
        let counters = counters.into_iter();
        PortStats {
            rx_frames: self.rx_frames,
            rx_bytes: self.rx_bytes,
            tx_frames: self.tx_frames,
            tx_bytes: self.tx_bytes,
            counters: counters
                .map(|(name, value)| Counter { name, value })
                .chain(device.counters())
                .collect(),
        }
    }
}

/// Interns a text for the life of the process. Devices of one driver have the same few hundred names: bounded.
fn intern(text: String) -> &'static str {
    static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut names = NAMES
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(name) = names.get(text.as_str()) {
        return name;
    }
    let name: &'static str = text.leak();
    names.insert(name);
    name
}

/// The device's counters: DPDK's extended statistics.
#[derive(Debug)]
pub(super) struct DeviceCounts {
    port: u16,
    names: Vec<&'static str>,
    values: Vec<u64>,
    entries: Vec<rte_eth_xstat>,
}

impl DeviceCounts {
    /// Reads the counter names of a port whose queues are set up.
    pub(super) fn new(port: u16) -> Self {
        // SAFETY: with a null pointer and size 0 it only returns the count.
        let count = unsafe { rte_eth_xstats_get_names(port, ptr::null_mut(), 0) };
        let count = u32::try_from(count).unwrap_or(0);
        let mut entries = vec![rte_eth_xstat_name::default(); count as usize];
        // SAFETY: the port exists, and the pointer is valid for `count` entries.
        let result = unsafe { rte_eth_xstats_get_names(port, entries.as_mut_ptr(), count) };
        if u32::try_from(result) != Ok(count) {
            entries.clear();
        }
        let text = |entry: &rte_eth_xstat_name| {
            // SAFETY: DPDK terminates every name within its array.
            let name = unsafe { CStr::from_ptr(entry.name.as_ptr()) };
            intern(format!("device_{}", name.to_string_lossy()))
        };
        let names: Vec<_> = entries.iter().map(text).collect();
        Self {
            port,
            values: vec![0; names.len()],
            entries: vec![rte_eth_xstat::default(); names.len()],
            names,
        }
    }

    /// Reads the values from the device.
    pub(super) fn refresh(&mut self) {
        let count = self.entries.len() as u32;
        // SAFETY: the port exists, and the pointer is valid for `count` entries.
        let written = unsafe { rte_eth_xstats_get(self.port, self.entries.as_mut_ptr(), count) };
        let written = usize::try_from(written).unwrap_or(0);
        for entry in self.entries.iter().take(written) {
            if let Some(value) = self.values.get_mut(entry.id as usize) {
                *value = entry.value;
            }
        }
    }

    /// Returns the nonzero counters.
    fn counters(&self) -> impl Iterator<Item = Counter> {
        let all = self.names.iter().zip(&self.values);
        all.filter(|(_, value)| **value != 0)
            .map(|(&name, &value)| Counter { name, value })
    }
}
