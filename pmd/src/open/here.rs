//! Whether a configuration can be used on this host, found out without serving anybody.

use std::fs;
use std::io;
use std::path::Path;

use super::{OpenError, ports, tcp_address};
use crate::attach::server;
use crate::capture_file;
use crate::config::{NicConfig, ProcessConfig, Progress, TransportKind, ip_address};
use crate::log_limiter::LogLimiter;
use crate::progress;
use crate::vitcp;

/// No connection is made whose lines it would limit.
static UNUSED_LIMITER: LogLimiter = LogLimiter::new(1);

/// A check of a file.
type Look = fn(&Path) -> io::Result<()>;

/// Checks that it is a file that can be read.
fn check_readable(path: &Path) -> io::Result<()> {
    if fs::File::open(path)?.metadata()?.is_file() {
        Ok(())
    } else {
        Err(io::Error::other("is no file: give the path of one"))
    }
}

/// Checks what opening a NIC on this host wants: its core, its port or TCP address, and the files that it names. A
/// station of a shared-memory segment joins it for a moment; no other frame or connection is made.
///
/// `is_served`: by a datapath process, which polls every NIC on a core.
#[must_use]
pub fn check_nic(config: &NicConfig, is_served: bool) -> Vec<OpenError> {
    let mut mistakes = Vec::new();
    if is_served || config.progress == Progress::Pinned {
        mistakes.extend(progress::find_core(config.core).err());
    }
    match config.transport {
        TransportKind::FcVi => mistakes.extend(ports::check(config).err()),
        TransportKind::ViTcp => mistakes.extend(check_vi_tcp(config)),
    }
    let files = [
        ("capture", &config.capture, capture_file::check_path as Look),
        ("hosts_file", &config.hosts_file, check_readable),
    ];
    for (key, path, look) in files {
        if let Some(path) = path
            && let Err(error) = look(path)
        {
            let text = format!("{key}: {}: {error}", path.display());
            mistakes.push(OpenError::new(text));
        }
    }
    mistakes
}

/// The files and the address of a NIC that speaks VI/TCP.
fn check_vi_tcp(config: &NicConfig) -> Vec<OpenError> {
    let mut mistakes = Vec::new();
    mistakes.extend(config.read_keys().err().map(OpenError::new));
    match tcp_address(config) {
        Ok(address) => {
            // Programs of one user share a port, unless they use TLS.
            let is_alone = config.tls.is_some();
            let checked = vitcp::check_listening(config.directory.as_deref(), address, is_alone);
            let failed = |error| OpenError::new(format!("{address}: {error}"));
            mistakes.extend(checked.err().map(failed));
        }
        Err(error) => mistakes.push(error),
    }
    if let Some(tls) = &config.tls {
        let host = ip_address(config.host_address());
        let read = vitcp::Credentials::read(tls, host, &UNUSED_LIMITER);
        mistakes.extend(read.err().map(OpenError::new));
    }
    mistakes
}

/// Checks what a datapath process wants of this host beside its NICs: its socket.
///
/// # Errors
/// What is in the way, for one another process that listens there.
pub fn check_process(config: &ProcessConfig) -> Result<(), OpenError> {
    server::check_socket(&config.socket)
}
