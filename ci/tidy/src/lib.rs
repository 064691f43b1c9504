//! The rules that the source tree keeps, and a test that reads the tree and says where it does not.
//!
//! | room | what is in it |
//! | --- | --- |
//! | [`tree`] | the files of the tree, read once |
//! | [`rust_source`] | a Rust file with comments and literals blanked, and which lines are test code |
//! | [`use_paths`] | the paths that a Rust file names, `use` groups unfolded |
//! | [`tables`] | `ci/tidy/tidy.toml`: layers, rooms and exceptions, each with its reason |
//! | [`finding`] | what a rule reports |
//! | [`rules`] | one file a rule, each with a sample that proves it can fail |
//!
//! `tests/tree.rs` runs every rule over this repository.

#![forbid(unsafe_code)]

pub mod finding;
pub mod rules;
pub mod rust_source;
pub mod tables;
pub mod tree;
pub mod use_paths;

#[cfg(test)]
mod samples;
