//! Snapshots of a running process: creates them in the process, queries them from other programs, and prints them
//! (`stat`, `top`).

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pmd::attach::server::{ApplicationStatus, NicStatus, QuotaUse, Server, Status, ViStatus};
use pmd::config::{CONFIG_VARIABLE, Config, ProcessConfig, socket_of};
use pmd::nic::OwnState;
use vi_types::ViState;

use crate::Error;
use crate::cli::ProcessOptions;
use crate::log_writer::LogWriter;
use crate::snapshot::{
    ApplicationInfo, CoreInfo, NicInfo, NicState, PeerInfo, ProcessInfo, QuotaInfo, Snapshot,
    ViInfo,
};
use crate::snapshot_cache::SnapshotCache;
use crate::user_names::UserNames;
use crate::{stat, top};

/// Creates snapshots of this process, from its status and its own data.
pub(crate) struct SnapshotSource {
    config: String,
    log: LogWriter,
    begun: Instant,
    cache: SnapshotCache<Snapshot>,
    users: UserNames,
}

impl SnapshotSource {
    pub(crate) fn new(config: &Path, log: LogWriter) -> Self {
        Self {
            config: config.display().to_string(),
            log,
            begun: Instant::now(),
            cache: SnapshotCache::new(),
            users: UserNames::default(),
        }
    }

    /// Returns a snapshot that was begun after this call.
    pub(crate) fn fresh(&self, server: &Server) -> Arc<Snapshot> {
        self.cache.fresh(|| self.snapshot(server))
    }

    /// Returns a snapshot that may be [`crate::snapshot_cache::INTERVAL`] old.
    pub(crate) fn recent(&self, server: &Server) -> Arc<Snapshot> {
        self.cache.recent(|| self.snapshot(server))
    }

