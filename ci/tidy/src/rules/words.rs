//! Forbidden words: marks of unfinished work, and in code debug output, ignored tests and sleeps.

use crate::finding::Finding;
use crate::rule::Rule;
use crate::rust_source::word_offsets;
use crate::tables::Tables;
use crate::tree::{TextFile, Tree};

/// The rule `words`.
pub const RULE: Rule = Rule {
    name: "words",
    check,
};

/// Files that are generated, or whose text is fixed by others.
const FOREIGN_FILES: [&str; 3] = ["Cargo.lock", "LICENSE-APACHE", "LICENSE-MIT"];

const NOT_UNFINISHED: &str = "finish it, or file an issue";
const NOT_IGNORED: &str = "make the test pass or remove it";
const NOT_DEBUG: &str = "remove it";
const NOT_SLEEP: &str = "wait for the event itself";

fn check(tree: &Tree, _: &Tables) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files() {
        if FOREIGN_FILES.contains(&file.name()) {
            continue;
        }
        let mut find = |line: usize, word: &str, advice: &'static str| {
            let message = format!("the word `{word}`");
            findings.push(Finding::new(RULE.name, &file.path, line, message, advice));
        };
        for (line, text) in (1..).zip(file.text.lines()) {
            check_text(line, text, &mut find);
        }
        check_code(tree, file, &mut find);
    }
    findings
}

/// Finds words that are forbidden anywhere: in code, comments, literals and prose.
fn check_text(line: usize, text: &str, find: &mut dyn FnMut(usize, &str, &'static str)) {
    for word in ["FIXME", "XXX"] {
        if word_offsets(text, word).next().is_some() {
            find(line, word, NOT_UNFINISHED);
        }
    }
    for at in word_offsets(text, "TODO") {
        if !has_reason(&text[at + 4..]) {
            find(line, "TODO", NOT_UNFINISHED);
        }
    }
}

/// Finds words that are forbidden in code.
fn check_code(tree: &Tree, file: &TextFile, find: &mut dyn FnMut(usize, &str, &'static str)) {
    let Some(rust) = &file.rust else { return };
    for (line, code) in rust.all.lines() {
        if word_offsets(code, "dbg").any(|at| code[at + 3..].starts_with('!')) {
            find(line, "dbg!", NOT_DEBUG);
        }
        let squeezed: String = code.split_whitespace().collect();
        if squeezed.contains("#[ignore") || squeezed.contains(",ignore)]") {
            find(line, "#[ignore]", NOT_IGNORED);
        }
    }
    if tree.is_test_file(file) {
        return;
    }
    for (line, code) in rust.production.lines() {
        if code.contains("thread::sleep") || code.contains("libc::usleep") {
            find(line, "sleep", NOT_SLEEP);
        }
    }
}

/// True if `rest` begins with a non-empty `(reason)`.
fn has_reason(rest: &str) -> bool {
    rest.strip_prefix('(')
        .and_then(|rest| rest.split_once(')'))
        .is_some_and(|(reason, _)| !reason.trim().is_empty())
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
            .map(|f| format!("{}:{}", f.line, f.message))
            .collect()
    }

    #[test]
    fn unfinished_work_is_found_in_any_text() {
        let text = "# TODO\nFIXME\n\n// XXX\nTODO(): x\n";
        let expected = [
            "1:the word `TODO`",
            "2:the word `FIXME`",
            "4:the word `XXX`",
            "5:the word `TODO`",
        ];
        assert_eq!(found("a.md", text), expected);
        assert_eq!(
            found("a.rs", "// TODO(needs the next kernel): x\n// XXXX\n"),
            [""; 0]
        );
    }

    #[test]
    fn debug_output_skipped_tests_and_sleeps_are_found_in_code() {
        let text = "dbg!(x);\n#[ignore = \"slow\"]\n#[cfg_attr(miri, ignore)]\nstd::thread::sleep(d);\n\
                    // dbg!(x) #[ignore]\n#[cfg(test)]\nmod t { fn f() { thread::sleep(d); } }\n";
        let expected = [
            "1:the word `dbg!`",
            "2:the word `#[ignore]`",
            "3:the word `#[ignore]`",
            "4:the word `sleep`",
        ];
        assert_eq!(found("a/src/a.rs", text), expected);
    }
}
