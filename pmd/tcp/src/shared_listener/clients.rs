//! Communication between listener owner and clients: listens, handoffs and returned connections.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use pmd_port::fork::Descriptor;
use vi_core::sys;

use vitcp_lite::profile::{CE_HEADER_BYTES, MAX_SECURITY_BYTES, SEGMENT_HEADER_BYTES};
use vitcp_lite::{CeHeader, Headers, Item, SegmentHeader};

use super::{
    FIRST_CLIENT, Fd, HandoffRequest, ListenKey, ListenerClient, MAX_CLIENT_ACCEPTS, MAX_CLIENTS,
    MAX_MESSAGES, Message, RETRY_NS, Role, SentChallenge, SharedListener, epoll_data,
};
use crate::connection::Connection;
use crate::context::Context;
use crate::counters::Counter;
use crate::epoll_set::EpollSet;
use crate::socket::ListenSocket;
use crate::stream_error::is_would_block;
use crate::timers::TimerKey;
use vi_core::control_socket::Socket;

/// What a client has received from the owner.
pub(crate) enum FromOwner {
    Nothing,
    /// The listening socket.
    Joined,
    /// A connection whose Connect Request the owner has read; `None` if its descriptor was lost.
    Handoff(Option<Descriptor>, HandoffRequest),
    /// The owner has ended, or sent an invalid message: a new role is to be acquired.
    Ended,
}

/// Result of handing a connection off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandOff {
    /// Another program has got it.
    Done,
    /// No other program may have a listener for it.
    NoListener,
    /// Another program may have one, but its queue is full.
    QueueFull,
}

impl SharedListener {
    /// Accepts clients.
    pub(crate) fn accept_clients(&mut self, now_ns: u64, epoll: &EpollSet, context: &mut Context) {
        for _ in 0..MAX_CLIENT_ACCEPTS {
            if self.is_local_paused(now_ns, epoll, context) {
                return;
            }
            let Role::ListenerOwner { local, .. } = &self.role else {
                return;
            };
            match local.listener().accept() {
                Ok(socket) => self.accept_client(socket, epoll, context),
                Err(error) if is_would_block(&error) => return,
                Err(error) if sys::is_out_of_descriptors(&error) => {
                    log::debug!("vi-tcp local listener: accept failed: {error}");
                    self.pause(now_ns, epoll, context);
                    return;
                }
                Err(error) => log::debug!("vi-tcp local listener: accept failed: {error}"),
            }
        }
    }

    fn accept_client(&mut self, socket: Socket, epoll: &EpollSet, context: &mut Context) {
        let Role::ListenerOwner {
            clients,
            next_client,
            ..
        } = &mut self.role
        else {
            return;
        };
        let Some(listen_socket) = &mut self.listen_socket else {
            return;
        };
        let peer = socket.peer();
        let is_ours = (peer.as_ref()).is_ok_and(|peer| peer.uid == nix::unistd::geteuid().as_raw());
        if !is_ours || clients.len() >= MAX_CLIENTS {
            context.count(Counter::DropLocal);
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
            .and_then(|()| epoll.add_while_readable(Fd(socket.as_fd()), epoll_data(number)));
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
    pub(crate) fn read_client(
        &mut self,
        now_ns: u64,
        number: u32,
        epoll: &EpollSet,
        context: &mut Context,
    ) {
        for _ in 0..MAX_MESSAGES {
            // Returned connections are processed first, so that their number is limited.
            let is_full = self.returned.len() >= context.settings.max_incoming as usize;
            if is_full || self.is_local_paused(now_ns, epoll, context) {
                return;
            }
            let Role::ListenerOwner { clients, .. } = &mut self.role else {
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
                        self.returned.push_back((fd, handoff));
                    }
                }
                Err(error) if is_would_block(&error) => return,
                Ok(Some(_) | None) | Err(_) => {
                    epoll.remove(Fd(client.socket.as_fd()));
                    clients.swap_remove(at);
                    return;
                }
            }
        }
    }

    /// Receives the next message of the owner.
    pub(crate) fn read_owner(
        &mut self,
        now_ns: u64,
        epoll: &EpollSet,
        context: &mut Context,
    ) -> FromOwner {
        if self.is_local_paused(now_ns, epoll, context) {
            return FromOwner::Nothing;
        }
        let Role::ListenerClient { owner, seen, .. } = &mut self.role else {
            return FromOwner::Nothing;
        };
        match owner.receive_foreign::<Message>() {
            Ok(Some((Message::Joined, mut fds))) => {
                self.listen_socket = fds.pop().map(ListenSocket::shared);
                FromOwner::Joined
            }
            Ok(Some((Message::Handoff(key, handoff), mut fds))) => {
                *seen.entry(key).or_default() += 1;
                self.listens_changed = true;
                FromOwner::Handoff(fds.pop(), handoff)
            }
            Err(error) if is_would_block(&error) => FromOwner::Nothing,
            Ok(Some(_) | None) | Err(_) => {
                epoll.remove(Fd(owner.as_fd()));
                self.role = Role::None;
                FromOwner::Ended
            }
        }
    }

