//! Parser of `ci/tidy/tidy.toml`: limits, layers, files with unsafe code, and exceptions, with reasons.

use std::fmt;

use toml::{Table, Value};

/// Path of the tables in the tree.
pub const TABLES_PATH: &str = "ci/tidy/tidy.toml";

/// The layer of one crate.
#[derive(Debug, PartialEq, Eq)]
pub struct Layer {
    /// The package's name.
    pub name: String,
    /// Workspace crates it may depend on.
    pub uses: Vec<String>,
    /// Workspace crates that only its tests may use.
    pub test_uses: Vec<String>,
    /// The crate contains no clock, thread, socket, file, atomic or unsafe code.
    pub is_pure: bool,
}

/// An exception to a rule.
#[derive(Debug, PartialEq, Eq)]
pub struct Exception {
    /// The rule's name.
    pub rule: String,
    /// A file, or a directory when it ends with `/`.
    pub path: String,
    /// Limits the exception to lines that contain this text.
    pub containing: Option<String>,
    /// The reason.
    pub reason: String,
}

/// Words that must not appear in text for readers.
#[derive(Debug, PartialEq, Eq)]
pub struct Construction {
    /// The words, in lower case.
    pub text: String,
    /// What to write instead.
    pub instead: String,
}

/// All tables.
#[derive(Debug, Default)]
pub struct Tables {
    /// Layers of the crates.
    pub layers: Vec<Layer>,
    /// Exceptions, including the files with unsafe code.
    pub exceptions: Vec<Exception>,
    /// Forbidden constructions.
    pub constructions: Vec<Construction>,
    /// Maximum number of files of a package that import each other.
    pub import_circle_files: usize,
    /// Maximum number of files of a package with inherent methods of one type.
    pub inherent_impl_files: usize,
}

/// Error of parsing a table file.
#[derive(Debug, PartialEq, Eq)]
pub struct TableError(String);

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{TABLES_PATH}: {}", self.0)
    }
}

impl std::error::Error for TableError {}

impl Tables {
    /// Parses the text of a table file.
    ///
    /// # Errors
    /// Invalid TOML; an unknown or missing key; a value of the wrong type; an empty reason.
    pub fn parse(text: &str) -> Result<Self, TableError> {
        let root: Table = text
            .parse()
            .map_err(|error: toml::de::Error| TableError(error.to_string()))?;
        let mut tables = Self::default();
        for (kind, value) in &root {
            if kind == "limits" {
                tables.set_limits(&Row::new(kind, value)?)?;
                continue;
            }
            let Value::Array(rows) = value else {
                return Err(TableError(format!("`{kind}` is not an array of tables")));
            };
            for row in rows {
                tables.add(&Row::new(kind, row)?)?;
            }
        }
        Ok(tables)
    }

    fn add(&mut self, row: &Row<'_>) -> Result<(), TableError> {
        match row.kind {
            "layer" => {
                row.check_keys(&["crate", "uses", "test_uses", "pure"])?;
                self.layers.push(Layer {
                    name: row.text("crate")?,
                    uses: row.names("uses")?,
                    test_uses: row.names("test_uses")?,
                    is_pure: row.flag("pure")?,
                });
            }
            "unsafe_code" => {
                row.check_keys(&["path", "reason"])?;
                self.exceptions.push(Exception {
                    rule: "unsafe-code".to_owned(),
                    path: row.text("path")?,
                    containing: None,
                    reason: row.text("reason")?,
                });
            }
            "exception" => {
                row.check_keys(&["rule", "path", "containing", "reason"])?;
                self.exceptions.push(Exception {
                    rule: row.text("rule")?,
                    path: row.text("path")?,
                    containing: row.optional_text("containing")?,
                    reason: row.text("reason")?,
                });
            }
            "construction" => {
                row.check_keys(&["text", "instead"])?;
                self.constructions.push(Construction {
                    text: row.text("text")?,
                    instead: row.text("instead")?,
                });
            }
            other => return Err(TableError(format!("unknown table `{other}`"))),
        }
        Ok(())
    }

    fn set_limits(&mut self, row: &Row<'_>) -> Result<(), TableError> {
        row.check_keys(&["import_circle_files", "inherent_impl_files"])?;
        self.import_circle_files = row.number("import_circle_files")?;
        self.inherent_impl_files = row.number("inherent_impl_files")?;
        Ok(())
    }

    /// Returns the layer of a crate.
    pub fn layer(&self, name: &str) -> Option<&Layer> {
        self.layers.iter().find(|layer| layer.name == name)
    }
}

impl Exception {
    /// True if it covers this line of this file.
    pub fn covers(&self, rule: &str, path: &str, line: &str) -> bool {
        let path_matches = match self.path.strip_suffix('/') {
            Some(directory) => path
                .strip_prefix(directory)
                .is_some_and(|rest| rest.starts_with('/')),
            None => self.path == path,
        };
        let text = self.containing.as_deref();
        self.rule == rule && path_matches && text.is_none_or(|text| line.contains(text))
    }
}

