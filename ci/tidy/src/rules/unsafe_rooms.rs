//! `unsafe` stands in named rooms only: the `[[unsafe_room]]` rows of the tables, each with its reason.

use super::Rule;
use crate::finding::Finding;
use crate::rust_source::word_offsets;
use crate::tables::Tables;
use crate::tree::Tree;

/// This rule.
pub const RULE: Rule = Rule {
    name: "unsafe-rooms",
    check,
};

const ADVICE: &str =
    "call a safe function of a named room, or name this one in ci/tidy/tidy.toml with its reason";

fn check(tree: &Tree, _: &Tables) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, rust) in tree.rust_files() {
        let uses: Vec<usize> = word_offsets(&rust.code, "unsafe").collect();
        // One finding a file: a file is a room or is not.
        if let Some(&first) = uses.first() {
            let message = format!("{} x `unsafe` outside the named rooms", uses.len());
            let line = rust.line_of(first);
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
    fn finds_every_kind_of_unsafe_and_nothing_else() {
        let text = "// unsafe\n#![forbid(unsafe_code)]\nlet s = \"unsafe\";\n";
        let used = "unsafe fn f() {}\nunsafe impl X for Y {}\nlet a = unsafe { b() };\n";
        let both = format!("{text}{used}");
        let tree = samples::tree(&[
            ("a/src/free.rs", text),
            ("a/src/room.rs", &both),
            ("a.md", "unsafe"),
        ]);
        let findings = check(&tree, &Tables::default());
        assert_eq!(findings.len(), 1);
        assert_eq!(
            (findings[0].path.as_str(), findings[0].line),
            ("a/src/room.rs", 4)
        );
        assert!(findings[0].message.starts_with("3 x"));
    }
}