    /// Takes a connection that a client has returned.
    pub(crate) fn next_returned(&mut self) -> Option<(Descriptor, HandoffRequest)> {
        self.returned.pop_front()
    }

    /// Hands a connection off to another program that may have a listener for its request.
    pub(crate) fn hand_off(
        &mut self,
        now_ns: u64,
        connection: &Connection,
        request: (&SegmentHeader, &CeHeader),
        tried: &[u32],
        (epoll, context): (&EpollSet, &mut Context),
    ) -> HandOff {
        // Listens that programs reported before the request was sent must count.
        self.accept_clients(now_ns, epoll, context);
        for client in self.client_numbers() {
            self.read_client(now_ns, client, epoll, context);
        }
        let key = ListenKey::of(request.1, connection.remote);
        let Some(content) = content(connection, request, tried) else {
            return HandOff::NoListener;
        };
        let fds = [connection.stream.as_fd().as_raw_fd()];
        let mut queue_full = false;
        let mut is_sent = |sent: io::Result<()>| {
            queue_full |= sent.as_ref().is_err_and(is_queue_full);
            sent.is_ok()
        };
        let handed_off = match &mut self.role {
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
        match (handed_off, queue_full) {
            (true, _) => HandOff::Done,
            (false, true) => HandOff::QueueFull,
            (false, false) => HandOff::NoListener,
        }
    }

    fn client_numbers(&self) -> Vec<u32> {
        match &self.role {
            Role::ListenerOwner { clients, .. } => {
                clients.iter().map(|client| client.number).collect()
            }
            Role::None | Role::Exclusive | Role::ListenerClient { .. } => Vec::new(),
        }
    }

    /// Reports the changed listens of our consumers to the owner. `listens` returns them all, with their counts.
    pub(crate) fn report_listens(
        &mut self,
        now_ns: u64,
        listens: impl FnOnce() -> BTreeMap<ListenKey, u32>,
        context: &mut Context,
    ) {
        let Role::ListenerClient {
            owner,
            reported,
            seen,
        } = &mut self.role
        else {
            return;
        };
        if !core::mem::take(&mut self.listens_changed) {
            return;
        }
        let now = listens();
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
                self.listens_changed = true;
                let at_ns = now_ns + RETRY_NS;
                context.timers.set(at_ns, TimerKey::SharedListener);
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

/// Builds the state of a connection that is handed off.
fn content(
    connection: &Connection,
    (header, ce): (&SegmentHeader, &CeHeader),
    tried: &[u32],
) -> Option<HandoffRequest> {
    let mut request = vec![0; SEGMENT_HEADER_BYTES + CE_HEADER_BYTES + MAX_SECURITY_BYTES];
    let (first, rest) = request.split_first_chunk_mut::<SEGMENT_HEADER_BYTES>()?;
    header.emit(first);
    let written = ce.emit(rest)?;
    request.truncate(SEGMENT_HEADER_BYTES + written);
    let exchange = connection.exchange.as_deref();
    Some(HandoffRequest {
        request,
        challenge: exchange.map(|exchange| SentChallenge {
            challenge: exchange.challenge,
            message: connection.transfer.tx.number,
        }),
        tried: tried.to_vec(),
    })
}

impl HandoffRequest {
    /// Parses its Connect Request.
    pub(crate) fn parse(&self) -> Option<(SegmentHeader, CeHeader)> {
        let mut input = self.request.as_slice();
        match vitcp_lite::Decoder::new().next(&mut input) {
            Ok(Some(Item::Segment(segment))) => match segment.headers {
                Headers::Connect(ce) => Some((segment.header, ce)),
                Headers::Plain | Headers::Rdma(_) => None,
            },
            Ok(Some(Item::Payload { .. }) | None) | Err(_) => None,
        }
    }
}

/// Checks whether a send failed because the queue of the other program is full.
fn is_queue_full(error: &io::Error) -> bool {
    is_would_block(error) || error.raw_os_error() == Some(libc::ETOOMANYREFS)
}
