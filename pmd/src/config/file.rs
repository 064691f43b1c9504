//! Reads the text of a configuration: the line of each key, and whether its value has a valid form.
//!
//! Each key is parsed on its own first, so that one error hides no other; the valid keys are then parsed together.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::error::{ConfigError, LocatedError, Number, ValueError};
use super::{Config, keys};

/// A TOML table whose keys are the fields of a struct.
pub(super) trait Table: DeserializeOwned {
    /// Header of the table in the file.
    const HEADER: &'static str;
    /// Returns the numeric keys, with their defaults.
    fn numbers() -> Vec<Number>;
    /// Returns the required form of a key that is not numeric; `None` for numeric keys.
    fn form(key: &str) -> Option<&'static str>;
    /// Returns how to read a key that is a table.
    fn subtable<'t>(_key: &str) -> Option<Subtable<'t>> {
        None
    }
}

/// Reads a table: returns its valid part, or `None` if required keys are missing or invalid.
type Read<'t> = fn(&mut File<'t>, &TablePath, &DeTable<'t>) -> Option<DeTable<'t>>;

/// How to read a key that is a table.
pub(super) enum Subtable<'t> {
    /// One table.
    Single(Read<'t>),
    /// An array of tables.
    Array(Read<'t>),
}

/// Location of a table in a file.
#[derive(Clone, Debug, Default)]
pub(super) struct TablePath {
    /// Path of the table, `nic[0].neighbour[1]`.
    path: String,
    /// Start of an error text about the table, `nic "VINIC0": neighbour 2: `.
    prefix: String,
}

impl TablePath {
    /// The NIC with this index and name.
    pub(super) fn nic(index: usize, name: &str) -> Self {
        Self {
            path: format!("nic[{index}]"),
            prefix: format!("nic {name:?}: "),
        }
    }

    /// A table in this one.
    pub(super) fn subtable(&self, key: &str) -> Self {
        Self {
            path: self.key(key),
            prefix: format!("{}{key}: ", self.prefix),
        }
    }

    /// An element of an array of tables in this one.
    pub(super) fn element(&self, key: &str, index: usize) -> Self {
        Self {
            path: format!("{}[{index}]", self.key(key)),
            prefix: format!("{}{key} {}: ", self.prefix, index + 1),
        }
    }

    fn key(&self, key: &str) -> String {
        let path = &self.path;
        if path.is_empty() {
            key.to_owned()
        } else {
            format!("{path}.{key}")
        }
    }
}

/// Location and text of a key in the file.
struct KeyEntry<'t> {
    line: usize,
    /// Its value as written.
    value: &'t str,
}

/// The text of a configuration file, with the locations of its keys and the errors found so far.
pub(super) struct File<'t> {
    text: &'t str,
    entries: BTreeMap<String, KeyEntry<'t>>,
    /// Keys with invalid values, which have been reported.
    invalid: BTreeSet<String>,
    errors: Vec<LocatedError>,
}

impl<'t> File<'t> {
    /// Reads a text; returns it with the configuration of its valid keys.
    ///
    /// # Errors
    /// The text is not valid TOML.
    pub(super) fn read(text: &'t str) -> Result<(Self, Config), ConfigError> {
        let mut file = Self {
            text,
            entries: BTreeMap::new(),
            invalid: BTreeSet::new(),
            errors: Vec::new(),
        };
        let (table, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            let span = error.span().unwrap_or_default();
            let text = match error.message() {
                "duplicate key" => {
                    format!(
                        "duplicate key `{}`: remove one of them",
                        file.excerpt(&span)
                    )
                }
                message => format!("invalid TOML: {message}"),
            };
            let line = Some(file.line(span.start));
            file.errors.push(LocatedError { line, text });
        }
        if !file.errors.is_empty() {
            return Err(ConfigError::of(file.errors));
        }
        let valid = file.table::<Config>(&TablePath::default(), table.get_ref());
        let valid = Spanned::new(0..text.len(), valid.unwrap_or_default());
        let config = Config::deserialize(toml::de::Deserializer::from(valid)).map_err(|error| {
            let line = error.span().map(|span| file.line(span.start));
            let text = error.message().to_owned();
            ConfigError::of(vec![LocatedError { line, text }])
        })?;
        Ok((file, config))
    }