    fn snapshot(&self, server: &Server) -> Snapshot {
        let status = server.status();
        Snapshot {
            process: ProcessInfo {
                pid: std::process::id(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                uptime_s: self.begun.elapsed().as_secs_f64(),
                config: self.config.clone(),
                log_lines_lost: self.log.lost_lines(),
            },
            cores: cores(&status),
            nics: status.nics.iter().map(nic).collect(),
            applications: status
                .applications
                .iter()
                .map(|status| application(status, &self.users))
                .collect(),
            vis: status.vis.iter().map(vi).collect(),
        }
    }
}

fn cores(status: &Status) -> Vec<CoreInfo> {
    let core = |core: &pmd::attach::server::CoreStatus| {
        CoreInfo::new(core.core, core.rounds, core.busy_rounds, core.sleeping)
    };
    status.cores.iter().map(core).collect()
}

fn host(bytes: [u8; 16]) -> String {
    IpAddr::from(Ipv6Addr::from(bytes))
        .to_canonical()
        .to_string()
}

fn nic(status: &NicStatus) -> NicInfo {
    let counters: BTreeMap<String, u64> = status.counters.iter().cloned().collect();
    let count = |name: &str| counters.get(name).copied().unwrap_or(0);
    NicInfo {
        name: status.name.clone(),
        driver: status.driver.clone(),
        device: status.device.clone(),
        n_port_id: status
            .port
            .and_then(|port| port.n_port_id)
            .map(|id| id.to_string()),
        host: host(status.host),
        state: match status.port.map(|port| port.state) {
            Some(OwnState::Up) => NicState::Up,
            Some(OwnState::Probing) => NicState::Probing,
            // A failed NIC may be down, without a port.
            Some(OwnState::Failed) | None => NicState::Failed,
        },
        rx_frames: count("port_rx_frames"),
        rx_bytes: count("port_rx_bytes"),
        tx_frames: count("port_tx_frames"),
        tx_bytes: count("port_tx_bytes"),
        local_messages: count("shortcut_messages"),
        local_bytes: count("shortcut_bytes"),
        counters,
    }
}

fn application(status: &ApplicationStatus, users: &UserNames) -> ApplicationInfo {
    let pid = u32::try_from(status.pid).unwrap_or(0);
    // Empty for a process that has just ended.
    let command = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    // A program may set its name to any bytes.
    let command = String::from_utf8_lossy(&command);
    ApplicationInfo {
        pid,
        command: command.trim_end().to_owned(),
        uid: status.uid,
        user: users.name(status.uid),
        nic: status.nic.clone(),
        vis: status.vis,
        regions: status.regions,
        bounce_buffer_regions: status.bounce_buffer_regions,
        registered_bytes: status.registered_bytes,
        posted: status.posted,
        completed: status.completed,
        inline_messages: status.inline_messages,
        waiting: status.waiting,
        refused_calls: status.refused_calls,
        quotas: status.quotas.iter().map(quota).collect(),
    }
}

fn quota(quota: &QuotaUse) -> (String, QuotaInfo) {
    let (limit, in_use) = (quota.value, quota.in_use);
    (quota.key.to_owned(), QuotaInfo { limit, in_use })
}

fn vi(status: &ViStatus) -> ViInfo {
    let [send_depth, recv_depth] = status.depth;
    let [messages_sent, messages_received] = status.messages;
    let [bytes_sent, bytes_received] = status.bytes;
    ViInfo {
        application: u32::try_from(status.pid).unwrap_or(0),
        nic: status.nic.clone(),
        index: status.index,
        state: match status.state {
            ViState::Idle => "Idle",
            ViState::ConnectPending => "ConnectPending",
            ViState::Connected => "Connected",
            ViState::Error => "Error",
        }
        .to_owned(),
        reliability: match status.reliability {
            1 => "UD",
            2 => "RD",
            _ => "RR",
        }
        .to_owned(),
        peer: status.peer.map(|(id, address)| PeerInfo {
            host: address.map(host).unwrap_or_default(),
            n_port_id: id.map_or_else(String::new, |id| id.to_string()),
        }),
        send_depth,
        recv_depth,
        messages_sent,
        bytes_sent,
        messages_received,
        bytes_received,
        rdma_refused: status.refused_accesses,
    }
}

/// The socket of the process that the options select.
pub(crate) fn socket(options: &ProcessOptions) -> Result<PathBuf, Error> {
    if let Some(socket) = &options.socket {
        return Ok(socket.clone());
    }
    let named = pmd::environment::variable(CONFIG_VARIABLE).filter(|path| !path.is_empty());
    let Some(config) = options.config.clone().or(named.map(PathBuf::from)) else {
        return Ok(socket_of(&ProcessConfig::default()));
    };
    let process = Config::read(&config).map_err(Error::Config)?.process;
    let remedy = "name the socket with --socket PATH";
    process
        .map(|process| socket_of(&process))
        .ok_or(Error::NoProcess { config, remedy })
}

/// Queries a snapshot of the process at a socket.
pub(crate) fn query(socket: &Path) -> Result<Snapshot, Error> {
    let bytes = pmd::attach::query_status(socket).map_err(|error| failed(socket, error))?;
    serde_json::from_slice(&bytes).map_err(|error| failed(socket, error.into()))
}

/// The error of a failed query.
fn failed(socket: &Path, error: io::Error) -> Error {
    let socket = socket.to_owned();
    // An error of the kernel has a number, a refusal of the process has a text.
    let is_refusal = error.kind() == ErrorKind::PermissionDenied && error.get_ref().is_some();
    if is_refusal {
        let why = error.to_string();
        return Error::Refused { socket, why };
    }
    Error::NoReply { socket, error }
}

/// Runs the command `stat`.
pub(crate) fn stat(
    options: &ProcessOptions,
    json: bool,
    out: &mut impl Write,
) -> Result<(), Error> {
    let snapshot = query(&socket(options)?)?;
    if json {
        let text = stat::json(&snapshot).map_err(io::Error::from)?;
        writeln!(out, "{text}")?;
    } else {
        write!(out, "{}", stat::text(&snapshot))?;
    }
    Ok(())
}

/// Runs the command `top`.
pub(crate) fn top(
    options: &ProcessOptions,
    interval: Duration,
    once: bool,
    out: &mut impl Write,
) -> Result<(), Error> {
    let socket = socket(options)?;
    let source = || query(&socket);
    if once {
        top::once(source, interval, out)
    } else {
        top::run(source, interval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_a_failed_query_names_cause_and_remedy() {
        let text_of = |error: io::Error| failed(Path::new("/run/x.sock"), error).to_string();
        let refused = io::Error::new(ErrorKind::PermissionDenied, "user 7: refused");
        assert_eq!(text_of(refused), "/run/x.sock: user 7: refused");
        let start = "start the process with fcvi-pmd run, or name its socket with --socket PATH";
        for errno in [nix::Error::ENOENT, nix::Error::ECONNREFUSED] {
            let text = text_of(errno.into());
            assert!(text.ends_with(start), "{text}");
        }
        let text = text_of(nix::Error::EACCES.into());
        let kernel = io::Error::from(nix::Error::EACCES);
        assert_eq!(text, format!("/run/x.sock: {kernel}"));
        let text = text_of(ErrorKind::UnexpectedEof.into());
        assert!(
            text.ends_with("not a datapath process of this release"),
            "{text}"
        );
    }

    #[test]
    fn no_process_error_names_file_and_remedy() {
        let remedy = "add one";
        let config = PathBuf::from("/etc/nics.toml");
        let text = Error::NoProcess { config, remedy }.to_string();
        assert_eq!(text, "/etc/nics.toml: no table [process]: add one");
    }
}
