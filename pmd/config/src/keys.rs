//! Suggestions for keys that a table does not have.

use crate::Config;
use crate::table::{self, Form, Key, Table as _};

/// A table of the file: its header and its keys.
pub(crate) struct KnownTable {
    pub(crate) header: &'static str,
    pub(crate) doc: &'static [&'static str],
    pub(crate) keys: &'static [Key],
    /// Defaults of the keys as written, empty for keys without.
    pub(crate) defaults: Vec<String>,
}

/// Returns all tables of the file, in the order of the reference.
pub(crate) fn tables() -> Vec<KnownTable> {
    let mut tables = vec![KnownTable {
        header: Config::HEADER,
        doc: Config::DOC,
        keys: Config::KEYS,
        defaults: Config::default().texts(),
    }];
    add_tables(Config::KEYS, &mut tables);
    tables
}

fn add_tables(keys: &'static [Key], tables: &mut Vec<KnownTable>) {
    for key in keys {
        match &key.form {
            Form::Number { .. } | Form::Value(_) => {}
            Form::Table(form) | Form::SwitchOrTable(form) | Form::Tables(form) => {
                tables.push(KnownTable {
                    header: form.header,
                    doc: form.doc,
                    keys: form.keys,
                    defaults: (form.defaults)(),
                });
                add_tables(form.keys, tables);
            }
            Form::OneOf(choice) | Form::Choice(choice) | Form::OptionalChoice(choice) => {
                add_tables(choice, tables);
            }
        }
    }
}

/// Returns the error text for a key that the table does not have, with a suggestion.
pub(crate) fn unknown(header: &str, keys: &'static [Key], key: &str) -> String {
    let unknown = match header {
        "" => format!("unknown key `{key}`"),
        header => format!("unknown key `{key}` in {header}"),
    };
    let nearest = table::names(keys)
        .into_iter()
        .map(|known| (strsim::damerau_levenshtein(known, key), known))
        .min();
    if let Some((distance, known)) = nearest
        && distance <= 1 + known.len().min(key.len()) / 4
    {
        return format!("{unknown}; did you mean `{known}`?");
    }
    let has_key = |table: &KnownTable| table::find(table.keys, key).is_some();
    let owners = tables().into_iter().filter(has_key);
    let headers: Vec<&str> = owners.map(|table| table.header).collect();
    match headers.split_last() {
        Some((last, [])) => format!("{unknown}; it belongs in {last}"),
        Some((last, others)) => {
            format!("{unknown}; it belongs in {} or {last}", others.join(", "))
        }
        None => format!("{unknown}; remove it"),
    }
}
