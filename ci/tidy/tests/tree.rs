//! Every rule over this repository.

use std::path::Path;

use tidy::rules;
use tidy::tables::{TABLES_PATH, Tables};
use tidy::tree::Tree;

#[test]
fn the_tree_keeps_its_rules() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let tree = Tree::read(&root).expect("the tree is readable");
    let tables = tree.file(TABLES_PATH).expect("the tables are in the tree");
    let tables = Tables::parse(&tables.text).expect("the tables are valid");

    let (notes, breaches): (Vec<_>, Vec<_>) = rules::check(&tree, &tables)
        .into_iter()
        .partition(|finding| finding.is_note);
    // The harness leaves its own line unfinished.
    println!();
    for note in &notes {
        println!("{note}");
    }
    let breaches: Vec<String> = breaches.iter().map(ToString::to_string).collect();
    assert!(
        breaches.is_empty(),
        "the tree breaks {} rules:\n{}",
        breaches.len(),
        breaches.join("\n")
    );
}
