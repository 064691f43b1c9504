//! A proxy for memif's control channel, between DPDK and the remote process.
//!
//! DPDK's memif aborts the process if a client disconnects before the server's HELLO, and unmaps the peer's memory on
//! its interrupt thread while the poller copies from it. So its control channel, over which the two sides negotiate
//! their memory and detect each other's disconnect, passes through a thread of ours: DPDK's own connection never breaks
//! unexpectedly, and DPDK is notified of a disconnect once the poller has paused its bursts.

use core::cell::RefCell;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, PipeReader, PipeWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt};
use std::path::PathBuf;
use std::process;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

mod burst_pause;
mod control_proxy;
mod message_validator;
mod socket;

use super::eal::Eal;
use burst_pause::BurstPause;
use control_proxy::{ControlProxy, Dpdk, Remote};
use socket::{Address, Socket};

/// The driver's name.
pub(super) const DRIVER: &str = "net_memif";
/// The default of the key `socket`.
const DEFAULT_SOCKET: &str = "/run/memif.sock";

/// The control socket of a device, parsed from its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SocketKeys {
    is_server: bool,
    socket: Address,
    /// The device with its other keys.
    other_keys: String,
}

/// A file or a directory, removed on drop.
#[derive(Debug)]
struct TempPath(PathBuf);

/// The private socket between DPDK and the proxy.
#[derive(Debug)]
enum PrivateSocket {
    /// DPDK's client connects to this listening socket.
    Client(Socket),
    /// DPDK's server will create this socket in a directory of ours; both are removed when the proxy starts.
    Server {
        path: TempPath,
        _directory: TempPath,
    },
}

/// The control channel of a memif device, and its proxy thread.
#[derive(Debug)]
pub(super) struct ControlChannel {
    burst_pause: Arc<BurstPause>,
    device: String,
    /// The device arguments for DPDK.
    devargs: String,
    /// The remote side and the private socket; `None` once the thread is started.
    sockets: Option<(Remote, PrivateSocket)>,
    thread: Option<ProxyThread>,
    /// The file of the listening socket, if it has one.
    file: Option<TempPath>,
    pid: u32,
}

/// The proxy thread and its stop signal.
#[derive(Debug)]
struct ProxyThread {
    thread: JoinHandle<()>,
    stop: PipeWriter,
    /// Keeps the pipe readable, so that a write succeeds also after the thread has ended.
    _reader: PipeReader,
}

/// A request of the proxy thread to the poller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ControlRequest {
    /// Run no bursts: the peer's memory is being unmapped.
    pub(super) pause_bursts: bool,
    /// Restart DPDK's client: a server was found.
    pub(super) restart_client: bool,
}

impl SocketKeys {
    fn parse(device: &str) -> io::Result<Self> {
        let mut pairs = device.split(',');
        let mut other_keys = vec![pairs.next().unwrap_or_default()];
        let (mut is_server, mut name, mut is_name) = (false, DEFAULT_SOCKET, true);
        for pair in pairs {
            match pair.split_once('=') {
                Some(("socket", value)) => name = value,
                Some(("socket-abstract", "yes")) => is_name = true,
                Some(("socket-abstract", "no")) => is_name = false,
                Some(("socket-abstract", _)) => {
                    let why = "socket-abstract must be yes or no";
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
                }
                _ => {
                    is_server |= matches!(pair, "role=server" | "role=master");
                    other_keys.push(pair);
                }
            }
        }
        Ok(Self {
            is_server,
            socket: match is_name {
                true => Address::Name(name.to_owned()),
                false => Address::Path(name.into()),
            },
            other_keys: other_keys.join(","),
        })
    }
}

impl Drop for TempPath {
    fn drop(&mut self) {
        let result = match self.0.is_dir() {
            true => fs::remove_dir(&self.0),
            false => fs::remove_file(&self.0),
        };
        if let Err(error) = result
            && error.kind() != io::ErrorKind::NotFound
        {
            log::warn!("{}: removal failed: {error}", self.0.display());
        }
    }
}

fn random_name() -> String {
    let number = RandomState::new().build_hasher().finish();
    format!("viaduct-memif-{number:016x}")
}

/// Interval of the probes for a listening process that is about to listen; a tenth of the timeout for its HELLO.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);

