//! Crates marked `pure` in the tables take time, randomness and input as arguments: they use no clock,
//! thread, socket, file, atomic or operating system, and forbid unsafe code.

use crate::finding::Finding;
use crate::named_paths::named_paths;
use crate::rule::Rule;
use crate::rust_source::{Code, line_of, word_offsets};
use crate::tables::Tables;
use crate::tree::{TextFile, Tree};

/// The rule `pure-crates`.
pub const RULE: Rule = Rule {
    name: "pure-crates",
    check,
};

const ADVICE: &str = "take it as an argument, or move it to a higher crate";

/// Modules of the standard library for input, output, time and threads.
const FORBIDDEN_MODULES: [&str; 9] = [
    "std::env",
    "std::fs",
    "std::io",
    "std::net",
    "std::os",
    "std::process",
    "std::sync",
    "std::thread",
    "std::time",
];

/// Identifiers that show such a use if it is imported in another way.
const FORBIDDEN_WORDS: [&str; 6] = [
    "Instant",
    "SystemTime",
    "libc",
    "pmd_port",
    "thread_local",
    "unsafe",
];

const FORBID_UNSAFE: &str = "#![forbid(unsafe_code)]";

fn check(tree: &Tree, tables: &Tables) -> Vec<Finding> {
    let mut findings = Vec::new();
    for layer in tables.layers.iter().filter(|layer| layer.is_pure) {
        let Some((_, source)) = tree.packages().find(|(name, _)| *name == layer.name) else {
            continue;
        };
        for (file, rust) in tree.rust_files() {
            if file.path.starts_with(&source) && !tree.is_test_file(file) {
                check_code(&file.path, &rust.production, &mut findings);
            }
        }
        let root = format!("{source}lib.rs");
        let forbids = |file: &TextFile| file.text.contains(FORBID_UNSAFE);
        if !tree.file(&root).is_some_and(forbids) {
            let message = format!("`{FORBID_UNSAFE}` is missing");
            findings.push(Finding::new(RULE.name, &root, 0, message, "add it"));
        }
    }
    findings
}

fn check_code(path: &str, code: &Code, findings: &mut Vec<Finding>) {
    let mut find = |line: usize, what: &str| {
        let message = format!("names `{what}`");
        findings.push(Finding::new(RULE.name, path, line, message, ADVICE));
    };
    for named in named_paths(code.tokens.clone()) {
        if FORBIDDEN_MODULES
            .iter()
            .any(|module| named.is_within(module))
        {
            find(named.line, &named.path);
        }
    }
    for word in FORBIDDEN_WORDS {
        for at in word_offsets(&code.text, word) {
            find(line_of(&code.text, at), word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    const TABLES: &str = "[[layer]]\ncrate = 'core'\npure = true\n";
    const MANIFEST: (&str, &str) = ("x/core/Cargo.toml", "[package]\nname = \"core\"\n");

    fn found(text: &str) -> Vec<String> {
        let tree = samples::tree(&[
            MANIFEST,
            ("x/core/src/lib.rs", text),
            ("x/other/src/lib.rs", text),
        ]);
        let findings = check(&tree, &samples::tables(TABLES));
        findings
            .into_iter()
            .map(|f| format!("{}:{}:{}", f.path, f.line, f.message))
            .collect()
    }

    #[test]
    fn pure_crate_passes() {
        let text = "#![forbid(unsafe_code)]\nuse std::collections::VecDeque;\n#[cfg(test)]\nmod tests { use std::fs; }\n";
        assert_eq!(found(text), [""; 0]);
    }

    #[test]
    fn clocks_threads_and_system_calls_are_found() {
        let text = "#![forbid(unsafe_code)]\nuse std::{fmt, time::Duration};\nstd::thread::yield_now();\nlibc::getpid();\nfn f(now: Instant) {}\n";
        assert_eq!(
            found(text),
            [
                "x/core/src/lib.rs:2:names `std::time::Duration`",
                "x/core/src/lib.rs:3:names `std::thread::yield_now`",
                "x/core/src/lib.rs:5:names `Instant`",
                "x/core/src/lib.rs:4:names `libc`",
            ]
        );
    }

    #[test]
    fn crate_that_does_not_forbid_unsafe_is_found() {
        assert!(found("")[0].contains("is missing"));
    }
}
