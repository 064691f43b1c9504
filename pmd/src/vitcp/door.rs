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

mod members;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use vitcp_lite::CeHeader;
use vitcp_lite::keyed::Nonce;

use super::ViTcp;
use super::socket::{End, Listening, is_for_later};
use super::timers::Key;
use crate::attach::socket::{Listener, Socket};
use crate::datapath::Datapath;

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
/// Whoever has the port is given so long to answer by its name: a keeper that goes leaves the port
/// to a member, which takes the name as soon as it hears of that.
const PATIENCE: Duration = Duration::from_secs(1);
/// Members that come in, in one look.
const MEMBERS_AT_ONCE: u32 = 32;

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

enum Role {
    /// Nobody has waited yet.
    None,
    /// The only program at this port: what TLS knows of a connection cannot be handed on.
    Alone,
    Keeper {
        name: Listener,
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
    /// Nobody is let in for want of descriptors.
    paused: bool,
    /// Requests that members have given back, and are not looked at yet.
    backs: VecDeque<(OwnedFd, Handed)>,
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

/// The name of the keeper's socket: outside of the file system, in the network namespace.
fn name(at: End) -> PathBuf {
    let name = format!("\0viaduct/vi-tcp/{}", at.address());
    PathBuf::from(std::ffi::OsStr::from_bytes(name.as_bytes()))
}

impl Door {
    pub(super) fn new() -> Self {
        Self {
            role: Role::None,
            listening: None,
            news: false,
            paused: false,
            backs: VecDeque::new(),
        }
    }

    pub(super) fn has_backs(&self) -> bool {
        !self.backs.is_empty()
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
    /// that is sooner. False if it cannot be.
    pub(super) fn open_door(&mut self) -> bool {
        let had_it = self.door.listening.is_some();
        if !self.door.is_open()
            && let Err(error) = self.find_role(PATIENCE)
        {
            log::error!("{}: cannot listen: {error}", self.own_end().address());
            // Nobody would let in who comes there.
            self.door.listening.take_if(|_| !had_it);
        }
        self.door.is_open()
    }

    /// Nobody comes in any more: another program of this host goes on.
    pub(super) fn close_door(&mut self) {
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
        self.watch_door()
    }

    /// Becomes keeper or member. Who has the port is given so long to answer by its name.
    fn find_role(&mut self, patience: Duration) -> io::Result<()> {
        let at = self.own_end();
        let path = name(at);
        let begun = Instant::now();
        loop {
            // Whoever has the port has the name, too, or is about to take it.
            let listening = match self.door.listening.take() {
                Some(listening) => Ok(listening),
                None => Listening::bind(at),
            };
            let taken = match listening {
                Ok(listening) => match Listener::bind(&path) {
                    Ok(name) => return self.keep(listening, name),
                    Err(error) => {
                        self.door.listening = Some(listening);
                        error
                    }
                },
                Err(error) => error,
            };
            if taken.kind() != io::ErrorKind::AddrInUse {
                return Err(taken);
            }
            match Socket::connect_at_once(&path) {
                Ok(keeper) => return self.join(keeper),
                // Nobody listens by that name, or nobody lets in who waits there.
                Err(error)
                    if error.kind() != io::ErrorKind::ConnectionRefused
                        && !is_for_later(&error) =>
                {
                    return Err(error);
                }
                Err(_) if begun.elapsed() >= patience => {
                    let text = "a program has the port that shares it with none, as those with TLS: \
                                set another tcp_port, or have a datapath process serve both";
                    return Err(io::Error::new(taken.kind(), text));
                }
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    fn keep(&mut self, listening: Listening, name: Listener) -> io::Result<()> {
        name.set_nonblocking()?;
        self.door.listening = Some(listening);
        self.door.paused = false;
        self.door.role = Role::Keeper {
            name,
            members: Vec::new(),
            next_member: MEMBERS,
        };
        let watched = self.watch_door();
        if watched.is_err() {
            self.door.role = Role::None;
        }
        watched
    }

    fn join(&mut self, keeper: Socket) -> io::Result<()> {
        if keeper.peer()?.uid != nix::unistd::geteuid().as_raw() {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                "a program of another user has the port: set another tcp_port, or have a \
                 datapath process serve both",
            ));
        }
        keeper.take_descriptors();
        self.watch
            .add_while_readable(Fd(keeper.as_fd()), watched(KEEPER))?;
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
            && let Err(error) = self.find_role(Duration::ZERO)
        {
            log::debug!(
                "{}: nobody keeps the port: {error}",
                self.own_end().address()
            );
            self.timers.set(now_ns + AGAIN_NS, Key::Door);
            return;
        }
        if core::mem::take(&mut self.door.paused)
            && let Err(error) = self.watch_door()
        {
            log::error!("nobody is let in: {error}");
            self.pause_door(now_ns);
        }
        self.tell_keeper(now_ns);
    }

    /// Nobody is let in for a while: no descriptor is left for one.
    pub(super) fn pause_door(&mut self, now_ns: u64) {
        self.door.paused = true;
        if let Some(listening) = self.door.listening() {
            self.watch.remove(listening);
        }
        if let Role::Keeper { name, .. } = &self.door.role {
            self.watch.remove(Fd(name.as_fd()));
        }
        self.timers.set(now_ns + AGAIN_NS, Key::Door);
    }

    /// Has the system tell of who comes in.
    fn watch_door(&self) -> io::Result<()> {
        if let Some(listening) = self.door.listening() {
            self.watch
                .add_while_readable(listening, watched(LISTENING))?;
        }
        if let Role::Keeper { name, .. } = &self.door.role {
            self.watch
                .add_while_readable(Fd(name.as_fd()), watched(NAME))?;
        }
        Ok(())
    }

    /// Something happened on a socket of this room.
    pub(super) fn serve_door(&mut self, now_ns: u64, what: u32, path: &mut Datapath) {
        match what {
            LISTENING => self.let_in(now_ns),
            NAME => self.let_members_in(now_ns),
            KEEPER => self.hear_keeper(now_ns, path),
            member => self.hear_member(member),
        }
    }
}

/// Is no descriptor left for what comes in?
pub(super) fn is_for_want_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

#[cfg(test)]
mod tests;
