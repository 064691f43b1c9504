//! Small trees and packages for tests.

use crate::packages::Package;
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

/// Reads the package `the-sample` of the given files in its `src/`.
pub(crate) fn package(files: &[(&str, &str)]) -> Package {
    let source = "the-sample/src/";
    let paths = files
        .iter()
        .map(|(path, text)| (format!("{source}{path}"), *text));
    let files: Vec<(String, &str)> = paths.collect();
    let files: Vec<(&str, &str)> = files
        .iter()
        .map(|(path, text)| (path.as_str(), *text))
        .collect();
    Package::read(&tree(&files), "the-sample", source).expect("the sample is a valid package")
}
