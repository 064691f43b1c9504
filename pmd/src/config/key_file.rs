//! The file of keys that a NIC shares with other hosts. No message about it has anything of a key.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::mistake::{ConfigError, Located};
use super::{NicConfig, host_address};
use crate::vitcp::Keys;

/// The entry for all hosts that have none of their own.
const OTHERS: &str = "*";
/// Bytes of a key.
const KEY_BYTES: core::ops::RangeInclusive<usize> = 16..=64;
/// Bytes of a file, at most.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Modes that let others read a file, or change it.
const OF_OTHERS: u32 = 0o077;

impl NicConfig {
    /// The keys of this NIC; `None` if it has no file of them.
    ///
    /// # Errors
    /// What is wrong with the file, and where.
    pub(crate) fn read_keys(&self) -> Result<Option<Keys>, String> {
        let Some(path) = &self.key_file else {
            return Ok(None);
        };
        match read(path) {
            Ok(keys) => Ok(Some(keys)),
            Err(error) => Err(format!("key_file: {}", error.in_file(path))),
        }
    }
}

fn read(path: &Path) -> Result<Keys, ConfigError> {
    let unreadable = |error| ConfigError::new(format!("cannot be read: {error}"));
    // Not to be held up by what is no file.
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let file = options.open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    let kept = Kept {
        is_file: metadata.is_file(),
        owner: metadata.uid(),
        mode: metadata.mode(),
    };
    match kept.mistake(nix::unistd::geteuid().as_raw()) {
        Some(mistake) => Err(ConfigError::new(mistake)),
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
    let not_text = |_| ConfigError::new("is no text in UTF-8: is it the right file?");
    Ok(String::from_utf8(bytes).map_err(not_text))
}

/// How a file is kept.
struct Kept {
    is_file: bool,
    owner: u32,
    mode: u32,
}

impl Kept {
    /// What is wrong with it for a process of this user.
    fn mistake(&self, user: u32) -> Option<String> {
        let mode = self.mode & 0o7777;
        if !self.is_file {
            Some("is no file: give the path of one".into())
        } else if self.owner != user && self.owner != 0 {
            let owner = self.owner;
            Some(format!(
                "belongs to user {owner}: it must be that of user {user} or of root, `chown` it"
            ))
        } else if mode & OF_OTHERS != 0 {
            Some(format!(
                "others than its owner may read or write it, its mode is {mode:o}: `chmod 600` it"
            ))
        } else {
            None
        }
    }
}

fn parse(text: &str) -> Result<Keys, ConfigError> {
    let line = |at: usize| Some(text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1);
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut mistakes: Vec<Located> = errors
        .iter()
        .map(|error| {
            // What the parser says may have something of the text.
            let text = match error.message() {
                "duplicate key" => "the address is there twice: remove one of the lines",
                _ => "not TOML: a line must be \"ADDRESS\" = \"KEY\", both in quotes",
            };
            Located {
                line: line(error.span().unwrap_or_default().start),
                text: text.into(),
            }
        })
        .collect();
    let mut keys = Keys::new();
    if mistakes.is_empty() {
        for (name, value) in table.get_ref() {
            if let Err(text) = entry(&mut keys, name.get_ref(), value) {
                let line = line(name.span().start);
                mistakes.push(Located { line, text });
            }
        }
        if mistakes.is_empty() && keys.is_empty() {
            let text = "has no key, so nobody could be spoken with: add \"ADDRESS\" = \"KEY\"";
            mistakes.push(Located {
                line: None,
                text: text.into(),
            });
        }
    }
    match mistakes.is_empty() {
        true => Ok(keys),
        false => Err(ConfigError::of(mistakes)),
    }
}

/// Adds one line. What stands where an address should may be a key: it is not told, either.
fn entry(keys: &mut Keys, name: &str, value: &Spanned<DeValue<'_>>) -> Result<(), String> {
    let host = match (name, name.parse::<IpAddr>()) {
        (OTHERS, _) => None,
        (_, Ok(host)) => Some(host),
        (_, Err(_)) => {
            return Err(
                "must begin with an IP address or * in quotes, \"192.0.2.1\" = \"KEY\"".into(),
            );
        }
    };
    let wanted = "the key must be 16 to 64 bytes in hexadecimal, in quotes: `openssl rand -hex 32` \
                  makes one";
    let Some(digits) = value.get_ref().as_str() else {
        return Err(format!("{name}: {wanted}"));
    };
    let Some(key) = bytes_of(digits).filter(|key| KEY_BYTES.contains(&key.len())) else {
        return Err(format!("{name}: {wanted}"));
    };
    match keys.add(host.map(host_address), &key) {
        true => Ok(()),
        false => Err(format!(
            "{name}: the address is there twice: remove one of the lines"
        )),
    }
}

fn bytes_of(digits: &str) -> Option<Vec<u8>> {
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
