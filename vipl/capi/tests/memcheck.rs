//! The conformance suite under valgrind: no error, no definite leak. Both sides run in one process.

mod common;

use common::Installation;
use common::guide::Phase;
use common::suite::{Suite, programs};

fn run(phase: Phase) {
    let installation = Installation::new(&format!("valgrind-{}", phase.folder()));
    let programs = programs(phase);
    let suite = Suite::build(&installation, &programs);
    for program in &programs {
        suite.run(
            program,
            &mut installation.command_under_valgrind(&suite.path(program)),
        );
    }
}

#[test]
fn under_valgrind_early_adopter() {
    run(Phase::EarlyAdopter);
}

#[test]
fn under_valgrind_functional() {
    run(Phase::Functional);
}

#[test]
fn under_valgrind_full() {
    run(Phase::Full);
}

/// Calls with random arguments.
#[test]
fn under_valgrind_fuzz() {
    let installation = Installation::new("valgrind-fuzz");
    let path = installation.compile_with_harness("fuzz", "c/fuzz.c");
    installation.run_checks(&mut installation.command_under_valgrind(&path));
}

/// The allocator of `viaduct.h`.
#[test]
fn under_valgrind_shared_memory() {
    let installation = Installation::new("valgrind-shared-memory");
    let path = installation.compile_with_harness("shared_memory", "c/shared_memory.c");
    installation.run_checks(&mut installation.command_under_valgrind(&path));
}
