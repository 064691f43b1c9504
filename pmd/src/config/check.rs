//! Validates the values of a NIC, from a file or from a program.

use std::fmt;

use super::address::host_error;
use super::error::{Number, ValueError, number};
use super::{
    FaultConfig, MIN_DISCRIMINATOR_BYTES, MIN_ULP_TIMEOUT_MS, NicConfig, PortKind, TransportKind,
    parse,
};
use crate::coalesce::MAX_FRAMES;

/// Maximum number of queues of a NIC that can have handlers: two of each VI, and every completion queue.
const MAX_NOTIFY_THREADS: u64 = 2 * 4096 + 65536;
/// Maximum of `core`.
const MAX_CORE: u64 = 1023;
/// An hour.
const HOUR_MS: u64 = 3_600_000;
/// Ten seconds.
const TEN_SECONDS_US: u64 = 10_000_000;

impl NicConfig {
    /// Returns the numeric keys.
    pub(super) fn numbers(&self) -> Vec<Number> {
        let mut numbers = self.limits();
        numbers.extend(self.port_numbers());
        numbers.extend(self.dpdk_numbers());
        numbers.extend(self.timeouts());
        numbers.extend(self.recovery_numbers());
        numbers.extend(self.miss_numbers());
        numbers
    }

    fn limits(&self) -> Vec<Number> {
        let max_in_flight = u64::from(vi_engine::MAX_UNANSWERED);
        vec![
            number("max_vi", self.max_vi, 1, 4096),
            number(
                "max_descriptors_per_queue",
                self.max_descriptors_per_queue,
                2,
                65536,
            ),
            number(
                "max_segments_per_descriptor",
                self.max_segments_per_descriptor,
                253,
                65535,
            ),
            number("max_regions", self.max_regions, 1, 65535),
            number(
                "max_registered_bytes",
                self.max_registered_bytes,
                4096,
                1 << 47,
            ),
            number("max_region_bytes", self.max_region_bytes, 1, 1 << 47),
            number("max_cq", self.max_cq, 1, 65536),
            number("max_cq_entries", self.max_cq_entries, 1, 1 << 24),
            number(
                "max_notifies_per_queue",
                self.max_notifies_per_queue,
                1,
                1 << 20,
            ),
            number(
                "max_notify_threads",
                self.max_notify_threads,
                1,
                MAX_NOTIFY_THREADS,
            ),
            number("max_ptags", self.max_ptags, 1, 1 << 24),
            number("max_incoming", self.max_incoming, 1, 65536),
            number(
                "max_discriminator_bytes",
                self.max_discriminator_bytes,
                MIN_DISCRIMINATOR_BYTES.into(),
                match self.transport {
                    TransportKind::FcVi => vi_types::Discriminator::MAX_BYTES,
                    TransportKind::ViTcp => vitcp_lite::profile::MAX_DISCRIMINATOR_BYTES,
                } as u64,
            ),
            number(
                "max_log_lines_per_second",
                self.max_log_lines_per_second,
                1,
                1_000_000,
            ),
            number("max_rdma_reads", self.max_rdma_reads, 1, 256),
            number("max_in_flight", self.max_in_flight, 1, max_in_flight),
            number(
                "max_transfer_bytes",
                self.max_transfer_bytes,
                65536,
                0x7FFF_FFFF,
            ),
        ]
    }

    fn port_numbers(&self) -> Vec<Number> {
        vec![
            number("ring_frames", self.ring_frames, 8, 65536),
            number("max_stations", self.max_stations, 1, 255),
            number("rx_frames", self.rx_frames, 1, 65536),
            number("tx_frames", self.tx_frames, 1, 65536),
            number("queue", self.queue, 0, 65535),
            number("queues", self.queues, 1, 64),
            number("tcp_port", self.tcp_port, 1, 65535),
            number("credits_low", self.credits_low, 1, 32767),
            number("core", self.core.unwrap_or(0) as u64, 0, MAX_CORE),
        ]
    }

    fn timeouts(&self) -> Vec<Number> {
        vec![
            number("e_d_tov_ms", self.e_d_tov_ms, 1, HOUR_MS),
            number("r_a_tov_ms", self.r_a_tov_ms(), 1, HOUR_MS),
            number(
                "ulp_timeout_ms",
                self.ulp_timeout_ms(),
                MIN_ULP_TIMEOUT_MS,
                2 * HOUR_MS,
            ),
            number("beacon_ms", self.beacon_ms, 10, HOUR_MS),
            number("discovery_ms", self.discovery_ms, 1, HOUR_MS),
            number("probe_interval_ms", self.probe_interval_ms, 0, HOUR_MS),
            number("silent_port_ms", self.silent_port_ms(), 0, HOUR_MS),
            number("peer_retry_ms", self.peer_retry_ms, 1, HOUR_MS),
            number("takeover_us", self.takeover_us, 10, TEN_SECONDS_US),
            number(
                "coalesce_frames",
                u64::from(self.coalesce_frames),
                1,
                u64::from(MAX_FRAMES),
            ),
            number("spin_us", self.spin_us, 0, TEN_SECONDS_US),
        ]
    }