    /// Returns all errors, if there are any.
    pub(super) fn finish(self) -> Result<(), ConfigError> {
        if self.errors.is_empty() {
            Ok(())
        } else {
            Err(ConfigError::of(self.errors))
        }
    }

    /// Adds an error of a value, with the line of its key, or of its table if the key is missing. Ignored if the key
    /// has been reported as invalid already.
    pub(super) fn add_error(&mut self, at: &TablePath, error: &ValueError) {
        self.add_error_at(at, error.key, &error.text);
    }

    /// As [`Self::add_error`], for a key that is named by the file.
    pub(super) fn add_error_at(&mut self, at: &TablePath, key: &str, text: &str) {
        let path = at.key(key);
        if self.invalid.contains(&path) {
            return;
        }
        let entry = self.entries.get(&path);
        let line = entry.or_else(|| self.entries.get(&at.path));
        let line = line.map(|entry| entry.line);
        let text = format!("{}{text}", at.prefix);
        self.errors.push(LocatedError { line, text });
    }

    /// Returns the value of a key as written; `None` if the key is absent.
    pub(super) fn value(&self, at: &TablePath, key: &str) -> Option<&'t str> {
        self.entries.get(&at.key(key)).map(|entry| entry.value)
    }

    /// Returns whether the key has been reported as invalid.
    pub(super) fn is_invalid(&self, at: &TablePath, key: &str) -> bool {
        self.invalid.contains(&at.key(key))
    }

    fn line(&self, offset: usize) -> usize {
        let before = self.text.bytes().take(offset);
        before.filter(|byte| *byte == b'\n').count() + 1
    }

    /// Returns the first line of a value, cut to the length of an error line.
    fn excerpt(&self, span: &core::ops::Range<usize>) -> &'t str {
        const MAX_CHARS: usize = 60;
        let value = self.text.get(span.clone()).unwrap_or_default();
        let line = value.lines().next().unwrap_or_default();
        let end = line
            .char_indices()
            .nth(MAX_CHARS)
            .map_or(line.len(), |(at, _)| at);
        line.get(..end).unwrap_or_default()
    }

    fn record(&mut self, path: String, key_offset: usize, value: core::ops::Range<usize>) {
        let (line, value) = (self.line(key_offset), self.excerpt(&value));
        self.entries.insert(path, KeyEntry { line, value });
    }

    /// Reports the key at `path` as invalid.
    fn reject(&mut self, at: &TablePath, path: String, text: String) {
        let line = self.entries.get(&path).map(|entry| entry.line);
        let text = format!("{}{text}", at.prefix);
        self.errors.push(LocatedError { line, text });
        self.invalid.insert(path);
    }

    /// Reads a table of this type; returns its valid part.
    pub(super) fn table<T: Table>(
        &mut self,
        at: &TablePath,
        table: &DeTable<'t>,
    ) -> Option<DeTable<'t>> {
        let mut valid = DeTable::new();
        for (key, value) in table {
            let name: &str = key.get_ref();
            let path = at.key(name);
            self.record(path.clone(), key.span().start, value.span());
            if !keys::of::<T>().contains(&name) {
                self.reject(at, path, keys::unknown::<T>(name));
                continue;
            }
            let kept = match T::subtable(name) {
                Some(Subtable::Single(read)) => self.single::<T>(read, at, (name, value)),
                Some(Subtable::Array(read)) => self.array::<T>(read, at, (name, value)),
                None => self.plain_value::<T>(at, key, value),
            };
            if let Some(kept) = kept {
                valid.insert(key.clone(), Spanned::new(value.span(), kept));
            }
        }
        Some(valid)
    }

    /// Parses a value on its own; missing keys of the table are not reported here.
    fn plain_value<T: Table>(
        &mut self,
        at: &TablePath,
        key: &Spanned<DeString<'t>>,
        value: &Spanned<DeValue<'t>>,
    ) -> Option<DeValue<'t>> {
        let mut alone = DeTable::new();
        alone.insert(key.clone(), value.clone());
        // The span of an error of the value is inside the value; the span of a missing key is that of the table, 0..0.
        let alone = toml::de::Deserializer::from(Spanned::new(0..0, alone));
        let value_span = value.span();
        let error = T::deserialize(alone).err();
        let error = error.filter(|error| {
            error.span().is_some_and(|span| {
                value_span.start <= span.start && span.end <= value_span.end && !span.is_empty()
            })
        });
        let Some(error) = error else {
            return Some(value.get_ref().clone());
        };
        self.reject_value::<T>(at, (key.get_ref(), value), error.message());
        None
    }

    fn single<T: Table>(
        &mut self,
        read: Read<'t>,
        at: &TablePath,
        (key, value): (&str, &Spanned<DeValue<'t>>),
    ) -> Option<DeValue<'t>> {
        let Some(table) = value.get_ref().as_table() else {
            self.reject_value::<T>(at, (key, value), "must be a table");
            return None;
        };
        read(self, &at.subtable(key), table).map(DeValue::Table)
    }

    fn array<T: Table>(
        &mut self,
        read: Read<'t>,
        at: &TablePath,
        (key, value): (&str, &Spanned<DeValue<'t>>),
    ) -> Option<DeValue<'t>> {
        let tables: Option<Vec<_>> = value.get_ref().as_array().and_then(|array| {
            let tables = array
                .iter()
                .map(|element| Some((element.span(), element.get_ref().as_table()?)));
            tables.collect()
        });
        let Some(tables) = tables else {
            self.reject_value::<T>(at, (key, value), "must be tables");
            return None;
        };
        let mut valid = toml::de::DeArray::new();
        for (index, (span, table)) in tables.into_iter().enumerate() {
            let mut at = at.element(key, index);
            if T::HEADER.is_empty() && key == "nic" {
                let name = table.get("name").and_then(|name| name.get_ref().as_str());
                let default = Config::default_nic_name(index);
                let name = name.filter(|name| !name.is_empty()).unwrap_or(&default);
                at = TablePath::nic(index, name);
            }
            self.record(at.path.clone(), span.start, span.clone());
            if let Some(table) = read(self, &at, table) {
                valid.push(Spanned::new(span, DeValue::Table(table)));
            } else {
                self.invalid.insert(at.path);
            }
        }
        // All or none, so that indices do not change.
        let is_complete = valid.len() == value.get_ref().as_array().map_or(0, |array| array.len());
        is_complete.then_some(DeValue::Array(valid))
    }

    fn reject_value<T: Table>(
        &mut self,
        at: &TablePath,
        (key, value): (&str, &Spanned<DeValue<'t>>),
        otherwise: &str,
    ) {
        let must_be = keys::must_be::<T>(key).unwrap_or_else(|| otherwise.to_owned());
        let text = format!("{key} = {}: {must_be}", self.excerpt(&value.span()));
        self.reject(at, at.key(key), text);
    }

    /// Reads the table of aliases.
    pub(super) fn aliases(&mut self, at: &TablePath, table: &DeTable<'t>) -> Option<DeTable<'t>> {
        let mut valid = DeTable::new();
        for (key, value) in table {
            let path = at.key(key.get_ref());
            self.record(path.clone(), key.span().start, value.span());
            if value.get_ref().is_str() {
                valid.insert(key.clone(), value.clone());
            } else {
                let value = self.excerpt(&value.span());
                let text = format!(
                    "{} = {value}: must be the name of a NIC, in quotes",
                    key.get_ref()
                );
                self.reject(at, path, text);
            }
        }
        Some(valid)
    }

    /// Reads a table in which all keys are required; returns `None` unless all of them are valid.
    pub(super) fn complete_table<T: Table>(
        &mut self,
        at: &TablePath,
        table: &DeTable<'t>,
    ) -> Option<DeTable<'t>> {
        let valid = self.table::<T>(at, table)?;
        // Numeric keys have defaults.
        let required = || keys::of::<T>().iter().filter(|key| T::form(key).is_some());
        for key in required() {
            if !table.contains_key(*key) {
                let must_be = keys::must_be::<T>(key).unwrap_or_default();
                let text = format!("{}missing key `{key}`: {must_be}", at.prefix);
                let line = self.entries.get(&at.path).map(|entry| entry.line);
                self.errors.push(LocatedError { line, text });
            }
        }
        required()
            .all(|key| valid.contains_key(*key))
            .then_some(valid)
    }
}
