//! The name service of a NIC: a hosts file, read once, with lookup by name and by address [VIPL 3.9].
//!
//! The format is that of `/etc/hosts`: an address, then its names; `#` starts a comment. IPv4 addresses are stored in
//! IPv6-mapped form, as in all host addresses. `localhost` and the name of this host resolve to the NIC's own address
//! first; for the host name the addresses in the file follow. Unusable lines are skipped and counted, and the end of a
//! file that is too long is ignored: a file written for other programs must not prevent this one from starting.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::HostAddress;

/// The default hosts file.
const SYSTEM_HOSTS_FILE: &str = "/etc/hosts";
/// The maximum number of bytes of a file that is read.
const MAX_FILE_BYTES: u64 = 8 << 20;
/// The maximum number of pairs of name and address.
const MAX_ENTRIES: usize = 1 << 16;
/// The maximum number of addresses of a name.
const MAX_ADDRESSES_PER_NAME: usize = 256;
/// The maximum length of a name (the limit of the domain name system).
const MAX_NAME_BYTES: usize = 255;
/// The name that denotes the local host.
const LOCALHOST: &str = "localhost";

/// The error of a hosts file that cannot be used at all.
#[derive(Debug)]
pub(crate) enum NameServiceError {
    /// The file does not exist or cannot be read.
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Memory is short.
    OutOfMemory,
    /// A directory, a device or a pipe, not a regular file.
    NotAFile {
        /// The path.
        path: PathBuf,
    },
}

impl NameServiceError {
    /// Reports whether memory or file descriptors are exhausted; the file itself may be usable.
    pub(crate) fn is_out_of_resources(&self) -> bool {
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
            Self::OutOfMemory => out.write_str("hosts file: out of memory"),
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

/// Names and addresses of the hosts file, as read when the service was started.
#[derive(Debug)]
pub(crate) struct NameService {
    own_address: HostAddress,
    /// In lower case; empty if the system has none.
    own_name: String,
    /// Lower-case name to its distinct addresses, in the order of the file.
    addresses: HashMap<String, Vec<HostAddress>>,
    /// Address to its first name in the file, as spelled there.
    names: HashMap<[u8; 16], String>,
    skipped_lines: u64,
}

impl NameService {
    /// Reads `file`, by default the system's hosts file. A missing system file counts as empty, since `localhost`
    /// resolves without it; a missing `file` is an error.
    pub(crate) fn open(file: Option<&Path>, own: HostAddress) -> Result<Self, NameServiceError> {
        let path = file.unwrap_or(Path::new(SYSTEM_HOSTS_FILE));
        let text = match read_bounded(path) {
            Ok((text, None)) => text,
            Ok((text, Some(rest_bytes))) => {
                log::warn!(
                    "hosts file {}: its last {rest_bytes} bytes are not used: longer than \
                     {MAX_FILE_BYTES} bytes; set hosts_file to a shorter file",
                    path.display()
                );
                text
            }
            Err(NameServiceError::Unreadable { source, .. })
                if file.is_none() && source.kind() == io::ErrorKind::NotFound =>
            {
                log::warn!(
                    "hosts file {SYSTEM_HOSTS_FILE}: does not exist: only {LOCALHOST} and the name \
                     of this host resolve"
                );
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        let (service, first_skipped) = Self::from_text(&text, own, host_name())?;
        if let Some((line_number, reason)) = first_skipped {
            log::warn!(
                "hosts file {}: {} lines ignored, first line {line_number}: {reason}",
                path.display(),
                service.skipped_lines
            );
        }
        Ok(service)
    }

    /// Returns the address of a name with number `index`, in the order of the file. Names are case-insensitive. A
    /// textual IP address resolves to itself.
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

    /// Returns the name of an address: the host name for the NIC's own address, else the first name in the file.
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

    /// Returns the number of ignored lines of the file.
    #[cfg(test)]
    fn skipped_lines(&self) -> u64 {
        self.skipped_lines
    }

    /// Parses a hosts file; `own_name` is in lower case. Also returns the number of the first skipped line, with the
    /// reason.
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
            // A line adds little, but a map that grows is reallocated as a whole.
            let names = line.len().div_ceil(2);
            let reserved = service.addresses.try_reserve(names.min(MAX_ENTRIES));
            let reserved = reserved.and_then(|()| service.names.try_reserve(1));
            if reserved.is_err() || vi_core::reserve::is_low() {
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
        // The file's address of localhost is not the NIC's; the NIC's own address is always the first result.
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

/// The reason why a line is ignored.
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
            Self::ZoneId => "address with a zone ID, which is valid on one interface only",
            Self::NoName => "address without a name",
            Self::BadName => "name is too long or contains control characters",
            Self::TooManyEntries => "too many entries in the file",
            Self::TooManyAddresses => "too many addresses of a name",
        })
    }
}

fn host_address(address: IpAddr) -> HostAddress {
    match address {
        IpAddr::V4(v4) => HostAddress::from_ipv4(v4.octets()),
        IpAddr::V6(v6) => HostAddress(v6.octets()),
    }
}

/// Reads the complete lines within a file's first [`MAX_FILE_BYTES`]. Also returns the number of bytes not read, if
/// any.
fn read_bounded(path: &Path) -> Result<(Vec<u8>, Option<u64>), NameServiceError> {
    let unreadable = |source| NameServiceError::Unreadable {
        path: path.to_owned(),
        source,
    };
    // Checked before the file is opened: opening a pipe would wait for a writer.
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

/// Returns the host name in lower case; empty if the system has none in UTF-8.
fn host_name() -> String {
    let mut bytes = [0_u8; 256];
    // SAFETY: a local buffer, writable for the length given; the call writes no more than that.
    let outcome = unsafe { libc::gethostname(bytes.as_mut_ptr().cast(), bytes.len()) };
    if outcome != 0 {
        log::warn!(
            "name service: gethostname failed: {}",
            io::Error::last_os_error()
        );
        return String::new();
    }
    let name = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8(name.to_ascii_lowercase()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
