//! Finds what a path names, through `use` declarations of every kind.

use std::ptr;

use crate::packages::{Import, Package};

/// What a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Definition<'a> {
    /// The item of that name in the module of that index.
    Item(usize, &'a str),
    /// The module of that index.
    Module(usize),
    /// An item of another package, or a variable.
    Foreign,
}

use Definition::{Foreign, Item, Module};

impl Package {
    /// Returns what a path in the module of that index names: a name can be that of an item and of a module.
    ///
    /// An unknown name in a known module is an item of that module, since macros generate items.
    pub fn resolve<'a>(&'a self, index: usize, path: &'a [String]) -> Vec<Definition<'a>> {
        self.follow(index, path, &mut Vec::new())
    }

    /// Does the same; `followed` are the imports that led to the path.
    fn follow<'a>(
        &'a self,
        index: usize,
        path: &'a [String],
        followed: &mut Vec<&'a Import>,
    ) -> Vec<Definition<'a>> {
        let is_module = |definition: &Definition<'_>| matches!(definition, Module(_));
        let mut definitions = vec![Module(index)];
        for (depth, name) in path.iter().enumerate() {
            // Before `::` a name is that of the module, if there is one.
            if definitions.iter().any(is_module) {
                definitions.retain(is_module);
            }
            let member = |definition| match definition {
                Module(index) => self.member(index, name, depth == 0, followed),
                // An associated item or a variant.
                other => vec![other],
            };
            definitions = definitions.into_iter().flat_map(member).collect();
        }
        definitions
    }

    /// Returns what a part of a path names in a module.
    fn member<'a>(
        &'a self,
        index: usize,
        name: &'a str,
        is_first: bool,
        followed: &mut Vec<&'a Import>,
    ) -> Vec<Definition<'a>> {
        match name {
            "self" => return vec![Module(index)],
            "super" => return self.modules[index].parent.map(Module).into_iter().collect(),
            "crate" => return vec![Module(self.root(index))],
            _ => {}
        }
        let found = self.lookup(index, name, followed);
        if !found.is_empty() {
            return found;
        }
        vec![match self.library {
            _ if !is_first => Item(index, name),
            Some(library) if name == self.library_name => Module(library),
            _ => Foreign,
        }]
    }

    fn root(&self, index: usize) -> usize {
        self.modules[index]
            .parent
            .map_or(index, |parent| self.root(parent))
    }

    /// Returns what a name is in a module; nothing if it is unknown.
    fn lookup<'a>(
        &'a self,
        index: usize,
        name: &'a str,
        followed: &mut Vec<&'a Import>,
    ) -> Vec<Definition<'a>> {
        let module = &self.modules[index];
        let mut found = Vec::new();
        found.extend(module.children.get(name).copied().map(Module));
        found.extend(module.items.contains(name).then_some(Item(index, name)));
        for imported_name in [Some(name), None] {
            if imported_name.is_none() && !found.is_empty() {
                // A glob imports only names that the module does not have otherwise.
                break;
            }
            for import in &module.imports {
                if import.name.as_deref() == imported_name {
                    found.extend(self.imported(index, import, name, followed));
                }
            }
        }
        if found.is_empty() && module.generated.contains(name) {
            found.push(Item(index, name));
        }
        found
    }

    /// Returns what a name is by an import of a module; nothing if the import is already being followed.
    fn imported<'a>(
        &'a self,
        index: usize,
        import: &'a Import,
        name: &'a str,
        followed: &mut Vec<&'a Import>,
    ) -> Vec<Definition<'a>> {
        if followed.iter().any(|other| ptr::eq(*other, import)) {
            return Vec::new();
        }
        followed.push(import);
        let mut found = Vec::new();
        for definition in self.follow(index, &import.path, followed) {
            match definition {
                Module(source) if import.name.is_none() => {
                    found.extend(self.lookup(source, name, followed));
                }
                _ if import.name.is_none() => {}
                // The module that re-exports an item of another package defines it for this one.
                Foreign if import.is_reexport => found.push(Item(index, name)),
                _ => found.push(definition),
            }
        }
        followed.pop();
        found
    }
}
