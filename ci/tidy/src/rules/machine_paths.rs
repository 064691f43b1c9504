//! No path of one developer's machine: what is built here builds anywhere.

use super::Rule;
use crate::finding::Finding;
use crate::tables::Tables;
use crate::tree::Tree;

/// This rule.
pub const RULE: Rule = Rule {
    name: "machine-paths",
    check,
};

/// Places that differ from machine to machine.
const PLACES: [&str; 6] = ["/home", "/root", "/tmp", "/Users", "/mnt", "/srv"];

const ADVICE: &str = "name it relative to the repository, or take std::env::temp_dir() or mktemp";

fn check(tree: &Tree, _: &Tables) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files() {
        for (line, text) in (1..).zip(file.text.lines()) {
            for place in PLACES {
                if text
                    .match_indices(place)
                    .any(|(at, _)| stands_alone(text, at, place))
                {
                    let message = format!("the path `{place}`");
                    findings.push(Finding::new(RULE.name, &file.path, line, message, ADVICE));
                }
            }
        }
    }
    findings
}

/// Whether the path starts at `at` and its last part ends where `place` does.
fn stands_alone(text: &str, at: usize, place: &str) -> bool {
    let continues = |c: char| c.is_alphanumeric() || "_.-~/}>)]".contains(c);
    let before = text[..at].chars().next_back();
    let after = text[at + place.len()..].chars().next();
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
    fn other_paths_are_free() {
        assert_eq!(
            lines("ci/mnt/x ${D}/tmp/x /srvs /dev/shm .../home x/root /tmpfs"),
            [0; 0]
        );
    }
}
