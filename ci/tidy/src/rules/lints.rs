//! Every crate inherits the workspace's lints.

use toml::Table;

use crate::finding::Finding;
use crate::rule::Rule;
use crate::tables::Tables;
use crate::tree::Tree;

/// The rule `lints`.
pub const RULE: Rule = Rule {
    name: "lints",
    check,
};

const ADVICE: &str = "add `[lints]` with `workspace = true`";

fn check(tree: &Tree, _: &Tables) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files().iter().filter(|f| f.name() == "Cargo.toml") {
        // An invalid manifest is reported by the rule `crate-layers`.
        let Ok(manifest) = file.text.parse::<Table>() else {
            continue;
        };
        let inherits = manifest
            .get("lints")
            .and_then(|l| l.get("workspace")?.as_bool());
        if manifest.contains_key("package") && inherits != Some(true) {
            let message = "does not inherit the workspace's lints".to_owned();
            findings.push(Finding::new(RULE.name, &file.path, 0, message, ADVICE));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn crate_without_workspace_lints_is_found() {
        let tree = samples::tree(&[
            ("Cargo.toml", "[workspace]\n"),
            (
                "a/Cargo.toml",
                "[package]\nname = 'a'\n[lints]\nworkspace = true\n",
            ),
            ("b/Cargo.toml", "[package]\nname = 'b'\n"),
            (
                "c/Cargo.toml",
                "[package]\nname = 'c'\n[lints]\nworkspace = false\n",
            ),
        ]);
        let findings = check(&tree, &Tables::default());
        let paths: Vec<_> = findings.iter().map(|f| f.path.as_str()).collect();
        assert_eq!(paths, ["b/Cargo.toml", "c/Cargo.toml"]);
    }
}
