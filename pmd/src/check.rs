//! Checks whether a configuration can be used on this host, without serving applications.

use std::fs;
use std::io;
use std::path::Path;

use vi_core::log_limiter::LogLimiter;

use crate::attach::server;
use crate::capture_file;
use crate::config::{Network, NicConfig, ProcessConfig, ViTcp, ip_address, socket_of};
use crate::open::{OpenError, check_port, tcp_address};
use crate::progress;

/// Rate limiter for an API that requires one; no connections are made.
static UNUSED_LIMITER: LogLimiter = LogLimiter::new(1);

/// A check of a path.
type PathCheck = fn(&Path) -> io::Result<()>;

/// Checks that a path is a readable file.
fn check_readable(path: &Path) -> io::Result<()> {
    if fs::File::open(path)?.metadata()?.is_file() {
        Ok(())
    } else {
        Err(io::Error::other(
            "is not a regular file: set the path of one",
        ))
    }
}

/// Checks the requirements of a NIC on this host: its core, its port or TCP address, and its files. Returns all errors.
/// Joins a shared-memory segment briefly; sends no other frames and makes no connections.
///
/// `is_served`: a datapath process serves the NIC, which is polled on a core then.
#[must_use]
pub fn check_nic(config: &NicConfig, is_served: bool) -> Vec<OpenError> {
    let mut errors = Vec::new();
    if is_served || config.progress.is_pinned() {
        errors.extend(progress::find_core(config.progress.core()).err());
    }
    match &config.network {
        Network::ViTcp(tcp) => errors.extend(check_vi_tcp(config, tcp)),
        _ => errors.extend(check_port(config).err()),
    }
    let files = [
        (
            "capture",
            &config.fc_vi.capture,
            capture_file::check_path as PathCheck,
        ),
        ("hosts_file", &config.hosts_file, check_readable),
    ];
    for (key, path, check) in files {
        if let Some(path) = path
            && let Err(error) = check(path)
        {
            let text = format!("{key}: {}: {error}", path.display());
            errors.push(OpenError::new(text));
        }
    }
    errors
}

/// Checks the files and the address of a NIC with VI/TCP.
fn check_vi_tcp(config: &NicConfig, tcp: &ViTcp) -> Vec<OpenError> {
    let mut errors = Vec::new();
    errors.extend(
        vi_tcp::read_keys(tcp.key_file.as_deref())
            .err()
            .map(OpenError::new),
    );
    match tcp_address(config, tcp) {
        Ok(address) => {
            // Programs of one user share a port, unless they use TLS.
            let is_alone = tcp.tls.is_some();
            let checked = vi_tcp::check_listening(tcp.directory.as_deref(), address, is_alone);
            let failed = |error| OpenError::new(format!("{address}: {error}"));
            errors.extend(checked.err().map(failed));
        }
        Err(error) => errors.push(error),
    }
    if let Some(tls) = &tcp.tls {
        let host = ip_address(config.host_address());
        let read = vi_tcp::Credentials::read(tls, host, &UNUSED_LIMITER);
        errors.extend(read.err().map(OpenError::new));
    }
    errors
}

/// Checks the requirements of a datapath process on this host besides its NICs: its socket.
///
/// # Errors
/// The socket cannot be used; for example, another process listens on it.
pub fn check_process(config: &ProcessConfig) -> Result<(), OpenError> {
    server::check_socket(&socket_of(config))
}
