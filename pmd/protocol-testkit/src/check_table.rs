//! The checks of a crate as a table: the source, counters and test of each.

use std::fmt::Write;

use crate::necessity::Scenario;

/// A check.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The variant of the crate's enum of checks.
    pub check: &'static str,
    /// Its rule in the order of the checks [FCVI P-10].
    pub rule: &'static str,
    /// What is checked.
    pub condition: &'static str,
    /// The source file that makes the check, relative to `src`.
    pub file: &'static str,
    /// The text of that file.
    pub source: &'static str,
    /// The names of its counters.
    pub counters: &'static [&'static str],
    /// The effect of a stale frame without it, or the other check that rejects it then.
    pub without: &'static str,
    /// The test of its necessity.
    pub test: &'static str,
}

/// Returns the table of checks.
pub fn checks(rows: &[Row]) -> String {
    let mut table = "| check | rule | what is checked | where | counter | without it | test |\n\
                     | --- | --- | --- | --- | --- | --- | --- |\n"
        .to_owned();
    for row in rows {
        let counters = row.counters.iter().map(|name| format!("`{name}`"));
        let counters: Vec<String> = counters.collect();
        writeln!(
            table,
            "| {} | {} | {} | `{}` | {} | {} | `{}` |",
            row.check,
            row.rule,
            row.condition,
            row.file,
            counters.join(", "),
            row.without,
            row.test
        )
        .expect("a string");
    }
    table
}

/// Returns the table of scenarios.
pub fn scenarios(all: &[impl Scenario]) -> String {
    let mut table = "| scenario | seeds |\n| --- | --- |\n".to_owned();
    for scenario in all {
        writeln!(table, "| {scenario:?} | {} |", scenario.seeds().count()).expect("a string");
    }
    table
}

/// Returns the names of all checks from the source that declares them.
fn declared(source: &str) -> Vec<&str> {
    let (_, after) = source.split_once("enum Check {").expect("the checks");
    let (body, _) = after.split_once("\n}\n").expect("its end");
    let lines = body.lines().map(str::trim);
    lines.filter_map(|line| line.strip_suffix(',')).collect()
}

/// Asserts that every check has a row, is made in its file, and has its test. `declaration`,
/// `tests`: the sources that declare the checks and contain the tests.
///
/// # Panics
/// If one does not.
pub fn assert_complete(rows: &[Row], declaration: &str, tests: &str) {
    let mut named: Vec<&str> = rows.iter().map(|row| row.check).collect();
    let mut declared = declared(declaration);
    named.sort_unstable();
    declared.sort_unstable();
    assert_eq!(named, declared);
    for row in rows {
        let check = row.check;
        let call = format!("skips(Check::{check})");
        assert!(row.source.contains(&call), "{check} in {}", row.file);
        let test = format!("fn {}()", row.test);
        assert!(tests.contains(&test), "{check}: {test}");
        assert!(tests.contains(&format!("Check::{check}")));
    }
}
