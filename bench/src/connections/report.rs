//! The table and the JSON object of `vibench connect`.

use serde::Serialize;
use vi_types::ReliabilityLevel;

use crate::cli::ConnectOptions;
use crate::error::{Error, Result};
use crate::report::{Percentiles, nanoseconds, scaled};

/// Result of a step, a tenth of the connections.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepResult {
    /// Reliability level of the connections.
    pub level: ReliabilityLevel,
    /// Connections made and closed.
    pub connections: u32,
    /// Time that they took, in ns.
    pub elapsed_ns: u64,
    /// Requests repeated because the server did not listen yet (`VIP_NO_MATCH`).
    pub no_match: u64,
    /// Connections that were established at one end only.
    pub half_made: u32,
    /// Resident memory of the client after the step.
    pub resident_kib: u64,
    /// Resident memory of the server after the step.
    pub far_resident_kib: u64,
}

impl StepResult {
    pub(super) fn new(level: ReliabilityLevel) -> Self {
        Self {
            level,
            connections: 0,
            elapsed_ns: 0,
            no_match: 0,
            half_made: 0,
            resident_kib: 0,
            far_resident_kib: 0,
        }
    }
}

/// Result of a run: the object in the JSON file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ConnectResult {
    /// The name of the benchmark.
    pub benchmark: &'static str,
    /// Driver of the port, or `vi-tcp`.
    pub port: String,
    /// Percentage of peer-to-peer connections.
    pub peers_percent: u32,
    /// Connections made and closed.
    pub connections: u32,
    /// Connections per second.
    pub connections_per_s: f64,
    /// Time from the accepted request to the established connection.
    pub setup_ns: Option<Percentiles>,
    /// Requests repeated because the server did not listen yet (`VIP_NO_MATCH`).
    pub no_match: u64,
    /// Connections that were established at one end only.
    pub half_made: u32,
    /// Maximum resident memory of the client minus that after the first step.
    pub growth_kib: u64,
    /// Maximum resident memory of the server minus that after the first step.
    pub far_growth_kib: u64,
    /// Results of the steps.
    pub steps: Vec<StepResult>,
    /// Reason for which the run ended early.
    pub ended_early: Option<String>,
}

impl ConnectResult {
    pub(super) fn new(options: &ConnectOptions, port: &str) -> Self {
        Self {
            benchmark: "connect",
            port: port.to_owned(),
            peers_percent: options.peers,
            connections: 0,
            connections_per_s: 0.0,
            setup_ns: None,
            no_match: 0,
            half_made: 0,
            growth_kib: 0,
            far_growth_kib: 0,
            steps: Vec::new(),
            ended_early: None,
        }
    }

    pub(super) fn add(&mut self, step: StepResult) {
        self.steps.push(step);
        self.connections += step.connections;
        self.no_match += step.no_match;
        self.half_made += step.half_made;
        let elapsed_ns: u64 = self.steps.iter().map(|step| step.elapsed_ns).sum();
        self.connections_per_s = f64::from(self.connections) * 1e9 / elapsed_ns.max(1) as f64;
        self.growth_kib = self.growth(|step| step.resident_kib);
        self.far_growth_kib = self.growth(|step| step.far_resident_kib);
    }

    fn growth(&self, resident_kib: fn(&StepResult) -> u64) -> u64 {
        let first = self.steps.first().map_or(0, resident_kib);
        let most = self.steps.iter().map(resident_kib).max().unwrap_or(0);
        most - first
    }

    /// Checks the growth of resident memory at both ends.
    ///
    /// # Errors
    /// [`Error::Goal`] if it exceeds `max_growth_kib`.
    pub(super) fn check_growth(&self, max_growth_kib: Option<u64>) -> Result<()> {
        let most = self.growth_kib.max(self.far_growth_kib);
        match max_growth_kib {
            Some(limit) if most > limit => Err(Error::Goal(format!(
                "resident memory grew by {most} KiB after the first tenth: the limit is {limit} KiB"
            ))),
            Some(_) | None => Ok(()),
        }
    }
}

