//! The name service of a NIC: a hosts file read once, looked up by name or by address [VIPL 3.9].
//!
//! The format is that of `/etc/hosts`: an address, then its names, `#` starts a comment. IPv4 addresses are kept in
//! their IPv6-mapped form, as everywhere in a host address. `localhost` and the name of this host mean the NIC's own
//! address first; of the latter the addresses in the file follow. A line that cannot be used is skipped and counted, and
//! of a file that is too long the rest: a file written for other programs must not keep this one from starting.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::HostAddress;

/// The file of names that is read when no other is named.
const SYSTEM_HOSTS_FILE: &str = "/etc/hosts";
/// As much of a file is read.
const MAX_FILE_BYTES: u64 = 8 << 20;
/// The most pairs of name and address that are kept.
const MAX_ENTRIES: usize = 1 << 16;
/// The most addresses of one name that are kept.
const MAX_ADDRESSES_PER_NAME: usize = 256;
/// The longest name that is kept (the limit of the domain name system).
const MAX_NAME_BYTES: usize = 255;
/// The name that means this host on every host.
const LOCALHOST: &str = "localhost";

/// Why a hosts file could not be used at all.
#[derive(Debug)]
pub(crate) enum NameServiceError {
    /// The file does not exist or cannot be read.
    Unreadable {
        /// The file as it was named.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// There is no memory for the names.
    OutOfMemory,
    /// A directory, a device or a pipe: not a file of names.
    NotAFile {
        /// The path as it was named.
        path: PathBuf,
    },
}

impl NameServiceError {
    /// The file may be all right: there is no memory or no descriptor.
    pub(crate) fn is_for_want_of_resources(&self) -> bool {
        match self {
            Self::OutOfMemory => true,
            Self::Unreadable { source, .. } => matches!(
                source.raw_os_error(),
                Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)
            ),
            Self::NotAFile { .. } => false,
        }
    }
}

impl fmt::Display for NameServiceError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { path, source } => {
                write!(out, "hosts file {}: {source}", path.display())
            }
            Self::OutOfMemory => out.write_str("no memory is left for the names of the hosts file"),
            Self::NotAFile { path } => {
                write!(out, "hosts file {}: not a regular file", path.display())
            }
        }
    }
}

impl std::error::Error for NameServiceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreadable { source, .. } => Some(source),
            Self::OutOfMemory | Self::NotAFile { .. } => None,
        }
    }
}

/// Names and addresses as the file had them when the service was opened.
#[derive(Debug)]
pub(crate) struct NameService {
    own_address: HostAddress,
    /// In lower case; empty when the system has none.
    own_name: String,
    /// Lower-case name to its addresses, in the order of the file, each once.
    addresses: HashMap<String, Vec<HostAddress>>,
    /// Address to the first name that the file gives it, as it was spelled.
    names: HashMap<[u8; 16], String>,
    skipped_lines: u64,
}

