//! Reads the text of a configuration: the line of each key, and whether its value has a valid form.
//!
//! Each key is parsed on its own first, so that one error hides no other; the valid keys are then parsed together.

use std::collections::{BTreeMap, BTreeSet};

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use crate::error::{ConfigError, LocatedError, Step, ValueError};
use crate::table::{self, Form, Found, Key, Read, Table};

/// Location of a table in a file.
#[derive(Clone, Debug, Default)]
pub(crate) struct TablePath {
    /// Path of the table, `nic[0].static.neighbour[1]`.
    path: String,
    /// Start of an error text about the table, `nic "VINIC0": static: neighbour 2: `.
    prefix: String,
}

impl TablePath {
    /// The NIC with this index and name.
    pub(crate) fn nic(index: usize, name: &str) -> Self {
        Self {
            path: format!("nic[{index}]"),
            prefix: format!("nic {name:?}: "),
        }
    }

    /// A table in this one.
    pub(crate) fn subtable(&self, key: &str) -> Self {
        Self {
            path: self.key(key),
            prefix: format!("{}{key}: ", self.prefix),
        }
    }

    /// An element of an array of tables in this one.
    pub(crate) fn element(&self, key: &str, index: usize) -> Self {
        Self {
            path: format!("{}[{index}]", self.key(key)),
            prefix: format!("{}{key} {}: ", self.prefix, index + 1),
        }
    }

    /// The table of an error in this one.
    fn of_error(&self, error: &ValueError) -> Self {
        error
            .tables
            .iter()
            .fold(self.clone(), |at, step| match step {
                Step::Table(key) => at.subtable(key),
                Step::Element(key, index) => at.element(key, *index),
            })
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

/// A key that its table does not have.
pub(crate) struct UnknownKey<'a, 't> {
    /// Header and keys of the table.
    pub(crate) header: &'static str,
    pub(crate) keys: &'static [Key],
    pub(crate) name: &'a str,
    /// Its value as written.
    pub(crate) value: &'a str,
    pub(crate) table: &'a DeTable<'t>,
}

/// What to report about an unknown key.
pub(crate) struct Explanation {
    /// What is wrong, and what to do.
    pub(crate) text: String,
    /// The key may be meant as a table of a choice: a missing choice is not reported, too.
    pub(crate) may_name_choice: bool,
}

/// Explains an unknown key.
pub(crate) type Explain = fn(&UnknownKey<'_, '_>) -> Explanation;

/// Returns the name of a NIC without `name`.
pub(crate) fn default_nic_name(index: usize) -> String {
    format!("VINIC{index}")
}

/// Location and text of a key in the file.
struct KeyEntry<'t> {
    line: usize,
    /// Its value as written.
    value: &'t str,
}

/// The text of a configuration file, with the locations of its keys and the errors found so far.
pub(crate) struct File<'t> {
    text: &'t str,
    explain: Explain,
    entries: BTreeMap<String, KeyEntry<'t>>,
    /// Keys with invalid values, which have been reported.
    invalid: BTreeSet<String>,
    errors: Vec<LocatedError>,
}