/// One row of one table.
struct Row<'a> {
    kind: &'a str,
    table: &'a Table,
}

impl<'a> Row<'a> {
    fn new(kind: &'a str, value: &'a Value) -> Result<Self, TableError> {
        match value {
            Value::Table(table) => Ok(Self { kind, table }),
            _ => Err(TableError(format!("`{kind}` is not a table"))),
        }
    }

    fn error(&self, key: &str, what: &str) -> TableError {
        TableError(format!("[[{}]] `{key}` {what}", self.kind))
    }

    fn check_keys(&self, keys: &[&str]) -> Result<(), TableError> {
        match self.table.keys().find(|key| !keys.contains(&key.as_str())) {
            Some(key) => Err(self.error(key, "is an unknown key")),
            None => Ok(()),
        }
    }

    fn text(&self, key: &str) -> Result<String, TableError> {
        self.optional_text(key)?
            .ok_or_else(|| self.error(key, "is missing"))
    }

    fn optional_text(&self, key: &str) -> Result<Option<String>, TableError> {
        match self.table.get(key) {
            None => Ok(None),
            Some(Value::String(text)) if !text.trim().is_empty() => Ok(Some(text.clone())),
            Some(_) => Err(self.error(key, "is not a non-empty string")),
        }
    }

    fn number(&self, key: &str) -> Result<usize, TableError> {
        let number = self.table.get(key).and_then(Value::as_integer);
        let number = number.and_then(|number| usize::try_from(number).ok());
        number.ok_or_else(|| self.error(key, "is not a number"))
    }

    fn flag(&self, key: &str) -> Result<bool, TableError> {
        match self.table.get(key) {
            None => Ok(false),
            Some(Value::Boolean(flag)) => Ok(*flag),
            Some(_) => Err(self.error(key, "is not a boolean")),
        }
    }

    fn names(&self, key: &str) -> Result<Vec<String>, TableError> {
        let Some(value) = self.table.get(key) else {
            return Ok(Vec::new());
        };
        let names: Option<Vec<String>> = value
            .as_array()
            .map(|values| values.iter().map(|v| v.as_str().map(str::to_owned)))
            .and_then(Iterator::collect);
        names.ok_or_else(|| self.error(key, "is not a list of strings"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_reads_every_kind_of_row() {
        let tables = Tables::parse(
            "[limits]\nimport_circle_files = 7\ninherent_impl_files = 5\n\
             [[layer]]\ncrate = 'a'\nuses = ['b']\npure = true\n\
             [[unsafe_code]]\npath = 'a/x.rs'\nreason = 'rings'\n\
             [[exception]]\nrule = 'words'\npath = 'docs/'\ncontaining = 'q'\nreason = 'r'\n",
        )
        .expect("valid");
        assert_eq!(tables.import_circle_files, 7);
        assert_eq!(tables.inherent_impl_files, 5);
        assert_eq!(tables.layer("a").map(|a| a.is_pure), Some(true));
        let covers = |rule: &str, path: &str, line: &str| {
            let exceptions = tables.exceptions.iter();
            exceptions.filter(|e| e.covers(rule, path, line)).count()
        };
        assert_eq!(covers("unsafe-code", "a/x.rs", ""), 1);
        assert_eq!(covers("words", "docs/a.md", "a q"), 1);
    }

    #[test]
    fn exception_covers_only_its_rule_path_and_text() {
        let mut exception = Exception {
            rule: "words".into(),
            path: "docs/".into(),
            containing: Some("q".into()),
            reason: "r".into(),
        };
        assert!(!exception.covers("words", "docs/a.md", "a"));
        assert!(!exception.covers("words", "docs2/a.md", "q"));
        assert!(!exception.covers("links", "docs/a.md", "q"));
        exception.path = "docs/a.md".into();
        assert!(!exception.covers("words", "docs/a.md.rs", "q"));
    }

    #[test]
    fn parse_rejects_invalid_tables() {
        for text in [
            "[[layer]]\nname = 'a'",
            "[[layer]]\ncrate = 'a'\nuses = [1]",
            "[[layer]]\ncrate = 'a'\npure = 'yes'",
            "[[unsafe_code]]\npath = 'a'",
            "[[unsafe_code]]\npath = 'a'\nreason = ' '",
            "[[unknown]]\npath = 'a'",
            "limits = 1",
            "[limits]",
            "[limits]\nimport_circle_files = -1\ninherent_impl_files = 1",
            "[limits]\nimport_circle_files = 1\ninherent_impl_files = 1\nunknown = 1",
            "layer = 1",
            "layer = [1]",
            "[[",
        ] {
            assert!(Tables::parse(text).is_err(), "{text}");
        }
    }
}
