//! Finds the paths that a Rust file names, with `use` groups expanded: `use std::{sync::{Arc, atomic::AtomicU8}}`
//! names `std::sync::Arc` and `std::sync::atomic::AtomicU8`.

use crate::rust_source::{RustSource, is_word, skip_space, word_offsets};

/// A path and the line (from 1) on which it ends.
#[derive(Debug, PartialEq, Eq)]
pub struct NamedPath {
    /// Parts joined by `::`.
    pub path: String,
    /// Line of the last part.
    pub line: usize,
}

impl NamedPath {
    /// True if the path is `prefix` or below it.
    pub fn is_within(&self, prefix: &str) -> bool {
        self.path
            .strip_prefix(prefix)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    }
}

/// Returns all paths in the code that start with one of `roots`.
pub fn named_paths(source: &RustSource, roots: &[&str]) -> Vec<NamedPath> {
    let bytes = source.code.as_bytes();
    let mut found = Vec::new();
    for root in roots {
        for start in word_offsets(&source.code, root) {
            let after = skip_space(bytes, start + root.len());
            let is_first = !source.code[..start].ends_with("::") || is_absolute(bytes, start);
            if is_first && bytes[after..].starts_with(b"::") {
                walk(source, after + 2, (*root).to_owned(), &mut found);
            }
        }
    }
    found
}

/// True if the `::` before `start` has no path before it, as in `::std::time`.
fn is_absolute(bytes: &[u8], start: usize) -> bool {
    let before = start.checked_sub(3).map(|index| bytes[index]);
    !before.is_some_and(|byte| is_word(byte) || byte == b'>')
}

/// Collects the path at `at` with the preceding parts `prefix`; returns its end.
fn walk(source: &RustSource, at: usize, prefix: String, found: &mut Vec<NamedPath>) -> usize {
    let bytes = source.code.as_bytes();
    let at = skip_space(bytes, at);
    match bytes.get(at) {
        Some(b'{') => walk_group(source, at + 1, &prefix, found),
        Some(&byte) if is_word(byte) => {
            let length = bytes[at..].iter().position(|&byte| !is_word(byte));
            let end = length.map_or(bytes.len(), |length| at + length);
            let path = format!("{prefix}::{}", &source.code[at..end]);
            let next = skip_space(bytes, end);
            if bytes[next..].starts_with(b"::") {
                return walk(source, next + 2, path, found);
            }
            let line = source.line_of(at);
            found.push(NamedPath { path, line });
            end
        }
        Some(_) | None => {
            // A glob, generic arguments or the end of the text: the path is the prefix.
            let line = source.line_of(at);
            found.push(NamedPath { path: prefix, line });
            at + 1
        }
    }
}

fn walk_group(
    source: &RustSource,
    start: usize,
    prefix: &str,
    found: &mut Vec<NamedPath>,
) -> usize {
    let bytes = source.code.as_bytes();
    let mut at = start;
    loop {
        at = skip_space(bytes, at);
        match bytes.get(at) {
            None => return at,
            Some(b'}') => return at + 1,
            Some(&byte) if is_word(byte) || byte == b'{' || byte == b'*' => {
                at = walk(source, at, prefix.to_owned(), found);
                // Skips a renaming (`as`).
                while bytes
                    .get(at)
                    .is_some_and(|&byte| byte != b',' && byte != b'}')
                {
                    at += 1;
                }
            }
            Some(_) => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str) -> Vec<String> {
        named_paths(&RustSource::new(text), &["std"])
            .into_iter()
            .map(|named| format!("{}:{}", named.line, named.path))
            .collect()
    }

    #[test]
    fn named_paths_finds_plain_and_absolute_paths() {
        assert_eq!(paths("use std::time::Instant;"), ["1:std::time::Instant"]);
        assert_eq!(
            paths("\n::std::thread::yield_now();"),
            ["2:std::thread::yield_now"]
        );
        assert_eq!(paths("crate::std::x; my_std::y; stdio"), [""; 0]);
    }

    #[test]
    fn named_paths_expands_groups_globs_and_renamings() {
        assert_eq!(
            paths("use std::{fmt, sync::{Arc as A,\n atomic::{AtomicU8, Ordering}}, net::*};"),
            [
                "1:std::fmt",
                "1:std::sync::Arc",
                "2:std::sync::atomic::AtomicU8",
                "2:std::sync::atomic::Ordering",
                "2:std::net",
            ]
        );
    }

    #[test]
    fn is_within_compares_whole_parts() {
        let named = NamedPath {
            path: "std::timer".into(),
            line: 1,
        };
        assert!(!named.is_within("std::time"));
        assert!(named.is_within("std::timer") && named.is_within("std"));
    }

    #[test]
    fn named_paths_accepts_truncated_texts() {
        for text in ["std::", "use std::{", "use std::{a", "use std::{a,", "std"] {
            paths(text);
        }
    }
}
