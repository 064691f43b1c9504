//! The conformance suite under valgrind: no error, no definite leak. Both ends are in one process there.

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

/// Any call with any argument.
#[test]
fn under_valgrind_fuzz() {
    let installation = Installation::new("valgrind-fuzz");
    let path = installation.compile_with_harness("fuzz", "c/fuzz.c");
    installation.run_checks(&mut installation.command_under_valgrind(&path));
}

/// The allocator of `viaduct.h`.
#[test]
fn under_valgrind_shared() {
    let installation = Installation::new("valgrind-shared");
    let path = installation.compile_with_harness("shared", "c/shared.c");
    installation.run_checks(&mut installation.command_under_valgrind(&path));
}
