//! Small trees for the rules' own tests.

use crate::tables::Tables;
use crate::tree::Tree;

/// A tree of the given files.
pub(crate) fn tree(files: &[(&str, &str)]) -> Tree {
    Tree::from_samples(files)
}

/// Tables from their text.
pub(crate) fn tables(text: &str) -> Tables {
    Tables::parse(text).expect("the sample is a valid table file")
}
