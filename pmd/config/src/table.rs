//! Declaration of tables: each key once, with its meaning, type, default and the form of its values.

use std::fmt::Debug;
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use toml::de::DeTable;

use crate::error::ValueError;
use crate::file::{File, TablePath, read_table};

/// A table of the file.
pub(crate) trait Table: DeserializeOwned + Default {
    /// Header of the table in the file; empty for the file itself.
    const HEADER: &'static str;
    /// Meaning, one element for each line.
    const DOC: &'static [&'static str];
    /// The keys, in their order.
    const KEYS: &'static [Key];
    /// Returns the values of numeric keys, in the order of [`Self::KEYS`]; `None` for other and absent ones.
    fn numbers(&self) -> Vec<Option<u64>>;
    /// Returns the values as written in a file, likewise; empty for tables and absent keys.
    fn texts(&self) -> Vec<String>;

    /// Checks the ranges of the numeric keys.
    fn range_errors(&self) -> Vec<ValueError> {
        let of_key = |(key, value): (&Key, Option<u64>)| key.range_error(value?);
        Self::KEYS
            .iter()
            .zip(self.numbers())
            .filter_map(of_key)
            .collect()
    }
}

/// A choice between tables, of which a file has one.
pub(crate) trait Choice {
    /// The tables.
    const TABLES: &'static [Key];
}

/// A key of a table.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    /// Meaning, one element for each line.
    pub(crate) doc: &'static [&'static str],
    pub(crate) form: Form,
    /// Name in files of version 0.1, where all keys of a NIC were in `[[nic]]`.
    pub(crate) was: &'static str,
}

/// Required form of the values of a key.
pub(crate) enum Form {
    /// A number.
    Number {
        /// The least value.
        low: u64,
        /// The greatest value.
        high: u64,
    },
    /// Another value: what it must be.
    Value(&'static str),
    /// A table.
    Table(TableForm),
    /// `true`, `false`, or a table.
    SwitchOrTable(TableForm),
    /// An array of tables.
    Tables(TableForm),
    /// A table with one of these tables.
    OneOf(&'static [Key]),
    /// One of these tables must be in place of the key.
    Choice(&'static [Key]),
    /// One of these tables may be in place of the key.
    OptionalChoice(&'static [Key]),
}

/// Reads a table: returns its valid part, or `None` if required keys are missing or invalid.
pub(crate) type Read = for<'t> fn(&mut File<'t>, &TablePath, &DeTable<'t>) -> Option<DeTable<'t>>;

/// A key that is a table.
pub(crate) struct TableForm {
    /// What the table must have, after a comma.
    pub(crate) must_have: &'static str,
    pub(crate) header: &'static str,
    pub(crate) doc: &'static [&'static str],
    pub(crate) keys: &'static [Key],
    pub(crate) defaults: fn() -> Vec<String>,
    pub(crate) read: Read,
}

/// A number in this range.
pub(crate) const fn range(low: u64, high: u64) -> Form {
    Form::Number { low, high }
}

/// A value that is no number: what it must be.
pub(crate) const fn value(text: &'static str) -> Form {
    Form::Value(text)
}

/// A table of this type.
pub(crate) const fn subtable<T: Table>() -> Form {
    Form::Table(table_form::<T>("", read_table::<T>))
}

/// A table of this type, and what more its value must have.
pub(crate) const fn table_form<T: Table>(must_have: &'static str, read: Read) -> TableForm {
    TableForm {
        must_have,
        header: T::HEADER,
        doc: T::DOC,
        keys: T::KEYS,
        defaults: || T::default().texts(),
        read,
    }
}

impl Key {
    /// Returns the requirement on the value.
    pub(crate) fn must_be(&self) -> String {
        match &self.form {
            Form::Number { low, high } => format!("must be a number, {low} to {high}"),
            Form::Value(text) => format!("must be {text}"),
            Form::Table(table) => format!("must be a table, {}{}", table.header, table.must_have),
            Form::SwitchOrTable(table) => {
                format!(
                    "must be true, false or a table, {}{}",
                    table.header, table.must_have
                )
            }
            Form::Tables(table) => format!("must be tables, {}{}", table.header, table.must_have),
            Form::OneOf(tables) => format!("must be a table: {}", headers(tables)),
            Form::Choice(tables) | Form::OptionalChoice(tables) => {
                format!("must be one of the tables {}", headers(tables))
            }
        }
    }

    /// Returns whether the values are numbers, which have a default.
    pub(crate) fn has_range(&self) -> bool {
        matches!(self.form, Form::Number { .. })
    }

    fn range_error(&self, value: u64) -> Option<ValueError> {
        let Form::Number { low, high } = self.form else {
            return None;
        };
        let key = self.name;
        (!(low..=high).contains(&value)).then(|| {
            let text = format!("{key} = {value}: must be {low} to {high}");
            ValueError::new(key, text)
        })
    }

    /// Returns the header of the table that this key is.
    pub(crate) fn header(&self) -> Option<&'static str> {
        match &self.form {
            Form::Table(table) | Form::SwitchOrTable(table) | Form::Tables(table) => {
                Some(table.header)
            }
            _ => None,
        }
    }
}

/// Returns the headers of tables: `[nic.shm], [nic.dpdk] or [nic.vi_tcp]`.
pub(crate) fn headers(tables: &[Key]) -> String {
    let headers: Vec<_> = tables.iter().filter_map(Key::header).collect();
    match headers.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => headers.concat(),
    }
}

/// Finds a key by its name in the file: a key of the table, or a table of a choice.
pub(crate) fn find<'k>(keys: &'k [Key], name: &str) -> Option<Found<'k>> {
    keys.iter().find_map(|key| match &key.form {
        Form::Choice(tables) | Form::OptionalChoice(tables) => {
            let table = tables.iter().find(|table| table.name == name)?;
            Some(Found {
                key: table,
                choice: Some(key),
            })
        }
        _ => (key.name == name).then_some(Found { key, choice: None }),
    })
}

