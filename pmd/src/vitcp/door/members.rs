//! What the programs of a host say to each other: who waits for what, and connections that are handed on.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use pmd_port::fork::Descriptor;

use vitcp_lite::machine::passive::PassiveState;
use vitcp_lite::profile::{CE_HEADER_BYTES, MAX_SECURITY_BYTES, SEGMENT_HEADER_BYTES};
use vitcp_lite::{CeHeader, Headers, Item, SegmentHeader};

use super::{
    AGAIN_NS, Challenged, Fd, Handed, MAX_MEMBERS, MEMBERS, MEMBERS_AT_ONCE, MESSAGES_AT_ONCE,
    Member, Message, Role, What, watched,
};
use crate::attach::socket::Socket;
use crate::datapath::Datapath;
use crate::sys;
use crate::vitcp::active::connection;
use crate::vitcp::challenge::Exchange;
use crate::vitcp::connection::{Machine, Phase, Stage};
use crate::vitcp::counters::Counter;
use crate::vitcp::guests::Guest;
use crate::vitcp::socket::{Listening, Stream, is_for_later};
use crate::vitcp::timers::Key;
use crate::vitcp::{ACCEPTS_AT_ONCE, ViTcp};

impl ViTcp {
    pub(super) fn let_members_in(&mut self, now_ns: u64) {
        for _ in 0..MEMBERS_AT_ONCE {
            if self.is_local_paused(now_ns) {
                return;
            }
            let Role::Keeper { local, .. } = &self.door.role else {
                return;
            };
            match local.listener().accept() {
                Ok(socket) => self.let_member_in(socket),
                Err(error) if is_for_later(&error) => return,
                Err(error) if sys::is_out_of_descriptors(&error) => {
                    log::debug!("vi-tcp local listener: accept failed: {error}");
                    self.pause_door(now_ns);
                    return;
                }
                Err(error) => log::debug!("vi-tcp local listener: accept failed: {error}"),
            }
        }
    }

