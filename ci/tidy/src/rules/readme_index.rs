//! README.md lists every top-level directory.

use crate::finding::Finding;
use crate::rule::Rule;
use crate::tables::Tables;
use crate::tree::Tree;

/// The rule `readme-index`.
pub const RULE: Rule = Rule {
    name: "readme-index",
    check,
};

const README: &str = "README.md";

fn check(tree: &Tree, _: &Tables) -> Vec<Finding> {
    let text = tree.file(README).map_or("", |file| file.text.as_str());
    tree.top_directories()
        .into_iter()
        .filter(|directory| !is_named(text, directory))
        .map(|directory| {
            let message = format!("does not list `{directory}/`");
            Finding::new(
                RULE.name,
                README,
                0,
                message,
                "add it to the directory index",
            )
        })
        .collect()
}

/// True if the text names the directory in backquotes or as a link, with or without the slash.
fn is_named(text: &str, directory: &str) -> bool {
    [
        format!("`{directory}/`"),
        format!("`{directory}`"),
        format!("[{directory}/]"),
        format!("[{directory}]"),
    ]
    .iter()
    .any(|form| text.contains(form.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn unlisted_directory_is_found() {
        let tree = samples::tree(&[
            ("README.md", "| `a/` | x |\n| [b](b) | x |\nwords about c\n"),
            ("a/x.md", ""),
            ("b/x.md", ""),
            ("c/x.md", ""),
            (".ci/run", ""),
        ]);
        let findings = check(&tree, &Tables::default());
        let messages: Vec<_> = findings.iter().map(|f| f.message.as_str()).collect();
        assert_eq!(messages, ["does not list `c/`"]);
    }

    #[test]
    fn missing_readme_is_found() {
        let tree = samples::tree(&[("a/x.md", "")]);
        assert_eq!(check(&tree, &Tables::default()).len(), 1);
    }
}
