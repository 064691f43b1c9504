//! One TCP listener for all VIs of a host [VI/TCP 2.2.2.2.1], shared by several programs.
//!
//! The program that listens first is the *listener owner*: it accepts connections, reads their Connect
//! Request, and hands those off for which another program listens, by discriminator. The others, its
//! *listener clients*, report their listens over a Unix socket. They also have the listening socket: when
//! the owner ends, one of them becomes the owner, without a gap.
//!
//! ```text
//!   host B --TCP--> owner ----- Handoff: request, connection -----> client
//!                     ^ <---- Listen: discriminator, count ---------+ |
//!                     +------ Return: no listener any more -----------+
//! ```

mod clients;
mod local_address;

pub(super) use clients::{FromOwner, HandOff};

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use pmd_port::fork::Descriptor;

use serde::{Deserialize, Serialize};
use vitcp_lite::CeHeader;
use vitcp_lite::keyed::Nonce;

use super::context::Context;
use super::counters::Counter;
use super::epoll_set::EpollSet;
use super::socket::{ListenSocket, normalized, try_bind};
use super::stream_error::is_would_block;
use super::timers::TimerKey;
use crate::listen_retry::{LISTEN_TIMEOUT, retry_listening};
use vi_core::control_socket::Socket;
use vitcp_lite::source::host_of;

use local_address::{LocalAddress, LocalListener};

/// Upper half of the epoll user data of the sockets of this module; no connection has this generation.
pub(super) const LISTENER_GENERATION: u32 = u32::MAX;
/// Lower half for the listening TCP socket.
pub(super) const TCP_LISTENER: u32 = 0;
/// The Unix socket that accepts clients.
pub(super) const UNIX_LISTENER: u32 = 1;
/// The connection to the owner.
pub(super) const OWNER: u32 = 2;
/// The connection of the first client.
const FIRST_CLIENT: u32 = 3;
/// Limit of listener clients.
const MAX_CLIENTS: usize = 1024;
/// Retry interval of a failed listen, registration, or message to the owner.
const RETRY_NS: u64 = 10_000_000;
/// Maximum clients accepted in one poll.
const MAX_CLIENT_ACCEPTS: u32 = 32;
/// Maximum messages read from one program in one poll: more than its socket queue holds by default.
pub(super) const MAX_MESSAGES: u32 = 512;

/// Messages between owner and clients, serialized by position: the order of variants and fields is the
/// format.
#[derive(Serialize, Deserialize)]
enum Message {
    /// Owner: the client is accepted; passes the listening socket.
    Joined,
    /// Client: `count` listeners with this key, and `seen` handoffs of this key received so far.
    Listen {
        key: ListenKey,
        count: u32,
        seen: u32,
    },
    /// Owner: hands off a connection whose request matches a listen of the client; passes the connection.
    Handoff(ListenKey, HandoffRequest),
    /// Client: returns a connection without a listener; passes the connection.
    Return(HandoffRequest),
}

/// State of a connection that is handed off.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct HandoffRequest {
    /// The Connect Request.
    request: Vec<u8>,
    /// The challenge that it responds to, if there was one: the next program verifies the proof itself.
    pub(super) challenge: Option<SentChallenge>,
    /// Clients that have returned it.
    pub(super) tried: Vec<u32>,
}

/// A challenge that a program has sent.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct SentChallenge {
    pub(super) challenge: Nonce,
    /// The number of its segment.
    pub(super) message: u32,
}

/// Identifies requests that a program listens for: by called discriminator; of peers also by host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct ListenKey {
    pub(super) peer: Option<[u8; 16]>,
    pub(super) called: Vec<u8>,
}

impl ListenKey {
    /// Returns the key of a request from `remote`.
    fn of(ce: &CeHeader, remote: SocketAddr) -> Self {
        Self {
            peer: ce.attributes.peer_to_peer.then_some(host_of(remote)),
            called: ce.called.as_bytes().to_vec(),
        }
    }
}

/// Listeners of a client with one key, as it reported, and requests handed off to it so far.
#[derive(Clone, Copy, Debug, Default)]
struct ClientListen {
    count: u32,
    seen: u32,
    handed_off: u32,
}

/// Another program of this host that shares the listener.
struct ListenerClient {
    socket: Socket,
    number: u32,
    listens: BTreeMap<ListenKey, ClientListen>,
}

