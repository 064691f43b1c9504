//! Limit of the number of files with inherent methods of one type.

use std::collections::{BTreeMap, BTreeSet};

use crate::finding::Finding;
use crate::packages::Package;
use crate::rule::Rule;
use crate::tables::Tables;
use crate::tree::Tree;

/// The rule `scattered-types`.
pub const RULE: Rule = Rule {
    name: "scattered-types",
    check,
};

const ADVICE: &str =
    "split the type by responsibility: a method belongs to the type whose state it uses";

fn check(tree: &Tree, tables: &Tables) -> Vec<Finding> {
    let found = |(name, source): (String, String)| of_package(tree, tables, &name, &source);
    tree.packages().flat_map(found).collect()
}

fn of_package(tree: &Tree, tables: &Tables, name: &str, source: &str) -> Vec<Finding> {
    // `import-circles` reports a package that cannot be read.
    let Ok(package) = Package::read(tree, name, source) else {
        return Vec::new();
    };
    let mut files: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for module in &package.modules {
        for name in module.impls.iter().filter_map(|path| path.last()) {
            files.entry(name).or_default().insert(&module.file);
        }
    }
    let limit = tables.inherent_impl_files;
    let scattered = files.iter().filter(|(_, files)| files.len() > limit);
    scattered
        .map(|(of, files)| {
            let message = format!(
                "`{of}` of `{name}` has methods in {} files, more than {limit}",
                files.len()
            );
            Finding::new(RULE.name, source, 0, message, ADVICE)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    const MANIFEST: &str = "[package]\nname = 'sample'\n";

    fn found(limit: usize) -> Vec<String> {
        let tree = samples::tree(&[
            ("sample/Cargo.toml", MANIFEST),
            (
                "sample/src/lib.rs",
                "mod a; mod b; pub struct S; impl S { fn x() {} }",
            ),
            (
                "sample/src/a.rs",
                "use crate::S; impl S { fn y() {} } impl Clone for S {}",
            ),
            ("sample/src/b.rs", "impl Clone for crate::S {}"),
        ]);
        let limits = format!("[limits]\nimport_circle_files = 1\ninherent_impl_files = {limit}\n");
        let findings = check(&tree, &samples::tables(&limits));
        findings
            .into_iter()
            .map(|finding| finding.message)
            .collect()
    }

    #[test]
    fn type_with_methods_in_more_files_than_the_limit_is_found() {
        assert_eq!(found(2), [""; 0]);
        let expected = "`S` of `sample` has methods in 2 files, more than 1";
        assert_eq!(found(1), [expected]);
    }
}
