//! The rules, one file each, with tests that each rule can fail.

use crate::finding::Finding;
use crate::rule::Rule;
use crate::tables::{TABLES_PATH, Tables};
use crate::tree::Tree;

pub mod atomics;
pub mod crate_layers;
pub mod e2e_steps;
pub mod import_circles;
pub mod language;
pub mod links;
pub mod lints;
pub mod machine_paths;
pub mod module_docs;
pub mod pure_crates;
pub mod readme_index;
pub mod scattered_types;
pub mod sizes;
pub mod unsafe_code;
pub mod words;

/// All rules.
pub const ALL: [Rule; 15] = [
    atomics::RULE,
    crate_layers::RULE,
    e2e_steps::RULE,
    import_circles::RULE,
    language::RULE,
    links::RULE,
    lints::RULE,
    machine_paths::RULE,
    module_docs::RULE,
    pure_crates::RULE,
    readme_index::RULE,
    scattered_types::RULE,
    sizes::RULE,
    unsafe_code::RULE,
    words::RULE,
];

/// Runs all rules and removes findings that the tables allow. An unused exception is a finding, too.
pub fn check(tree: &Tree, tables: &Tables) -> Vec<Finding> {
    let mut is_used = vec![false; tables.exceptions.len()];
    let mut findings = Vec::new();
    for rule in &ALL {
        for finding in (rule.check)(tree, tables) {
            let line = line_text(tree, &finding);
            let cover = tables
                .exceptions
                .iter()
                .position(|exception| exception.covers(rule.name, &finding.path, line));
            match cover {
                Some(index) => is_used[index] = true,
                None => findings.push(finding),
            }
        }
    }
    for (exception, _) in tables
        .exceptions
        .iter()
        .zip(is_used)
        .filter(|(_, is_used)| !is_used)
    {
        let message = format!(
            "unused exception: `{}` in {}",
            exception.rule, exception.path
        );
        findings.push(Finding::new(
            "exceptions",
            TABLES_PATH,
            0,
            message,
            "remove the row",
        ));
    }
    findings
}

fn line_text<'a>(tree: &'a Tree, finding: &Finding) -> &'a str {
    finding
        .line
        .checked_sub(1)
        .and_then(|index| tree.file(&finding.path)?.text.lines().nth(index))
        .unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    const SAMPLE: &str = "FIXME one\nFIXME two\n";

    #[test]
    fn exceptions_remove_findings_and_unused_ones_are_found() {
        let tree = samples::tree(&[("README.md", SAMPLE), ("Cargo.toml", "[workspace]\n")]);
        let table = "[[exception]]\nrule = 'words'\npath = 'README.md'\ncontaining = 'one'\nreason = 'r'\n\
                     [[unsafe_code]]\npath = 'gone.rs'\nreason = 'r'\n";
        let found = check(&tree, &samples::tables(table));
        let found: Vec<_> = found.iter().map(|f| (f.rule, f.line)).collect();
        assert_eq!(found, [("words", 2), ("exceptions", 0)]);
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = ALL.iter().map(|rule| rule.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }
}
