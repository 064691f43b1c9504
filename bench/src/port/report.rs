//! What one end saw.

use core::fmt;
use std::time::Duration;

use pmd_port::PortStats;
use serde::Serialize;
use serde_json::{Map, Value};

use super::station::Station;
use crate::report::{Percentiles, nanoseconds, scaled};

/// Frames that went through one end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Traffic {
    /// All of them.
    pub(super) frames: u64,
    /// Their bytes.
    pub(super) bytes: u64,
    /// Those within `elapsed`.
    pub(super) timed_frames: u64,
    /// Their bytes.
    pub(super) timed_bytes: u64,
    /// What the rates are of.
    pub(super) elapsed: Duration,
}

/// What one end saw.
#[derive(Clone, Debug, Serialize)]
pub struct PortReport {
    /// What the end did.
    pub role: &'static str,
    /// The driver.
    pub port: &'static str,
    /// What is behind it.
    pub device: String,
    /// Frames that were sent, received or came back.
    pub frames: u64,
    /// Their bytes, from destination address to the last byte before the FCS.
    pub bytes: u64,
    /// Frames in a second: while it ran, or from the first burst to the last one.
    pub frames_per_s: f64,
    /// Their bits in a second.
    pub bits_per_s: f64,
    /// Of our own frames, those that did not come; `None` where none could.
    pub lost: Option<u64>,
    /// Of our own frames that came, those whose CRC was wrong; only of `receive --filled`.
    pub damaged: Option<u64>,
    /// Only of `ping`.
    pub half_round_trip_ns: Option<Percentiles>,
    /// What the port counted, without what is zero.
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
