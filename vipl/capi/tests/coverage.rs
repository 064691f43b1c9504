//! Every return code of every call, and every row of the error table at every level and side, has a test of
//! the conformance suite or a justified exception; docs/spec/vipl-coverage.md says which.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::sync::OnceLock;

use common::exceptions::NEVER;
use common::guide::{CALLS, Phase};
use common::rows::{Level, ROWS};
use common::suite::{Declared, Program, Suite, programs};
use common::{Installation, workspace};

/// Tests by what they show: their names as the document has them.
type Shown<K> = BTreeMap<K, BTreeSet<String>>;

#[derive(Default)]
struct Coverage {
    tests: Vec<(Program, Declared)>,
    answers: Shown<(String, String)>,
    rows: Shown<(String, String, String)>,
}

fn coverage() -> &'static Coverage {
    static COVERAGE: OnceLock<Coverage> = OnceLock::new();
    COVERAGE.get_or_init(ask_the_suite)
}

fn ask_the_suite() -> Coverage {
    let installation = Installation::new("coverage");
    let mut found = Coverage::default();
    for phase in Phase::ALL {
        let programs = programs(phase);
        let suite = Suite::build(&installation, &programs);
        for program in programs {
            for test in suite.declared(&program) {
                let name = format!("{}: {}", program.source(), test.name);
                for answer in &test.answers {
                    found
                        .answers
                        .entry(answer.clone())
                        .or_default()
                        .insert(name.clone());
                }
                for row in &test.rows {
                    found
                        .rows
                        .entry(row.clone())
                        .or_default()
                        .insert(name.clone());
                }
                found.tests.push((program.clone(), test));
            }
        }
    }
    found
}

fn never(call: &str, code: &str) -> Option<&'static str> {
    let found = NEVER
        .iter()
        .find(|never| never.0 == call && never.1 == code);
    found.map(|never| never.2)
}

/// What is declared exists in the guide's tables, and nothing is both tested and excused.
#[test]
fn declarations_and_exceptions_are_of_the_guide() {
    let coverage = coverage();
    for ((call, code), tests) in &coverage.answers {
        let listed = CALLS.iter().find(|listed| listed.name == call);
        assert!(
            listed.is_some_and(|listed| listed.codes.contains(&code.as_str())),
            "{tests:?}: the guide has no {code} for {call}"
        );
        assert_eq!(
            never(call, code),
            None,
            "{tests:?}: {call} {code} is said never to occur"
        );
    }
    for ((row, level, side), tests) in &coverage.rows {
        let known = ROWS
            .iter()
            .any(|known| known.name == row && known.sides.contains(&side.as_str()));
        assert!(
            known,
            "{tests:?}: the error table has no {row} at the {side}"
        );
        assert!(
            Level::ALL.iter().any(|known| known.name() == level),
            "{tests:?}: {level}"
        );
    }
    for never in NEVER {
        let listed = CALLS.iter().find(|call| call.name == never.0);
        assert!(
            listed.is_some_and(|call| call.codes.contains(&never.1)),
            "{} {}: not in the guide",
            never.0,
            never.1
        );
        assert!(
            !never.2.trim().is_empty(),
            "{} {}: no reason",
            never.0,
            never.1
        );
    }
    for (program, test) in &coverage.tests {
        assert!(
            !test.clauses.is_empty(),
            "{}: {}: no clause",
            program.source(),
            test.name
        );
    }
}

#[test]
fn every_return_code_has_a_test_or_a_reason() {
    let coverage = coverage();
    let mut missing = Vec::new();
    for call in &CALLS {
        for code in call.codes {
            let key = (call.name.to_owned(), (*code).to_owned());
            if !coverage.answers.contains_key(&key) && never(call.name, code).is_none() {
                missing.push(key);
            }
        }
    }
    assert!(missing.is_empty(), "no test shows {missing:#?}");
}

#[test]
fn every_row_has_a_test_at_every_level_and_side() {
    let coverage = coverage();
    let mut missing = Vec::new();
    for row in ROWS {
        for level in Level::ALL {
            for side in row.sides {
                let key = (
                    row.name.to_owned(),
                    level.name().to_owned(),
                    (*side).to_owned(),
                );
                if !coverage.rows.contains_key(&key) {
                    missing.push(key);
                }
            }
        }
    }
    assert!(missing.is_empty(), "no test shows {missing:#?}");
}

