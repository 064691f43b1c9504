//! The files of a package, and which items each imports from which other.
//!
//! A file imports an item if it names it in a `use` declaration or in a path, by whatever name and through whatever
//! re-export. A re-export and the declaration of a child module import nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::circles::{Circle, Edge, circles, cuts};
use crate::packages::Package;
use crate::resolve::Definition;

/// The import graph of a package.
#[derive(Debug)]
pub struct ImportGraph {
    /// The files, relative to the sources of the package, sorted.
    pub files: Vec<String>,
    /// The names of the items that a file imports from another one, by their indices.
    pub imports: BTreeMap<Edge, BTreeSet<String>>,
}

impl ImportGraph {
    /// Finds the imports between the files of a package.
    pub fn new(package: &Package) -> Self {
        let paths = package.modules.iter().map(|module| &module.file);
        let files: BTreeSet<&String> = paths.collect();
        let files: Vec<&String> = files.into_iter().collect();
        let file_of = |module: usize| files.binary_search(&&package.modules[module].file);
        let mut imports = BTreeMap::<Edge, BTreeSet<String>>::new();
        for (index, module) in package.modules.iter().enumerate() {
            let declared = module.imports.iter().filter(|import| !import.is_reexport);
            let is_variable =
                |path: &[String]| matches!(path, [name] if module.variables.contains(name));
            let named = module.named.iter().filter(|path| !is_variable(path));
            for path in declared.map(|import| &import.path).chain(named) {
                for definition in package.resolve(index, path) {
                    if let Definition::Item(source, name) = definition
                        && let (Ok(from), Ok(to)) = (file_of(index), file_of(source))
                        && from != to
                    {
                        imports
                            .entry((from, to))
                            .or_default()
                            .insert(name.to_owned());
                    }
                }
            }
        }
        let relative = |path: &&String| path.strip_prefix(&package.source).map(str::to_owned);
        Self {
            files: files.iter().filter_map(relative).collect(),
            imports,
        }
    }

    /// Returns the circles of files that import each other, the largest first.
    pub fn circles(&self) -> Vec<Circle> {
        circles(&self.imports.keys().copied().collect())
    }

    /// Describes imports of few items without which no more than `limit` files of the circle import each other.
    pub fn describe_cuts(&self, circle: &Circle, limit: usize) -> String {
        let weights = self.inside(circle).map(|(edge, items)| (edge, items.len()));
        let cuts = cuts(&weights.collect(), limit);
        let items: usize = cuts.iter().map(|edge| self.imports[edge].len()).sum();
        let mut text = format!(
            "without these {} imports of {items} items, no more than {limit} of them import each other:\n",
            cuts.len()
        );
        for edge in cuts {
            text += &self.describe_import(edge);
        }
        text
    }

    /// Describes all imports of each file, and then each circle.
    pub fn describe(&self, limit: usize) -> String {
        let mut text = String::new();
        for (index, file) in self.files.iter().enumerate() {
            let _ = writeln!(text, "{file}");
            for (&(_, to), items) in self.imports.range((index, 0)..=(index, usize::MAX)) {
                let _ = writeln!(text, "    {}: {}", self.files[to], list(items));
            }
        }
        for circle in self.circles() {
            let _ = writeln!(text, "\n{} files import each other:", circle.len());
            for (edge, _) in self.inside(&circle) {
                text += &self.describe_import(edge);
            }
            if circle.len() > limit {
                text += &self.describe_cuts(&circle, limit);
            }
        }
        text
    }

    fn inside(&self, circle: &Circle) -> impl Iterator<Item = (Edge, &BTreeSet<String>)> {
        let imports = self.imports.iter();
        let is_inside = |(from, to): Edge| circle.contains(&from) && circle.contains(&to);
        imports.filter_map(move |(&edge, items)| is_inside(edge).then_some((edge, items)))
    }

    fn describe_import(&self, edge: Edge) -> String {
        let (from, to) = (&self.files[edge.0], &self.files[edge.1]);
        format!("    {from} -> {to}: {}\n", list(&self.imports[&edge]))
    }
}

