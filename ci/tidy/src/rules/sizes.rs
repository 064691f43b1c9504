//! Limits of the length of files and functions.

use std::ops::RangeInclusive;

use proc_macro2::{TokenStream, TokenTree};

use crate::finding::Finding;
use crate::rule::Rule;
use crate::rust_source::{RustSource, is_braced, is_punct, is_word};
use crate::tables::Tables;
use crate::tree::{TextFile, Tree};

/// The rule `sizes`.
pub const RULE: Rule = Rule {
    name: "sizes",
    check,
};

const MAX_FILE_LINES: usize = 600;
const NOTED_CODE_LINES: usize = 400;
const MAX_FUNCTION_LINES: usize = 100;
const NOTED_FUNCTION_LINES: usize = 70;

const SPLIT_FILE: &str = "split it by topic; tests can move to a sibling tests.rs";
const SPLIT_FUNCTION: &str = "extract its steps into functions";

/// File name endings of code.
const CODE_ENDINGS: [&str; 5] = [".rs", ".c", ".h", ".sh", ".py"];

fn check(tree: &Tree, _: &Tables) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files() {
        let is_script = file.text.starts_with("#!");
        if !is_script && !CODE_ENDINGS.iter().any(|e| file.path.ends_with(e)) {
            continue;
        }
        let lines = file.text.lines().count();
        if lines > MAX_FILE_LINES {
            let message = format!("{lines} lines, more than {MAX_FILE_LINES}");
            findings.push(Finding::new(RULE.name, &file.path, 0, message, SPLIT_FILE));
        }
        if let Some(rust) = &file.rust {
            if !tree.is_test_file(file) {
                note_code_lines(file, rust, &mut findings);
            }
            check_functions(&file.path, rust.all.tokens.clone(), &mut findings);
        }
    }
    findings
}

fn note_code_lines(file: &TextFile, rust: &RustSource, findings: &mut Vec<Finding>) {
    let lines = rust.production.lines();
    let code_lines = lines.filter(|(_, code)| !code.trim().is_empty()).count();
    if code_lines > NOTED_CODE_LINES {
        let message = format!("{code_lines} code lines, more than about {NOTED_CODE_LINES}");
        let finding = Finding::new(RULE.name, &file.path, 0, message, SPLIT_FILE);
        findings.push(finding.into_note());
    }
}

/// Checks the functions with a body among `tokens`, also those in macros.
fn check_functions(path: &str, tokens: TokenStream, findings: &mut Vec<Finding>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        match (token, tokens.get(at + 1)) {
            // Without a name it is a function pointer type.
            (keyword, Some(TokenTree::Ident(name))) if is_word(keyword, "fn") => {
                let end = |token: &&TokenTree| is_braced(token) || is_punct(token, ';');
                if let Some(body @ TokenTree::Group(_)) = tokens[at..].iter().find(end) {
                    let lines = keyword.span().start().line..=body.span().end().line;
                    findings.extend(check_function(path, &name.to_string(), lines));
                }
            }
            (TokenTree::Group(group), _) => check_functions(path, group.stream(), findings),
            _ => {}
        }
    }
}

fn check_function(path: &str, name: &str, range: RangeInclusive<usize>) -> Option<Finding> {
    let lines = range.clone().count();
    if lines <= NOTED_FUNCTION_LINES {
        return None;
    }
    let is_note = lines <= MAX_FUNCTION_LINES;
    let limit = if is_note {
        format!("about {NOTED_FUNCTION_LINES}")
    } else {
        MAX_FUNCTION_LINES.to_string()
    };
    let message = format!("`{name}` has {lines} lines, more than {limit}");
    let finding = Finding::new(RULE.name, path, *range.start(), message, SPLIT_FUNCTION);
    Some(Finding { is_note, ..finding })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    fn found(path: &str, text: &str) -> Vec<String> {
        let tree = samples::tree(&[(path, text)]);
        let findings = check(&tree, &Tables::default());
        findings
            .into_iter()
            .map(|f| {
                format!(
                    "{}{}:{}",
                    if f.is_note { "note " } else { "" },
                    f.line,
                    f.message
                )
            })
            .collect()
    }

    #[test]
    fn long_file_of_any_language_is_found() {
        let long = "// x\n".repeat(601);
        assert_eq!(found("a.rs", &long), ["0:601 lines, more than 600"]);
        assert_eq!(found("a.c", &long), ["0:601 lines, more than 600"]);
        assert_eq!(
            found("run", &format!("#!/bin/sh\n{long}")),
            ["0:602 lines, more than 600"]
        );
        assert_eq!(found("a.hex", &long), [""; 0]);
        assert_eq!(found("a.rs", &"// x\n".repeat(600)), [""; 0]);
    }

    #[test]
    fn many_code_lines_without_tests_are_noted() {
        let code = "use a;\n".repeat(401);
        assert_eq!(
            found("a.rs", &code),
            ["note 0:401 code lines, more than about 400"]
        );
        assert_eq!(found("tests/a.rs", &code), [""; 0]);
    }

    #[test]
    fn long_function_is_found() {
        let body = "    x();\n".repeat(99);
        let text = format!(
            "\npub fn f<const N: usize>(a: [u8; {{ N }}]) -> T\nwhere\n    T: X {{\n{body}}}\n"
        );
        assert_eq!(found("a.rs", &text), ["2:`f` has 103 lines, more than 100"]);
        let body = "    x();\n".repeat(69);
        let text = format!(
            "fn f() {{\n{body}}}\nfn g() {{}}\ntrait T {{ fn h(&self); }}\ntype P = fn(u8);\n"
        );
        assert_eq!(
            found("a.rs", &text),
            ["note 1:`f` has 71 lines, more than about 70"]
        );
    }
}
