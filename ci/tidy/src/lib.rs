//! Rules of the source tree, and a test that checks the tree against them.
//!
//! | module | contents |
//! | --- | --- |
//! | [`tree`] | the files of the tree, read once |
//! | [`rust_source`] | the tokens of a Rust file, with and without tests |
//! | [`named_paths`] | the paths that tokens name, `use` groups expanded |
//! | [`packages`] | the modules of a package: what each defines, imports and names |
//! | [`resolve`] | what a path names, through `use` declarations |
//! | [`import_graph`] | the files of a package, and which items each imports from which other |
//! | [`circles`] | circles of a directed graph, and the edges that close them |
//! | [`tables`] | `ci/tidy/tidy.toml`: limits, layers, files with unsafe code, and exceptions, with reasons |
//! | [`finding`] | findings of rules |
//! | [`rule`] | what a rule is |
//! | [`rules`] | one file per rule, each with a test that it can fail |
//!
//! `tests/tree.rs` runs all rules on this repository.

#![forbid(unsafe_code)]

pub mod circles;
pub mod finding;
pub mod import_graph;
pub mod named_paths;
pub mod packages;
pub mod resolve;
pub mod rule;
pub mod rules;
pub mod rust_source;
pub mod tables;
pub mod tree;

#[cfg(test)]
mod samples;
