//! The table of return codes is complete, and its document says the same.

mod common;

use std::collections::BTreeSet;
use std::fs;

use common::calls::{CALLS, Proof, document, programs};
use common::{c_tests, workspace};

/// The words of the header that begin with `prefix` where `before` stands directly before them.
fn header_words(before: &str, prefix: &str) -> BTreeSet<String> {
    let header = fs::read_to_string(c_tests().join("../../include/vipl.h")).expect("the header");
    let word = |rest: &str| {
        let end = rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
            .unwrap_or(rest.len());
        rest[..end].to_owned()
    };
    header
        .split(before)
        .skip(1)
        .map(word)
        .filter(|found| found.starts_with(prefix))
        .collect()
}

#[test]
fn the_table_has_every_call_once_and_only_codes_that_exist() {
    let names: Vec<String> = CALLS.iter().map(|call| call.name.to_owned()).collect();
    let unique: BTreeSet<String> = names.iter().cloned().collect();
    assert_eq!(names.len(), unique.len(), "a call is there twice");
    assert_eq!(unique, header_words("extern VIP_RETURN ", "Vip"));

    let codes = header_words("    ", "VIP_");
    for call in CALLS {
        let listed: BTreeSet<&str> = call.answers.iter().map(|(code, _)| *code).collect();
        assert_eq!(
            listed.len(),
            call.answers.len(),
            "{}: a code twice",
            call.name
        );
        for code in ["VIP_SUCCESS", "VIP_INVALID_PARAMETER"] {
            assert!(listed.contains(code), "{} lists no {code}", call.name);
        }
        for code in listed {
            assert!(
                codes.contains(code),
                "{}: {code} is no VIP_RETURN",
                call.name
            );
        }
    }
}

/// A row without a test has a reason; a row with one names a function that is there and a program
/// that `programs.rs` runs and holds against the table.
#[test]
fn every_row_has_a_test_or_a_reason() {
    let runner = fs::read_to_string(c_tests().join("../programs.rs")).expect("the runner");
    for program in programs() {
        let run = format!("run(\"{program}\", Linkage::Shared, Run::Plain)");
        assert!(runner.contains(&run), "nobody runs {program}.c");
    }
    let fixture = fs::read_to_string(c_tests().join("fixture.c")).expect("the fixture");
    for call in CALLS {
        for (code, proof) in call.answers {
            match proof {
                Proof::Never(reason) => {
                    assert!(!reason.trim().is_empty(), "{} {code}: no reason", call.name);
                }
                Proof::Test(program, function) => {
                    let path = c_tests().join(format!("{program}.c"));
                    let source = fs::read_to_string(&path).expect("the program");
                    assert!(
                        [&source, &fixture]
                            .iter()
                            .any(|text| text.contains(&format!("{function}("))),
                        "{} {code}: {program}.c has no {function}",
                        call.name
                    );
                }
            }
        }
    }
}

#[test]
fn the_document_is_the_table() {
    let path = workspace().join("docs/spec/vipl-calls.md");
    if std::env::var_os("VIPL_WRITE_DOCUMENTS").is_some() {
        fs::write(&path, document()).expect("the document");
    }
    let written = fs::read_to_string(&path).expect("the document");
    assert_eq!(
        written,
        document(),
        "write it again: VIPL_WRITE_DOCUMENTS=1 cargo test -p vipl-capi --test calls"
    );
}
