//! memif as its driver can be trusted with it: DPDK talks to us, and we to the other process.
//!
//! DPDK's memif ends the process when a client goes before it was greeted, and takes the other end's memory away on its
//! interrupt thread while the poller copies from it. So its control channel, over which the two ends agree on their
//! memory and hear of each other's end, passes through a thread of ours: DPDK never talks to anyone who may go, and hears
//! of an end once the poller has stopped.

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

mod meeting;
mod relay;
mod rules;
mod socket;

use super::eal::Eal;
use meeting::Meeting;
use relay::{Inner, Outer, Relay};
use socket::{Address, Socket};

/// The driver's name.
pub(super) const DRIVER: &str = "net_memif";
/// The socket of a device that names none.
const DEFAULT_SOCKET: &str = "/run/memif.sock";

/// What the keys of a device say of its socket.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Keys {
    is_server: bool,
    socket: Address,
    /// The device with its other keys.
    rest: String,
}

/// A file or a directory that goes with this.
#[derive(Debug)]
struct Temporary(PathBuf);

/// How DPDK reaches us, or we DPDK.
#[derive(Debug)]
enum Private {
    /// A client of DPDK's comes to this name.
    Client(Socket),
    /// A server of DPDK's will make this socket in a directory of ours, from which it is taken at once.
    Server { path: Temporary, _home: Temporary },
}

/// The control channel of a memif device, and the thread that carries it.
#[derive(Debug)]
pub(super) struct ControlChannel {
    meeting: Arc<Meeting>,
    device: String,
    /// The device as DPDK is to know it.
    words: String,
    /// Until the thread has them.
    ends: Option<(Outer, Private)>,
    carrier: Option<Carrier>,
    /// Where clients knock, if it is a file.
    file: Option<Temporary>,
    pid: u32,
}

/// The thread that carries messages, and how it is told to stop.
#[derive(Debug)]
struct Carrier {
    thread: JoinHandle<()>,
    stop: PipeWriter,
    /// For a thread that has ended by itself: nobody writes to a pipe that nobody reads.
    _end: PipeReader,
}

/// What the poller is to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wish {
    /// No bursts: the other end's memory goes away.
    pub(super) hold: bool,
    /// A client is to be started again: there is a server.
    pub(super) start: bool,
}

impl Keys {
    fn of(device: &str) -> io::Result<Self> {
        let mut words = device.split(',');
        let mut rest = vec![words.next().unwrap_or_default()];
        let (mut is_server, mut name, mut is_name) = (false, DEFAULT_SOCKET, true);
        for word in words {
            match word.split_once('=') {
                Some(("socket", value)) => name = value,
                Some(("socket-abstract", "yes")) => is_name = true,
                Some(("socket-abstract", "no")) => is_name = false,
                Some(("socket-abstract", _)) => {
                    let why = "socket-abstract must be yes or no";
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
                }
                _ => {
                    is_server |= matches!(word, "role=server" | "role=master");
                    rest.push(word);
                }
            }
        }
        Ok(Self {
            is_server,
            socket: match is_name {
                true => Address::Name(name.to_owned()),
                false => Address::Path(name.into()),
            },
            rest: rest.join(","),
        })
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let gone = match self.0.is_dir() {
            true => fs::remove_dir(&self.0),
            false => fs::remove_file(&self.0),
        };
        if let Err(error) = gone
            && error.kind() != io::ErrorKind::NotFound
        {
            log::warn!("{} stays: {error}", self.0.display());
        }
    }
}

fn random_name() -> String {
    let number = RandomState::new().build_hasher().finish();
    format!("viaduct-memif-{number:016x}")
}

/// How long it is looked whether a socket has an owner that is only about to listen, or to greet.
const LOOK: Duration = Duration::from_millis(100);

