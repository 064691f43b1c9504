//! Checks that docs/spec/vipl-rules.md has tests for each rule, and that these tests exist.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The path of a test file that the table names.
fn file_of(name: &str) -> PathBuf {
    let directories = match name {
        _ if name.ends_with(".c") && name.contains('/') => {
            ["vipl/capi/tests/conformance"].as_slice()
        }
        _ if name.ends_with(".c") => &["vipl/capi/tests/old_programs"],
        _ if name.contains('/') => &[""],
        _ => &["vipl/tests/api", "vipl/tests/attached", "vipl/tests"],
    };
    let paths = directories.iter().map(|path| root().join(path).join(name));
    let found = paths.into_iter().find(|path| path.exists());
    found.unwrap_or_else(|| panic!("no file {name} in {directories:?}"))
}

#[test]
fn every_rule_has_tests_and_they_exist() {
    let table = std::fs::read_to_string(root().join("docs/spec/vipl-rules.md")).unwrap();
    let rows: Vec<&str> = table
        .lines()
        .filter(|line| line.starts_with("| ") && line.as_bytes()[2].is_ascii_digit())
        .collect();
    assert_eq!(rows.len(), 20);
    for (row, number) in rows.iter().zip(1..) {
        assert!(row.starts_with(&format!("| {number} |")), "{row}");
        let tests: Vec<(&str, &str)> = row
            .split('`')
            .filter_map(|code| code.split_once("::"))
            .collect();
        let own = format!("rule_{number}_");
        assert!(
            tests.iter().any(|(_, test)| test.starts_with(&own)),
            "rule {number}: no test is named {own}*"
        );
        for (file, test) in tests {
            let text = std::fs::read_to_string(file_of(file))
                .unwrap_or_else(|error| panic!("rule {number}, {file}: {error}"));
            let declared = ["fn", "void", "int"].map(|kind| format!("{kind} {test}("));
            let found = declared.iter().any(|line| text.contains(line));
            assert!(found, "rule {number}: no {test} in {file}");
        }
    }
}