impl<'t> File<'t> {
    /// Reads a text; returns it with the table of its valid keys.
    ///
    /// # Errors
    /// The text is not valid TOML.
    pub(crate) fn read<T: Table>(
        text: &'t str,
        explain: Explain,
    ) -> Result<(Self, T), ConfigError> {
        let mut file = Self {
            text,
            explain,
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
        let valid = read_table::<T>(&mut file, &TablePath::default(), table.get_ref());
        let valid = Spanned::new(0..text.len(), valid.unwrap_or_default());
        let config = T::deserialize(toml::de::Deserializer::from(valid)).map_err(|error| {
            let line = error.span().map(|span| file.line(span.start));
            let text = error.message().to_owned();
            ConfigError::of(vec![LocatedError { line, text }])
        })?;
        Ok((file, config))
    }

    /// Returns all errors, if there are any.
    pub(crate) fn finish(self) -> Result<(), ConfigError> {
        if self.errors.is_empty() {
            Ok(())
        } else {
            Err(ConfigError::of(self.errors))
        }
    }

    /// Adds an error of a value, with the line of its key, or of its table if the key is missing. Ignored if the key
    /// has been reported as invalid already.
    pub(crate) fn add_error(&mut self, at: &TablePath, error: &ValueError) {
        self.add_error_at(&at.of_error(error), error.key, &error.text);
    }

    /// As [`Self::add_error`], for a key that is named by the file.
    pub(crate) fn add_error_at(&mut self, at: &TablePath, key: &str, text: &str) {
        let path = at.key(key);
        if self.invalid.contains(&path) {
            return;
        }
        let line = self.nearest_line(&path);
        let text = format!("{}{text}", at.prefix);
        self.errors.push(LocatedError { line, text });
    }

    /// Returns the line of a key, or of the innermost table around it that the file has.
    fn nearest_line(&self, path: &str) -> Option<usize> {
        let mut path = path;
        loop {
            if let Some(entry) = self.entries.get(path) {
                return Some(entry.line);
            }
            path = path.rsplit_once('.')?.0;
        }
    }

    /// Returns the value of a key as written; `None` if the key is absent.
    pub(crate) fn value(&self, at: &TablePath, key: &str) -> Option<&'t str> {
        self.entries.get(&at.key(key)).map(|entry| entry.value)
    }

    /// Returns whether the key has been reported as invalid.
    pub(crate) fn is_invalid(&self, at: &TablePath, key: &str) -> bool {
        self.invalid.contains(&at.key(key))
    }

    /// Returns whether the key of an error has been reported as invalid.
    pub(crate) fn is_reported(&self, at: &TablePath, error: &ValueError) -> bool {
        self.is_invalid(&at.of_error(error), error.key)
    }

    fn line(&self, offset: usize) -> usize {
        let before = self.text.bytes().take(offset);
        before.filter(|byte| *byte == b'\n').count() + 1
    }

    /// Returns the first line of a value, cut to the length of an error line.
    pub(crate) fn excerpt(&self, span: &core::ops::Range<usize>) -> &'t str {
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
    fn reject(&mut self, at: &TablePath, path: String, text: &str) {
        let line = self.nearest_line(&path);
        let text = format!("{}{text}", at.prefix);
        self.errors.push(LocatedError { line, text });
        self.invalid.insert(path);
    }

    fn reject_value(
        &mut self,
        at: &TablePath,
        (key, value): (&Key, &Spanned<DeValue<'t>>),
    ) -> Option<DeValue<'t>> {
        let name = key.name;
        let text = format!(
            "{name} = {}: {}",
            self.excerpt(&value.span()),
            key.must_be()
        );
        self.reject(at, at.key(name), &text);
        None
    }

