//! The files of the tree, read once.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use toml::Table;

use crate::rust_source::RustSource;

/// Directories that are not part of the source.
const SKIPPED_DIRECTORIES: [&str; 2] = [".git", "target"];

/// Maximum size of a text file in bytes; larger files are data.
const MAX_TEXT_BYTES: u64 = 1 << 20;

/// One text file.
pub struct TextFile {
    /// Path relative to the root, with `/` between its parts.
    pub path: String,
    /// The whole text.
    pub text: String,
    /// Present for `.rs` files.
    pub rust: Option<RustSource>,
}

impl TextFile {
    fn new(path: String, text: String) -> io::Result<Self> {
        let is_rust = path.ends_with(".rs");
        let rust = is_rust.then(|| RustSource::new(&text)).transpose();
        let rust = rust.map_err(|error| {
            let line = error.span().start().line;
            io::Error::other(format!("{path}:{line}: {error}"))
        })?;
        Ok(Self { path, text, rust })
    }

    /// Returns the directory of the file, empty for the root.
    pub fn directory(&self) -> &str {
        self.path.rsplit_once('/').map_or("", |(before, _)| before)
    }

    /// Returns the file name, the last part of the path.
    pub fn name(&self) -> &str {
        self.path
            .rsplit_once('/')
            .map_or(self.path.as_str(), |(_, name)| name)
    }
}

/// A source tree in memory.
#[derive(Default)]
pub struct Tree {
    files: Vec<TextFile>,
    entries: BTreeSet<String>,
    test_files: BTreeSet<String>,
}

impl Tree {
    /// Reads the tree under `root`. Symbolic links are not followed.
    ///
    /// # Errors
    /// A file or directory cannot be read, or a Rust file has unbalanced brackets or an invalid token.
    pub fn read(root: &Path) -> io::Result<Self> {
        let mut tree = Self::default();
        tree.read_directory(root, "")?;
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        tree.find_test_files();
        Ok(tree)
    }

    /// Creates a tree of the given paths and texts.
    pub fn from_samples(samples: &[(&str, &str)]) -> Self {
        let mut tree = Self::default();
        for (path, text) in samples {
            for (end, _) in path.match_indices('/') {
                tree.entries.insert(path[..end].to_owned());
            }
            tree.entries.insert((*path).to_owned());
            let file = TextFile::new((*path).to_owned(), (*text).to_owned());
            tree.files.push(file.expect("the sample has valid tokens"));
        }
        tree.find_test_files();
        tree
    }

    fn read_directory(&mut self, directory: &Path, prefix: &str) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else {
                return Err(io::Error::other(format!(
                    "{:?} is not valid UTF-8: rename it",
                    entry.path()
                )));
            };
            let path = format!("{prefix}{name}");
            let kind = entry.file_type()?;
            if kind.is_dir() && !SKIPPED_DIRECTORIES.contains(&name.as_str()) {
                self.read_directory(&entry.path(), &format!("{path}/"))?;
                self.entries.insert(path);
            } else if kind.is_file() {
                self.entries.insert(path.clone());
                if entry.metadata()?.len() <= MAX_TEXT_BYTES {
                    // Files that are not UTF-8 are ignored by all rules.
                    if let Ok(text) = String::from_utf8(fs::read(entry.path())?) {
                        self.files.push(TextFile::new(path, text)?);
                    }
                }
            }
        }
        Ok(())
    }

    /// Finds files that are compiled only for tests: below `tests/`, or a module declared under `#[cfg(test)]`.
    fn find_test_files(&mut self) {
        let mut test_modules = Vec::new();
        for file in &self.files {
            let Some(rust) = &file.rust else { continue };
            let stem = file.name().trim_end_matches(".rs");
            let module_directory = match stem {
                "lib" | "main" | "mod" => file.directory().to_owned(),
                _ => format!("{}/{stem}", file.directory()),
            };
            for module in &rust.test_modules {
                test_modules.push(format!("{module_directory}/{module}"));
            }
        }
        let is_test = |path: &str| {
            path.starts_with("tests/")
                || path.contains("/tests/")
                || test_modules.iter().any(|module| {
                    path.strip_prefix(module.as_str())
                        .is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
                })
        };
        self.test_files = self
            .files
            .iter()
            .filter(|file| file.rust.is_some() && is_test(&file.path))
            .map(|file| file.path.clone())
            .collect();
    }

    /// Returns all text files, sorted by path.
    pub fn files(&self) -> &[TextFile] {
        &self.files
    }

    /// Returns the Rust files, sorted by path.
    pub fn rust_files(&self) -> impl Iterator<Item = (&TextFile, &RustSource)> {
        self.files
            .iter()
            .filter_map(|file| file.rust.as_ref().map(|rust| (file, rust)))
    }

    /// Returns the text file of that path.
    pub fn file(&self, path: &str) -> Option<&TextFile> {
        self.files.iter().find(|file| file.path == path)
    }

    /// True if a file or directory of that path exists; the root has the empty path.
    pub fn exists(&self, path: &str) -> bool {
        path.is_empty() || self.entries.contains(path)
    }

    /// Returns the directories at the root whose names do not start with a dot.
    pub fn top_directories(&self) -> BTreeSet<&str> {
        self.entries
            .iter()
            .filter_map(|path| path.split_once('/'))
            .map(|(top, _)| top)
            .filter(|top| !top.starts_with('.'))
            .collect()
    }

    /// Returns the name of each package, and the directory of its sources with `/` at its end.
    pub fn packages(&self) -> impl Iterator<Item = (String, String)> {
        let manifests = self.files.iter().filter(|file| file.name() == "Cargo.toml");
        manifests.filter_map(|file| {
            // An invalid manifest is reported by the rule `crate-layers`.
            let manifest: Table = file.text.parse().ok()?;
            let name = manifest.get("package")?.get("name")?.as_str()?;
            Some((name.to_owned(), format!("{}/src/", file.directory())))
        })
    }

    /// True if the file is compiled only for tests.
    pub fn is_test_file(&self, file: &TextFile) -> bool {
        self.test_files.contains(&file.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_modules_in_their_own_files_are_test_code() {
        let tree = Tree::from_samples(&[
            ("a/src/lib.rs", "#[cfg(test)]\nmod samples;\nmod real;\n"),
            ("a/src/samples.rs", ""),
            ("a/src/samples_two.rs", ""),
            ("a/src/real.rs", "#[cfg(test)]\nmod tests;\n"),
            ("a/src/real/tests.rs", ""),
            ("a/tests/outside.rs", ""),
        ]);
        let test: Vec<_> = tree.test_files.iter().map(String::as_str).collect();
        assert_eq!(
            test,
            [
                "a/src/real/tests.rs",
                "a/src/samples.rs",
                "a/tests/outside.rs"
            ]
        );
    }

    #[test]
    fn exists_finds_files_and_directories() {
        let tree = Tree::from_samples(&[("a/b/c.md", ""), (".ci/run", ""), ("d.md", "")]);
        assert!(tree.exists("a/b") && tree.exists("a/b/c.md") && tree.exists(""));
        assert!(!tree.exists("b"));
        assert_eq!(
            tree.top_directories().into_iter().collect::<Vec<_>>(),
            ["a"]
        );
    }
}
