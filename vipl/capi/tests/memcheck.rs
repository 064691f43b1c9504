//! The conformance suite under valgrind: no error, no definite leak. The library has no expedited barriers
//! there and takes the slower way.

mod common;

use common::Installation;
use common::guide::Phase;
use common::suite::{Suite, programs};

fn under_valgrind(phase: Phase) {
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
fn early_adopter() {
    under_valgrind(Phase::EarlyAdopter);
}

#[test]
fn functional() {
    under_valgrind(Phase::Functional);
}

#[test]
fn full() {
    under_valgrind(Phase::Full);
}

/// Any call with any argument.
#[test]
fn fuzz() {
    let installation = Installation::new("valgrind-fuzz");
    let path = installation.compile_with_harness("fuzz", "c/fuzz.c");
    installation.run_checks(&mut installation.command_under_valgrind(&path));
}
