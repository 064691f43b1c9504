//! The conformance suite over shared memory and VI/TCP: as two processes and as one, with the shared and the static
//! library.

mod common;

use common::guide::Phase;
use common::suite::{Program, Run, Suite, programs, two_processes};
use common::{Installation, Linkage};

/// Checks that each test of the program ran.
fn check_complete(suite: &Suite<'_>, program: &Program, run: &Run) {
    for test in suite.declarations(program) {
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

/// Runs all tests that do not require two processes.
#[test]
fn all_phases_in_one_process() {
    in_one_process(&Installation::new("one"));
}

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

/// Messages within a process bypass the frames (`shortcut = true`).
#[test]
fn all_phases_with_shortcut() {
    in_one_process(&Installation::with_keys(
        "shortcut",
        "fc_vi.shortcut = true",
    ));
}

/// membarrier(2) fails, as on an old kernel, and the library uses its fallback.
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

#[test]
fn early_adopter_with_static_library() {
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