/// True if a process listens on a socket.
fn has_listener(socket: &Address) -> io::Result<bool> {
    for _ in 0..2 {
        match Socket::connect(socket) {
            Ok(server) => {
                // DPDK's server aborts if we disconnect before its HELLO.
                socket::wait(&[server.as_raw_fd()], Some(10 * PROBE_INTERVAL))?;
                return Ok(true);
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(_busy) => return Ok(true),
        }
        socket::wait(&[], Some(PROBE_INTERVAL))?;
    }
    Ok(false)
}

/// Listens on the configured socket. Replaces a stale socket file, that of a process which has exited.
fn listen(socket: &Address) -> io::Result<Socket> {
    let error = match Socket::listen(socket) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => error,
        result => return result,
    };
    match socket {
        Address::Path(path)
            if fs::symlink_metadata(path)?.file_type().is_socket() && !has_listener(socket)? =>
        {
            fs::remove_file(path)?;
            Socket::listen(socket)
        }
        _ => Err(error),
    }
}

impl ControlChannel {
    /// Creates the sockets of a memif device, before DPDK adds it; `None` for other devices.
    pub(super) fn prepare(device: &str) -> io::Result<Option<Self>> {
        if !device.starts_with(DRIVER) {
            return Ok(None);
        }
        let keys = SocketKeys::parse(device)?;
        keys.socket.check()?;
        let mut file = None;
        let (remote, private, socket_keys) = match keys.is_server {
            true => {
                let listener = listen(&keys.socket)?;
                if let Address::Path(path) = keys.socket {
                    file = Some(TempPath(path));
                }
                let directory = std::env::temp_dir().join(random_name());
                if directory.to_string_lossy().contains(',') {
                    let why = "DPDK accepts no comma in the path of the directory for temporary files (TMPDIR)";
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
                }
                DirBuilder::new().mode(0o700).create(&directory)?;
                let directory = TempPath(directory);
                let path = TempPath(directory.0.join("memif"));
                let socket_keys = format!("socket={},socket-abstract=no", path.0.display());
                let private = PrivateSocket::Server {
                    path,
                    _directory: directory,
                };
                (Remote::Client(listener), private, socket_keys)
            }
            false => {
                let name = random_name();
                let socket = Socket::listen(&Address::Name(name.clone()))?;
                let socket_keys = format!("socket={name},socket-abstract=yes");
                let private = PrivateSocket::Client(socket);
                (Remote::Server(keys.socket), private, socket_keys)
            }
        };
        Ok(Some(Self {
            burst_pause: Arc::new(BurstPause::default()),
            device: device.to_owned(),
            devargs: format!("{},{socket_keys}", keys.other_keys),
            sockets: Some((remote, private)),
            thread: None,
            file,
            pid: process::id(),
        }))
    }

    /// Returns the device arguments for DPDK.
    pub(super) fn devargs(&self) -> &str {
        &self.devargs
    }

    /// Starts the proxy thread. DPDK has started the device, which has `queues` receive queues.
    pub(super) fn start(&mut self, eal: &'static Eal, queues: u16) -> io::Result<()> {
        let Some((remote, private)) = self.sockets.take() else {
            return Ok(());
        };
        let dpdk = match private {
            PrivateSocket::Client(socket) => Dpdk::Client(socket),
            // The file and its directory are removed, and the socket is reached by its inode: no other process can
            // connect, and no file is left.
            PrivateSocket::Server {
                path,
                _directory: _,
            } => Dpdk::Server(open_path(&path)?),
        };
        let (reader, stop) = io::pipe()?;
        let proxy = ControlProxy {
            eal,
            device: self.device.clone(),
            queues,
            remote,
            dpdk,
            dpdk_client: RefCell::new(None),
            burst_pause: Arc::clone(&self.burst_pause),
            stop: reader.try_clone()?,
        };
        let builder = thread::Builder::new().name("memif".into());
        self.thread = Some(ProxyThread {
            thread: builder.spawn(move || proxy.run())?,
            stop,
            _reader: reader,
        });
        Ok(())
    }

    /// Returns the current request to the poller, which runs no burst meanwhile.
    pub(super) fn poll_request(&self) -> ControlRequest {
        self.burst_pause.poll_request()
    }
}

fn open_path(path: &TempPath) -> io::Result<File> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(&path.0)
}

impl Drop for ControlChannel {
    fn drop(&mut self) {
        // A forked child does not have the thread.
        if self.pid != process::id() {
            return;
        }
        // Before the listening socket is closed: afterwards the file may belong to another process.
        self.file = None;
        if let Some(mut proxy) = self.thread.take() {
            self.burst_pause.close();
            // A byte instead of a close, since forked children hold the pipe, too.
            if let Err(error) = proxy.stop.write_all(&[0]) {
                log::error!(
                    "{}: memif control thread: stop failed: {error}",
                    self.device
                );
                return;
            }
            if proxy.thread.join().is_err() {
                log::error!("{}: memif control thread: panicked", self.device);
            }
        }
    }
}

#[cfg(test)]
mod tests;
