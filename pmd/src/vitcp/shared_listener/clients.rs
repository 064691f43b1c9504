//! Communication between listener owner and clients: listens, handoffs and returned connections.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use pmd_port::fork::Descriptor;
use vi_core::sys;

use vitcp_lite::machine::responder::ResponderState;
use vitcp_lite::profile::{CE_HEADER_BYTES, MAX_SECURITY_BYTES, SEGMENT_HEADER_BYTES};
use vitcp_lite::{CeHeader, Headers, Item, SegmentHeader};

use super::{
    FIRST_CLIENT, Fd, HandoffRequest, ListenKey, ListenerClient, MAX_CLIENT_ACCEPTS, MAX_CLIENTS,
    MAX_MESSAGES, Message, RETRY_NS, Role, SentChallenge, epoll_data,
};
use crate::attach::socket::Socket;
use crate::datapath::Datapath;
use crate::vitcp::connection::Exchange;
use crate::vitcp::connection::{Machine, Phase, Stage};
use crate::vitcp::counters::Counter;
use crate::vitcp::initiator::new_connection;
use crate::vitcp::socket::{ListenSocket, Stream, is_would_block};
use crate::vitcp::timers::TimerKey;
use crate::vitcp::unbound::Unbound;
use crate::vitcp::{MAX_ACCEPTS, ViTcp};

impl ViTcp {
    pub(super) fn accept_clients(&mut self, now_ns: u64) {
        for _ in 0..MAX_CLIENT_ACCEPTS {
            if self.is_local_paused(now_ns) {
                return;
            }
            let Role::ListenerOwner { local, .. } = &self.shared_listener.role else {
                return;
            };
            match local.listener().accept() {
                Ok(socket) => self.accept_client(socket),
                Err(error) if is_would_block(&error) => return,
                Err(error) if sys::is_out_of_descriptors(&error) => {
                    log::debug!("vi-tcp local listener: accept failed: {error}");
                    self.pause_listener(now_ns);
                    return;
                }
                Err(error) => log::debug!("vi-tcp local listener: accept failed: {error}"),
            }
        }
    }

    fn accept_client(&mut self, socket: Socket) {
        let Role::ListenerOwner {
            clients,
            next_client,
            ..
        } = &mut self.shared_listener.role
        else {
            return;
        };
        let Some(listen_socket) = &mut self.shared_listener.listen_socket else {
            return;
        };
        let peer = socket.peer();
        let is_ours = (peer.as_ref()).is_ok_and(|peer| peer.uid == nix::unistd::geteuid().as_raw());
        if !is_ours || clients.len() >= MAX_CLIENTS {
            self.counters.count(Counter::DropLocal);
            let user = peer.map_or_else(|error| error.to_string(), |peer| peer.uid.to_string());
            log::debug!("vi-tcp local listener: program rejected: user={user}");
            return;
        }
        let number = *next_client;
        *next_client = next_client.wrapping_add(1).max(FIRST_CLIENT);
        socket.take_descriptors();
        listen_socket.set_foreign();
        let fds = [listen_socket.as_fd().as_raw_fd()];
        let joined = socket
            .set_nonblocking()
            .and_then(|()| socket.send(&Message::Joined, &fds))
            .and_then(|()| {
                let epoll = &self.epoll;
                epoll.add_while_readable(Fd(socket.as_fd()), epoll_data(number))
            });
        match joined {
            Ok(()) => clients.push(ListenerClient {
                socket,
                number,
                listens: BTreeMap::new(),
            }),
            Err(error) => log::debug!("vi-tcp local listener: program rejected: {error}"),
        }
    }

    /// Processes messages of a client. Removes it if it sends an invalid message, or has closed.
    pub(super) fn read_client(&mut self, now_ns: u64, number: u32) {
        for _ in 0..MAX_MESSAGES {
            // Returned connections are processed first, so that their number is limited.
            let returned = self.shared_listener.returned.len();
            let is_full = returned >= self.settings.max_incoming as usize;
            if is_full || self.is_local_paused(now_ns) {
                return;
            }
            let Role::ListenerOwner { clients, .. } = &mut self.shared_listener.role else {
                return;
            };
            let Some(at) = clients.iter().position(|client| client.number == number) else {
                return;
            };
            let Some(client) = clients.get_mut(at) else {
                return;
            };
            match client.socket.receive_foreign::<Message>() {
                Ok(Some((Message::Listen { key, count, seen }, _))) => {
                    if count == 0 {
                        client.listens.remove(&key);
                    } else {
                        let listen = client.listens.entry(key).or_default();
                        (listen.count, listen.seen) = (count, seen);
                    }
                }
                Ok(Some((Message::Return(mut handoff), mut fds))) => {
                    handoff.tried.push(number);
                    if let Some(fd) = fds.pop() {
                        self.shared_listener.returned.push_back((fd, handoff));
                    }
                }
                Err(error) if is_would_block(&error) => return,
                Ok(Some(_) | None) | Err(_) => {
                    self.epoll.remove(Fd(client.socket.as_fd()));
                    clients.swap_remove(at);
                    return;
                }
            }
        }
    }

