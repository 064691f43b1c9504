//! A failing program made short: steps are taken out for as long as it fails.

use std::time::{Duration, Instant};

use crate::oracle::Violation;
use crate::play;
use crate::program::Step;

/// No new program is tried after so long: one that hangs takes long to fail.
const LIMIT: Duration = Duration::from_secs(60);

/// The shortest failing program that was found, how it fails, and what was done in it.
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
