//! What a rule is.

use crate::finding::Finding;
use crate::tables::Tables;
use crate::tree::Tree;

/// A rule: a check of the tree, before exceptions are applied.
pub struct Rule {
    /// Its name in findings and exceptions.
    pub name: &'static str,
    /// Checks the tree.
    pub check: fn(&Tree, &Tables) -> Vec<Finding>,
}