    /// Processes messages of the owner. Acquires a new role if the owner sends an invalid message, or has closed.
    pub(super) fn read_owner(&mut self, now_ns: u64, path: &mut Datapath) {
        for _ in 0..MAX_MESSAGES {
            if self.is_local_paused(now_ns) {
                return;
            }
            let Role::ListenerClient { owner, seen, .. } = &mut self.shared_listener.role else {
                return;
            };
            match owner.receive_foreign::<Message>() {
                Ok(Some((Message::Joined, mut fds))) => {
                    self.shared_listener.listen_socket = fds.pop().map(ListenSocket::shared);
                }
                Ok(Some((Message::Handoff(key, handoff), mut fds))) => {
                    *seen.entry(key).or_default() += 1;
                    self.shared_listener.listens_changed = true;
                    if let Some(fd) = fds.pop() {
                        self.counters.count(Counter::TakenOver);
                        self.take_over(now_ns, fd, &handoff, path);
                    }
                    self.notify_owner(now_ns);
                }
                Err(error) if is_would_block(&error) => return,
                Ok(Some(_) | None) | Err(_) => {
                    self.epoll.remove(Fd(owner.as_fd()));
                    self.shared_listener.role = Role::None;
                    self.retry_listener(now_ns);
                    return;
                }
            }
        }
    }

    /// Processes connections that clients have returned. Returns true if there were any.
    pub(in crate::vitcp) fn take_returned(&mut self, now_ns: u64, path: &mut Datapath) -> bool {
        let returned = self.shared_listener.returned.len();
        let count = returned.min(MAX_ACCEPTS as usize);
        for _ in 0..count {
            if let Some((fd, handoff)) = self.shared_listener.returned.pop_front() {
                self.take_over(now_ns, fd, &handoff, path);
            }
        }
        count > 0
    }

    /// Takes over a connection whose Connect Request another program has read.
    fn take_over(
        &mut self,
        now_ns: u64,
        fd: Descriptor,
        handoff: &HandoffRequest,
        path: &mut Datapath,
    ) {
        let Some((header, ce)) = parse_request(&handoff.request) else {
            return;
        };
        if !self.ensure_space(Unbound::Pending) {
            return;
        }
        let stream = Stream::passed(fd, self.socket_options());
        let state = match handoff.challenge {
            Some(_) => ResponderState::Challenged,
            None => ResponderState::Incoming,
        };
        let added = stream.and_then(|stream| {
            let addresses = (stream.local_address()?, stream.remote_address()?);
            let stage = Stage::Incoming(state);
            self.add(|generation| new_connection(stream, addresses, generation, stage))
        });
        match added {
            Ok(number) => {
                self.admit(Unbound::Pending, number);
                if let Some(connection) = self.connection_mut(number)
                    && let Some(SentChallenge { challenge, message }) = handoff.challenge
                {
                    connection.tx.number = message;
                    connection.exchange = Some(Box::new(Exchange {
                        challenge,
                        nonce: None,
                        next: header.message,
                    }));
                }
                self.on_connect_request(now_ns, number, &header, &ce, &handoff.tried, path);
            }
            Err(error) => log::debug!("vi-tcp listener: handoff failed: {error}"),
        }
    }