const INTRODUCTION: &str = "# Coverage of the guide

What the VI Architecture Developer's Guide asks for, and the test that shows it. The tests are C programs against
`libvipl`, in [vipl/capi/tests/conformance](../../vipl/capi/tests/conformance), one folder for each of the guide's phases.
Each test declares what it shows, and a run holds it to that; a call that answers what the guide does not list for it is a
failure anywhere. The suite runs over shared memory as two processes, as one and under valgrind, attached to a datapath
process, and over Ethernet between two network namespaces.

This file is written by `VIPL_WRITE_DOCUMENTS=1 cargo test -p vipl-capi --test coverage` from the tests' declarations and
the tables in `vipl/capi/tests/common`.
";

const BREAK: &str = "\"Break\": the VI goes to Error before any further descriptor is processed, both queues are flushed in
order, and each end gets one asynchronous CONN_LOST. UD is Unreliable Delivery, RD Reliable Delivery, RR Reliable Reception.
What the protocol engine does underneath, with more cases, is in [vi-engine-errors.md](vi-engine-errors.md).
";

fn names(tests: Option<&BTreeSet<String>>) -> Option<String> {
    let tests = tests?;
    Some(
        tests
            .iter()
            .map(|test| format!("`{test}`"))
            .collect::<Vec<_>>()
            .join(", "),
    )
}

fn calls_table(coverage: &Coverage, text: &mut String) -> std::fmt::Result {
    writeln!(
        text,
        "\n## Calls\n\n| call | phase | clause | return code | test, or why the suite does not show it |"
    )?;
    writeln!(text, "| --- | --- | --- | --- | --- |")?;
    for call in &CALLS {
        for code in call.codes {
            let key = (call.name.to_owned(), (*code).to_owned());
            let told = match never(call.name, code) {
                Some(reason) => format!("not here: {reason}"),
                None => names(coverage.answers.get(&key)).unwrap_or_else(|| "missing".to_owned()),
            };
            let phase = call.phase.folder();
            let (name, clause) = (call.name, call.clause);
            writeln!(
                text,
                "| `{name}` | {phase} | {clause} | `VIP_{code}` | {told} |"
            )?;
        }
    }
    Ok(())
}

fn rows_table(coverage: &Coverage, text: &mut String) -> std::fmt::Result {
    writeln!(text, "\n## Errors\n\n{BREAK}")?;
    writeln!(
        text,
        "| event | level | what follows | side | test |\n| --- | --- | --- | --- | --- |"
    )?;
    for row in ROWS {
        for (level, follows) in Level::ALL.into_iter().zip(row.follows) {
            for side in row.sides {
                let key = (
                    row.name.to_owned(),
                    level.name().to_owned(),
                    (*side).to_owned(),
                );
                let told = names(coverage.rows.get(&key)).unwrap_or_else(|| "missing".to_owned());
                let level = level.name();
                writeln!(
                    text,
                    "| {} | {level} | {follows} | {side} | {told} |",
                    row.event
                )?;
            }
        }
    }
    Ok(())
}

fn tests_table(coverage: &Coverage, text: &mut String) -> std::fmt::Result {
    writeln!(
        text,
        "\n## Tests\n\n| program | test | clauses |\n| --- | --- | --- |"
    )?;
    for (program, test) in &coverage.tests {
        let clauses = test.clauses.join(", ");
        writeln!(
            text,
            "| `{}` | `{}` | {clauses} |",
            program.source(),
            test.name
        )?;
    }
    Ok(())
}

#[test]
fn the_document_is_what_the_tests_declare() {
    let coverage = coverage();
    let mut text = INTRODUCTION.to_owned();
    calls_table(coverage, &mut text)
        .and_then(|()| rows_table(coverage, &mut text))
        .and_then(|()| tests_table(coverage, &mut text))
        .expect("a string takes everything");
    let path = workspace().join("docs/spec/vipl-coverage.md");
    if std::env::var_os("VIPL_WRITE_DOCUMENTS").is_some() {
        fs::write(&path, &text).expect("the document");
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == text,
        "write it again: VIPL_WRITE_DOCUMENTS=1 cargo test -p vipl-capi --test coverage"
    );
}