    /// Validates the values of this table; its neighbours, TLS and faults are validated separately.
    pub(super) fn errors(&self) -> Vec<ValueError> {
        let mut found: Vec<ValueError> = self.numbers().iter().filter_map(Number::error).collect();
        if self.max_ptags < self.max_vi {
            let (ptags, vis) = (self.max_ptags, self.max_vi);
            let text = format!(
                "max_ptags = {ptags}: must be at least max_vi = {vis}: raise this, or lower that"
            );
            found.push(ValueError::new("max_ptags", text));
        }
        found.extend(self.window_error());
        let host = self.host.as_ref();
        found.extend(host.and_then(|host| host.error(self.transport)));
        match self.port {
            _ if self.transport == TransportKind::ViTcp => {}
            PortKind::Shm => found.extend(self.shm_errors()),
            PortKind::AfPacket | PortKind::AfXdp => {
                found.extend(self.interface_error());
                found.extend(self.wire_errors());
            }
            PortKind::Dpdk => {
                found.extend(self.dpdk_errors());
                found.extend(self.wire_errors());
            }
        }
        found
    }

    fn shm_errors(&self) -> Vec<ValueError> {
        let mut found = Vec::new();
        let frames = self.ring_frames;
        if !frames.is_power_of_two() && (8..=65536).contains(&frames) {
            let text = format!("ring_frames = {frames}: must be a power of two, 8 to 65536");
            found.push(ValueError::new("ring_frames", text));
        }
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if !(1..=64).contains(&self.segment.len()) || !self.segment.chars().all(is_allowed) {
            let text = format!(
                "segment = {:?}: must be 1 to 64 letters, digits, '.', '_' or '-'",
                self.segment
            );
            found.push(ValueError::new("segment", text));
        }
        found
    }

    /// Validates the keys that all ports on a wire have.
    fn wire_errors(&self) -> Vec<ValueError> {
        let mut found = Vec::new();
        let port = self.port.name();
        let mut add = |key, text: String| found.push(ValueError::new(key, text));
        if self.host.is_none() {
            let text =
                format!("port = {port:?} requires host = \"...\", the IP address of this NIC");
            add("host", text);
        }
        for (key, name) in [
            ("port_name", &self.port_name),
            ("node_name", &self.node_name),
        ] {
            if let Some(Err(text)) = name.as_deref().map(|name| parse::name(key, name)) {
                add(key, text);
            }
        }
        if self.discovers() {
            if !self.neighbour.is_empty() {
                let text = "neighbour = [...] requires n_port_ids = \"...\": without it, neighbours are discovered";
                add("neighbour", text.into());
            }
            return found;
        }
        if let Err(text) = parse::range(&self.n_port_ids) {
            add("n_port_ids", text);
        }
        found
    }

    /// Validates the neighbour with this index.
    pub(super) fn neighbour_errors(&self, index: usize) -> Vec<ValueError> {
        let Some(neighbour) = self.neighbour.get(index) else {
            return Vec::new();
        };
        let mut found: Vec<ValueError> = host_error(neighbour.host).into_iter().collect();
        let mut add = |text: String| found.push(ValueError::new("n_port_ids", text));
        let text = &neighbour.n_port_ids;
        let range = match parse::range(text) {
            Ok(range) => range,
            Err(text) => {
                add(text);
                return found;
            }
        };
        let overlaps = |other: &str| {
            parse::range(other).is_ok_and(|other| range.0 <= other.1 && other.0 <= range.1)
        };
        if overlaps(&self.n_port_ids) {
            add(format!(
                "n_port_ids = {text:?}: overlaps n_port_ids = {:?} of this NIC: every program needs its own",
                self.n_port_ids
            ));
        }
        let mut earlier = self.neighbour.iter().take(index);
        if let Some(earlier) = earlier.position(|other| overlaps(&other.n_port_ids)) {
            add(format!(
                "n_port_ids = {text:?}: overlaps those of neighbour {}: every program needs its own",
                earlier + 1
            ));
        }
        found
    }
}

impl fmt::Display for FaultConfig {
    /// Formats the keys and values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Number { key, value, .. }) in self.numbers().iter().enumerate() {
            let space = if index > 0 { " " } else { "" };
            write!(f, "{space}{key}={value}")?;
        }
        Ok(())
    }
}

impl FaultConfig {
    pub(super) fn numbers(&self) -> Vec<Number> {
        let ppm = |key, value: u32| number(key, value, 0, 1_000_000);
        vec![
            number("seed", self.seed, 0, u64::MAX),
            ppm("loss_ppm", self.loss_ppm),
            ppm("duplication_ppm", self.duplication_ppm),
            ppm("reordering_ppm", self.reordering_ppm),
            ppm("corruption_ppm", self.corruption_ppm),
            ppm("delay_ppm", self.delay_ppm),
            number("delay_turns", self.delay_turns, 0, 1_000_000),
        ]
    }

    pub(super) fn errors(&self) -> Vec<ValueError> {
        self.numbers().iter().filter_map(Number::error).collect()
    }
}