/// Returns the header of the table, two lines.
pub(super) fn table_header() -> String {
    let header = format!(
        "{:<2} {:>11} {:>13} {:>9} {:>9} {:>13} {:>13}",
        "lv",
        "connections",
        "connections/s",
        "no match",
        "half made",
        "client memory",
        "server memory"
    );
    let rule = "-".repeat(header.len());
    format!("{header}\n{rule}")
}

/// Returns a line of the table: a step, and the number of connections up to it.
pub(super) fn table_row(result: &ConnectResult, step: &StepResult) -> String {
    let rate = f64::from(step.connections) * 1e9 / step.elapsed_ns.max(1) as f64;
    format!(
        "{:<2} {:>11} {:>13} {:>9} {:>9} {:>13} {:>13}",
        step.level,
        result.connections,
        scaled(rate).trim_end(),
        step.no_match,
        step.half_made,
        format!("{} KiB", step.resident_kib),
        format!("{} KiB", step.far_resident_kib),
    )
}

/// Returns the line below the table.
pub(super) fn summary(result: &ConnectResult) -> String {
    let setup = match &result.setup_ns {
        Some(setup) => format!(
            "setup time {} (p50), {} (p99), {} (max)",
            nanoseconds(setup.p50),
            nanoseconds(setup.p99),
            nanoseconds(setup.max)
        ),
        None => "none established".to_owned(),
    };
    let ended = match &result.ended_early {
        Some(reason) => format!("; ended early: {reason}"),
        None => String::new(),
    };
    format!(
        "{} connections over {}, {:.0}/s; {setup}; memory growth after the first tenth: \
         client {} KiB, server {} KiB{ended}",
        result.connections,
        result.port,
        result.connections_per_s,
        result.growth_kib,
        result.far_growth_kib
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(resident_kib: u64, far_resident_kib: u64) -> StepResult {
        StepResult {
            connections: 1000,
            elapsed_ns: 500_000_000,
            no_match: 3,
            resident_kib,
            far_resident_kib,
            ..StepResult::new(ReliabilityLevel::ReliableDelivery)
        }
    }

    fn result(steps: &[StepResult]) -> ConnectResult {
        let mut result = ConnectResult {
            benchmark: "connect",
            port: "shm".into(),
            peers_percent: 10,
            connections: 0,
            connections_per_s: 0.0,
            setup_ns: None,
            no_match: 0,
            half_made: 0,
            growth_kib: 0,
            far_growth_kib: 0,
            steps: Vec::new(),
            ended_early: None,
        };
        steps.iter().for_each(|step| result.add(*step));
        result
    }

    #[test]
    fn result_sums_steps() {
        let result = result(&[step(5000, 6000), step(5004, 5990), step(5001, 6000)]);
        assert_eq!((result.connections, result.no_match), (3000, 9));
        assert_eq!(result.connections_per_s, 2000.0);
        assert_eq!((result.growth_kib, result.far_growth_kib), (4, 0));
        assert!(summary(&result).starts_with("3000 connections over shm, 2000/s; none"));
    }

    #[test]
    fn check_growth_fails_above_limit() {
        let client_grew = result(&[step(5000, 6000), step(5004, 6000)]);
        let server_grew = result(&[step(5000, 6000), step(5000, 6004), step(5000, 6000)]);
        for grown in [&client_grew, &server_grew] {
            assert!(grown.check_growth(None).is_ok());
            assert!(grown.check_growth(Some(4)).is_ok());
            let error = grown.check_growth(Some(3)).unwrap_err();
            assert!(error.to_string().contains("grew by 4 KiB"), "{error}");
        }
        assert!(result(&[]).check_growth(Some(0)).is_ok());
    }

    #[test]
    fn table_rows_align_with_header() {
        let first = step(5000, 6000);
        let header = table_header();
        let row = table_row(&result(&[first]), &first);
        assert_eq!(
            header.lines().next().unwrap().len(),
            row.len(),
            "{header}\n{row}"
        );
        assert!(row.contains("2.0 k") && row.ends_with("6000 KiB"), "{row}");
    }
}