impl NameService {
    /// Reads `file`, or the system's hosts file. A missing system file counts as empty, since `localhost` resolves
    /// without it; a missing file that the caller named is an error.
    pub(crate) fn open(file: Option<&Path>, own: HostAddress) -> Result<Self, NameServiceError> {
        let path = file.unwrap_or(Path::new(SYSTEM_HOSTS_FILE));
        let text = match read_bounded(path) {
            Ok((text, None)) => text,
            Ok((text, Some(rest_bytes))) => {
                log::warn!(
                    "hosts file {}: its last {rest_bytes} bytes are not used, as it is longer than \
                     {MAX_FILE_BYTES} bytes; name a shorter one with hosts_file",
                    path.display()
                );
                text
            }
            Err(NameServiceError::Unreadable { source, .. })
                if file.is_none() && source.kind() == io::ErrorKind::NotFound =>
            {
                log::warn!(
                    "{SYSTEM_HOSTS_FILE} does not exist: only {LOCALHOST} and this host's name will resolve"
                );
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        let (service, first_skipped) = Self::from_text(&text, own, host_name())?;
        if let Some((line_number, reason)) = first_skipped {
            log::warn!(
                "hosts file {}: {} lines not used, the first is line {line_number}: {reason}",
                path.display(),
                service.skipped_lines
            );
        }
        Ok(service)
    }

    /// The address number `index` of a name, in the order of the file; names are compared without case. A textual
    /// IP address names itself.
    pub(crate) fn by_name(&self, name: &str, index: u64) -> Option<HostAddress> {
        let name = name.to_ascii_lowercase();
        let mut index = usize::try_from(index).ok()?;
        if self.is_own_name(&name) {
            if index == 0 {
                return Some(self.own_address);
            }
            index -= 1;
        }
        if let Some(addresses) = self.addresses.get(&name) {
            return addresses.get(index).copied();
        }
        let literal: IpAddr = name.parse().ok()?;
        (index == 0).then(|| host_address(literal))
    }

    /// The name of an address: this host's for the NIC's own, otherwise the first that the file gives it.
    pub(crate) fn by_address(&self, address: &HostAddress) -> Option<&str> {
        if *address != self.own_address {
            return self.names.get(&address.0).map(String::as_str);
        }
        Some(if self.own_name.is_empty() {
            LOCALHOST
        } else {
            &self.own_name
        })
    }

    /// The lines of the file that were not used.
    #[cfg(test)]
    fn skipped_lines(&self) -> u64 {
        self.skipped_lines
    }

    /// `own_name` is in lower case. Also gives the number of the first line that was skipped, and why.
    fn from_text(
        text: &[u8],
        own: HostAddress,
        own_name: String,
    ) -> Result<(Self, Option<(usize, SkipReason)>), NameServiceError> {
        let mut service = Self {
            own_address: own,
            own_name,
            addresses: HashMap::new(),
            names: HashMap::new(),
            skipped_lines: 0,
        };
        let mut first_skipped = None;
        let mut entries = 0;
        for (index, line) in text.split(|&byte| byte == b'\n').enumerate() {
            // What a line adds is small; but these grow by copies of themselves.
            let names = line.len().div_ceil(2);
            let room = service.addresses.try_reserve(names.min(MAX_ENTRIES));
            let room = room.and_then(|()| service.names.try_reserve(1));
            if room.is_err() || pmd::reserve::is_low() {
                return Err(NameServiceError::OutOfMemory);
            }
            if let Err(reason) = service.add_line(line, &mut entries) {
                service.skipped_lines += 1;
                first_skipped.get_or_insert((index + 1, reason));
            }
        }
        Ok((service, first_skipped))
    }

    fn add_line(&mut self, line: &[u8], entries: &mut usize) -> Result<(), SkipReason> {
        let content = line.split(|&byte| byte == b'#').next().unwrap_or_default();
        let content = std::str::from_utf8(content).map_err(|_| SkipReason::NotText)?;
        let mut words = content.split_ascii_whitespace();
        let Some(address) = words.next() else {
            return Ok(());
        };
        if address.contains('%') {
            return Err(SkipReason::ZoneId);
        }
        let address: IpAddr = address.parse().map_err(|_| SkipReason::NotAnAddress)?;
        let address = host_address(address);
        let mut outcome = Err(SkipReason::NoName);
        for name in words {
            outcome = self.add_name(name, address, entries);
            if outcome.is_err() {
                break;
            }
        }
        outcome
    }

    fn add_name(
        &mut self,
        name: &str,
        address: HostAddress,
        entries: &mut usize,
    ) -> Result<(), SkipReason> {
        if name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
            return Err(SkipReason::BadName);
        }
        let key = name.to_ascii_lowercase();
        // What every hosts file says of it is not an address of the NIC, and its own comes first.
        if key == LOCALHOST || (key == self.own_name && address == self.own_address) {
            return Ok(());
        }
        if *entries == MAX_ENTRIES {
            return Err(SkipReason::TooManyEntries);
        }
        let addresses = self.addresses.entry(key).or_default();
        if !addresses.contains(&address) {
            if addresses.len() == MAX_ADDRESSES_PER_NAME {
                return Err(SkipReason::TooManyAddresses);
            }
            addresses.push(address);
            *entries += 1;
        }
        self.names
            .entry(address.0)
            .or_insert_with(|| name.to_owned());
        Ok(())
    }

    fn is_own_name(&self, lower_case: &str) -> bool {
        lower_case == LOCALHOST || (lower_case == self.own_name && !self.own_name.is_empty())
    }
}

/// Why a line is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SkipReason {
    NotText,
    NotAnAddress,
    ZoneId,
    NoName,
    BadName,
    TooManyEntries,
    TooManyAddresses,
}

impl fmt::Display for SkipReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::NotText => "not UTF-8",
            Self::NotAnAddress => "does not begin with an IP address",
            Self::ZoneId => "an address with a zone means something on one interface only",
            Self::NoName => "an address without a name",
            Self::BadName => "a name that is too long or has control characters",
            Self::TooManyEntries => "the file has too many entries",
            Self::TooManyAddresses => "the name has too many addresses",
        })
    }
}

fn host_address(address: IpAddr) -> HostAddress {
    match address {
        IpAddr::V4(v4) => HostAddress::from_ipv4(v4.octets()),
        IpAddr::V6(v6) => HostAddress(v6.octets()),
    }
}

/// Reads the whole lines of a file's first [`MAX_FILE_BYTES`]. Also gives how many bytes are left.
fn read_bounded(path: &Path) -> Result<(Vec<u8>, Option<u64>), NameServiceError> {
    let unreadable = |source| NameServiceError::Unreadable {
        path: path.to_owned(),
        source,
    };
    // Asked before the file is opened: opening a pipe would wait for a writer.
    let metadata = std::fs::metadata(path).map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(NameServiceError::NotAFile {
            path: path.to_owned(),
        });
    }
    let mut text = Vec::new();
    let expected_bytes = metadata.len().min(MAX_FILE_BYTES) as usize + 1;
    text.try_reserve(expected_bytes)
        .map_err(|_| NameServiceError::OutOfMemory)?;
    let file = File::open(path).map_err(unreadable)?;
    file.take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut text)
        .map_err(unreadable)?;
    if text.len() as u64 <= MAX_FILE_BYTES {
        return Ok((text, None));
    }
    let lines = text.iter().rposition(|&byte| byte == b'\n');
    text.truncate(lines.unwrap_or(0));
    let rest_bytes = metadata.len().saturating_sub(text.len() as u64);
    Ok((text, Some(rest_bytes)))
}

/// The name of this host in lower case; empty when the system has none that is text.
fn host_name() -> String {
    let mut bytes = [0_u8; 256];
    // SAFETY: the buffer is ours and writable for the length given; the call writes no more than that.
    let outcome = unsafe { libc::gethostname(bytes.as_mut_ptr().cast(), bytes.len()) };
    if outcome != 0 {
        log::warn!(
            "the name of this host is not known: {}",
            io::Error::last_os_error()
        );
        return String::new();
    }
    let name = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8(name.to_ascii_lowercase()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