/// Whether a NIC listens at its TCP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenState {
    /// It listens: exclusively, as owner, or as client.
    Listening,
    /// Another program has the port and does not share it. While the listener passes from an ending owner to a client,
    /// a later try succeeds.
    PortTaken,
    /// It cannot listen.
    Failed,
}

/// Why a NIC is neither owner nor client.
enum ListenError {
    /// As [`ListenState::PortTaken`].
    PortTaken(io::Error),
    Failed(io::Error),
}

impl From<io::Error> for ListenError {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// Role of a NIC at its TCP port.
enum Role {
    /// It does not listen.
    None,
    /// The only program at this port: the TLS state of a connection cannot be handed off.
    Exclusive,
    ListenerOwner {
        local: LocalListener,
        clients: Vec<ListenerClient>,
        next_client: u32,
    },
    ListenerClient {
        owner: Socket,
        /// The last reported counts: of listeners, and of handoffs received.
        reported: BTreeMap<ListenKey, (u32, u32)>,
        /// Handoffs received from it.
        seen: BTreeMap<ListenKey, u32>,
    },
}

/// The listener of a NIC, which programs of a host share.
pub(super) struct SharedListener {
    /// Directory of the Unix socket that shares the listener; by default the runtime directory.
    directory: Option<PathBuf>,
    role: Role,
    /// Kept also without a role: as long as one program has it open, TCP completes connections.
    listen_socket: Option<ListenSocket>,
    /// Our listens may have changed since the last report to the owner.
    pub(super) listens_changed: bool,
    /// TCP connections are not accepted because descriptors are exhausted.
    tcp_paused: bool,
    /// Clients are neither accepted nor read, nor the owner: because descriptors are exhausted, or because
    /// too many that other programs passed wait for their deferred close.
    local_paused: bool,
    /// Connections that clients have returned, and that are not processed.
    returned: VecDeque<(Descriptor, HandoffRequest)>,
}

struct Fd<'a>(BorrowedFd<'a>);

impl AsFd for Fd<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0
    }
}

fn epoll_data(number: u32) -> u64 {
    u64::from(LISTENER_GENERATION) << 32 | u64::from(number)
}

impl SharedListener {
    /// Creates a listener without a role. `directory`: that of the Unix socket; by default the runtime directory.
    pub(super) fn new(directory: Option<PathBuf>) -> Self {
        Self {
            directory,
            role: Role::None,
            listen_socket: None,
            listens_changed: false,
            tcp_paused: false,
            local_paused: false,
            returned: VecDeque::new(),
        }
    }

    /// Returns the number of connections that clients have returned, and that are not processed.
    pub(super) fn returned(&self) -> usize {
        self.returned.len()
    }

    /// Iterates over the sockets to other programs of the host, with their numbers for epoll.
    fn local_sockets(&self) -> impl Iterator<Item = (Fd<'_>, u32)> {
        let (one, clients) = match &self.role {
            Role::None | Role::Exclusive => (None, [].as_slice()),
            Role::ListenerClient { owner, .. } => (Some((owner.as_fd(), OWNER)), [].as_slice()),
            Role::ListenerOwner { local, clients, .. } => {
                let listener = (local.listener().as_fd(), UNIX_LISTENER);
                (Some(listener), clients.as_slice())
            }
        };
        let clients = clients.iter();
        let clients = clients.map(|client| (client.socket.as_fd(), client.number));
        one.into_iter()
            .chain(clients)
            .map(|(fd, number)| (Fd(fd), number))
    }

    pub(super) fn has_role(&self) -> bool {
        !matches!(self.role, Role::None)
    }

    pub(super) fn listen_socket(&self) -> Option<&ListenSocket> {
        match self.role {
            Role::Exclusive | Role::ListenerOwner { .. } => self.listen_socket.as_ref(),
            Role::None | Role::ListenerClient { .. } => None,
        }
    }

    /// Starts listening: at the first VI [VI/TCP 4.3], or when a consumer waits for a request, if that is
    /// sooner. Logs `PortTaken` at the last try only.
    pub(super) fn start(
        &mut self,
        is_last_try: bool,
        epoll: &EpollSet,
        context: &mut Context,
    ) -> ListenState {
        if self.has_role() {
            return ListenState::Listening;
        }
        let had_socket = self.listen_socket.is_some();
        let (state, error) = match self.acquire_role(epoll, context) {
            Ok(()) => return ListenState::Listening,
            Err(ListenError::PortTaken(error)) => (ListenState::PortTaken, error),
            Err(ListenError::Failed(error)) => (ListenState::Failed, error),
        };
        // Without a role nothing would accept its connections.
        self.listen_socket.take_if(|_| !had_socket);
        if is_last_try || state == ListenState::Failed {
            context.log_limited(log::Level::Error, format_args!("listen failed: {error}"));
        }
        state
    }

