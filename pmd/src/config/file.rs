//! The text of a configuration: which key stands in which line, and whether its value is what it can be.
//!
//! Every key is tried alone first, so that one mistake hides no other; what is sound is then taken as a whole.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::mistake::{ConfigError, Located, Mistake, Number};
use super::{Config, keys};

/// A table whose keys are those of a struct.
pub(super) trait Table: DeserializeOwned {
    /// How the file begins it.
    const HEADER: &'static str;
    /// Its keys that are numbers, with their defaults.
    fn numbers() -> Vec<Number>;
    /// What a key must be that is no number; `None` for those.
    fn form(key: &str) -> Option<&'static str>;
    /// The tables in it.
    fn inner<'t>(_key: &str) -> Option<Inner<'t>> {
        None
    }
}

/// Reads a table: gives what is sound of it, or `None` if it is not a table of its kind at all.
type Read<'t> = fn(&mut File<'t>, &Place, &DeTable<'t>) -> Option<DeTable<'t>>;

/// A table in a table.
pub(super) enum Inner<'t> {
    /// One.
    One(Read<'t>),
    /// Any number of them.
    Many(Read<'t>),
}

/// Where something stands in a file.
#[derive(Clone, Debug, Default)]
pub(super) struct Place {
    /// The way to it, `nic[0].neighbour[1]`.
    path: String,
    /// How a mistake there begins, `nic "VINIC0": neighbour 2: `.
    says: String,
}

impl Place {
    /// The NIC at this place, whatever its name.
    pub(super) fn nic(index: usize, name: &str) -> Self {
        Self {
            path: format!("nic[{index}]"),
            says: format!("nic {name:?}: "),
        }
    }

    /// A table in this one.
    pub(super) fn inner(&self, key: &str) -> Self {
        Self {
            path: self.key(key),
            says: format!("{}{key}: ", self.says),
        }
    }

    /// One of the tables of this name in this one.
    pub(super) fn element(&self, key: &str, index: usize) -> Self {
        Self {
            path: format!("{}[{index}]", self.key(key)),
            says: format!("{}{key} {}: ", self.says, index + 1),
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

/// A key of the file.
struct Entry<'t> {
    line: usize,
    /// Its value as it is written.
    value: &'t str,
}

/// A text that is being read.
pub(super) struct File<'t> {
    text: &'t str,
    entries: BTreeMap<String, Entry<'t>>,
    /// Keys whose values are known to be wrong.
    unsound: BTreeSet<String>,
    mistakes: Vec<Located>,
}

impl<'t> File<'t> {
    /// Reads a text, and what is sound of it.
    ///
    /// # Errors
    /// It is not TOML.
    pub(super) fn read(text: &'t str) -> Result<(Self, Config), ConfigError> {
        let mut file = Self {
            text,
            entries: BTreeMap::new(),
            unsound: BTreeSet::new(),
            mistakes: Vec::new(),
        };
        let (table, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            let span = error.span().unwrap_or_default();
            let text = match error.message() {
                "duplicate key" => {
                    format!("{}: is there twice: remove one of them", file.slice(&span))
                }
                message => format!("not TOML: {message}"),
            };
            let line = Some(file.line(span.start));
            file.mistakes.push(Located { line, text });
        }
        if !file.mistakes.is_empty() {
            return Err(ConfigError::of(file.mistakes));
        }
        let sound = file.table::<Config>(&Place::default(), table.get_ref());
        let sound = Spanned::new(0..text.len(), sound.unwrap_or_default());
        let config = Config::deserialize(toml::de::Deserializer::from(sound)).map_err(|error| {
            let line = error.span().map(|span| file.line(span.start));
            let text = error.message().to_owned();
            ConfigError::of(vec![Located { line, text }])
        })?;
        Ok((file, config))
    }

    /// Everything that was wrong.
    pub(super) fn finish(self) -> Result<(), ConfigError> {
        if self.mistakes.is_empty() {
            Ok(())
        } else {
            Err(ConfigError::of(self.mistakes))
        }
    }

    /// A value that turned out to be wrong. The line is that of its key, or of its table if the key is missing.
    pub(super) fn mistake(&mut self, place: &Place, mistake: &Mistake) {
        self.mistake_at(place, mistake.key, &mistake.text);
    }

    /// Likewise, of a key that the file chose.
    pub(super) fn mistake_at(&mut self, place: &Place, key: &str, text: &str) {
        let path = place.key(key);
        if self.unsound.contains(&path) {
            return;
        }
        let entry = self.entries.get(&path);
        let line = entry.or_else(|| self.entries.get(&place.path));
        let line = line.map(|entry| entry.line);
        let text = format!("{}{text}", place.says);
        self.mistakes.push(Located { line, text });
    }

    /// The value of a key as it is written; `None` if the key is not there.
    pub(super) fn value(&self, place: &Place, key: &str) -> Option<&'t str> {
        self.entries.get(&place.key(key)).map(|entry| entry.value)
    }

    /// The key has a mistake that was told already.
    pub(super) fn is_unsound(&self, place: &Place, key: &str) -> bool {
        self.unsound.contains(&place.key(key))
    }

    fn line(&self, offset: usize) -> usize {
        let before = self.text.bytes().take(offset);
        before.filter(|byte| *byte == b'\n').count() + 1
    }

    /// The first line of a value, not more than fits beside its key.
    fn slice(&self, span: &core::ops::Range<usize>) -> &'t str {
        const MOST: usize = 60;
        let value = self.text.get(span.clone()).unwrap_or_default();
        let line = value.lines().next().unwrap_or_default();
        let end = line
            .char_indices()
            .nth(MOST)
            .map_or(line.len(), |(at, _)| at);
        line.get(..end).unwrap_or_default()
    }

    fn note(&mut self, path: String, key_at: usize, value: core::ops::Range<usize>) {
        let (line, value) = (self.line(key_at), self.slice(&value));
        self.entries.insert(path, Entry { line, value });
    }

    /// The value at `path` is wrong.
    fn wrong(&mut self, place: &Place, path: String, text: String) {
        let line = self.entries.get(&path).map(|entry| entry.line);
        let text = format!("{}{text}", place.says);
        self.mistakes.push(Located { line, text });
        self.unsound.insert(path);
    }

    /// Reads a table of this kind.
    pub(super) fn table<T: Table>(
        &mut self,
        place: &Place,
        table: &DeTable<'t>,
    ) -> Option<DeTable<'t>> {
        let mut sound = DeTable::new();
        for (key, value) in table {
            let name: &str = key.get_ref();
            let path = place.key(name);
            self.note(path.clone(), key.span().start, value.span());
            if !keys::of::<T>().contains(&name) {
                let text = format!("{name}: {}", keys::unknown::<T>(name));
                self.wrong(place, path, text);
                continue;
            }
            let kept = match T::inner(name) {
                Some(Inner::One(read)) => self.one::<T>(read, place, (name, value)),
                Some(Inner::Many(read)) => self.many::<T>(read, place, (name, value)),
                None => self.leaf::<T>(place, key, value),
            };
            if let Some(kept) = kept {
                sound.insert(key.clone(), Spanned::new(value.span(), kept));
            }
        }
        Some(sound)
    }

    /// Tries a value alone: what else the table needs is not asked now.
    fn leaf<T: Table>(
        &mut self,
        place: &Place,
        key: &Spanned<DeString<'t>>,
        value: &Spanned<DeValue<'t>>,
    ) -> Option<DeValue<'t>> {
        let mut alone = DeTable::new();
        alone.insert(key.clone(), value.clone());
        // An error of the value lies in the value; a missing key lies in the table, which is nowhere.
        let alone = toml::de::Deserializer::from(Spanned::new(0..0, alone));
        let at = value.span();
        let error = T::deserialize(alone).err();
        let error = error.filter(|error| {
            error.span().is_some_and(|span| {
                at.start <= span.start && span.end <= at.end && !span.is_empty()
            })
        });
        let Some(error) = error else {
            return Some(value.get_ref().clone());
        };
        self.refuse::<T>(place, (key.get_ref(), value), error.message());
        None
    }

    fn one<T: Table>(
        &mut self,
        read: Read<'t>,
        place: &Place,
        (key, value): (&str, &Spanned<DeValue<'t>>),
    ) -> Option<DeValue<'t>> {
        let Some(table) = value.get_ref().as_table() else {
            self.refuse::<T>(place, (key, value), "must be a table");
            return None;
        };
        read(self, &place.inner(key), table).map(DeValue::Table)
    }

    fn many<T: Table>(
        &mut self,
        read: Read<'t>,
        place: &Place,
        (key, value): (&str, &Spanned<DeValue<'t>>),
    ) -> Option<DeValue<'t>> {
        let tables: Option<Vec<_>> = value.get_ref().as_array().and_then(|array| {
            let tables = array
                .iter()
                .map(|one| Some((one.span(), one.get_ref().as_table()?)));
            tables.collect()
        });
        let Some(tables) = tables else {
            self.refuse::<T>(place, (key, value), "must be tables");
            return None;
        };
        let mut sound = toml::de::DeArray::new();
        for (index, (span, table)) in tables.into_iter().enumerate() {
            let mut place = place.element(key, index);
            if T::HEADER.is_empty() && key == "nic" {
                let name = table.get("name").and_then(|name| name.get_ref().as_str());
                let by_place = Config::name_by_place(index);
                let name = name.filter(|name| !name.is_empty()).unwrap_or(&by_place);
                place = Place::nic(index, name);
            }
            self.note(place.path.clone(), span.start, span.clone());
            if let Some(table) = read(self, &place, table) {
                sound.push(Spanned::new(span, DeValue::Table(table)));
            } else {
                self.unsound.insert(place.path);
            }
        }
        // Places stay what they are: either all of them or none.
        let is_whole = sound.len() == value.get_ref().as_array().map_or(0, |array| array.len());
        is_whole.then_some(DeValue::Array(sound))
    }

    fn refuse<T: Table>(
        &mut self,
        place: &Place,
        (key, value): (&str, &Spanned<DeValue<'t>>),
        otherwise: &str,
    ) {
        let must_be = keys::must_be::<T>(key).unwrap_or_else(|| otherwise.to_owned());
        let text = format!("{key} = {}: {must_be}", self.slice(&value.span()));
        self.wrong(place, place.key(key), text);
    }

    /// Reads a table of names for names.
    pub(super) fn names(&mut self, place: &Place, table: &DeTable<'t>) -> Option<DeTable<'t>> {
        let mut sound = DeTable::new();
        for (key, value) in table {
            let path = place.key(key.get_ref());
            self.note(path.clone(), key.span().start, value.span());
            if value.get_ref().is_str() {
                sound.insert(key.clone(), value.clone());
            } else {
                let value = self.slice(&value.span());
                let text = format!(
                    "{} = {value}: must be the name of a NIC, in quotes",
                    key.get_ref()
                );
                self.wrong(place, path, text);
            }
        }
        Some(sound)
    }

    /// Reads a table in which keys may not be missing; without them it is not sound.
    pub(super) fn whole_table<T: Table>(
        &mut self,
        place: &Place,
        table: &DeTable<'t>,
    ) -> Option<DeTable<'t>> {
        let sound = self.table::<T>(place, table)?;
        for key in keys::of::<T>() {
            if !table.contains_key(*key) {
                let must_be = keys::must_be::<T>(key).unwrap_or_default();
                let text = format!("{}needs {key} = ...: {must_be}", place.says);
                let line = self.entries.get(&place.path).map(|entry| entry.line);
                self.mistakes.push(Located { line, text });
            }
        }
        keys::of::<T>()
            .iter()
            .all(|key| sound.contains_key(*key))
            .then_some(sound)
    }
}
