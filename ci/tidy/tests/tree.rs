//! Runs all rules on this repository.

use std::path::Path;

use tidy::rules;
use tidy::tables::{TABLES_PATH, Tables};
use tidy::tree::Tree;

#[test]
fn tree_has_no_violations() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let tree = Tree::read(&root).expect("the tree is readable");
    let tables = tree.file(TABLES_PATH).expect("the tables are in the tree");
    let tables = Tables::parse(&tables.text).expect("the tables are valid");

    let (notes, violations): (Vec<_>, Vec<_>) = rules::check(&tree, &tables)
        .into_iter()
        .partition(|finding| finding.is_note);
    // Ends the unfinished line of the test harness.
    println!();
    for note in &notes {
        println!("{note}");
    }
    let violations: Vec<String> = violations.iter().map(ToString::to_string).collect();
    assert!(
        violations.is_empty(),
        "{} violations:\n{}",
        violations.len(),
        violations.join("\n")
    );
}
