//! Every module file says first what it is.

use super::Rule;
use crate::finding::Finding;
use crate::tables::Tables;
use crate::tree::Tree;

/// This rule.
pub const RULE: Rule = Rule {
    name: "module-docs",
    check,
};

const ADVICE: &str = "start it with a line of `//!` that says what is in it";

fn check(tree: &Tree, _: &Tables) -> Vec<Finding> {
    tree.rust_files()
        .filter(|(file, _)| !tree.is_test_file(file))
        .filter(|(file, _)| !says_what_it_is(&file.text))
        .map(|(file, _)| {
            let message = "does not start with `//!`".to_owned();
            Finding::new(RULE.name, &file.path, 1, message, ADVICE)
        })
        .collect()
}

fn says_what_it_is(text: &str) -> bool {
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
    fn a_silent_module_is_found() {
        let tree = samples::tree(&[
            ("a/src/good.rs", "//! Rings.\n"),
            ("a/src/silent.rs", "use std::fmt;\n"),
            ("a/src/empty.rs", "//!\n//! Rings.\n"),
            ("a/tests/t.rs", "use std::fmt;\n"),
        ]);
        let findings = check(&tree, &Tables::default());
        let paths: Vec<_> = findings.iter().map(|f| f.path.as_str()).collect();
        assert_eq!(paths, ["a/src/silent.rs", "a/src/empty.rs"]);
    }
}