    /// Reads the value of a key; returns its valid part.
    fn key_value<T: Table>(
        &mut self,
        at: &TablePath,
        key: &Key,
        (name, value): (&Spanned<DeString<'t>>, &Spanned<DeValue<'t>>),
    ) -> Option<DeValue<'t>> {
        match (&key.form, value.get_ref()) {
            (Form::Table(form) | Form::SwitchOrTable(form), DeValue::Table(table)) => {
                (form.read)(self, &at.subtable(key.name), table).map(DeValue::Table)
            }
            (Form::Tables(form), DeValue::Array(_)) => self.array::<T>(form.read, at, (key, value)),
            (Form::OneOf(tables), DeValue::Table(table)) => {
                self.one_of(&at.subtable(key.name), tables, table)
            }
            (Form::Table(_) | Form::Tables(_) | Form::OneOf(_), _) => {
                self.reject_value(at, (key, value))
            }
            (Form::Number { .. } | Form::Value(_) | Form::SwitchOrTable(_), _) => {
                match parses_alone::<T>(name, value) {
                    true => Some(value.get_ref().clone()),
                    false => self.reject_value(at, (key, value)),
                }
            }
            // Found by the tables, never by this key.
            (Form::Choice(_) | Form::OptionalChoice(_), _) => None,
        }
    }

    /// Reads a table that has one of some tables.
    fn one_of(
        &mut self,
        at: &TablePath,
        tables: &[Key],
        table: &DeTable<'t>,
    ) -> Option<DeValue<'t>> {
        let mut chosen = Chosen::default();
        for (name, value) in in_order(table) {
            let path = at.key(name.get_ref());
            self.record(path.clone(), name.span().start, value.span());
            let Some(key) = tables.iter().find(|key| key.name == name.get_ref()) else {
                let text = format!(
                    "unknown key `{}`; it may have one of {}",
                    name.get_ref(),
                    table::headers(tables)
                );
                self.reject(at, path, &text);
                chosen.is_invalid = true;
                continue;
            };
            self.choose(at, &mut chosen, (key, tables), (name, value));
        }
        let is_empty = chosen.first.is_none() && !chosen.is_invalid;
        if is_empty {
            let text = format!("requires one of the tables {}", table::headers(tables));
            self.add_error_at(at, "", &text);
        }
        chosen.value.map(DeValue::Table)
    }

    /// Reads one of the tables of a choice, of which there may be one.
    fn choose(
        &mut self,
        at: &TablePath,
        chosen: &mut Chosen<'t>,
        (key, tables): (&Key, &[Key]),
        (name, value): (&Spanned<DeString<'t>>, &Spanned<DeValue<'t>>),
    ) {
        if let Some(first) = &chosen.first {
            let text = format!(
                "{}: a table of another kind, {first}, is there already: remove one of them",
                key.name
            );
            let path = at.key(key.name);
            self.reject(at, path, &text);
            chosen.is_invalid = true;
            return;
        }
        chosen.first = key.header();
        let kept = match (&key.form, value.get_ref()) {
            (Form::Table(form), DeValue::Table(table)) => {
                (form.read)(self, &at.subtable(key.name), table)
            }
            _ => {
                let text = format!(
                    "{} = {}: {}",
                    key.name,
                    self.excerpt(&value.span()),
                    key.must_be()
                );
                self.reject(at, at.key(key.name), &text);
                None
            }
        };
        debug_assert!(tables.iter().any(|table| table.name == key.name));
        match kept {
            Some(kept) => {
                let mut only = DeTable::new();
                only.insert(
                    name.clone(),
                    Spanned::new(value.span(), DeValue::Table(kept)),
                );
                chosen.value = Some(only);
            }
            None => chosen.is_invalid = true,
        }
    }

    fn array<T: Table>(
        &mut self,
        read: Read,
        at: &TablePath,
        (key, value): (&Key, &Spanned<DeValue<'t>>),
    ) -> Option<DeValue<'t>> {
        let tables: Option<Vec<_>> = value.get_ref().as_array().and_then(|array| {
            let tables = array
                .iter()
                .map(|element| Some((element.span(), element.get_ref().as_table()?)));
            tables.collect()
        });
        let Some(tables) = tables else {
            return self.reject_value(at, (key, value));
        };
        let mut valid = toml::de::DeArray::new();
        for (index, (span, table)) in tables.into_iter().enumerate() {
            let mut at = at.element(key.name, index);
            if T::HEADER.is_empty() && key.name == "nic" {
                let name = table.get("name").and_then(|name| name.get_ref().as_str());
                let default = default_nic_name(index);
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
}

/// The table of a choice that a file has.
#[derive(Default)]
struct Chosen<'t> {
    /// Header of the first one.
    first: Option<&'static str>,
    /// Its valid part, under its key.
    value: Option<DeTable<'t>>,
    /// An error was reported.
    is_invalid: bool,
}

/// Returns the keys of a table in their order in the file.
fn in_order<'a, 't>(
    table: &'a DeTable<'t>,
) -> Vec<(&'a Spanned<DeString<'t>>, &'a Spanned<DeValue<'t>>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(name, _)| name.span().start);
    entries
}

