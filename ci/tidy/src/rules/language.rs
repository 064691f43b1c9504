//! Plain technical English: constructions of `ci/tidy/tidy.toml` that must not appear in comments, messages and documents.

use crate::finding::Finding;
use crate::rule::Rule;
use crate::rust_source::word_offsets;
use crate::tables::{Construction, TABLES_PATH, Tables};
use crate::tree::{TextFile, Tree};

/// The rule `language`. It has no exceptions.
pub const RULE: Rule = Rule {
    name: "language",
    check,
};

/// Files whose text is fixed by others, and the file with the list itself.
const SKIPPED_FILES: [&str; 4] = ["Cargo.lock", "LICENSE-APACHE", "LICENSE-MIT", "tidy.toml"];

fn check(tree: &Tree, tables: &Tables) -> Vec<Finding> {
    let mut findings: Vec<Finding> = tables
        .exceptions
        .iter()
        .filter(|exception| exception.rule == RULE.name)
        .map(|exception| {
            let message = format!("an exception for {}", exception.path);
            Finding::new(RULE.name, TABLES_PATH, 0, message, "reword the text")
        })
        .collect();
    let files = tree.files().iter();
    for file in files.filter(|file| !SKIPPED_FILES.contains(&file.name())) {
        for (line, prose) in (1..).zip(prose(file).lines()) {
            for construction in used(prose, &tables.constructions) {
                let message = format!("`{}`: use {}", construction.text, construction.instead);
                let advice = "name the thing of the field: docs/style.md";
                findings.push(Finding::new(RULE.name, &file.path, line, message, advice));
            }
        }
    }
    findings
}

/// Returns the constructions that `prose`, in lower case, contains as whole words.
fn used<'a>(prose: &'a str, all: &'a [Construction]) -> impl Iterator<Item = &'a Construction> {
    all.iter()
        .filter(|construction| word_offsets(prose, &construction.text).next().is_some())
}

/// Returns the text for readers, in lower case: comments and literals of Rust, all text of other files.
fn prose(file: &TextFile) -> String {
    let Some(rust) = &file.rust else {
        return file.text.to_lowercase();
    };
    let code = rust.all.text.as_bytes();
    let blanked = file.text.char_indices().map(|(at, c)| match code[at] {
        b' ' | b'\n' => c,
        _ => ' ',
    });
    blanked.collect::<String>().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    const TABLE: &str = "[[construction]]\ntext = 'thingamy'\ninstead = 'the caller'\n\
                         [[construction]]\ntext = 'odd bird'\ninstead = 'a number'\n";

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let tree = samples::tree(&[(path, text)]);
        let findings = check(&tree, &samples::tables(TABLE));
        findings.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn comments_and_literals_of_rust_are_checked_and_code_is_not() {
        let text =
            "/// Wakes thingamy sleeps.\nfn thingamy() {\n    say(\"Odd bird\"); // odd bird\n}\n";
        assert_eq!(lines("a/src/a.rs", text), [1, 3]);
        assert_eq!(
            lines("a/src/a.rs", "// Wakes all waiters.\nlet odd = bird;\n"),
            [0; 0]
        );
    }

    #[test]
    fn all_text_of_other_files_is_checked() {
        assert_eq!(lines("README.md", "one\nThingamy asks\n"), [2]);
        assert_eq!(lines("ci/test", "# odd bird\n"), [1]);
        assert_eq!(lines("README.md", "thingamies, alodd bird\n"), [0; 0]);
    }

    #[test]
    fn exception_is_itself_a_finding() {
        let table = "[[exception]]\nrule = 'language'\npath = 'README.md'\nreason = 'r'\n";
        let findings = check(&samples::tree(&[]), &samples::tables(table));
        assert_eq!(findings.len(), 1);
    }
}