    fn let_member_in(&mut self, socket: Socket) {
        let Role::Keeper {
            members,
            next_member,
            ..
        } = &mut self.door.role
        else {
            return;
        };
        let Some(listening) = &mut self.door.listening else {
            return;
        };
        let peer = socket.peer();
        let is_ours = (peer.as_ref()).is_ok_and(|peer| peer.uid == nix::unistd::geteuid().as_raw());
        if !is_ours || members.len() >= MAX_MEMBERS {
            self.counters.count(Counter::DropLocal);
            let user = peer.map_or_else(|error| error.to_string(), |peer| peer.uid.to_string());
            log::debug!("vi-tcp local listener: program rejected: user={user}");
            return;
        }
        let number = *next_member;
        *next_member = next_member.wrapping_add(1).max(MEMBERS);
        socket.take_descriptors();
        listening.set_foreign();
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
            Err(error) => log::debug!("vi-tcp local listener: program rejected: {error}"),
        }
    }

    /// What a member says. One that says nothing we know, or is gone, is a member no more.
    pub(super) fn hear_member(&mut self, now_ns: u64, number: u32) {
        for _ in 0..MESSAGES_AT_ONCE {
            // What was given back is looked at first, so that it does not pile up.
            let backs = self.door.backs.len() >= self.settings.max_incoming as usize;
            if backs || self.is_local_paused(now_ns) {
                return;
            }
            let Role::Keeper { members, .. } = &mut self.door.role else {
                return;
            };
            let Some(at) = members.iter().position(|member| member.number == number) else {
                return;
            };
            let Some(member) = members.get_mut(at) else {
                return;
            };
            match member.socket.receive_foreign::<Message>() {
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
                        self.door.backs.push_back((fd, handed));
                    }
                }
                Err(error) if is_for_later(&error) => return,
                Ok(Some(_) | None) | Err(_) => {
                    self.watch.remove(Fd(member.socket.as_fd()));
                    members.swap_remove(at);
                    return;
                }
            }
        }
    }

    /// What the keeper says. If it is gone, another one is found.
    pub(super) fn hear_keeper(&mut self, now_ns: u64, path: &mut Datapath) {
        for _ in 0..MESSAGES_AT_ONCE {
            if self.is_local_paused(now_ns) {
                return;
            }
            let Role::Member { keeper, seen, .. } = &mut self.door.role else {
                return;
            };
            match keeper.receive_foreign::<Message>() {
                Ok(Some((Message::Welcome, mut fds))) => {
                    self.door.listening = fds.pop().map(Listening::shared);
                }
                Ok(Some((Message::Take(what, handed), mut fds))) => {
                    *seen.entry(what).or_default() += 1;
                    self.door.news = true;
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
                    self.try_door_again(now_ns);
                    return;
                }
            }
        }
    }

    /// Looks at requests that members have given back.
    pub(in crate::vitcp) fn take_backs(&mut self, now_ns: u64, path: &mut Datapath) -> bool {
        let waiting = self.door.backs.len().min(ACCEPTS_AT_ONCE as usize);
        for _ in 0..waiting {
            if let Some((fd, handed)) = self.door.backs.pop_front() {
                self.take_over(now_ns, fd, &handed, path);
            }
        }
        waiting > 0
    }

    /// A connection whose request another program has read.
    fn take_over(&mut self, now_ns: u64, fd: Descriptor, handed: &Handed, path: &mut Datapath) {
        let Some((header, ce)) = read_request(&handed.request) else {
            return;
        };
        if !self.make_room(Guest::Incoming) {
            return;
        }
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
                self.admit(Guest::Incoming, number);
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
    /// now; or might have had it, if it could be told: then it is closed, and its other end asks again.
    pub(in crate::vitcp) fn hand_on(
        &mut self,
        now_ns: u64,
        number: u32,
        (header, ce): (&SegmentHeader, &CeHeader),
        tried: &[u32],
    ) -> bool {
        // What a program has said before the client could ask counts.
        self.let_members_in(now_ns);
        for member in self.member_numbers() {
            self.hear_member(now_ns, member);
        }
        let Some(connection) = self.connection(number) else {
            return false;
        };
        let what = What::of(ce, connection.far);
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
        let mut later = false;
        let mut is_sent = |sent: io::Result<()>| {
            later |= sent.as_ref().is_err_and(is_full);
            sent.is_ok()
        };
        let handed = match &mut self.door.role {
            Role::None | Role::Alone => false,
            Role::Member { keeper, .. } => is_sent(keeper.send(&Message::Back(content), &fds)),
            Role::Keeper { members, .. } => members.iter_mut().any(|member| {
                let waiting = member.waits.get_mut(&what).filter(|waiting| {
                    let unseen = waiting.handed.saturating_sub(waiting.seen);
                    waiting.count > unseen
                });
                let Some(waiting) = waiting.filter(|_| !tried.contains(&member.number)) else {
                    return false;
                };
                let take = Message::Take(what.clone(), content.clone());
                let sent = is_sent(member.socket.send(&take, &fds));
                waiting.handed = waiting.handed.wrapping_add(u32::from(sent));
                sent
            }),
        };
        if handed {
            self.counters.count(Counter::HandedOver);
            if let Some(connection) = self.connection_mut(number) {
                connection.stream.set_foreign();
            }
            self.remove(number);
        } else if later {
            self.counters.count(Counter::DropUnfitIncoming);
            self.remove(number);
        }
        handed || later
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
            *all.entry(What { peer: None, called }).or_default() += 1;
        }
        for ep in self.endpoints.iter().flatten() {
            if let Phase::Asking(request) = &ep.phase
                && matches!(request.machine, Machine::Peer(_))
            {
                let called = request.remote.discriminator.as_bytes().to_vec();
                let peer = Some(request.remote.host.0);
                *all.entry(What { peer, called }).or_default() += 1;
            }
        }
        all
    }

    /// Tells the keeper what our consumers wait for, if that has changed.
    pub(in crate::vitcp) fn tell_keeper(&mut self, now_ns: u64) {
        if !matches!(self.door.role, Role::Member { .. }) || !core::mem::take(&mut self.door.news) {
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
                self.door.news = true;
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

/// Has the other program not taken what it was sent before?
fn is_full(error: &io::Error) -> bool {
    is_for_later(error) || error.raw_os_error() == Some(libc::ETOOMANYREFS)
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
