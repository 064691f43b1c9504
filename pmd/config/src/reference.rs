//! Reference of the configuration file, from the declarations of its tables.

use std::fmt::Write as _;

use crate::flat;
use crate::keys::{self, KnownTable};
use crate::table::{Form, Key, headers};

/// Returns the reference of all tables and keys, and of the keys that have moved since version 0.1, as Markdown.
#[must_use]
pub fn reference() -> String {
    let mut out = String::from(
        "# Reference of the configuration file\n\n\
         Generated from the types (`pmd/config/`); `fcvi-pmd check --print-reference` prints it. TOML. Every key has a \
         default unless it is required, and its unit in its name. A table `[nic.TABLE]` belongs to the last `[[nic]]` \
         before it; `TABLE.KEY = VALUE` in `[[nic]]` is the same. Complete files: [configs/](../configs/).\n",
    );
    for table in keys::tables() {
        write_table(&mut out, &table);
    }
    out.push_str(
        "\n## Files of version 0.1\n\n\
         Version 0.1 had all keys of a NIC in `[[nic]]`. Such a file is refused; each error names the line to write \
         instead:\n\n| version 0.1 | now |\n| --- | --- |\n",
    );
    for (old, present) in flat::moved_keys() {
        let present = match present.as_str() {
            "" => "remove it".to_owned(),
            present => format!("`{present}`"),
        };
        let _ = writeln!(out, "| `{old}` | {present} |");
    }
    out
}

fn write_table(out: &mut String, table: &KnownTable) {
    let title = match table.header {
        "" => "The file".to_owned(),
        header => format!("`{header}`"),
    };
    let _ = write!(out, "\n## {title}\n\n{}\n", text(table.doc));
    if table.keys.is_empty() {
        return;
    }
    out.push_str("\n| key | value | default | meaning |\n| --- | --- | --- | --- |\n");
    for (at, key) in table.keys.iter().enumerate() {
        let default = table.defaults.get(at).map(String::as_str);
        write_key(out, key, default.unwrap_or_default());
    }
}

fn write_key(out: &mut String, key: &Key, default: &str) {
    let default = match default {
        "" => String::new(),
        text => format!("`{text}`"),
    };
    let row = |name: &str, value: &str, doc: &[&str]| {
        format!(
            "| `{name}` | {} | {default} | {} |\n",
            cell(value),
            cell(&text(doc))
        )
    };
    let form = key.must_be();
    let form = form.trim_start_matches("must be ");
    let rows = match &key.form {
        Form::Number { low, high } => row(key.name, &format!("{low} to {high}"), key.doc),
        Form::Value(_) | Form::Table(_) | Form::SwitchOrTable(_) | Form::Tables(_) => {
            row(key.name, form, key.doc)
        }
        Form::OneOf(tables) => row(key.name, &headers(tables), key.doc),
        Form::Choice(tables) | Form::OptionalChoice(tables) => {
            let kind = match key.form {
                Form::Choice(_) => "exactly one of ",
                _ => "one of ",
            };
            let form = format!("{kind}{}", headers(tables));
            tables
                .iter()
                .map(|table| row(table.name, &form, table.doc))
                .collect()
        }
    };
    out.push_str(&rows);
}

/// Joins the lines of a doc comment.
fn text(doc: &[&str]) -> String {
    let lines: Vec<&str> = doc.iter().map(|line| line.trim()).collect();
    lines.join(" ")
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
