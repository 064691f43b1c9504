//! File of the keys that a NIC shares with other hosts. Error texts contain no part of a key.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use vi_config::{ConfigError, host_address};

use crate::keys::Keys;

/// Address of the entry for all hosts without an entry of their own.
const OTHER_HOSTS: &str = "*";
/// Length of a key in bytes.
const KEY_BYTES: core::ops::RangeInclusive<usize> = 16..=64;
/// Maximum length of the file in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Permission bits of group and others.
const GROUP_AND_OTHER_BITS: u32 = 0o077;

/// Reads the keys of a NIC; `None` if it has no key file.
///
/// # Errors
/// All errors of the file, each with its line.
pub fn read_keys(path: Option<&Path>) -> Result<Option<Keys>, String> {
    let Some(path) = path else {
        return Ok(None);
    };
    match read(path) {
        Ok(keys) => Ok(Some(keys)),
        Err(error) => Err(format!("key_file: {}", error.in_file(path))),
    }
}

fn read(path: &Path) -> Result<Keys, ConfigError> {
    let unreadable = |error| ConfigError::new(format!("cannot be read: {error}"));
    // O_NONBLOCK: opening a FIFO does not block.
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let file = options.open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    let attributes = FileAttributes {
        is_file: metadata.is_file(),
        owner: metadata.uid(),
        mode: metadata.mode(),
    };
    match attributes.error(nix::unistd::geteuid().as_raw()) {
        Some(error) => Err(ConfigError::new(error)),
        None => parse(&text(&file).map_err(unreadable)??),
    }
}

fn text(file: &File) -> std::io::Result<Result<String, ConfigError>> {
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let text = format!("is longer than {MAX_FILE_BYTES} bytes: is it the right file?");
        return Ok(Err(ConfigError::new(text)));
    }
    let not_text = |_| ConfigError::new("is not UTF-8 text: is it the right file?");
    Ok(String::from_utf8(bytes).map_err(not_text))
}

/// Type, owner and permissions of a file.
struct FileAttributes {
    is_file: bool,
    owner: u32,
    mode: u32,
}

impl FileAttributes {
    /// Checks that only this user can access the file.
    fn error(&self, user: u32) -> Option<String> {
        let mode = self.mode & 0o7777;
        if !self.is_file {
            Some("is not a regular file: set the path of one".into())
        } else if self.owner != user && self.owner != 0 {
            let owner = self.owner;
            Some(format!(
                "belongs to user {owner}: it must belong to user {user} or root, run `chown`"
            ))
        } else if mode & GROUP_AND_OTHER_BITS != 0 {
            Some(format!(
                "is accessible to other users, its mode is {mode:o}: run `chmod 600`"
            ))
        } else {
            None
        }
    }
}

fn parse(text: &str) -> Result<Keys, ConfigError> {
    let line = |at: usize| Some(text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1);
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut located: Vec<(Option<usize>, String)> = errors
        .iter()
        .map(|error| {
            // The message of the parser may quote the text.
            let text = match error.message() {
                "duplicate key" => "duplicate address: remove one of the lines",
                _ => "invalid TOML: a line must be \"ADDRESS\" = \"KEY\", both in quotes",
            };
            let line = line(error.span().unwrap_or_default().start);
            (line, text.to_owned())
        })
        .collect();
    let mut keys = Keys::new();
    if located.is_empty() {
        for (name, value) in table.get_ref() {
            if let Err(text) = entry(&mut keys, name.get_ref(), value) {
                let line = line(name.span().start);
                located.push((line, text));
            }
        }
        if located.is_empty() && keys.is_empty() {
            let text =
                "contains no key, which would prevent all connections: add \"ADDRESS\" = \"KEY\"";
            located.push((None, text.to_owned()));
        }
    }
    match located.is_empty() {
        true => Ok(keys),
        false => Err(ConfigError::of_lines(located)),
    }
}

/// Adds one line. An invalid address is not quoted either: it may be a key.
fn entry(keys: &mut Keys, name: &str, value: &Spanned<DeValue<'_>>) -> Result<(), String> {
    let host = match (name, name.parse::<IpAddr>()) {
        (OTHER_HOSTS, _) => None,
        (_, Ok(host)) => Some(host),
        (_, Err(_)) => {
            return Err(
                "must begin with an IP address or * in quotes, \"192.0.2.1\" = \"KEY\"".into(),
            );
        }
    };
    let required = "the key must be 16 to 64 bytes in hexadecimal, in quotes: `openssl rand -hex 32` \
                    generates one";
    let Some(digits) = value.get_ref().as_str() else {
        return Err(format!("{name}: {required}"));
    };
    let Some(key) = parse_hex(digits).filter(|key| KEY_BYTES.contains(&key.len())) else {
        return Err(format!("{name}: {required}"));
    };
    match keys.add(host.map(host_address), &key) {
        true => Ok(()),
        false => Err(format!(
            "{name}: duplicate address: remove one of the lines"
        )),
    }
}

fn parse_hex(digits: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = digits
        .chars()
        .map(|digit| digit.to_digit(16).map(|digit| digit as u8))
        .collect();
    let digits = digits?;
    let (pairs, rest) = digits.as_chunks::<2>();
    rest.is_empty()
        .then(|| pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

#[cfg(test)]
mod tests;
