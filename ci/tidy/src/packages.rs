//! The production modules of a package: what each defines, imports and names.
//!
//! Read are the library and the programs that cargo finds in `src/`, without tests. Not seen are calls of methods, and
//! names in code that macros generate.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::TokenStream;
use syn::visit::{self, Visit};
use syn::{Item, ItemImpl, ItemUse, Macro, MetaList, PatIdent, Type, UseTree, Visibility};

use crate::named_paths::named_paths;
use crate::tree::Tree;

/// A package with its modules.
#[derive(Debug)]
pub struct Package {
    /// The directory of its sources, with `/` at its end.
    pub source: String,
    /// The modules of its library and its programs.
    pub modules: Vec<Module>,
    /// The name of the library in paths.
    pub library_name: String,
    /// The index of the library's root module.
    pub library: Option<usize>,
}

/// A module, in a file of its own or in that of its parent.
#[derive(Debug, Default)]
pub struct Module {
    /// The path of its file.
    pub file: String,
    /// The index of its parent; `None` for a root.
    pub parent: Option<usize>,
    /// The indices of its child modules, by name.
    pub children: BTreeMap<String, usize>,
    /// The names of its items.
    pub items: BTreeSet<String>,
    /// The identifiers in calls of macros that generate items.
    pub generated: BTreeSet<String>,
    /// Its `use` declarations, also those in functions.
    pub imports: Vec<Import>,
    /// The paths in its code, except those in `use` declarations.
    pub named: BTreeSet<Vec<String>>,
    /// The names of variables.
    pub variables: BTreeSet<String>,
    /// The types of its inherent `impl` blocks.
    pub impls: BTreeSet<Vec<String>>,
}

/// A path that a `use` declaration imports.
#[derive(Debug)]
pub struct Import {
    /// The name in the importing module; `None` for a glob.
    pub name: Option<String>,
    /// The imported path, without the `*` of a glob.
    pub path: Vec<String>,
    /// The declaration makes the name visible to other modules.
    pub is_reexport: bool,
}

impl Package {
    /// Reads the package of that name whose sources are in the directory `source`.
    ///
    /// # Errors
    /// A file is not valid Rust, or the file of a module is missing.
    pub fn read(tree: &Tree, name: &str, source: &str) -> Result<Self, String> {
        let mut package = Self {
            source: source.to_owned(),
            modules: Vec::new(),
            library_name: name.replace('-', "_"),
            library: None,
        };
        for (file, _) in tree.rust_files() {
            let path = file.path.strip_prefix(source).unwrap_or_default();
            match path.split('/').collect::<Vec<_>>()[..] {
                ["lib.rs"] => {
                    let root = package.read_file(tree, &file.path, None, file.directory())?;
                    package.library = Some(root);
                }
                ["main.rs"] | ["bin", _] | ["bin", _, "main.rs"] => {
                    package.read_file(tree, &file.path, None, file.directory())?;
                }
                _ => {}
            }
        }
        Ok(package)
    }

    /// Reads a module and its children, which are in `directory`; returns its index.
    fn read_file(
        &mut self,
        tree: &Tree,
        path: &str,
        parent: Option<usize>,
        directory: &str,
    ) -> Result<usize, String> {
        let rust = tree.file(path).and_then(|file| file.rust.as_ref());
        let rust = rust.ok_or_else(|| format!("{path}: is missing"))?;
        let file = rust
            .syntax()
            .map_err(|error| format!("{path}:{}: {error}", error.span().start().line))?;
        self.read_module(tree, path, &file.items, parent, directory)
    }

    fn read_module(
        &mut self,
        tree: &Tree,
        path: &str,
        items: &[Item],
        parent: Option<usize>,
        directory: &str,
    ) -> Result<usize, String> {
        let index = self.modules.len();
        self.modules.push(Module {
            file: path.to_owned(),
            parent,
            ..Module::default()
        });
        for item in items {
            let Item::Mod(child) = item else {
                self.modules[index].add(item);
                continue;
            };
            let name = child.ident.to_string();
            let below = format!("{directory}/{name}");
            let child = if let Some((_, items)) = &child.content {
                self.read_module(tree, path, items, Some(index), &below)?
            } else {
                let nested = format!("{below}/mod.rs");
                let flat = format!("{below}.rs");
                let path = if tree.exists(&nested) { nested } else { flat };
                self.read_file(tree, &path, Some(index), &below)?
            };
            self.modules[index].children.insert(name, child);
        }
        Ok(index)
    }
}

