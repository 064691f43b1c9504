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

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use vitcp_lite::keyed::Nonce;
use vitcp_lite::machine::passive::PassiveState;
use vitcp_lite::profile::{CE_HEADER_BYTES, MAX_SECURITY_BYTES, SEGMENT_HEADER_BYTES};
use vitcp_lite::{CeHeader, Headers, Item, SegmentHeader};

use super::ViTcp;
use super::active::connection;
use super::challenge::Exchange;
use super::connection::{Machine, Phase, Stage};
use super::counters::Counter;
use super::socket::{End, Listening, Stream, is_for_later};
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

/// What the programs of a host say to each other.
#[derive(Serialize, Deserialize)]
enum Message {
    /// Keeper: here is the listening socket.
    Welcome,
    /// Member: so many wait for requests like this, and so many of those that were handed over
    /// have been seen.
    Waits { what: What, count: u32, seen: u32 },
    /// Keeper: this connection made this request.
    Take(Handed),
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

/// What somebody waits for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct What {
    peers: bool,
    called: Vec<u8>,
}

impl What {
    fn of(ce: &CeHeader) -> Self {
        Self {
            peers: ce.attributes.peer_to_peer,
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
    listening: Option<Listening>,
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
        }
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
        if !self.door.is_open()
            && let Err(error) = self.find_role()
        {
            log::error!("{}: cannot listen: {error}", self.own_end().address());
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
        self.watch
            .add_while_readable(&listening, watched(LISTENING))?;
        self.door.listening = Some(listening);
        self.door.role = Role::Alone;
        Ok(())
    }

    fn find_role(&mut self) -> io::Result<()> {
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
                    Err(error) => error,
                },
                Err(error) => error,
            };
            if taken.kind() != io::ErrorKind::AddrInUse {
                return Err(taken);
            }
            match Socket::connect(&path) {
                Ok(keeper) => return self.join(keeper),
                Err(error) if error.kind() != io::ErrorKind::ConnectionRefused => {
                    return Err(error);
                }
                Err(_) if begun.elapsed() >= PATIENCE => {
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
        self.watch
            .add_while_readable(&listening, watched(LISTENING))?;
        self.watch
            .add_while_readable(Fd(name.as_fd()), watched(NAME))?;
        self.door.listening = Some(listening);
        self.door.role = Role::Keeper {
            name,
            members: Vec::new(),
            next_member: MEMBERS,
        };
        Ok(())
    }

    fn join(&mut self, keeper: Socket) -> io::Result<()> {
        if keeper.peer()?.uid != nix::unistd::geteuid().as_raw() {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                "a program of another user has the port: set another tcp_port, or have a \
                 datapath process serve both",
            ));
        }
        keeper.set_nonblocking()?;
        keeper.take_descriptors();
        self.watch
            .add_while_readable(Fd(keeper.as_fd()), watched(KEEPER))?;
        self.door.role = Role::Member {
            keeper,
            said: BTreeMap::new(),
            seen: BTreeMap::new(),
        };
        Ok(())
    }

    /// Something happened on a socket of this room.
    pub(super) fn serve_door(&mut self, now_ns: u64, what: u32, path: &mut Datapath) {
        match what {
            LISTENING => self.let_in(),
            NAME => self.let_members_in(),
            KEEPER => self.hear_keeper(now_ns, path),
            member => self.hear_member(now_ns, member, path),
        }
    }

    fn let_members_in(&mut self) {
        let Role::Keeper {
            name,
            members,
            next_member,
        } = &mut self.door.role
        else {
            return;
        };
        let Some(listening) = &self.door.listening else {
            return;
        };
        let socket = match name.accept() {
            Ok(socket) => socket,
            Err(error) => {
                if !is_for_later(&error) {
                    log::debug!("a program of this host: {error}");
                }
                return;
            }
        };
        let is_ours = socket
            .peer()
            .is_ok_and(|peer| peer.uid == nix::unistd::geteuid().as_raw());
        if !is_ours || members.len() >= MAX_MEMBERS {
            log::debug!("a program of this host is turned away");
            return;
        }
        let number = *next_member;
        *next_member = next_member.wrapping_add(1).max(MEMBERS);
        socket.take_descriptors();
        let fds = [listening.as_fd().as_raw_fd()];
        let welcomed = socket
            .set_nonblocking()
            .and_then(|()| socket.send(&Message::Welcome, &fds))
            .and_then(|()| {
                let watch = &self.watch;
                watch.add_while_readable(Fd(socket.as_fd()), watched(number))
            });
        match welcomed {
            Ok(()) => members.push(Member {
                socket,
                number,
                waits: BTreeMap::new(),
            }),
            Err(error) => log::debug!("a program of this host: {error}"),
        }
    }

    /// What a member says. One that says nothing we know, or is gone, is a member no more.
    fn hear_member(&mut self, now_ns: u64, number: u32, path: &mut Datapath) {
        loop {
            let Role::Keeper { members, .. } = &mut self.door.role else {
                return;
            };
            let Some(at) = members.iter().position(|member| member.number == number) else {
                return;
            };
            let Some(member) = members.get_mut(at) else {
                return;
            };
            match member.socket.receive::<Message>() {
                Ok(Some((Message::Waits { what, count, seen }, _))) => {
                    if count == 0 {
                        member.waits.remove(&what);
                    } else {
                        let waiting = member.waits.entry(what).or_default();
                        (waiting.count, waiting.seen) = (count, seen);
                    }
                }
                Ok(Some((Message::Back(mut handed), mut fds))) => {
                    handed.tried.push(number);
                    if let Some(fd) = fds.pop() {
                        self.take_over(now_ns, fd, &handed, path);
                    }
                }
                Err(error) if is_for_later(&error) => return,
                Ok(Some(_) | None) | Err(_) => {
                    // A child of ours may have it open: nothing else would make the system forget it.
                    self.watch.remove(Fd(member.socket.as_fd()));
                    members.swap_remove(at);
                    return;
                }
            }
        }
    }

    /// What the keeper says. If it is gone, another one is found.
    fn hear_keeper(&mut self, now_ns: u64, path: &mut Datapath) {
        loop {
            let Role::Member { keeper, seen, .. } = &mut self.door.role else {
                return;
            };
            match keeper.receive::<Message>() {
                Ok(Some((Message::Welcome, mut fds))) => {
                    let shared = fds.pop().map(Listening::shared);
                    self.door.listening = shared.and_then(Result::ok);
                }
                Ok(Some((Message::Take(handed), mut fds))) => {
                    if let Some((_, ce)) = read_request(&handed.request) {
                        *seen.entry(What::of(&ce)).or_default() += 1;
                    }
                    if let Some(fd) = fds.pop() {
                        self.counters.count(Counter::TakenOver);
                        self.take_over(now_ns, fd, &handed, path);
                    }
                    self.tell_keeper(now_ns);
                }
                Err(error) if is_for_later(&error) => return,
                Ok(Some(_) | None) | Err(_) => {
                    self.watch.remove(Fd(keeper.as_fd()));
                    self.door.role = Role::None;
                    self.open_door();
                    self.tell_keeper(now_ns);
                    return;
                }
            }
        }
    }

    /// A connection whose request another program has read.
    fn take_over(&mut self, now_ns: u64, fd: OwnedFd, handed: &Handed, path: &mut Datapath) {
        let Some((header, ce)) = read_request(&handed.request) else {
            return;
        };
        let stream = Stream::passed(fd, self.habits());
        let state = match handed.challenge {
            Some(_) => PassiveState::Challenged,
            None => PassiveState::Incoming,
        };
        let added = stream.and_then(|stream| {
            let ends = (stream.near()?, stream.far()?);
            let stage = Stage::Incoming(state);
            self.add(|generation| connection(stream, ends, generation, stage))
        });
        match added {
            Ok(number) => {
                self.strangers += 1;
                if let Some(connection) = self.connection_mut(number)
                    && let Some(Challenged { challenge, message }) = handed.challenge
                {
                    connection.tx.number = message;
                    connection.exchange = Some(Box::new(Exchange {
                        challenge,
                        nonce: None,
                        next: header.message,
                    }));
                }
                self.requested(now_ns, number, &header, &ce, &handed.tried, path);
            }
            Err(error) => log::debug!("a connection that was handed over: {error}"),
        }
    }

    /// Nobody waits here for what this connection asks: another program may. True if one has it
    /// now.
    pub(super) fn hand_on(
        &mut self,
        now_ns: u64,
        number: u32,
        (header, ce): (&SegmentHeader, &CeHeader),
        tried: &[u32],
        path: &mut Datapath,
    ) -> bool {
        let what = What::of(ce);
        // What a program has said before the client could ask counts.
        for member in self.member_numbers() {
            self.hear_member(now_ns, member, path);
        }
        let Some(connection) = self
            .connections
            .get(number as usize)
            .and_then(Option::as_ref)
        else {
            return false;
        };
        let mut request = vec![0; SEGMENT_HEADER_BYTES + CE_HEADER_BYTES + MAX_SECURITY_BYTES];
        let written = request
            .split_first_chunk_mut::<SEGMENT_HEADER_BYTES>()
            .and_then(|(first, rest)| {
                header.emit(first);
                ce.emit(rest)
            });
        let Some(written) = written else {
            return false;
        };
        request.truncate(SEGMENT_HEADER_BYTES + written);
        let fds = [connection.stream.as_fd().as_raw_fd()];
        let exchange = connection.exchange.as_deref();
        let content = Handed {
            request,
            challenge: exchange.map(|exchange| Challenged {
                challenge: exchange.challenge,
                message: connection.tx.number,
            }),
            tried: tried.to_vec(),
        };
        let handed = match &mut self.door.role {
            Role::None | Role::Alone => false,
            Role::Member { keeper, .. } => keeper.send(&Message::Back(content), &fds).is_ok(),
            Role::Keeper { members, .. } => members.iter_mut().any(|member| {
                let waiting = member.waits.get_mut(&what).filter(|waiting| {
                    let unseen = waiting.handed.saturating_sub(waiting.seen);
                    waiting.count > unseen
                });
                let Some(waiting) = waiting.filter(|_| !tried.contains(&member.number)) else {
                    return false;
                };
                let take = Message::Take(content.clone());
                let sent = member.socket.send(&take, &fds).is_ok();
                waiting.handed = waiting.handed.wrapping_add(u32::from(sent));
                sent
            }),
        };
        if handed {
            self.counters.count(Counter::HandedOver);
            // The other program has it open: nothing else would make the system forget it.
            if let Some(connection) = self.connection(number) {
                self.watch.remove(&connection.stream);
            }
            self.remove(number);
        }
        handed
    }

    fn member_numbers(&self) -> Vec<u32> {
        match &self.door.role {
            Role::Keeper { members, .. } => members.iter().map(|member| member.number).collect(),
            Role::None | Role::Alone | Role::Member { .. } => Vec::new(),
        }
    }

    /// What our consumers wait for, and how many of them.
    fn waited_for(&self) -> BTreeMap<What, u32> {
        let mut all = BTreeMap::new();
        for listener in self.listeners.iter().filter(|l| l.matched.is_none()) {
            let called = listener.discriminator.as_bytes().to_vec();
            let peers = false;
            *all.entry(What { peers, called }).or_default() += 1;
        }
        for ep in self.endpoints.iter().flatten() {
            if let Phase::Asking(request) = &ep.phase
                && matches!(request.machine, Machine::Peer(_))
            {
                let called = request.remote.discriminator.as_bytes().to_vec();
                let peers = true;
                *all.entry(What { peers, called }).or_default() += 1;
            }
        }
        all
    }

    /// Tells the keeper what our consumers wait for, if that has changed.
    pub(super) fn tell_keeper(&mut self, now_ns: u64) {
        if !matches!(self.door.role, Role::Member { .. }) {
            return;
        }
        let now = self.waited_for();
        let Role::Member { keeper, said, seen } = &mut self.door.role else {
            return;
        };
        let gone = said.keys().filter(|what| !now.contains_key(*what));
        let gone: Vec<_> = gone.cloned().map(|what| (what, 0)).collect();
        for (what, count) in now.into_iter().chain(gone) {
            let seen_now = seen.get(&what).copied().unwrap_or(0);
            if said.get(&what) == Some(&(count, seen_now)) {
                continue;
            }
            let waits = Message::Waits {
                what: what.clone(),
                count,
                seen: seen_now,
            };
            if keeper.send(&waits, &[]).is_err() {
                // It has no room, or is gone: then we hear of that.
                self.timers.set(now_ns + AGAIN_NS, Key::Door);
                return;
            }
            match count {
                0 => drop(said.remove(&what)),
                _ => drop(said.insert(what, (count, seen_now))),
            }
        }
        // Both ends begin anew where nobody waits any more.
        seen.retain(|what, _| said.contains_key(what));
    }
}

/// The Connect Request that another program has read.
fn read_request(bytes: &[u8]) -> Option<(SegmentHeader, CeHeader)> {
    let mut input = bytes;
    match vitcp_lite::Decoder::new().next(&mut input) {
        Ok(Some(Item::Segment(segment))) => match segment.headers {
            Headers::Connect(ce) => Some((segment.header, ce)),
            Headers::Plain | Headers::Rdma(_) => None,
        },
        Ok(Some(Item::Payload { .. }) | None) | Err(_) => None,
    }
}
