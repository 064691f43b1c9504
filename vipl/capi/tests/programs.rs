//! The C test programs: with the shared library, with the static one, and under valgrind.

mod common;

use common::{Installation, Linkage, calls, succeed};

/// How a program is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    Plain,
    Valgrind,
}

/// Compiles and runs one program; it must pass every check it makes.
fn run(program: &str, linkage: Linkage, run: Run) {
    let installation = Installation::new(&format!("{program}-{linkage:?}-{run:?}").to_lowercase());
    let source = format!("{program}.c");
    let sources = [source.as_str(), "fixture.c", "check.c"];
    let path = installation.compile(program, &sources, &["cc", "-std=c99"], linkage);
    let mut command = match run {
        Run::Plain => installation.command(&path),
        Run::Valgrind => installation.command_under_valgrind(&path),
    };
    let output = succeed(command.arg(installation.directory()));
    let printed = String::from_utf8(output.stdout).expect("text");
    assert!(printed.ends_with(" passed, 0 failed\n"), "{printed}");
    calls::check(program, &printed);
}

#[test]
fn args_shared() {
    run("args", Linkage::Shared, Run::Plain);
}

#[test]
fn args_static() {
    run("args", Linkage::Static, Run::Plain);
}

#[test]
fn args_under_valgrind() {
    run("args", Linkage::Shared, Run::Valgrind);
}

#[test]
fn attributes_shared() {
    run("attributes", Linkage::Shared, Run::Plain);
}

#[test]
fn attributes_static() {
    run("attributes", Linkage::Static, Run::Plain);
}

#[test]
fn attributes_under_valgrind() {
    run("attributes", Linkage::Shared, Run::Valgrind);
}

#[test]
fn failure_shared() {
    run("failure", Linkage::Shared, Run::Plain);
}

#[test]
fn failure_static() {
    run("failure", Linkage::Static, Run::Plain);
}

#[test]
fn failure_under_valgrind() {
    run("failure", Linkage::Shared, Run::Valgrind);
}

#[test]
fn loop_shared() {
    run("loop", Linkage::Shared, Run::Plain);
}

#[test]
fn loop_static() {
    run("loop", Linkage::Static, Run::Plain);
}

#[test]
fn loop_under_valgrind() {
    run("loop", Linkage::Shared, Run::Valgrind);
}

#[test]
fn connect_shared() {
    run("connect", Linkage::Shared, Run::Plain);
}

#[test]
fn connect_static() {
    run("connect", Linkage::Static, Run::Plain);
}

#[test]
fn connect_under_valgrind() {
    run("connect", Linkage::Shared, Run::Valgrind);
}

#[test]
fn errors_shared() {
    run("errors", Linkage::Shared, Run::Plain);
}

#[test]
fn errors_static() {
    run("errors", Linkage::Static, Run::Plain);
}

#[test]
fn errors_under_valgrind() {
    run("errors", Linkage::Shared, Run::Valgrind);
}

#[test]
fn closing_shared() {
    run("closing", Linkage::Shared, Run::Plain);
}

#[test]
fn closing_static() {
    run("closing", Linkage::Static, Run::Plain);
}

#[test]
fn closing_under_valgrind() {
    run("closing", Linkage::Shared, Run::Valgrind);
}

#[test]
fn limits_shared() {
    run("limits", Linkage::Shared, Run::Plain);
}

#[test]
fn limits_static() {
    run("limits", Linkage::Static, Run::Plain);
}

#[test]
fn limits_under_valgrind() {
    run("limits", Linkage::Shared, Run::Valgrind);
}

#[test]
fn fuzz_shared() {
    run("fuzz", Linkage::Shared, Run::Plain);
}

#[test]
fn fuzz_under_valgrind() {
    run("fuzz", Linkage::Shared, Run::Valgrind);
}