impl Module {
    fn add(&mut self, item: &Item) {
        let ident = match item {
            Item::Const(item) => Some(&item.ident),
            Item::Enum(item) => Some(&item.ident),
            Item::Fn(item) => Some(&item.sig.ident),
            Item::Macro(item) => item.ident.as_ref(),
            Item::Static(item) => Some(&item.ident),
            Item::Struct(item) => Some(&item.ident),
            Item::Trait(item) => Some(&item.ident),
            Item::Type(item) => Some(&item.ident),
            Item::Union(item) => Some(&item.ident),
            _ => None,
        };
        self.items.extend(ident.map(ToString::to_string));
        if let (Item::Macro(item), None) = (item, ident) {
            let paths = named_paths(item.mac.tokens.clone());
            self.generated
                .extend(paths.into_iter().map(|named| named.path));
        }
        self.visit_item(item);
    }

    fn add_use(&mut self, tree: &UseTree, prefix: &[String], is_reexport: bool) {
        let mut path = prefix.to_vec();
        let name = match tree {
            UseTree::Path(tree) => {
                path.push(tree.ident.to_string());
                return self.add_use(&tree.tree, &path, is_reexport);
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_use(tree, prefix, is_reexport);
                }
                return;
            }
            UseTree::Name(tree) => {
                path.push(tree.ident.to_string());
                let name = path.iter().rfind(|part| *part != "self");
                name.cloned()
            }
            UseTree::Rename(tree) => {
                path.push(tree.ident.to_string());
                Some(tree.rename.to_string())
            }
            UseTree::Glob(_) => None,
        };
        self.imports.push(Import {
            name,
            path,
            is_reexport,
        });
    }

    fn add_tokens(&mut self, tokens: &TokenStream) {
        let paths = named_paths(tokens.clone()).into_iter();
        let parts = |path: String| path.split("::").map(str::to_owned).collect();
        self.named.extend(paths.map(|named| parts(named.path)));
    }
}

impl<'ast> Visit<'ast> for Module {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if item.leading_colon.is_none() {
            let is_private = matches!(item.vis, Visibility::Inherited);
            self.add_use(&item.tree, &[], !is_private);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        if let (None, Type::Path(of)) = (&item.trait_, &*item.self_ty) {
            self.impls.insert(parts(&of.path));
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            self.named.insert(parts(path));
        }
        visit::visit_path(self, path);
    }

    fn visit_pat_ident(&mut self, pattern: &'ast PatIdent) {
        let name = pattern.ident.to_string();
        if name.starts_with(char::is_uppercase) {
            // A constant or a variant.
            self.named.insert(vec![name]);
        } else {
            self.variables.insert(name);
        }
        visit::visit_pat_ident(self, pattern);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.add_tokens(&call.tokens);
        visit::visit_macro(self, call);
    }

    fn visit_meta_list(&mut self, list: &'ast MetaList) {
        self.add_tokens(&list.tokens);
        visit::visit_meta_list(self, list);
    }
}

fn parts(path: &syn::Path) -> Vec<String> {
    let idents = path.segments.iter().map(|segment| &segment.ident);
    idents.map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    fn error(files: &[(&str, &str)]) -> String {
        let error = Package::read(&samples::tree(files), "a", "a/src/");
        error.expect_err("the sample is invalid")
    }

    #[test]
    fn missing_and_invalid_files_are_errors() {
        let missing = error(&[("a/src/lib.rs", "mod b;")]);
        assert_eq!(missing, "a/src/b.rs: is missing");
        let invalid = error(&[
            ("a/src/lib.rs", "mod b;"),
            ("a/src/b/mod.rs", "\nfn fn() {}"),
        ]);
        assert!(invalid.starts_with("a/src/b/mod.rs:2: "), "{invalid}");
    }

    #[test]
    fn items_imports_and_implementations_are_read() {
        let text = "use a::{b as c, d::{self, *}}; pub(crate) use e::f;\n\
                    struct S; impl<T> S<T> {} impl Drop for S {} mod inner { static X: u8 = 1; }";
        let package = samples::package(&[("lib.rs", text), ("ignored.rs", "mod gone;")]);
        let [root, inner] = &package.modules[..] else {
            panic!("{package:?}")
        };
        let imports = root.imports.iter();
        let imports: Vec<_> = imports
            .map(|i| (i.name.as_deref(), i.path.join("::"), i.is_reexport))
            .collect();
        let expected = [
            (Some("c"), "a::b".to_owned(), false),
            (Some("d"), "a::d::self".to_owned(), false),
            (None, "a::d".to_owned(), false),
            (Some("f"), "e::f".to_owned(), true),
        ];
        assert_eq!(imports, expected);
        assert_eq!(root.items, BTreeSet::from(["S".to_owned()]));
        assert_eq!(root.impls, BTreeSet::from([vec!["S".to_owned()]]));
        assert_eq!(root.children["inner"], 1);
        assert_eq!(inner.parent, Some(0));
        assert_eq!(inner.items, BTreeSet::from(["X".to_owned()]));
    }
}
