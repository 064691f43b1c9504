//! Small trees for the tests of rules.

use crate::tables::Tables;
use crate::tree::Tree;

/// Creates a tree of the given files.
pub(crate) fn tree(files: &[(&str, &str)]) -> Tree {
    Tree::from_samples(files)
}

/// Parses tables from their text.
pub(crate) fn tables(text: &str) -> Tables {
    Tables::parse(text).expect("the sample is a valid table file")
}