    /// Stops listening; another program of this host that shares the listener continues.
    pub(super) fn close(&mut self, epoll: &EpollSet) {
        for (socket, _) in self.local_sockets() {
            // Each stays open until its deferred close.
            epoll.remove(socket);
        }
        if let Some(listen_socket) = self.listen_socket() {
            // Clients have it open, so closing it here does not unregister it.
            epoll.remove(listen_socket);
        }
        *self = Self::new(self.directory.take());
    }

    /// Listens as the only program at this port.
    pub(super) fn listen_exclusively(
        &mut self,
        epoll: &EpollSet,
        context: &Context,
    ) -> io::Result<()> {
        let bound = ListenSocket::bind(context.local_address());
        let listen_socket = bound.map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => io::Error::new(
                error.kind(),
                "another program has the port, which cannot be shared with TLS: have one datapath \
                 process serve both, or set another port in [nic.vi_tcp]",
            ),
            _ => error,
        })?;
        self.listen_socket = Some(listen_socket);
        self.role = Role::Exclusive;
        self.register_tcp(epoll)
    }

    /// Becomes listener owner or client. Never blocks.
    fn acquire_role(&mut self, epoll: &EpollSet, context: &Context) -> Result<(), ListenError> {
        vi_core::sys::with_signals_blocked(pmd_port::deferred_close::start)?;
        let at = context.local_address();
        let address = LocalAddress::of(self.directory.as_deref(), at)?;
        let listen_socket = match self.listen_socket.take() {
            Some(listen_socket) => Ok(listen_socket),
            None => ListenSocket::bind(at),
        };
        let address = match listen_socket {
            Ok(listen_socket) => {
                // Kept also without a role, see the field.
                self.listen_socket = Some(listen_socket);
                match address.listen()? {
                    Ok(local) => return Ok(self.become_owner(local, epoll)?),
                    Err(address) => address,
                }
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => address,
            Err(error) => return Err(error.into()),
        };
        // The owner passes descriptors.
        let owner = connect_to_owner(&address)?.into_foreign();
        Ok(self.become_client(owner, epoll)?)
    }

    fn become_owner(&mut self, local: LocalListener, epoll: &EpollSet) -> io::Result<()> {
        self.tcp_paused = false;
        self.local_paused = false;
        self.role = Role::ListenerOwner {
            local,
            clients: Vec::new(),
            next_client: FIRST_CLIENT,
        };
        let registered = self
            .register_tcp(epoll)
            .and_then(|()| self.register_local(epoll));
        if registered.is_err() {
            self.role = Role::None;
        }
        registered
    }

    fn become_client(&mut self, owner: Socket, epoll: &EpollSet) -> io::Result<()> {
        if owner.peer()?.uid != nix::unistd::geteuid().as_raw() {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                "a program of another user has the port: set another port in [nic.vi_tcp], or have one \
                 datapath process serve both",
            ));
        }
        owner.take_descriptors();
        epoll.add_while_readable(Fd(owner.as_fd()), epoll_data(OWNER))?;
        self.local_paused = false;
        self.role = Role::ListenerClient {
            owner,
            reported: BTreeMap::new(),
            seen: BTreeMap::new(),
        };
        self.listens_changed = true;
        Ok(())
    }

    /// Retries what failed before: acquiring a role after the owner ended, registrations, the report to the owner.
    pub(super) fn retry(&mut self, now_ns: u64, epoll: &EpollSet, context: &mut Context) {
        if !self.has_role()
            && let Err(ListenError::PortTaken(error) | ListenError::Failed(error)) =
                self.acquire_role(epoll, context)
        {
            let own = context.local_address();
            log::debug!("vi-tcp {own}: no listener owner: {error}");
            context
                .timers
                .set(now_ns + RETRY_NS, TimerKey::SharedListener);
            return;
        }
        let resumed = (|| {
            if self.tcp_paused {
                self.register_tcp(epoll)?;
                self.tcp_paused = false;
            }
            if self.local_paused && !pmd_port::deferred_close::is_full() {
                self.register_local(epoll)?;
                self.local_paused = false;
            }
            Ok::<_, io::Error>(())
        })();
        if let Err(error) = resumed {
            let line = format_args!("epoll registration of the listener failed: {error}");
            context.log_limited(log::Level::Error, line);
            self.pause(now_ns, epoll, context);
        } else if self.local_paused {
            context
                .timers
                .set(now_ns + RETRY_NS, TimerKey::SharedListener);
        }
    }

    /// Pauses accepting and reading for [`RETRY_NS`] because descriptors are exhausted.
    pub(super) fn pause(&mut self, now_ns: u64, epoll: &EpollSet, context: &mut Context) {
        self.tcp_paused = true;
        if let Some(listen_socket) = self.listen_socket() {
            epoll.remove(listen_socket);
        }
        self.pause_local(now_ns, epoll, context);
    }

    /// Pauses accepting and reading other programs of the host for [`RETRY_NS`].
    fn pause_local(&mut self, now_ns: u64, epoll: &EpollSet, context: &mut Context) {
        self.local_paused = true;
        for (socket, _) in self.local_sockets() {
            epoll.remove(socket);
        }
        context
            .timers
            .set(now_ns + RETRY_NS, TimerKey::SharedListener);
    }

    /// Pauses other programs of the host, and returns true, if descriptors that they passed have filled the queue
    /// of deferred closes: no more of them may be received.
    fn is_local_paused(&mut self, now_ns: u64, epoll: &EpollSet, context: &mut Context) -> bool {
        if !self.local_paused && pmd_port::deferred_close::is_full() {
            context.count(Counter::LocalPauses);
            self.pause_local(now_ns, epoll, context);
        }
        self.local_paused
    }

    /// Registers the listening TCP socket with epoll.
    fn register_tcp(&self, epoll: &EpollSet) -> io::Result<()> {
        match self.listen_socket() {
            Some(listen_socket) => {
                let data = epoll_data(TCP_LISTENER);
                epoll.add_while_readable(listen_socket, data)
            }
            None => Ok(()),
        }
    }

    /// Registers the sockets to other programs of the host with epoll.
    fn register_local(&self, epoll: &EpollSet) -> io::Result<()> {
        for (socket, number) in self.local_sockets() {
            // It may be registered already, if an earlier attempt failed for another socket.
            epoll.remove(&socket);
            epoll.add_while_readable(socket, epoll_data(number))?;
        }
        Ok(())
    }
}