    /// Hands a connection off to another program that may have a listener for its request. Returns true if one has
    /// got it; or if one could have, but its queue was full: then the connection is closed, and its peer retries.
    pub(in crate::vitcp) fn hand_off(
        &mut self,
        now_ns: u64,
        number: u32,
        (header, ce): (&SegmentHeader, &CeHeader),
        tried: &[u32],
    ) -> bool {
        // Listens that programs reported before the request was sent must count.
        self.accept_clients(now_ns);
        for client in self.client_numbers() {
            self.read_client(now_ns, client);
        }
        let Some(connection) = self.connection(number) else {
            return false;
        };
        let key = ListenKey::of(ce, connection.remote);
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
        let content = HandoffRequest {
            request,
            challenge: exchange.map(|exchange| SentChallenge {
                challenge: exchange.challenge,
                message: connection.tx.number,
            }),
            tried: tried.to_vec(),
        };
        let mut queue_full = false;
        let mut is_sent = |sent: io::Result<()>| {
            queue_full |= sent.as_ref().is_err_and(is_queue_full);
            sent.is_ok()
        };
        let handed_off = match &mut self.shared_listener.role {
            Role::None | Role::Exclusive => false,
            Role::ListenerClient { owner, .. } => {
                is_sent(owner.send(&Message::Return(content), &fds))
            }
            Role::ListenerOwner { clients, .. } => clients.iter_mut().any(|client| {
                let listen = client.listens.get_mut(&key).filter(|listen| {
                    let unseen = listen.handed_off.saturating_sub(listen.seen);
                    listen.count > unseen
                });
                let Some(listen) = listen.filter(|_| !tried.contains(&client.number)) else {
                    return false;
                };
                let handoff = Message::Handoff(key.clone(), content.clone());
                let sent = is_sent(client.socket.send(&handoff, &fds));
                listen.handed_off = listen.handed_off.wrapping_add(u32::from(sent));
                sent
            }),
        };
        if handed_off {
            self.counters.count(Counter::HandedOver);
            if let Some(connection) = self.connection_mut(number) {
                connection.stream.set_foreign();
            }
            self.remove(number);
        } else if queue_full {
            self.counters.count(Counter::DropUnfitIncoming);
            self.remove(number);
        }
        handed_off || queue_full
    }

    fn client_numbers(&self) -> Vec<u32> {
        match &self.shared_listener.role {
            Role::ListenerOwner { clients, .. } => {
                clients.iter().map(|client| client.number).collect()
            }
            Role::None | Role::Exclusive | Role::ListenerClient { .. } => Vec::new(),
        }
    }

    /// Returns the keys that our consumers listen for, with their counts.
    fn local_listens(&self) -> BTreeMap<ListenKey, u32> {
        let mut all = BTreeMap::new();
        for listener in self.listeners.iter().filter(|l| l.matched.is_none()) {
            let called = listener.discriminator.as_bytes().to_vec();
            *all.entry(ListenKey { peer: None, called }).or_default() += 1;
        }
        for ep in self.endpoints.iter().flatten() {
            if let Phase::Requesting(request) = &ep.phase
                && matches!(request.machine, Machine::Peer(_))
            {
                let called = request.remote.discriminator.as_bytes().to_vec();
                let peer = Some(request.remote.host.0);
                *all.entry(ListenKey { peer, called }).or_default() += 1;
            }
        }
        all
    }

    /// Reports the changed listens of our consumers to the owner.
    pub(in crate::vitcp) fn notify_owner(&mut self, now_ns: u64) {
        if !matches!(self.shared_listener.role, Role::ListenerClient { .. })
            || !core::mem::take(&mut self.shared_listener.listens_changed)
        {
            return;
        }
        let now = self.local_listens();
        let Role::ListenerClient {
            owner,
            reported,
            seen,
        } = &mut self.shared_listener.role
        else {
            return;
        };
        let gone = reported.keys().filter(|key| !now.contains_key(*key));
        let gone: Vec<_> = gone.cloned().map(|key| (key, 0)).collect();
        for (key, count) in now.into_iter().chain(gone) {
            let seen_now = seen.get(&key).copied().unwrap_or(0);
            if reported.get(&key) == Some(&(count, seen_now)) {
                continue;
            }
            let listen = Message::Listen {
                key: key.clone(),
                count,
                seen: seen_now,
            };
            if owner.send(&listen, &[]).is_err() {
                // Its queue is full: retried. If it has closed, epoll reports that.
                self.shared_listener.listens_changed = true;
                self.timers.set(now_ns + RETRY_NS, TimerKey::SharedListener);
                return;
            }
            match count {
                0 => drop(reported.remove(&key)),
                _ => drop(reported.insert(key, (count, seen_now))),
            }
        }
        // Without listeners both sides restart their counts at 0.
        seen.retain(|key, _| reported.contains_key(key));
    }
}

/// Checks whether a send failed because the queue of the other program is full.
fn is_queue_full(error: &io::Error) -> bool {
    is_would_block(error) || error.raw_os_error() == Some(libc::ETOOMANYREFS)
}

/// Parses the Connect Request of a handoff.
fn parse_request(bytes: &[u8]) -> Option<(SegmentHeader, CeHeader)> {
    let mut input = bytes;
    match vitcp_lite::Decoder::new().next(&mut input) {
        Ok(Some(Item::Segment(segment))) => match segment.headers {
            Headers::Connect(ce) => Some((segment.header, ce)),
            Headers::Plain | Headers::Rdma(_) => None,
        },
        Ok(Some(Item::Payload { .. }) | None) | Err(_) => None,
    }
}
