//! `unsafe` is used only in listed files: the `[[unsafe_code]]` rows of the tables, each with its reason.

use crate::finding::Finding;
use crate::rule::Rule;
use crate::rust_source::{line_of, word_offsets};
use crate::tables::Tables;
use crate::tree::Tree;

/// The rule `unsafe-code`.
pub const RULE: Rule = Rule {
    name: "unsafe-code",
    check,
};

const ADVICE: &str =
    "call a safe function of a listed file, or list this file in ci/tidy/tidy.toml with a reason";

fn check(tree: &Tree, _: &Tables) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, rust) in tree.rust_files() {
        let uses: Vec<usize> = word_offsets(&rust.all.text, "unsafe").collect();
        // One finding per file, since whole files are listed.
        if let Some(&first) = uses.first() {
            let message = format!("{} x `unsafe` in a file that is not listed", uses.len());
            let line = line_of(&rust.all.text, first);
            findings.push(Finding::new(RULE.name, &file.path, line, message, ADVICE));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn every_kind_of_unsafe_is_found_except_in_comments_and_literals() {
        let text = "// unsafe\n#![forbid(unsafe_code)]\nlet s = \"unsafe\";\n";
        let used = "unsafe fn f() {}\nunsafe impl X for Y {}\nlet a = unsafe { b() };\n";
        let both = format!("{text}{used}");
        let tree = samples::tree(&[
            ("a/src/safe.rs", text),
            ("a/src/unlisted.rs", &both),
            ("a.md", "unsafe"),
        ]);
        let findings = check(&tree, &Tables::default());
        assert_eq!(findings.len(), 1);
        assert_eq!(
            (findings[0].path.as_str(), findings[0].line),
            ("a/src/unlisted.rs", 4)
        );
        assert!(findings[0].message.starts_with("3 x"));
    }
}