/// A key, and the choice in whose place it is.
pub(crate) struct Found<'k> {
    pub(crate) key: &'k Key,
    pub(crate) choice: Option<&'k Key>,
}

/// Returns the names of keys in the file.
pub(crate) fn names(keys: &'static [Key]) -> Vec<&'static str> {
    let of_key = |key: &'static Key| match &key.form {
        Form::Choice(tables) | Form::OptionalChoice(tables) => {
            tables.iter().map(|table| table.name).collect()
        }
        _ => vec![key.name],
    };
    keys.iter().flat_map(of_key).collect()
}

/// Returns the last of the names of a key.
pub(crate) const fn last(names: &[&'static str]) -> &'static str {
    match names {
        [.., last] => last,
        [] => "",
    }
}

/// A value of a key.
pub(crate) trait Value {
    /// Returns a number.
    fn number(&self) -> Option<u64> {
        None
    }

    /// Returns the value as written in a file; empty if there is none to write.
    fn text(&self) -> String {
        String::new()
    }
}

macro_rules! numbers {
    ($($type:ty),*) => {
        $(impl Value for $type {
            fn number(&self) -> Option<u64> {
                u64::try_from(*self).ok()
            }

            fn text(&self) -> String {
                self.to_string()
            }
        })*
    };
}

numbers!(u16, u32, u64, usize);

impl Value for bool {
    fn text(&self) -> String {
        self.to_string()
    }
}

impl Value for String {
    fn text(&self) -> String {
        match self.as_str() {
            "" => String::new(),
            text => format!("{text:?}"),
        }
    }
}

impl Value for PathBuf {}
impl<T> Value for Vec<T> {}
impl<K, V> Value for std::collections::BTreeMap<K, V> {}

impl<T: Value> Value for Option<T> {
    fn number(&self) -> Option<u64> {
        self.as_ref()?.number()
    }

    fn text(&self) -> String {
        self.as_ref().map(Value::text).unwrap_or_default()
    }
}

/// Returns the word of a variant in the file.
pub(crate) fn word(variant: impl Debug, separator: char) -> String {
    let mut word = String::from('"');
    for (at, letter) in format!("{variant:?}").chars().enumerate() {
        if letter.is_ascii_uppercase() && at > 0 {
            word.push(separator);
        }
        word.push(letter.to_ascii_lowercase());
    }
    word.push('"');
    word
}

/// Declares a table: a struct with a default for each key, and the form of its values. `was` is the name in
/// version 0.1 of a key that was renamed.
macro_rules! table {
    (
        $(#[doc = $about:literal])*
        pub struct $name:ident in $header:literal {
            $(
                $(#[doc = $doc:literal])*
                pub $key:ident: $type:ty = $default:expr, $form:expr $(, was $was:literal)?;
            )*
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            $($(#[doc = $doc])* pub $key: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $default,)* }
            }
        }

        impl $crate::table::Table for $name {
            const HEADER: &'static str = $header;
            const DOC: &'static [&'static str] = &[$($about),*];
            const KEYS: &'static [$crate::table::Key] = &[
                $($crate::table::Key {
                    name: stringify!($key),
                    doc: &[$($doc),*],
                    form: $form,
                    was: $crate::table::last(&[stringify!($key) $(, $was)?]),
                },)*
            ];

            fn numbers(&self) -> Vec<Option<u64>> {
                vec![$($crate::table::Value::number(&self.$key)),*]
            }

            fn texts(&self) -> Vec<String> {
                vec![$($crate::table::Value::text(&self.$key)),*]
            }
        }

        impl $crate::table::Value for $name {}
    };
}
pub(crate) use table;

/// Declares a choice between tables.
macro_rules! choice {
    (
        $(#[doc = $about:literal])*
        pub enum $name:ident {
            $(
                $(#[doc = $doc:literal])*
                $variant:ident($type:ty) = $key:literal,
            )*
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
        pub enum $name {
            $(
                $(#[doc = $doc])*
                #[serde(rename = $key)]
                $variant($type),
            )*
        }

        impl $name {
            /// Returns the key of the table.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $key,)*
                }
            }

            pub(crate) fn range_errors(&self) -> Vec<$crate::error::ValueError> {
                use $crate::table::Table as _;
                match self {
                    $(Self::$variant(table) => table.range_errors(),)*
                }
            }
        }

        $(
            impl From<$type> for $name {
                fn from(table: $type) -> Self {
                    Self::$variant(table)
                }
            }
        )*

        impl $crate::table::Choice for $name {
            const TABLES: &'static [$crate::table::Key] = &[
                $($crate::table::Key {
                    name: $key,
                    doc: &[$($doc),*],
                    form: $crate::table::subtable::<$type>(),
                    was: "",
                },)*
            ];
        }

        impl $crate::table::Value for $name {}
    };
}
pub(crate) use choice;
