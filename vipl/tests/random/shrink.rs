//! Reduction of a failing program: removes steps while it still fails.

use std::time::{Duration, Instant};

use crate::oracle::Violation;
use crate::play;
use crate::program::Step;

/// No further program is tried after this time: one that hangs takes a long time to fail.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns the shortest failing program that was found, its violation, and its trace.
pub(crate) fn shorten(
    mut program: Vec<Step>,
    mut violation: Violation,
    mut trace: Vec<String>,
) -> (Vec<Step>, Violation, Vec<String>) {
    let start = Instant::now();
    let mut chunk = program.len() / 2;
    while chunk > 0 {
        let mut from = 0;
        while from < program.len() && start.elapsed() < LIMIT {
            let mut shorter = program.clone();
            shorter.drain(from..(from + chunk).min(program.len()));
            match play(&shorter) {
                Err((found, done)) => (program, violation, trace) = (shorter, found, done),
                Ok(_) => from += chunk,
            }
        }
        chunk /= 2;
    }
    (program, violation, trace)
}
