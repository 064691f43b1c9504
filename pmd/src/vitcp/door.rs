//! One TCP port for all VIs of a host [VI/TCP 2.2.2.2.1], also where they are of several programs.
//!
//! The program that listens first is the *keeper*: it lets connections in, reads their Connect
//! Request, and hands those on for which another program waits, by the discriminator. The others,
//! its *members*, tell it over a Unix socket what they wait for, and have the listening socket,
//! too: when the keeper goes, one of them goes on where it was.
//!
//! ```text
//!   host B --TCP--> keeper ----- Take: request, connection -----> member
//!                     ^ <---- Waits: discriminator, how many -----+ |
//!                     +---- Back: nobody waits any more ------------+
//! ```

mod local;
mod members;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use pmd_port::fork::Descriptor;

use serde::{Deserialize, Serialize};
use vitcp_lite::CeHeader;
use vitcp_lite::keyed::Nonce;

use super::ViTcp;
use super::counters::Counter;
use super::socket::{End, Listening, is_for_later, try_bind};
use super::timers::Key;
use crate::attach::socket::Socket;
use crate::control::{LISTEN_TIMEOUT, retry_listening};
use crate::datapath::Datapath;

use local::{LocalAddress, LocalListener};

/// The upper half of the numbers under which the sockets of this room are watched; no connection
/// has it as its generation.
pub(super) const DOORS: u32 = u32::MAX;
/// Of these, what comes in.
const LISTENING: u32 = 0;
/// Programs that want to be members.
const NAME: u32 = 1;
/// The keeper.
const KEEPER: u32 = 2;
/// The first member.
const MEMBERS: u32 = 3;
/// Programs of a host at one port beside the keeper, at most.
const MAX_MEMBERS: usize = 1024;
/// The keeper is told again after so long if it could not be told.
const AGAIN_NS: u64 = 10_000_000;
/// Members that come in, in one look.
const MEMBERS_AT_ONCE: u32 = 32;
/// Messages of one program that are read in one look: more than the system lets one queue.
const MESSAGES_AT_ONCE: u32 = 512;

/// What the programs of a host say to each other.
#[derive(Serialize, Deserialize)]
enum Message {
    /// Keeper: here is the listening socket.
    Welcome,
    /// Member: so many wait for requests like this, and so many of those that were handed over
    /// have been seen.
    Waits { what: What, count: u32, seen: u32 },
    /// Keeper: this connection made this request, for which the member said that it waits.
    Take(What, Handed),
    /// Member: nobody waits for it here.
    Back(Handed),
}

/// What a program reads of a connection before it hands it on.
#[derive(Clone, Serialize, Deserialize)]
struct Handed {
    /// The Connect Request.
    request: Vec<u8>,
    /// What it answers, if its sender was challenged: the next program looks at the proof itself.
    challenge: Option<Challenged>,
    /// Members that do not want it.
    tried: Vec<u32>,
}

/// A challenge that a program has sent.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Challenged {
    challenge: Nonce,
    /// The number of its segment.
    message: u32,
}

/// What somebody waits for: a client, or the peer at this host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct What {
    peer: Option<[u8; 16]>,
    called: Vec<u8>,
}

impl What {
    /// What who asks so from this host is waited for as.
    fn of(ce: &CeHeader, far: End) -> Self {
        Self {
            peer: ce.attributes.peer_to_peer.then_some(far.host),
            called: ce.called.as_bytes().to_vec(),
        }
    }
}

/// How many wait, as a member said, and how many requests it was handed since.
#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    count: u32,
    seen: u32,
    handed: u32,
}

/// Another program of this host.
struct Member {
    socket: Socket,
    number: u32,
    waits: BTreeMap<What, Waiting>,
}

/// Whether a NIC listens at its TCP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListenState {
    /// It listens: alone, as keeper, or as member.
    Listening,
    /// Another program has the port and does not share it. A keeper that ends leaves the port to a member:
    /// then a later try succeeds.
    PortTaken,
    /// It cannot listen.
    Failed,
}

/// Why a NIC is neither keeper nor member.
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

enum Role {
    /// Nobody has waited yet.
    None,
    /// The only program at this port: what TLS knows of a connection cannot be handed on.
    Alone,
    Keeper {
        local: LocalListener,
        members: Vec<Member>,
        next_member: u32,
    },
    Member {
        keeper: Socket,
        /// What it was told last: how many wait, and how many were seen.
        said: BTreeMap<What, (u32, u32)>,
        /// Requests that it has handed over, by what they are for.
        seen: BTreeMap<What, u32>,
    },
}

/// Where connections of other hosts come in.
pub(super) struct Door {
    role: Role,
    /// Held also while a role is looked for: as long as one program has it, TCP lets connections in.
    listening: Option<Listening>,
    /// What our consumers wait for may have changed since the keeper was told.
    pub(super) news: bool,
    /// TCP connections are not accepted, for want of descriptors.
    tcp_paused: bool,
    /// Other programs of the host are neither accepted nor read: for want of descriptors, or because
    /// too many that they passed wait to be released.
    local_paused: bool,
    /// Requests that members have given back, and are not looked at yet.
    backs: VecDeque<(Descriptor, Handed)>,
}

