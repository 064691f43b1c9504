//! Result of one side of `vibench port`.

use core::fmt;
use std::time::Duration;

use pmd_port::PortStats;
use serde::Serialize;
use serde_json::{Map, Value};

use super::station::Station;
use crate::report::{Percentiles, nanoseconds, scaled};

/// Frames sent or received by one side.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Traffic {
    /// Number of frames.
    pub(super) frames: u64,
    /// Bytes of all frames.
    pub(super) bytes: u64,
    /// Number of frames within `elapsed`.
    pub(super) timed_frames: u64,
    /// Bytes of the frames within `elapsed`.
    pub(super) timed_bytes: u64,
    /// Time for the computation of rates.
    pub(super) elapsed: Duration,
}

/// Result of one side.
#[derive(Clone, Debug, Serialize)]
pub struct PortReport {
    /// Role: `send`, `receive`, `ping` or `echo`.
    pub role: &'static str,
    /// Driver of the port.
    pub port: &'static str,
    /// Device or segment of the port.
    pub device: String,
    /// Frames that were sent, received or echoed.
    pub frames: u64,
    /// Bytes of the frames, from the destination address to the last byte before the FCS.
    pub bytes: u64,
    /// Frames per second: of the whole run, or from the first burst to the last one.
    pub frames_per_s: f64,
    /// Bits per second, over the same time.
    pub bits_per_s: f64,
    /// Lost frames of vibench; `None` if the role cannot detect losses or no such frame arrived.
    pub lost: Option<u64>,
    /// Received frames of vibench with a wrong CRC; only of `receive --filled`.
    pub damaged: Option<u64>,
    /// Half of the round trip; only of `ping`.
    pub half_round_trip_ns: Option<Percentiles>,
    /// Nonzero counters of the port.
    pub counters: Map<String, Value>,
}

impl PortReport {
    pub(super) fn of_stream(role: &'static str, station: &Station, traffic: &Traffic) -> Self {
        let seconds = traffic.elapsed.as_secs_f64();
        let per_second = |count: u64| match count {
            0 => 0.0,
            count => count as f64 / seconds,
        };
        Self {
            role,
            port: station.driver(),
            device: station.device().to_owned(),
            frames: traffic.frames,
            bytes: traffic.bytes,
            frames_per_s: per_second(traffic.timed_frames),
            bits_per_s: 8.0 * per_second(traffic.timed_bytes),
            lost: None,
            damaged: None,
            half_round_trip_ns: None,
            counters: Map::new(),
        }
    }

    pub(super) fn add_counters(&mut self, stats: &PortStats) {
        let counted = stats.counters.iter().filter(|counter| counter.value > 0);
        self.counters
            .extend(counted.map(|counter| (counter.name.to_owned(), Value::from(counter.value))));
    }
}

impl fmt::Display for PortReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} {} frames, {}B: {}frames/s, {}bit/s",
            self.role,
            self.frames,
            scaled(self.bytes as f64),
            scaled(self.frames_per_s),
            scaled(self.bits_per_s),
        )?;
        if let Some(half) = &self.half_round_trip_ns {
            writeln!(
                f,
                "half round trip: p50 {}, p90 {}, p99 {}, p99.9 {}, max {}",
                nanoseconds(half.p50),
                nanoseconds(half.p90),
                nanoseconds(half.p99),
                nanoseconds(half.p999),
                nanoseconds(half.max)
            )?;
        }
        if let Some(lost) = self.lost.filter(|&lost| lost > 0) {
            writeln!(f, "lost: {lost} frames")?;
        }
        if let Some(damaged) = self.damaged.filter(|&damaged| damaged > 0) {
            writeln!(f, "damaged: {damaged} frames")?;
        }
        for (name, value) in &self.counters {
            writeln!(f, "{name} {value}")?;
        }
        Ok(())
    }
}