/// Is there somebody behind a socket?
fn is_served(socket: &Address) -> io::Result<bool> {
    for _ in 0..2 {
        match Socket::connect(socket) {
            Ok(server) => {
                // DPDK's server does not survive it if we leave before it greets.
                socket::wait(&[server.as_raw_fd()], Some(10 * LOOK))?;
                return Ok(true);
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(_busy) => return Ok(true),
        }
        socket::wait(&[], Some(LOOK))?;
    }
    Ok(false)
}

/// Waits for clients at the socket that they know. A file that a process left which is no more is taken over.
fn open_door(socket: &Address) -> io::Result<Socket> {
    let error = match Socket::listen(socket) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => error,
        result => return result,
    };
    match socket {
        Address::Path(path)
            if fs::symlink_metadata(path)?.file_type().is_socket() && !is_served(socket)? =>
        {
            fs::remove_file(path)?;
            Socket::listen(socket)
        }
        _ => Err(error),
    }
}

impl ControlChannel {
    /// Prepares the channel of a memif device that DPDK does not know yet; `None` for other devices.
    pub(super) fn prepare(device: &str) -> io::Result<Option<Self>> {
        if !device.starts_with(DRIVER) {
            return Ok(None);
        }
        let keys = Keys::of(device)?;
        keys.socket.check()?;
        let mut file = None;
        let (outer, private, words) = match keys.is_server {
            true => {
                let door = open_door(&keys.socket)?;
                if let Address::Path(path) = keys.socket {
                    file = Some(Temporary(path));
                }
                let home = std::env::temp_dir().join(random_name());
                if home.to_string_lossy().contains(',') {
                    let why = "DPDK takes no comma in the path of the directory for temporary files (TMPDIR)";
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
                }
                DirBuilder::new().mode(0o700).create(&home)?;
                let home = Temporary(home);
                let path = Temporary(home.0.join("memif"));
                let words = format!("socket={},socket-abstract=no", path.0.display());
                let private = Private::Server { path, _home: home };
                (Outer::Client(door), private, words)
            }
            false => {
                let name = random_name();
                let socket = Socket::listen(&Address::Name(name.clone()))?;
                let words = format!("socket={name},socket-abstract=yes");
                (Outer::Server(keys.socket), Private::Client(socket), words)
            }
        };
        Ok(Some(Self {
            meeting: Arc::new(Meeting::default()),
            device: device.to_owned(),
            words: format!("{},{words}", keys.rest),
            ends: Some((outer, private)),
            carrier: None,
            file,
            pid: process::id(),
        }))
    }

    /// The device as DPDK is to know it.
    pub(super) fn words(&self) -> &str {
        &self.words
    }

    /// Begins to carry messages: DPDK has started the device, which has so many receive queues.
    pub(super) fn begin(&mut self, eal: &'static Eal, queues: u16) -> io::Result<()> {
        let Some((outer, private)) = self.ends.take() else {
            return Ok(());
        };
        let inner = match private {
            Private::Client(socket) => Inner::Client(socket),
            // The file goes, and the socket is reached by its inode: nobody else can, and nothing stays.
            Private::Server { path, _home: _ } => Inner::Server(open_path(&path)?),
        };
        let (end, stop) = io::pipe()?;
        let relay = Relay {
            eal,
            device: self.device.clone(),
            queues,
            outer,
            inner,
            came: RefCell::new(None),
            meeting: Arc::clone(&self.meeting),
            stop: end.try_clone()?,
        };
        let builder = thread::Builder::new().name("memif".into());
        self.carrier = Some(Carrier {
            thread: builder.spawn(move || relay.run())?,
            stop,
            _end: end,
        });
        Ok(())
    }

    /// What the poller is to do from now on, which runs no burst while it asks.
    pub(super) fn look(&self) -> Wish {
        self.meeting.look()
    }
}

fn open_path(path: &Temporary) -> io::Result<File> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(&path.0)
}

impl Drop for ControlChannel {
    fn drop(&mut self) {
        // A child by fork has no such thread.
        if self.pid != process::id() {
            return;
        }
        // Before the door behind it is closed: then it may be the next one's.
        self.file = None;
        if let Some(mut carrier) = self.carrier.take() {
            self.meeting.leave();
            // A byte, since children by fork have the pipe, too.
            if let Err(error) = carrier.stop.write_all(&[0]) {
                log::error!(
                    "{}: the thread of its control channel stays: {error}",
                    self.device
                );
                return;
            }
            if carrier.thread.join().is_err() {
                log::error!(
                    "{}: the thread of its control channel panicked",
                    self.device
                );
            }
        }
    }
}

#[cfg(test)]
mod tests;
