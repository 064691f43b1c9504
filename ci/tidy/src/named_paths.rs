//! Finds the paths that tokens name, with `use` groups expanded: `use std::{sync::{Arc, atomic::AtomicU8}}`
//! names `std::sync::Arc` and `std::sync::atomic::AtomicU8`.

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

use crate::rust_source::is_punct;

/// A path and the line (from 1) on which it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// Returns all paths in `tokens`, also those of one part: every identifier that is not a field, a method or a lifetime.
pub fn named_paths(tokens: TokenStream) -> Vec<NamedPath> {
    let mut found = Vec::new();
    search(tokens, &mut found);
    found
}

fn search(tokens: TokenStream, found: &mut Vec<NamedPath>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token {
            TokenTree::Ident(_) if may_start_path(&tokens[..at]) => {
                at += walk(&tokens[at..], None, found);
                continue;
            }
            TokenTree::Group(group) => search(group.stream(), found),
            _ => {}
        }
        at += 1;
    }
}

/// False after `x.`, `'` and `<T>::`.
fn may_start_path(before: &[TokenTree]) -> bool {
    match before {
        [.., range, dot] if is_punct(dot, '.') => is_punct(range, '.'),
        [.., angle, first, second] if is_separator(first, second) => !is_punct(angle, '>'),
        [.., last] => !is_punct(last, '\''),
        [] => true,
    }
}

/// Collects the path at the start of `tokens` with the preceding parts `prefix`; returns the number of its tokens.
fn walk(tokens: &[TokenTree], prefix: Option<&NamedPath>, found: &mut Vec<NamedPath>) -> usize {
    match tokens {
        [TokenTree::Ident(part), rest @ ..] => {
            let named = NamedPath {
                path: prefix.map_or_else(|| part.to_string(), |p| format!("{}::{part}", p.path)),
                line: part.span().start().line,
            };
            if let [first, second, rest @ ..] = rest
                && is_separator(first, second)
                // Not a keyword before an absolute path.
                && part.span().end() == first.span().start()
            {
                return 3 + walk(rest, Some(&named), found);
            }
            found.push(named);
            1
        }
        [TokenTree::Group(group), ..] if group.delimiter() == Delimiter::Brace => {
            let members: Vec<TokenTree> = group.stream().into_iter().collect();
            let members = members.split(|token| is_punct(token, ','));
            for member in members.filter(|member| !member.is_empty()) {
                walk(member, prefix, found);
            }
            1
        }
        // A glob, generic arguments or the end of the tokens: the path is the prefix.
        _ => {
            found.extend(prefix.cloned());
            0
        }
    }
}

/// True if the tokens are `::`.
fn is_separator(first: &TokenTree, second: &TokenTree) -> bool {
    let is_joint = matches!(first, TokenTree::Punct(punct) if punct.spacing() == Spacing::Joint);
    is_joint && is_punct(first, ':') && is_punct(second, ':')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<NamedPath> {
        named_paths(text.parse().expect("the sample has valid tokens"))
    }

    fn paths(text: &str) -> Vec<String> {
        all(text)
            .into_iter()
            .filter(|named| named.is_within("std"))
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
        assert_eq!(paths("use ::std::time;"), ["1:std::time"]);
        assert_eq!(paths("crate::std::x; my_std::y; stdio"), [""; 0]);
    }

    #[test]
    fn named_paths_expands_groups_globs_and_renamings() {
        assert_eq!(
            paths("use std::{fmt, sync::{Arc as A,\n atomic::{AtomicU8, Ordering}}, net::*,};"),
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
    fn named_paths_omits_fields_methods_lifetimes_and_associated_items() {
        let text = "fn f<'a>(b: C<D>) where for<'e> G: H { i.j(..k)[L::<M>::n] }";
        let found: Vec<String> = all(text).into_iter().map(|named| named.path).collect();
        let expected = [
            "fn", "f", "b", "C", "D", "where", "for", "G", "H", "i", "k", "L", "M",
        ];
        assert_eq!(found, expected);
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
    fn named_paths_accepts_truncated_paths() {
        assert_eq!(paths("std::"), ["1:std"]);
        assert_eq!(paths("std"), ["1:std"]);
    }
}
