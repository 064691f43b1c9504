//! Atomics are imported only from `sync.rs` of each crate, so that a model checker can replace them.

use crate::finding::Finding;
use crate::named_paths::named_paths;
use crate::rule::Rule;
use crate::tables::Tables;
use crate::tree::Tree;

/// The rule `atomics`.
pub const RULE: Rule = Rule {
    name: "atomics",
    check,
};

const SYNC_MODULE: &str = "src/sync.rs";
const ADVICE: &str = "import it from `crate::sync`";

fn check(tree: &Tree, _: &Tables) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, rust) in tree.rust_files() {
        // Examples are separate programs, written like users' programs.
        let is_example = file.path.contains("/examples/");
        if file.path.ends_with(SYNC_MODULE) || is_example || tree.is_test_file(file) {
            continue;
        }
        for named in named_paths(rust.production.tokens.clone()) {
            let is_atomic = ["std::", "core::", "loom::", ""]
                .iter()
                .any(|root| named.is_within(&format!("{root}sync::atomic")));
            if is_atomic {
                let message = format!("names `{}`", named.path);
                findings.push(Finding::new(
                    RULE.name, &file.path, named.line, message, ADVICE,
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let tree = samples::tree(&[(path, text)]);
        let findings = check(&tree, &Tables::default());
        findings.into_iter().map(|f| f.line).collect()
    }

    #[test]
    fn atomics_outside_sync_module_are_found() {
        let text = "use std::sync::{Arc, atomic};\nuse core::sync::atomic::AtomicU8;\nuse std::sync;\nstatic X: sync::atomic::AtomicBool;\n";
        assert_eq!(lines("a/src/x.rs", text), [1, 2, 4]);
        assert_eq!(lines("a/src/sync.rs", text), [0; 0]);
    }

    #[test]
    fn atomics_in_tests_and_examples_and_locks_are_allowed() {
        assert_eq!(
            lines("a/examples/x.rs", "use std::sync::atomic::AtomicU8;"),
            [0; 0]
        );
        assert_eq!(
            lines("a/tests/x.rs", "use std::sync::atomic::AtomicU8;"),
            [0; 0]
        );
        assert_eq!(lines("a/src/x.rs", "use std::sync::{Arc, Mutex};"), [0; 0]);
    }
}