struct Fd<'a>(BorrowedFd<'a>);

impl AsFd for Fd<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0
    }
}

fn watched(what: u32) -> u64 {
    u64::from(DOORS) << 32 | u64::from(what)
}

impl Door {
    pub(super) fn new() -> Self {
        Self {
            role: Role::None,
            listening: None,
            news: false,
            tcp_paused: false,
            local_paused: false,
            backs: VecDeque::new(),
        }
    }

    pub(super) fn has_backs(&self) -> bool {
        !self.backs.is_empty()
    }

    /// The sockets that other programs of the host write to, and what each is watched as.
    fn local_sockets(&self) -> impl Iterator<Item = (Fd<'_>, u32)> {
        let (one, members) = match &self.role {
            Role::None | Role::Alone => (None, [].as_slice()),
            Role::Member { keeper, .. } => (Some((keeper.as_fd(), KEEPER)), [].as_slice()),
            Role::Keeper { local, members, .. } => {
                let name = (local.listener().as_fd(), NAME);
                (Some(name), members.as_slice())
            }
        };
        let members = members.iter();
        let members = members.map(|member| (member.socket.as_fd(), member.number));
        one.into_iter()
            .chain(members)
            .map(|(fd, what)| (Fd(fd), what))
    }

    pub(super) fn is_open(&self) -> bool {
        !matches!(self.role, Role::None)
    }

    pub(super) fn listening(&self) -> Option<&Listening> {
        match self.role {
            Role::Alone | Role::Keeper { .. } => self.listening.as_ref(),
            Role::None | Role::Member { .. } => None,
        }
    }
}

impl ViTcp {
    /// Listens: from the first VI on [VI/TCP 4.3], or from when a consumer waits for a request, if
    /// that is sooner. Logs `PortTaken` at the last try only.
    pub(crate) fn start_listening(&mut self, is_last_try: bool) -> ListenState {
        if self.door.is_open() {
            return ListenState::Listening;
        }
        let had_it = self.door.listening.is_some();
        let (opened, error) = match self.find_role() {
            Ok(()) => return ListenState::Listening,
            Err(ListenError::PortTaken(error)) => (ListenState::PortTaken, error),
            Err(ListenError::Failed(error)) => (ListenState::Failed, error),
        };
        // Nobody would let in who comes there.
        self.door.listening.take_if(|_| !had_it);
        if is_last_try || opened == ListenState::Failed {
            self.log_limited(log::Level::Error, format_args!("cannot listen: {error}"));
        }
        opened
    }

    /// Nobody comes in any more: another program of this host goes on.
    pub(super) fn close_door(&mut self) {
        for (socket, _) in self.door.local_sockets() {
            // Each stays open until it is released.
            self.watch.remove(socket);
        }
        if let Some(listening) = self.door.listening() {
            // Members have it open: nothing else would make the system forget it.
            self.watch.remove(listening);
        }
        self.door = Door::new();
    }

