//! No file contains absolute paths that exist only on one machine.

use crate::finding::Finding;
use crate::rule::Rule;
use crate::tables::Tables;
use crate::tree::Tree;

/// The rule `machine-paths`.
pub const RULE: Rule = Rule {
    name: "machine-paths",
    check,
};

/// Directories that differ between machines.
const DIRECTORIES: [&str; 6] = ["/home", "/root", "/tmp", "/Users", "/mnt", "/srv"];

const ADVICE: &str = "use a path relative to the repository, std::env::temp_dir() or mktemp";

fn check(tree: &Tree, _: &Tables) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files() {
        for (line, text) in (1..).zip(file.text.lines()) {
            for directory in DIRECTORIES {
                if text
                    .match_indices(directory)
                    .any(|(at, _)| is_whole_path(text, at, directory))
                {
                    let message = format!("the path `{directory}`");
                    findings.push(Finding::new(RULE.name, &file.path, line, message, ADVICE));
                }
            }
        }
    }
    findings
}

/// True if a path starts at `at`, and `directory` consists of its first whole parts.
fn is_whole_path(text: &str, at: usize, directory: &str) -> bool {
    let continues = |c: char| c.is_alphanumeric() || "_.-~/}>)]".contains(c);
    let before = text[..at].chars().next_back();
    let after = text[at + directory.len()..].chars().next();
    !before.is_some_and(continues)
        && !after.is_some_and(|c| c.is_alphanumeric() || "_-".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    fn lines(text: &str) -> Vec<usize> {
        let tree = samples::tree(&[("a.toml", text)]);
        check(&tree, &Tables::default())
            .iter()
            .map(|f| f.line)
            .collect()
    }

    #[test]
    fn machine_paths_are_found() {
        let text = "a = '/home/me/x'\nb = \"/tmp\"\nsee /mnt/x\ncd /srv\n`/Users/x`\nin /tmp.\n";
        assert_eq!(lines(text), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn other_paths_pass() {
        assert_eq!(
            lines("ci/mnt/x ${D}/tmp/x /srvs /dev/shm .../home x/root /tmpfs"),
            [0; 0]
        );
    }
}
