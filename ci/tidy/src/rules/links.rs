//! Links in documents are valid: the file exists, and so does the heading.

use crate::finding::Finding;
use crate::rule::Rule;
use crate::tables::Tables;
use crate::tree::{TextFile, Tree};

/// The rule `links`.
pub const RULE: Rule = Rule {
    name: "links",
    check,
};

const ADVICE: &str = "fix the link or restore its target";

fn check(tree: &Tree, _: &Tables) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files().iter().filter(|f| f.path.ends_with(".md")) {
        for (line, text) in prose(&file.text) {
            for target in targets(&text) {
                if let Some(message) = link_error(tree, file, target) {
                    findings.push(Finding::new(RULE.name, &file.path, line, message, ADVICE));
                }
            }
        }
    }
    findings
}

/// Returns the lines outside code blocks, with code spans blanked.
fn prose(text: &str) -> Vec<(usize, String)> {
    let mut is_code = false;
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            lines.push((number, without_code_spans(line)));
        }
    }
    lines
}

fn without_code_spans(line: &str) -> String {
    let pieces: Vec<&str> = line.split('`').collect();
    // Every second piece is a span, except for the last one: its backquote is not closed.
    let last = pieces.len() - 1;
    let keep = |&(index, _): &(usize, &&str)| index % 2 == 0 || index == last;
    let kept: Vec<&str> = pieces
        .iter()
        .enumerate()
        .filter(keep)
        .map(|(_, p)| *p)
        .collect();
    kept.join(" ")
}

/// Returns the targets of `[text](target)`, `[text](<target> "title")` and `[name]: target`.
fn targets(line: &str) -> Vec<&str> {
    let inline = line.split("](").skip(1).filter_map(|rest| {
        let end = rest.find(')')?;
        rest[..end].split_whitespace().next()
    });
    let reference = line
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("]: "))
        .and_then(|(_, target)| target.split_whitespace().next());
    inline
        .chain(reference)
        .map(|target| target.trim_start_matches('<').trim_end_matches('>'))
        .collect()
}

/// Returns the error of an invalid link of that file.
fn link_error(tree: &Tree, file: &TextFile, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (target_path, heading) = match target.split_once('#') {
        Some((target_path, heading)) => (target_path, Some(heading)),
        None => (target, None),
    };
    let path = if target_path.is_empty() {
        Some(file.path.clone())
    } else {
        resolve(file.directory(), target_path)
    };
    let Some(path) = path.filter(|path| tree.exists(path)) else {
        return Some(format!("the target of link `{target}` does not exist"));
    };
    let document = tree.file(&path).filter(|f| f.path.ends_with(".md"))?;
    let heading = heading?;
    let exists = anchors(&document.text).iter().any(|a| a == heading);
    (!exists).then(|| format!("`{path}` has no heading `#{heading}`"))
}

/// Resolves a path relative to `directory`; `None` if it is outside the tree.
fn resolve(directory: &str, relative: &str) -> Option<String> {
    let mut parts: Vec<&str> = directory.split('/').filter(|p| !p.is_empty()).collect();
    for part in relative.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// Returns the anchors of a document's headings: lower case, hyphens for spaces, no other signs, repeats numbered.
fn anchors(text: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    let mut is_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        let title = line.trim_start_matches('#');
        if is_code || title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let slug: String = title
            .trim()
            .chars()
            .filter_map(|c| match c {
                ' ' => Some('-'),
                '-' | '_' => Some(c),
                _ => c.is_alphanumeric().then(|| c.to_ascii_lowercase()),
            })
            .collect();
        let numbered = |n: usize| {
            if n == 0 {
                slug.clone()
            } else {
                format!("{slug}-{n}")
            }
        };
        let free = (0..).map(numbered).find(|anchor| !anchors.contains(anchor));
        anchors.extend(free);
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    fn found(text: &str) -> Vec<String> {
        let tree = samples::tree(&[
            ("docs/a.md", text),
            ("docs/b.md", "# The `first` one: x\n## Same\n## Same\n"),
            ("src/lib.rs", ""),
        ]);
        let findings = check(&tree, &Tables::default());
        findings
            .into_iter()
            .map(|f| format!("{}:{}", f.line, f.message))
            .collect()
    }

    #[test]
    fn valid_links_pass() {
        let text = "# Here\n[a](b.md) [b](../src/lib.rs) [c](../src/) [d](#here) [e](b.md#the-first-one-x)\n\
                    [f](b.md#same-1 \"title\") [g](https://example.org/x) `[h](no.md)`\n```\n[i](no.md)\n```\n[j]: b.md\n";
        assert_eq!(found(text), [""; 0]);
    }

    #[test]
    fn invalid_links_are_found() {
        let text =
            "[a](c.md)\n[b](../../x.md)\n[c](b.md#none)\n[d]: c.md\n[e](#none)\n`x [f](c.md)\n";
        assert_eq!(
            found(text),
            [
                "1:the target of link `c.md` does not exist",
                "2:the target of link `../../x.md` does not exist",
                "3:`docs/b.md` has no heading `#none`",
                "4:the target of link `c.md` does not exist",
                "5:`docs/a.md` has no heading `#none`",
                "6:the target of link `c.md` does not exist",
            ]
        );
    }
}
