//! Every module file starts with a doc comment.

use crate::finding::Finding;
use crate::rule::Rule;
use crate::tables::Tables;
use crate::tree::Tree;

/// The rule `module-docs`.
pub const RULE: Rule = Rule {
    name: "module-docs",
    check,
};

const ADVICE: &str = "start it with a line of `//!` that describes its contents";

fn check(tree: &Tree, _: &Tables) -> Vec<Finding> {
    tree.rust_files()
        .filter(|(file, _)| !tree.is_test_file(file))
        .filter(|(file, _)| !starts_with_module_doc(&file.text))
        .map(|(file, _)| {
            let message = "does not start with `//!`".to_owned();
            Finding::new(RULE.name, &file.path, 1, message, ADVICE)
        })
        .collect()
}

fn starts_with_module_doc(text: &str) -> bool {
    let first = text.lines().next().unwrap_or("");
    first
        .strip_prefix("//!")
        .is_some_and(|rest| !rest.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn module_without_doc_is_found() {
        let tree = samples::tree(&[
            ("a/src/good.rs", "//! Rings.\n"),
            ("a/src/undocumented.rs", "use std::fmt;\n"),
            ("a/src/empty.rs", "//!\n//! Rings.\n"),
            ("a/tests/t.rs", "use std::fmt;\n"),
        ]);
        let findings = check(&tree, &Tables::default());
        let paths: Vec<_> = findings.iter().map(|f| f.path.as_str()).collect();
        assert_eq!(paths, ["a/src/undocumented.rs", "a/src/empty.rs"]);
    }
}
