//! One file a rule, each with a sample that proves it can fail.

use crate::finding::Finding;
use crate::tables::{TABLES_PATH, Tables};
use crate::tree::Tree;

pub mod arrows;
pub mod atomics;
pub mod e2e_steps;
pub mod links;
pub mod lints;
pub mod machine_paths;
pub mod module_docs;
pub mod pure_crates;
pub mod readme_index;
pub mod sizes;
pub mod unsafe_rooms;
pub mod words;

/// A rule: what it finds in a tree, before exceptions.
pub struct Rule {
    /// Its name in findings and exceptions.
    pub name: &'static str,
    /// Reads the tree.
    pub check: fn(&Tree, &Tables) -> Vec<Finding>,
}

/// Every rule.
pub const ALL: [Rule; 12] = [
    arrows::RULE,
    atomics::RULE,
    e2e_steps::RULE,
    links::RULE,
    lints::RULE,
    machine_paths::RULE,
    module_docs::RULE,
    pure_crates::RULE,
    readme_index::RULE,
    sizes::RULE,
    unsafe_rooms::RULE,
    words::RULE,
];

/// Runs every rule and takes out what the tables allow. An exception that allowed nothing is itself a finding.
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
        let message = format!("nothing in {} needs `{}`", exception.path, exception.rule);
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
    fn exceptions_take_out_what_they_cover_and_must_be_needed() {
        let tree = samples::tree(&[("README.md", SAMPLE), ("Cargo.toml", "[workspace]\n")]);
        let table = "[[exception]]\nrule = 'words'\npath = 'README.md'\ncontaining = 'one'\nreason = 'r'\n\
                     [[unsafe_room]]\npath = 'gone.rs'\nreason = 'r'\n";
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