fn list(items: &BTreeSet<String>) -> String {
    let items: Vec<&str> = items.iter().map(String::as_str).collect();
    items.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    fn graph(files: &[(&str, &str)]) -> ImportGraph {
        ImportGraph::new(&samples::package(files))
    }

    /// Returns the imports in the given files of `src/`, as `importer -> imported: items`.
    fn imports(files: &[(&str, &str)]) -> Vec<String> {
        let graph = graph(files);
        let edges = graph.imports.keys();
        edges
            .map(|&edge| graph.describe_import(edge).trim().to_owned())
            .collect()
    }

    /// Returns what `user.rs` imports, beside `lib.rs` and `a.rs` with `a/b.rs`.
    fn imports_of_user(text: &str) -> Vec<String> {
        imports(&[
            ("lib.rs", "mod a; mod user; pub struct Top;"),
            (
                "a.rs",
                "mod b; pub use b::*; pub use self::b::Type as Renamed; pub enum Kind { One }",
            ),
            (
                "a/b.rs",
                "pub struct Type; pub fn make() {} pub const SIZE: u8 = 1;",
            ),
            ("user.rs", text),
        ])
    }

    #[test]
    fn paths_are_resolved_from_the_crate_the_module_and_its_parents() {
        for text in [
            "use crate::a::Kind;",
            "use super::a::Kind;",
            "use crate::{self as top, a};\nfn f(x: top::a::Kind) {}",
            "use super::a::{self, Kind::One};",
            "mod inner { use super::super::a::Kind; }",
            "mod inner { fn f() { self::super::a::Kind(x); } } use crate::a;",
            "fn f() { use crate::a::Kind::*; match x { One => {} } }",
            "fn f<T>() where T: Into<crate::a::Kind> {}",
            "impl From<u8> for crate::a::Kind {}",
            "fn f() { g!(1, x.y, crate::a::Kind::One) }",
            "#[derive(Args)] struct A { #[arg(default = crate::a::Kind::One)] b: u8 }",
        ] {
            assert_eq!(imports_of_user(text), ["user.rs -> a.rs: Kind"], "{text}");
        }
    }

    #[test]
    fn reexports_globs_and_renamings_lead_to_the_defining_file() {
        for (text, item) in [
            ("use crate::a::Type;", "Type"),
            ("use crate::a::Renamed as Other;", "Type"),
            ("use crate::a::*;\nfn f() { make() }", "make"),
            (
                "use super::a::*;\nfn f() { match x { SIZE => {} } }",
                "SIZE",
            ),
            ("use super::*;\nfn f(x: a::Type) {}", "Type"),
        ] {
            let expected = format!("user.rs -> a/b.rs: {item}");
            assert_eq!(imports_of_user(text), [expected], "{text}");
        }
    }

    #[test]
    fn modules_variables_and_names_of_other_packages_are_no_imports() {
        for text in [
            "use crate::a;\npub use crate::a::Type;",
            "use crate::a::*;\nfn f(make: u8) -> u8 { make }",
            "use ::a::Kind;\nuse std::a::Type;\nfn f(x: Kind, y: other::SIZE) { x.make(); Self::SIZE }",
            "struct Type; impl Type { const SIZE: u8 = Self::SIZE; }",
            "#[cfg(test)]\nmod tests { use crate::a::Type; }",
        ] {
            assert_eq!(imports_of_user(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn reexporting_file_imports_only_what_it_uses() {
        let lib = "mod a; mod b; pub use a::A; pub(crate) use b::{B, C}; fn f(x: B) {}";
        let files = [
            ("lib.rs", lib),
            ("a.rs", "use crate::B; pub struct A;"),
            ("b.rs", "pub struct B; pub struct C;"),
        ];
        assert_eq!(imports(&files), ["a.rs -> b.rs: B", "lib.rs -> b.rs: B"]);
    }

    #[test]
    fn parent_and_child_that_use_each_other_are_a_circle() {
        let files = [
            ("lib.rs", "mod a;"),
            ("a.rs", "mod b; pub struct A(b::B);"),
            ("a/b.rs", "use super::A; pub struct B;"),
        ];
        assert_eq!(imports(&files), ["a.rs -> a/b.rs: B", "a/b.rs -> a.rs: A"]);
        assert_eq!(graph(&files).circles().len(), 1);
        let declared = [
            ("lib.rs", "mod a;"),
            ("a.rs", "mod b; pub struct A;"),
            ("a/b.rs", "use super::A;"),
        ];
        assert_eq!(graph(&declared).circles().len(), 0);
    }

    #[test]
    fn items_of_macros_and_reexported_items_of_other_packages_are_found() {
        let files = [
            (
                "lib.rs",
                "mod counters; mod sync; mod user; pub use counters::*; use std::sync::Arc;",
            ),
            (
                "counters.rs",
                "macro_rules! counters { ($name:ident) => {} }\ncounters!(Counters);",
            ),
            (
                "sync.rs",
                "pub use std::sync::atomic::AtomicU8; use std::cell::Cell;",
            ),
            (
                "user.rs",
                "use crate::{Counters, sync::{AtomicU8, Cell}, Arc};",
            ),
        ];
        assert_eq!(
            imports(&files),
            [
                "user.rs -> counters.rs: Counters",
                "user.rs -> sync.rs: AtomicU8"
            ]
        );
    }

    #[test]
    fn name_of_an_item_and_of_a_module_is_both() {
        let files = [
            (
                "lib.rs",
                "mod a; mod check; use check::check; fn f() { check(); check::run() }",
            ),
            ("a.rs", "use crate::check;\nfn f() { check::run() }"),
            ("check.rs", "pub fn check() {} pub fn run() {}"),
        ];
        assert_eq!(
            imports(&files),
            [
                "a.rs -> check.rs: check, run",
                "lib.rs -> check.rs: check, run"
            ]
        );
    }

    #[test]
    fn programs_import_the_library_by_its_name() {
        let files = [
            ("lib.rs", "pub mod a;"),
            ("a.rs", "pub struct A;"),
            (
                "main.rs",
                "mod b; use the_sample::a::A; fn main() { b::B; }",
            ),
            ("b.rs", "pub struct B;"),
            ("bin/more/main.rs", "mod b; fn main() { crate::b::B; }"),
            ("bin/more/b.rs", "pub struct B;"),
        ];
        let expected = [
            "bin/more/main.rs -> bin/more/b.rs: B",
            "main.rs -> a.rs: A",
            "main.rs -> b.rs: B",
        ];
        assert_eq!(imports(&files), expected);
    }

    #[test]
    fn imports_in_a_circle_end() {
        let files = [
            ("lib.rs", "mod a; mod b; pub use a::*; pub use a::X;"),
            ("a.rs", "pub use crate::*; pub use crate::b::X;"),
            (
                "b.rs",
                "pub use crate::a::*; pub use crate::X; use crate::Y; fn f(x: Z) {}",
            ),
        ];
        assert_eq!(imports(&files), ["b.rs -> lib.rs: Y"]);
    }

    #[test]
    fn description_has_imports_circles_and_cuts() {
        let files = [
            (
                "lib.rs",
                "mod a; pub struct L; pub struct M; fn f(x: a::A) {}",
            ),
            ("a.rs", "use crate::{L, M}; pub struct A;"),
        ];
        let expected = "a.rs\n    lib.rs: L, M\nlib.rs\n    a.rs: A\n\n\
                        2 files import each other:\n    a.rs -> lib.rs: L, M\n    lib.rs -> a.rs: A\n";
        assert_eq!(graph(&files).describe(2), expected);
        let cuts = "without these 1 imports of 1 items, no more than 1 of them import each other:\n    lib.rs -> a.rs: A\n";
        assert_eq!(graph(&files).describe(1), format!("{expected}{cuts}"));
    }
}
