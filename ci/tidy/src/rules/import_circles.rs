//! Limit of the number of files of a package that import each other.

use crate::finding::Finding;
use crate::import_graph::ImportGraph;
use crate::packages::Package;
use crate::rule::Rule;
use crate::tables::Tables;
use crate::tree::Tree;

/// The rule `import-circles`.
pub const RULE: Rule = Rule {
    name: "import-circles",
    check,
};

const ADVICE: &str = "`cargo run -p tidy -- imports CRATE` prints imports that close the circle: move what they name to files below";

fn check(tree: &Tree, tables: &Tables) -> Vec<Finding> {
    let found = |(name, source): (String, String)| of_package(tree, tables, &name, &source);
    tree.packages().flat_map(found).collect()
}

fn of_package(tree: &Tree, tables: &Tables, name: &str, source: &str) -> Vec<Finding> {
    let finding = |message| Finding::new(RULE.name, source, 0, message, ADVICE);
    let package = match Package::read(tree, name, source) {
        Ok(package) => package,
        Err(error) => return vec![finding(error)],
    };
    let limit = tables.import_circle_files;
    let circles = ImportGraph::new(&package).circles();
    let large = circles.iter().filter(|circle| circle.len() > limit);
    large
        .map(|circle| {
            let files = circle.len();
            finding(format!(
                "{files} files of `{name}` import each other, more than {limit}"
            ))
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
            ("sample/src/lib.rs", "mod a; mod b; mod c;"),
            ("sample/src/a.rs", "use crate::b::B; pub struct A;"),
            ("sample/src/b.rs", "use crate::c::C; pub struct B;"),
            ("sample/src/c.rs", "use crate::a::A; pub struct C;"),
        ]);
        let tables = samples::tables(&format!(
            "[limits]\nimport_circle_files = {limit}\ninherent_impl_files = 1\n"
        ));
        let findings = check(&tree, &tables);
        findings
            .into_iter()
            .map(|finding| format!("{}: {}", finding.path, finding.message))
            .collect()
    }

    #[test]
    fn circle_of_more_files_than_the_limit_is_found() {
        assert_eq!(found(3), [""; 0]);
        let expected = "sample/src/: 3 files of `sample` import each other, more than 2";
        assert_eq!(found(2), [expected]);
    }

    #[test]
    fn missing_module_is_found() {
        let tree = samples::tree(&[
            ("sample/Cargo.toml", MANIFEST),
            ("sample/src/lib.rs", "mod gone;"),
        ]);
        assert_eq!(check(&tree, &Tables::default()).len(), 1);
    }
}