/// Returns whether a value has a valid form.
fn parses_alone<'t, T: Table>(name: &Spanned<DeString<'t>>, value: &Spanned<DeValue<'t>>) -> bool {
    let mut alone = DeTable::new();
    alone.insert(name.clone(), value.clone());
    let alone = toml::de::Deserializer::from(Spanned::new(0..0, alone));
    T::deserialize(alone).is_ok()
}

/// Reads a table of this type; returns its valid part.
pub(crate) fn read_table<'t, T: Table>(
    file: &mut File<'t>,
    at: &TablePath,
    table: &DeTable<'t>,
) -> Option<DeTable<'t>> {
    let mut valid = DeTable::new();
    let mut choices: BTreeMap<&'static str, Chosen<'t>> = BTreeMap::new();
    let mut has_reported_choice = false;
    for (name, value) in in_order(table) {
        let text: &str = name.get_ref();
        let path = at.key(text);
        file.record(path.clone(), name.span().start, value.span());
        let Some(Found { key, choice }) = table::find(T::KEYS, text) else {
            let explanation = (file.explain)(&UnknownKey {
                header: T::HEADER,
                keys: T::KEYS,
                name: text,
                value: file.excerpt(&value.span()),
                table,
            });
            has_reported_choice |= explanation.may_name_choice;
            file.reject(at, path, &explanation.text);
            continue;
        };
        if let Some(choice) = choice
            && let Form::Choice(tables) | Form::OptionalChoice(tables) = &choice.form
        {
            let chosen = choices.entry(choice.name).or_default();
            file.choose(at, chosen, (key, tables), (name, value));
        } else if let Some(kept) = file.key_value::<T>(at, key, (name, value)) {
            valid.insert(name.clone(), Spanned::new(value.span(), kept));
        }
    }
    for key in T::KEYS {
        let (Form::Choice(tables) | Form::OptionalChoice(tables)) = &key.form else {
            continue;
        };
        let chosen = choices.remove(key.name).unwrap_or_default();
        if let Form::Choice(_) = key.form
            && chosen.first.is_none()
        {
            // Keys of version 0.1 are reported with their tables, mistyped tables with what was meant.
            if !has_reported_choice {
                let text = format!("requires one of the tables {}", table::headers(tables));
                file.add_error_at(at, key.name, &text);
            }
            file.invalid.insert(at.key(key.name));
        }
        if chosen.is_invalid {
            file.invalid.insert(at.key(key.name));
        }
        if let Some(only) = chosen.value {
            let name = Spanned::new(0..0, DeString::from(key.name));
            valid.insert(name, Spanned::new(0..0, DeValue::Table(only)));
        }
    }
    Some(valid)
}

/// Reads a table in which all keys without a range are required; returns `None` unless all of these are valid.
pub(crate) fn read_complete_table<'t, T: Table>(
    file: &mut File<'t>,
    at: &TablePath,
    table: &DeTable<'t>,
) -> Option<DeTable<'t>> {
    let valid = read_table::<T>(file, at, table)?;
    let required = || T::KEYS.iter().filter(|key| !key.has_range());
    for key in required() {
        if !table.contains_key(key.name) {
            let text = format!("{}missing key `{}`: {}", at.prefix, key.name, key.must_be());
            let line = file.nearest_line(&at.path);
            file.errors.push(LocatedError { line, text });
        }
    }
    required()
        .all(|key| valid.contains_key(key.name))
        .then_some(valid)
}

/// Reads the table of aliases.
pub(crate) fn read_aliases<'t>(
    file: &mut File<'t>,
    at: &TablePath,
    table: &DeTable<'t>,
) -> Option<DeTable<'t>> {
    let mut valid = DeTable::new();
    for (key, value) in table {
        let path = at.key(key.get_ref());
        file.record(path.clone(), key.span().start, value.span());
        if value.get_ref().is_str() {
            valid.insert(key.clone(), value.clone());
        } else {
            let value = file.excerpt(&value.span());
            let text = format!(
                "{} = {value}: must be the name of a NIC, in quotes",
                key.get_ref()
            );
            file.reject(at, path, &text);
        }
    }
    Some(valid)
}
