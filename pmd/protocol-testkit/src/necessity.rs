//! Necessity of checks: with all of them no stale frame is accepted, without one of them one is.

use std::fmt::Debug;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::disabled_checks::{Check, with_disabled};

/// Legal traffic on a network that delays and repeats frames.
pub trait Scenario: Copy + Debug {
    /// The checks of the crate.
    type Check: Check;

    /// Returns the seeds to run; at least one of them must show the effect of a missing check.
    fn seeds(self) -> Range<u64>;

    /// Runs it.
    ///
    /// # Errors
    /// The effect of a stale frame that was accepted.
    fn run(self, seed: u64) -> Result<(), String>;
}

/// Runs a scenario without these checks. Returns the effect of a stale frame that was accepted, or
/// `None`. A failed assertion of the scenario counts as well.
fn accepted_stale_frame<S: Scenario>(
    scenario: S,
    seed: u64,
    checks: &[S::Check],
) -> Option<String> {
    let result = catch_unwind(AssertUnwindSafe(|| {
        with_disabled(checks, || scenario.run(seed))
    }));
    match result {
        Ok(checked) => checked.err(),
        Err(_) => Some("a failed assertion".to_owned()),
    }
}

/// Asserts that with all checks no stale frame is accepted.
///
/// # Panics
/// If one is.
pub fn assert_rejected<S: Scenario>(scenario: S) {
    assert_rejected_without(&[], scenario);
}

/// Asserts that without these checks no stale frame is accepted.
///
/// # Panics
/// If one is.
pub fn assert_rejected_without<S: Scenario>(checks: &[S::Check], scenario: S) {
    for seed in scenario.seeds() {
        let found = accepted_stale_frame(scenario, seed, checks);
        assert_eq!(found, None, "{scenario:?}, seed {seed}, without {checks:?}");
    }
}

/// Asserts that without these checks a stale frame is accepted with some seed.
///
/// # Panics
/// If none is.
pub fn assert_accepted_without<S: Scenario>(checks: &[S::Check], scenario: S) {
    let found = scenario
        .seeds()
        .find_map(|seed| accepted_stale_frame(scenario, seed, checks));
    let found =
        found.unwrap_or_else(|| panic!("{scenario:?} without {checks:?}: no stale frame accepted"));
    println!("{scenario:?} without {checks:?}: {found}");
}

/// Asserts that without this check alone a stale frame is accepted.
///
/// # Panics
/// If none is.
pub fn assert_needed<S: Scenario>(check: S::Check, scenario: S) {
    assert_accepted_without(&[check], scenario);
}

/// Asserts that either of two checks rejects stale frames, and that without both one is accepted.
///
/// # Panics
/// If not.
pub fn assert_covered<S: Scenario>(check: S::Check, by: S::Check, scenario: S) {
    assert_rejected_without(&[check], scenario);
    assert_rejected_without(&[by], scenario);
    assert_accepted_without(&[check, by], scenario);
}
