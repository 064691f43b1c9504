//! Every test file of `e2e/tests` is run by a step of `ci/test`.

use std::collections::BTreeSet;

use crate::finding::Finding;
use crate::rule::Rule;
use crate::tables::Tables;
use crate::tree::{TextFile, Tree};

/// The rule `e2e-steps`.
pub const RULE: Rule = Rule {
    name: "e2e-steps",
    check,
};

const TESTS: &str = "e2e/tests/";
const STEPS: &str = "ci/steps/";
const ADVICE: &str = "add it to e2e_test in a step";

fn check(tree: &Tree, _: &Tables) -> Vec<Finding> {
    let run = run_by_steps(tree);
    let tests = tree.files().iter().filter_map(|file| {
        let name = test_name(&file.path)?;
        let message = format!("no step of ci/steps runs `{name}`");
        (!run.contains(name)).then(|| Finding::new(RULE.name, &file.path, 0, message, ADVICE))
    });
    tests.collect()
}

/// Returns cargo's name of the test target whose root is this file.
fn test_name(path: &str) -> Option<&str> {
    let name = path.strip_prefix(TESTS)?.strip_suffix(".rs")?;
    let name = name.strip_suffix("/main").unwrap_or(name);
    (!name.contains('/')).then_some(name)
}

/// Returns the tests that steps run, directly or by a script of `ci/`.
fn run_by_steps(tree: &Tree) -> BTreeSet<&str> {
    let steps: Vec<&TextFile> = tree
        .files()
        .iter()
        .filter(|file| file.path.starts_with(STEPS))
        .collect();
    let is_started = |script: &&TextFile| {
        script.directory() == "ci"
            && steps
                .iter()
                .flat_map(|step| commands(step))
                .any(|words| words.iter().any(|word| is_path_of(word, script)))
    };
    let scripts = tree.files().iter().filter(is_started);
    let mut names = BTreeSet::new();
    for words in scripts.chain(steps.iter().copied()).flat_map(commands) {
        if let Some(at) = words.iter().position(|word| *word == "e2e_test") {
            names.extend(&words[at + 1..]);
        }
        // Other packages have tests of the same names.
        if words.contains(&"e2e") {
            let pairs = words.windows(2).filter(|pair| pair[0] == "--test");
            names.extend(pairs.map(|pair| pair[1]));
        }
    }
    names
}

/// True if this word of a command is the path of that script, such as `"$ROOT/ci/demo"`.
fn is_path_of(word: &str, script: &TextFile) -> bool {
    let word = word.trim_matches('"');
    let path = word.strip_prefix("$ROOT/").unwrap_or(word);
    path == script.path
}

/// Returns the words of each line that is not a comment.
fn commands(file: &TextFile) -> impl Iterator<Item = Vec<&str>> {
    let lines = file.text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split_ascii_whitespace().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn test_that_no_step_runs_is_found() {
        let tree = samples::tree(&[
            ("e2e/tests/echo.rs", ""),
            ("e2e/tests/peers.rs", ""),
            ("e2e/tests/linux_peer/main.rs", ""),
            ("e2e/tests/linux_peer/viaduct_ports.rs", ""),
            ("e2e/tests/intruder.rs", ""),
            ("e2e/tests/commented.rs", ""),
            ("e2e/tests/by_hand.rs", ""),
            ("e2e/tests/cho.rs", ""),
            ("ci/steps/30-e2e-echo", "e2e_test echo peers\n"),
            (
                "ci/steps/50-more",
                "# e2e_test commented ci/by-hand\ntest_package vipl --test cho\n",
            ),
            (
                "ci/steps/50-linux",
                "exec \"$ROOT/ci/linux\"\nci/intruder 4\n",
            ),
            (
                "ci/linux",
                "test_package e2e --test linux_peer -- --nocapture\n",
            ),
            ("ci/intruder", "ROUNDS=1 e2e_test intruder\n"),
            ("ci/by-hand", "e2e_test by_hand\n"),
        ]);
        let findings = check(&tree, &Tables::default());
        let found: Vec<_> = findings.iter().map(ToString::to_string).collect();
        for name in ["commented", "by_hand", "cho"] {
            let message = format!("no step of ci/steps runs `{name}`");
            assert!(
                found.iter().any(|text| text.contains(&message)),
                "{found:?}"
            );
        }
        assert_eq!(found.len(), 3, "{found:?}");
    }
}
