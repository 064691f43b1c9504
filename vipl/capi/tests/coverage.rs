//! Each return code of each call, and each row of the error table at each level and side, has a test of the
//! conformance suite or a justified exception; docs/spec/vipl-coverage.md lists them.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::sync::OnceLock;

use common::exceptions::NEVER_RETURNED;
use common::guide::{CALLS, Phase};
use common::rows::{Level, ROWS};
use common::suite::{Program, Suite, TestDeclaration, programs};
use common::{Installation, workspace};

/// The names of the tests that cover each key, as in the document.
type TestsBy<K> = BTreeMap<K, BTreeSet<String>>;

#[derive(Default)]
struct Coverage {
    tests: Vec<(Program, TestDeclaration)>,
    returns: TestsBy<(String, String)>,
    rows: TestsBy<(String, String, String)>,
}

fn coverage() -> &'static Coverage {
    static COVERAGE: OnceLock<Coverage> = OnceLock::new();
    COVERAGE.get_or_init(collect_coverage)
}

fn collect_coverage() -> Coverage {
    let installation = Installation::new("coverage");
    let mut coverage = Coverage::default();
    for phase in Phase::ALL {
        let programs = programs(phase);
        let suite = Suite::build(&installation, &programs);
        for program in programs {
            for test in suite.declarations(&program) {
                let name = format!("{}: {}", program.source(), test.name);
                for returned in &test.returns {
                    coverage
                        .returns
                        .entry(returned.clone())
                        .or_default()
                        .insert(name.clone());
                }
                for row in &test.rows {
                    coverage
                        .rows
                        .entry(row.clone())
                        .or_default()
                        .insert(name.clone());
                }
                coverage.tests.push((program.clone(), test));
            }
        }
    }
    coverage
}

/// Returns the reason why the call never returns the code, if it is declared so.
fn exception(call: &str, code: &str) -> Option<&'static str> {
    let found = NEVER_RETURNED
        .iter()
        .find(|never| never.0 == call && never.1 == code);
    found.map(|never| never.2)
}

/// All declarations exist in the guide's tables, and none is both tested and excepted.
#[test]
fn declarations_and_exceptions_match_the_guide() {
    let coverage = coverage();
    for ((call, code), tests) in &coverage.returns {
        let listed = CALLS.iter().find(|listed| listed.name == call);
        assert!(
            listed.is_some_and(|listed| listed.codes.contains(&code.as_str())),
            "{tests:?}: the guide has no {code} for {call}"
        );
        assert_eq!(
            exception(call, code),
            None,
            "{tests:?}: {call} {code} is declared as never returned"
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
    for never in NEVER_RETURNED {
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
            if !coverage.returns.contains_key(&key) && exception(call.name, code).is_none() {
                missing.push(key);
            }
        }
    }
    assert!(missing.is_empty(), "no test covers {missing:#?}");
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
    assert!(missing.is_empty(), "no test covers {missing:#?}");
}

const INTRODUCTION: &str = "# Coverage of the guide

The requirements of the VI Architecture Developer's Guide and the tests that cover them. The tests are C programs that
use `libvipl`, in [vipl/capi/tests/conformance](../../vipl/capi/tests/conformance), one directory for each of the
guide's phases. Each test declares what it covers, and each run checks the declarations; a return code that the guide
does not list for the call fails any test. The suite runs over shared memory as two processes, as one process and
under valgrind, attached to a datapath process, and over Ethernet between two network namespaces.

This file is written by `VIPL_WRITE_DOCUMENTS=1 cargo test -p vipl-capi --test coverage` from the tests' declarations
and the tables in `vipl/capi/tests/common`.
";

const BREAK: &str = "\"Break\": the VI enters the Error state before any further descriptor is processed, both
queues are flushed in order, and each side gets one asynchronous CONN_LOST. UD is Unreliable Delivery, RD Reliable
Delivery, RR Reliable Reception. [vi-engine-errors.md](vi-engine-errors.md) has the error handling of the protocol
engine, with more cases.
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
        "\n## Calls\n\n| call | phase | clause | return code | test, or the reason for none |"
    )?;
    writeln!(text, "| --- | --- | --- | --- | --- |")?;
    for call in &CALLS {
        for code in call.codes {
            let key = (call.name.to_owned(), (*code).to_owned());
            let tests = match exception(call.name, code) {
                Some(reason) => format!("never returned: {reason}"),
                None => names(coverage.returns.get(&key)).unwrap_or_else(|| "missing".to_owned()),
            };
            let phase = call.phase.folder();
            let (name, clause) = (call.name, call.clause);
            writeln!(
                text,
                "| `{name}` | {phase} | {clause} | `VIP_{code}` | {tests} |"
            )?;
        }
    }
    Ok(())
}

fn rows_table(coverage: &Coverage, text: &mut String) -> std::fmt::Result {
    writeln!(text, "\n## Errors\n\n{BREAK}")?;
    writeln!(
        text,
        "| event | level | effects | side | test |\n| --- | --- | --- | --- | --- |"
    )?;
    for row in ROWS {
        for (level, follows) in Level::ALL.into_iter().zip(row.follows) {
            for side in row.sides {
                let key = (
                    row.name.to_owned(),
                    level.name().to_owned(),
                    (*side).to_owned(),
                );
                let tests = names(coverage.rows.get(&key)).unwrap_or_else(|| "missing".to_owned());
                let level = level.name();
                writeln!(
                    text,
                    "| {} | {level} | {follows} | {side} | {tests} |",
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
fn document_matches_test_declarations() {
    let coverage = coverage();
    let mut text = INTRODUCTION.to_owned();
    calls_table(coverage, &mut text)
        .and_then(|()| rows_table(coverage, &mut text))
        .and_then(|()| tests_table(coverage, &mut text))
        .expect("formatting into a string");
    let path = workspace().join("docs/spec/vipl-coverage.md");
    if std::env::var_os("VIPL_WRITE_DOCUMENTS").is_some() {
        fs::write(&path, &text).expect("the document");
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == text,
        "outdated; regenerate it: VIPL_WRITE_DOCUMENTS=1 cargo test -p vipl-capi --test coverage"
    );
}
