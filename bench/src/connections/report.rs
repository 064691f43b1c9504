//! The table and the JSON object.

use serde::Serialize;

use crate::cli::ConnectOptions;
use crate::error::{Error, Result};
use crate::plan::Level;
use crate::report::{Percentiles, nanoseconds, scaled};

/// A step of a run, which is a tenth of its connections.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepResult {
    /// The level of its connections.
    pub level: Level,
    /// Connections made and ended.
    pub connections: u32,
    /// Time that they took, in nanoseconds.
    pub elapsed_ns: u64,
    /// Requests that found nobody waiting and were made again.
    pub no_match: u64,
    /// Connections that one end alone was in.
    pub half_made: u32,
    /// Resident memory of the measuring end after it.
    pub resident_kib: u64,
    /// Resident memory of the answering end after it.
    pub far_resident_kib: u64,
}

impl StepResult {
    pub(super) fn new(level: Level) -> Self {
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

/// What a run came to: the object in the JSON file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ConnectResult {
    /// The name of the benchmark.
    pub benchmark: &'static str,
    /// What carried them: the port, or `vi-tcp`.
    pub port: String,
    /// Of a hundred connections so many were between peers.
    pub peers_percent: u32,
    /// Connections made and ended.
    pub connections: u32,
    /// Of them in a second.
    pub connections_per_s: f64,
    /// From the request that was accepted until the connection is there.
    pub setup_ns: Option<Percentiles>,
    /// Requests that found nobody waiting and were made again.
    pub no_match: u64,
    /// Connections that one end alone was in.
    pub half_made: u32,
    /// By how much the resident memory of the measuring end was larger, at most, than after the first step.
    pub growth_kib: u64,
    /// The same of the answering end.
    pub far_growth_kib: u64,
    /// All steps that were made.
    pub steps: Vec<StepResult>,
    /// Why the run ended early, if it did.
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

    /// # Errors
    /// [`Error::Goal`] if the memory of an end grew by more than `max_growth_kib`.
    pub(super) fn judge(&self, max_growth_kib: Option<u64>) -> Result<()> {
        let most = self.growth_kib.max(self.far_growth_kib);
        match max_growth_kib {
            Some(limit) if most > limit => Err(Error::Goal(format!(
                "resident memory grew by {most} KiB after the first tenth, more than {limit} KiB"
            ))),
            Some(_) | None => Ok(()),
        }
    }
}

/// The two lines above the table.
pub(super) fn table_head() -> String {
    let head = format!(
        "{:<2} {:>11} {:>13} {:>9} {:>9} {:>13} {:>13}",
        "lv", "connections", "connections/s", "no match", "half made", "resident here", "there"
    );
    let rule = "-".repeat(head.len());
    format!("{head}\n{rule}")
}

/// One line of the table: the step, and how many connections there were up to it.
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

/// The line below the table.
pub(super) fn summary(result: &ConnectResult) -> String {
    let setup = match &result.setup_ns {
        Some(setup) => format!(
            "set up in {} (p50), {} (p99), {} at most",
            nanoseconds(setup.p50),
            nanoseconds(setup.p99),
            nanoseconds(setup.max)
        ),
        None => "none was set up".to_owned(),
    };
    let ended = match &result.ended_early {
        Some(reason) => format!("; ended early: {reason}"),
        None => String::new(),
    };
    format!(
        "{} connections over {}, {:.0}/s; {setup}; memory grew by {} KiB here, {} KiB there after the first tenth{ended}",
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
            ..StepResult::new(Level::Rd)
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
    fn steps_add_up() {
        let result = result(&[step(5000, 6000), step(5004, 5990), step(5001, 6000)]);
        assert_eq!((result.connections, result.no_match), (3000, 9));
        assert_eq!(result.connections_per_s, 2000.0);
        assert_eq!((result.growth_kib, result.far_growth_kib), (4, 0));
        assert!(summary(&result).starts_with("3000 connections over shm, 2000/s; none"));
    }

    #[test]
    fn growth_is_judged_where_it_is_asked_for() {
        let near = result(&[step(5000, 6000), step(5004, 6000)]);
        let far = result(&[step(5000, 6000), step(5000, 6004), step(5000, 6000)]);
        for grown in [&near, &far] {
            assert!(grown.judge(None).is_ok());
            assert!(grown.judge(Some(4)).is_ok());
            let error = grown.judge(Some(3)).unwrap_err();
            assert!(error.to_string().contains("grew by 4 KiB"), "{error}");
        }
        assert!(result(&[]).judge(Some(0)).is_ok());
    }

    #[test]
    fn rows_stand_under_the_head() {
        let first = step(5000, 6000);
        let head = table_head();
        let row = table_row(&result(&[first]), &first);
        assert_eq!(
            head.lines().next().unwrap().len(),
            row.len(),
            "{head}\n{row}"
        );
        assert!(row.contains("2.0 k") && row.ends_with("6000 KiB"), "{row}");
    }
}