/// Connects to the listener owner at `address`. Never blocks.
fn connect_to_owner(address: &LocalAddress) -> Result<Socket, ListenError> {
    address.connect().map_err(|error| {
        // No program accepts there, or its backlog is full.
        let is_absent = matches!(
            error.kind(),
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
        );
        if is_absent || is_would_block(&error) {
            port_taken(address.directory())
        } else {
            error.into()
        }
    })
}

/// Returns the error for a port of another program, with no owner that accepts in `directory`.
fn port_taken(directory: &Path) -> ListenError {
    let text = format!(
        "another program has the port and does not share it with this one. It is of another user or container, \
         uses TLS, or has another `directory` or XDG_RUNTIME_DIR than this one, which uses {}: set another port in [nic.vi_tcp], \
         or have one datapath process serve both",
        directory.display()
    );
    ListenError::PortTaken(io::Error::new(io::ErrorKind::AddrInUse, text))
}

/// Checks that a NIC can listen at an address of this host: exclusively, or shared with other programs of this user by
/// a socket in `base` or else the user's runtime directory. Creates nothing. Retries as a call that listens does.
///
/// # Errors
/// The error with which listening would fail.
pub fn check_listening(
    base: Option<&Path>,
    address: SocketAddr,
    is_exclusive: bool,
) -> io::Result<()> {
    let at = normalized(address);
    let check = || -> Result<(), ListenError> {
        let bound = try_bind(address);
        if is_exclusive {
            return Ok(bound?);
        }
        let local = LocalAddress::existing(base, at)?;
        match bound {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => match local {
                Some(local) => connect_to_owner(&local).map(drop),
                None => Err(port_taken(&local_address::base_of(base))),
            },
            bound => Ok(bound?),
        }
    };
    retry_listening(LISTEN_TIMEOUT, |is_last_try| match check() {
        Err(ListenError::PortTaken(_)) if !is_last_try => None,
        Err(ListenError::PortTaken(error) | ListenError::Failed(error)) => Some(Err(error)),
        Ok(()) => Some(Ok(())),
    })
}

#[cfg(test)]
mod tests;
