//! Limits of the length of files and functions.

use super::Rule;
use crate::finding::Finding;
use crate::rust_source::{RustSource, is_word, matching, skip_space, word_offsets};
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
            note_code_lines(tree, file, rust, &mut findings);
            check_functions(file, rust, &mut findings);
        }
    }
    findings
}

fn note_code_lines(tree: &Tree, file: &TextFile, rust: &RustSource, findings: &mut Vec<Finding>) {
    let code_lines = rust
        .lines()
        .filter(|&(line, code)| !code.trim().is_empty() && !tree.is_test_line(file, line))
        .count();
    if code_lines > NOTED_CODE_LINES {
        let message = format!("{code_lines} code lines, more than about {NOTED_CODE_LINES}");
        let finding = Finding::new(RULE.name, &file.path, 0, message, SPLIT_FILE);
        findings.push(finding.into_note());
    }
}

fn check_functions(file: &TextFile, rust: &RustSource, findings: &mut Vec<Finding>) {
    for function in functions(rust) {
        let lines = function.last_line - function.first_line + 1;
        if lines <= NOTED_FUNCTION_LINES {
            continue;
        }
        let is_note = lines <= MAX_FUNCTION_LINES;
        let limit = if is_note {
            format!("about {NOTED_FUNCTION_LINES}")
        } else {
            MAX_FUNCTION_LINES.to_string()
        };
        let finding = Finding::new(
            RULE.name,
            &file.path,
            function.first_line,
            format!("`{}` has {lines} lines, more than {limit}", function.name),
            SPLIT_FUNCTION,
        );
        findings.push(Finding { is_note, ..finding });
    }
}

struct Function<'a> {
    name: &'a str,
    first_line: usize,
    last_line: usize,
}

/// Returns all functions with a body.
fn functions(rust: &RustSource) -> Vec<Function<'_>> {
    let bytes = rust.code.as_bytes();
    let mut functions = Vec::new();
    for start in word_offsets(&rust.code, "fn") {
        let name_start = skip_space(bytes, start + 2);
        let name_bytes = bytes[name_start..]
            .iter()
            .take_while(|&&byte| is_word(byte))
            .count();
        // Without a name it is a function pointer type.
        if name_bytes == 0 {
            continue;
        }
        let Some(body) = body_start(bytes, name_start + name_bytes) else {
            continue;
        };
        functions.push(Function {
            name: &rust.code[name_start..name_start + name_bytes],
            first_line: rust.line_of(start),
            last_line: rust.line_of(matching(bytes, body).saturating_sub(1)),
        });
    }
    functions
}

/// Returns the offset of the opening brace of a function whose name ends at `at`; `None` for a declaration without a
/// body.
fn body_start(code: &[u8], at: usize) -> Option<usize> {
    let mut at = at;
    while at < code.len() {
        match code[at] {
            b'{' => return Some(at),
            b';' | b'}' => return None,
            b'(' | b'[' => at = matching(code, at),
            _ => at += 1,
        }
    }
    None
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