    /// Listens as the only program at this port.
    pub(crate) fn be_alone(&mut self) -> io::Result<()> {
        let listening = Listening::bind(self.own_end()).map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => io::Error::new(
                error.kind(),
                "another program has the port, and none shares it with TLS: have one datapath \
                 process serve both, or set another tcp_port",
            ),
            _ => error,
        })?;
        self.door.listening = Some(listening);
        self.door.role = Role::Alone;
        self.watch_tcp()
    }

    /// Becomes keeper or member. Never waits.
    fn find_role(&mut self) -> Result<(), ListenError> {
        crate::sys::without_signals(pmd_port::release::start)?;
        let at = self.own_end();
        let address = LocalAddress::of(self.local_directory.as_deref(), at)?;
        let listening = match self.door.listening.take() {
            Some(listening) => Ok(listening),
            None => Listening::bind(at),
        };
        let address = match listening {
            Ok(listening) => {
                // Kept also without a role: as long as one program has it, TCP completes connections.
                self.door.listening = Some(listening);
                match address.listen()? {
                    Ok(local) => return Ok(self.keep(local)?),
                    Err(address) => address,
                }
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => address,
            Err(error) => return Err(error.into()),
        };
        // It passes descriptors.
        let keeper = connect_to_keeper(&address)?.into_foreign();
        Ok(self.join(keeper)?)
    }

    fn keep(&mut self, local: LocalListener) -> io::Result<()> {
        self.door.tcp_paused = false;
        self.door.local_paused = false;
        self.door.role = Role::Keeper {
            local,
            members: Vec::new(),
            next_member: MEMBERS,
        };
        let watched = self.watch_tcp().and_then(|()| self.watch_local());
        if watched.is_err() {
            self.door.role = Role::None;
        }
        watched
    }

    fn join(&mut self, keeper: Socket) -> io::Result<()> {
        if keeper.peer()?.uid != nix::unistd::geteuid().as_raw() {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                "a program of another user has the port: set another tcp_port, or have one \
                 datapath process serve both",
            ));
        }
        keeper.take_descriptors();
        self.watch
            .add_while_readable(Fd(keeper.as_fd()), watched(KEEPER))?;
        self.door.local_paused = false;
        self.door.role = Role::Member {
            keeper,
            said: BTreeMap::new(),
            seen: BTreeMap::new(),
        };
        self.door.news = true;
        Ok(())
    }

    /// The keeper is gone, and nobody has taken its place yet; or what could not be done before is tried again.
    pub(super) fn try_door_again(&mut self, now_ns: u64) {
        if !self.door.is_open()
            && let Err(ListenError::PortTaken(error) | ListenError::Failed(error)) =
                self.find_role()
        {
            log::debug!(
                "{}: nobody keeps the port: {error}",
                self.own_end().address()
            );
            self.timers.set(now_ns + AGAIN_NS, Key::Door);
            return;
        }
        let resumed = (|| {
            if self.door.tcp_paused {
                self.watch_tcp()?;
                self.door.tcp_paused = false;
            }
            if self.door.local_paused && !pmd_port::release::is_full() {
                self.watch_local()?;
                self.door.local_paused = false;
            }
            Ok::<_, io::Error>(())
        })();
        if let Err(error) = resumed {
            let line = format_args!("not watched: {error}");
            self.log_limited(log::Level::Error, line);
            self.pause_door(now_ns);
        } else if self.door.local_paused {
            self.timers.set(now_ns + AGAIN_NS, Key::Door);
        }
        self.tell_keeper(now_ns);
    }

    /// Accepts and reads nothing for a while: no descriptor is left.
    pub(super) fn pause_door(&mut self, now_ns: u64) {
        self.door.tcp_paused = true;
        if let Some(listening) = self.door.listening() {
            self.watch.remove(listening);
        }
        self.pause_local(now_ns);
    }

    /// Neither accepts nor reads other programs of the host for a while.
    fn pause_local(&mut self, now_ns: u64) {
        self.door.local_paused = true;
        for (socket, _) in self.door.local_sockets() {
            self.watch.remove(socket);
        }
        self.timers.set(now_ns + AGAIN_NS, Key::Door);
    }

    /// Pauses other programs of the host, and returns true, if descriptors that they passed have filled the
    /// queue of the release thread: then no more of them may come in.
    fn is_local_paused(&mut self, now_ns: u64) -> bool {
        if !self.door.local_paused && pmd_port::release::is_full() {
            self.counters.count(Counter::LocalPauses);
            self.pause_local(now_ns);
        }
        self.door.local_paused
    }

    /// Has the system tell of TCP connections that come in.
    fn watch_tcp(&self) -> io::Result<()> {
        match self.door.listening() {
            Some(listening) => self.watch.add_while_readable(listening, watched(LISTENING)),
            None => Ok(()),
        }
    }

    /// Has the system tell of other programs of the host.
    fn watch_local(&self) -> io::Result<()> {
        for (socket, what) in self.door.local_sockets() {
            // One may be watched already, where another could not be.
            self.watch.remove(&socket);
            self.watch.add_while_readable(socket, watched(what))?;
        }
        Ok(())
    }

    /// Something happened on a socket of this room.
    pub(super) fn serve_door(&mut self, now_ns: u64, what: u32, path: &mut Datapath) {
        match what {
            LISTENING => self.let_in(now_ns),
            NAME => self.let_members_in(now_ns),
            KEEPER => self.hear_keeper(now_ns, path),
            member => self.hear_member(now_ns, member),
        }
    }
}

/// Connects to the program that has the port of `address`. Never waits.
fn connect_to_keeper(address: &LocalAddress) -> Result<Socket, ListenError> {
    address.connect().map_err(|error| {
        // No program accepts there, or too many wait for that.
        let is_absent = matches!(
            error.kind(),
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
        );
        if is_absent || is_for_later(&error) {
            port_taken(address.directory())
        } else {
            error.into()
        }
    })
}

/// Another program has the port, and none accepts in `directory`.
fn port_taken(directory: &Path) -> ListenError {
    let text = format!(
        "another program has the port and does not share it with this one. It is of another user or container, \
         uses TLS, or has another `directory` or XDG_RUNTIME_DIR than this one, which uses {}: set another tcp_port, \
         or have one datapath process serve both",
        directory.display()
    );
    ListenError::PortTaken(io::Error::new(io::ErrorKind::AddrInUse, text))
}

/// Checks that a NIC can listen at an address of this host: alone, or beside other programs of this user, which find each
/// other in `base` or else the user's runtime directory. Creates nothing. Retries as
/// [`start_listening`](crate::control::start_listening) does.
///
/// # Errors
/// What listening would fail with.
pub(crate) fn check_listening(
    base: Option<&Path>,
    address: SocketAddr,
    is_alone: bool,
) -> io::Result<()> {
    let at = End::of(Ok(address.into()))?;
    let check = || -> Result<(), ListenError> {
        let bound = try_bind(address);
        if is_alone {
            return Ok(bound?);
        }
        let local = LocalAddress::existing(base, at)?;
        match bound {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => match local {
                Some(local) => connect_to_keeper(&local).map(drop),
                None => Err(port_taken(&local::base_of(base))),
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
