//! The conformance suite over shared memory: as two processes, as one, with either library.

mod common;

use common::guide::Phase;
use common::suite::{Program, Run, Suite, programs, two_processes};
use common::{Installation, Linkage};

/// Every test of the program ran.
fn check_complete(suite: &Suite<'_>, program: &Program, run: &Run) {
    for test in suite.declared(program) {
        assert!(
            run.ran.contains(&test.name),
            "{}: {} did not run: {run:?}",
            program.source(),
            test.name
        );
    }
}

fn as_two_processes(phase: Phase) {
    as_two_processes_of(
        &Installation::new(&format!("two-{}", phase.folder())),
        phase,
    );
}

fn as_two_processes_of(installation: &Installation, phase: Phase) {
    let programs = programs(phase);
    let suite = Suite::build(installation, &programs);
    for program in &programs {
        let mut command = two_processes(installation, &suite.path(program));
        let run = suite.run(program, &mut command);
        check_complete(&suite, program, &run);
    }
}

#[test]
fn early_adopter_as_two_processes() {
    as_two_processes(Phase::EarlyAdopter);
}

#[test]
fn functional_as_two_processes() {
    as_two_processes(Phase::Functional);
}

#[test]
fn full_as_two_processes() {
    as_two_processes(Phase::Full);
}

fn in_one_process(installation: &Installation) {
    for phase in Phase::ALL {
        let programs = programs(phase);
        let suite = Suite::build(installation, &programs);
        for program in &programs {
            suite.run(program, &mut installation.command(&suite.path(program)));
        }
    }
}

/// Both ends in one process: each test that does not need two passes there, too.
#[test]
fn all_phases_in_one_process() {
    in_one_process(&Installation::new("one"));
}

/// The same over VI/TCP, on the loopback interface.
#[test]
fn all_phases_in_one_process_over_tcp() {
    in_one_process(&Installation::over_tcp("one-tcp"));
}

#[test]
fn early_adopter_as_two_processes_over_tcp() {
    as_two_processes_of(&Installation::over_tcp("early-tcp"), Phase::EarlyAdopter);
}

#[test]
fn functional_as_two_processes_over_tcp() {
    as_two_processes_of(&Installation::over_tcp("functional-tcp"), Phase::Functional);
}

#[test]
fn full_as_two_processes_over_tcp() {
    as_two_processes_of(&Installation::over_tcp("full-tcp"), Phase::Full);
}

/// The same with messages that need no frames.
#[test]
fn all_phases_by_the_shortcut() {
    in_one_process(&Installation::with_keys("shortcut", "shortcut = true"));
}

/// membarrier(2) is refused, as by an old kernel: the library takes its slower way.
#[test]
fn without_membarrier() {
    let installation = Installation::new("no-membarrier");
    let source = "c/no_membarrier.c";
    let launcher = installation.compile(
        "no_membarrier",
        &[source],
        &["cc", "-std=c99"],
        Linkage::Shared,
    );
    let mut programs = programs(Phase::EarlyAdopter);
    programs.retain(|program| ["queues", "messages"].contains(&program.name.as_str()));
    assert_eq!(programs.len(), 2);
    let suite = Suite::build(&installation, &programs);
    for program in &programs {
        let mut command = two_processes(&installation, &launcher);
        suite.run(program, command.arg(suite.path(program)));
    }
}

/// libvipl.a in the place of libvipl.so.
#[test]
fn the_static_library() {
    let installation = Installation::new("static");
    let mut programs = programs(Phase::EarlyAdopter);
    programs.retain(|program| ["nic", "connect", "messages"].contains(&program.name.as_str()));
    assert_eq!(programs.len(), 3);
    let suite = Suite::build_static(&installation, &programs);
    for program in &programs {
        suite.run(
            program,
            &mut two_processes(&installation, &suite.path(program)),
        );
    }
}
