//! Two peers that request a connection with each other, over a simulated network whose steps the
//! input selects.
//!
//! Whatever the order of the requests, finally both are connected over the same TCP connection, or
//! neither is; without cancellations and failures both are.

use std::collections::VecDeque;

use vitcp_lite::Discriminator;
use vitcp_lite::machine::{PeerAction, PeerEvent, PeerName, PeerState, Precedence, precedence};

use crate::input::Input;

/// Maximum number of TCP connections that the input can start.
const MAX_CONNECTIONS: usize = 40;
/// Maximum number of steps until the network is idle after the end of the input.
const MAX_STEPS: usize = 2000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    Request,
    Accept,
    NoMatch,
    Closed,
}

/// A TCP connection, from the host that started it to the other one.
#[derive(Debug)]
struct Connection {
    from: usize,
    port: u16,
    is_established: bool,
    /// The host has not closed its side.
    is_open: [bool; 2],
    /// Messages in flight to the host.
    to: [VecDeque<Message>; 2],
}

#[derive(Debug, Default)]
struct Host {
    address: [u8; 16],
    state: PeerState,
    /// The TCP connection of its request or of its connection.
    connection: Option<usize>,
    /// Number of requests of its consumer, and of those that have ended.
    requests: usize,
    ended: usize,
}

/// Checks two hosts and the network between them.
///
/// # Panics
/// If the final states of the two are inconsistent.
pub fn check(mut input: Input<'_>) {
    let addresses = input.byte();
    let may_fail = input.byte() & 1 == 1;
    let mut network = Network {
        hosts: [addresses >> 4, addresses & 15].map(|last| Host {
            address: [last; 16],
            ..Host::default()
        }),
        connections: Vec::new(),
        may_fail,
    };
    while !input.is_empty() {
        let (step, target) = (input.byte(), usize::from(input.byte()));
        network.step(step, target);
        network.check_invariants();
    }
    network.run_until_idle();
}

struct Network {
    hosts: [Host; 2],
    connections: Vec<Connection>,
    /// Consumers may cancel, and connections may fail.
    may_fail: bool,
}

impl Network {
    fn step(&mut self, step: u8, target: usize) {
        let host = target % 2;
        let connection = (target / 2).checked_rem(self.connections.len());
        match (step % 8, connection) {
            (0, _) => self.request(host),
            (1, _) if self.connections.len() < MAX_CONNECTIONS => self.retry(host),
            (2, Some(connection)) => self.establish(connection, true),
            (3 | 4, Some(connection)) => self.deliver(connection, host),
            (5, Some(connection)) if self.may_fail => self.establish(connection, false),
            (6, Some(connection)) if self.may_fail => self.reset(connection),
            (7, _) if self.may_fail && target & 2 == 0 => {
                self.event(host, PeerEvent::Timeout, None)
            }
            (7, _) if self.may_fail => self.event(host, PeerEvent::Disconnect, None),
            _ => {}
        }
    }

    fn request(&mut self, number: usize) {
        let host = &mut self.hosts[number];
        let is_below_limit = self.connections.len() < MAX_CONNECTIONS;
        let may_request = self.may_fail || host.requests == 0;
        if host.state == PeerState::Disconnected && is_below_limit && may_request {
            host.requests += 1;
            self.event(number, PeerEvent::Request, None);
        }
    }

    fn retry(&mut self, host: usize) {
        if self.hosts[host].state == PeerState::Waiting {
            self.event(host, PeerEvent::Retry, None);
        }
    }

    fn establish(&mut self, number: usize, succeeds: bool) {
        let connection = &mut self.connections[number];
        let host = connection.from;
        if connection.is_established || !connection.is_open[host] {
            return;
        }
        connection.is_established = succeeds;
        if succeeds {
            self.event(host, PeerEvent::TcpEstablished, None);
        } else {
            connection.is_open = [false; 2];
            self.hosts[host].connection = None;
            self.event(host, PeerEvent::TcpFailed, None);
        }
    }

    /// Resets a connection: messages in flight are lost, and both hosts are notified.
    fn reset(&mut self, number: usize) {
        let connection = &mut self.connections[number];
        if connection.is_established {
            for queue in &mut connection.to {
                if !queue.is_empty() && !queue.contains(&Message::Closed) {
                    queue.clear();
                }
                if queue.back() != Some(&Message::Closed) {
                    queue.push_back(Message::Closed);
                }
            }
        }
    }

    /// Delivers the next message. A host that closed its side receives nothing more.
    fn deliver(&mut self, number: usize, host: usize) {
        let connection = &mut self.connections[number];
        let Some(message) = connection.to[host].pop_front() else {
            return;
        };
        if !connection.is_open[host] {
            return;
        }
        let is_in_use = self.hosts[host].connection == Some(number);
        match message {
            Message::Request => self.incoming(number, host),
            Message::Accept if is_in_use => self.event(host, PeerEvent::Accept, None),
            Message::NoMatch if is_in_use => self.event(host, PeerEvent::NoMatch, None),
            Message::Closed if is_in_use => {
                self.close(number, host);
                self.hosts[host].connection = None;
                self.event(host, PeerEvent::TcpClosed, None);
            }
            Message::Closed => self.close(number, host),
            Message::Accept | Message::NoMatch => unreachable!("an open side is in use"),
        }
    }

    /// Handles a request of the other host: a simultaneous open if this host has a request, else refused.
    fn incoming(&mut self, number: usize, host: usize) {
        let is_requesting = matches!(
            self.hosts[host].state,
            PeerState::Connecting | PeerState::PendingAccept | PeerState::Waiting
        );
        if !is_requesting {
            self.refuse(number, host);
            return;
        }
        let theirs = self.name(1 - host, number);
        let precedence = self.hosts[host]
            .connection
            .map_or(Precedence::YieldToPeer, |own| {
                precedence(self.name(host, own), theirs)
            });
        self.event(host, PeerEvent::SimultaneousOpen(precedence), Some(number));
    }

    fn name(&self, host: usize, number: usize) -> PeerName {
        PeerName {
            host: self.hosts[host].address,
            port: self.connections[number].port,
            discriminator: Discriminator::default(),
        }
    }

    fn event(&mut self, host: usize, event: PeerEvent, theirs: Option<usize>) {
        let (state, action) = self.hosts[host].state.on(event);
        self.hosts[host].state = state;
        match action {
            PeerAction::None | PeerAction::Unexpected => {}
            PeerAction::SetUpTcp => self.start_connection(host),
            PeerAction::SendRequest => self.send(self.own(host), host, Message::Request),
            PeerAction::CloseTcp => {
                self.close_own(host);
                self.hosts[host].ended += usize::from(event == PeerEvent::Disconnect);
            }
            PeerAction::Connected => {}
            PeerAction::Failed(_) => {
                self.close_own(host);
                self.hosts[host].ended += 1;
            }
            PeerAction::AcceptTheirs => {
                let theirs = theirs.expect("a simultaneous open");
                self.close_own(host);
                self.hosts[host].connection = Some(theirs);
                self.send(theirs, host, Message::Accept);
            }
            PeerAction::RefuseTheirs => self.refuse(theirs.expect("a simultaneous open"), host),
            PeerAction::AnswerChallenge => unreachable!("no host sends challenges"),
        }
        if event == PeerEvent::TcpClosed && action == PeerAction::CloseTcp {
            // A connection has ended; a request that is retried continues.
            self.hosts[host].ended += usize::from(state == PeerState::Disconnected);
        }
    }

    fn own(&self, host: usize) -> usize {
        self.hosts[host]
            .connection
            .expect("the host has a connection")
    }

    fn start_connection(&mut self, host: usize) {
        let number = self.connections.len();
        assert_eq!(self.hosts[host].connection, None, "it has a connection");
        self.hosts[host].connection = Some(number);
        self.connections.push(Connection {
            from: host,
            // An odd factor makes the ports unique and unordered.
            port: (number as u16).wrapping_mul(40503),
            is_established: false,
            is_open: [true; 2],
            to: Default::default(),
        });
    }

    fn send(&mut self, number: usize, host: usize, message: Message) {
        let connection = &mut self.connections[number];
        assert!(connection.is_established, "sent before TCP is established");
        assert!(connection.is_open[host], "sent on a closed connection");
        let queue = &mut connection.to[1 - host];
        if queue.back() != Some(&Message::Closed) {
            queue.push_back(message);
        }
    }

    fn refuse(&mut self, number: usize, host: usize) {
        self.send(number, host, Message::NoMatch);
        self.close(number, host);
    }

    fn close(&mut self, number: usize, host: usize) {
        let connection = &mut self.connections[number];
        if connection.is_established && connection.is_open[host] {
            self.send(number, host, Message::Closed);
        }
        self.connections[number].is_open[host] = false;
    }

    fn close_own(&mut self, host: usize) {
        if let Some(number) = self.hosts[host].connection.take() {
            self.close(number, host);
        }
    }

    /// Checks the invariants of each host.
    fn check_invariants(&self) {
        for host in &self.hosts {
            let has_connection = match host.state {
                PeerState::Disconnected | PeerState::Waiting => false,
                PeerState::Connecting | PeerState::PendingAccept | PeerState::Connected => true,
            };
            assert_eq!(host.connection.is_some(), has_connection, "{host:?}");
            let is_disconnected = host.state == PeerState::Disconnected;
            assert_eq!(
                host.requests - host.ended,
                usize::from(!is_disconnected),
                "{host:?}"
            );
        }
    }

    /// Delivers everything without failures, and retries requests, until nothing is pending.
    fn run_until_idle(&mut self) {
        for _ in 0..MAX_STEPS {
            let connection = self.connections.iter().position(|c| c.is_pending());
            if let Some(number) = connection {
                self.establish(number, true);
                self.deliver(number, 0);
                self.deliver(number, 1);
                self.check_invariants();
                continue;
            }
            if self
                .hosts
                .iter()
                .all(|host| host.state != PeerState::Waiting)
            {
                self.check_final_states();
                return;
            }
            for host in 0..2 {
                let has_no_peer = self.hosts[1 - host].state == PeerState::Disconnected;
                let is_waiting = self.hosts[host].state == PeerState::Waiting;
                if is_waiting && has_no_peer {
                    // It would retry forever.
                    self.event(host, PeerEvent::Timeout, None);
                } else {
                    self.retry(host);
                }
            }
        }
        panic!("not idle after {MAX_STEPS} steps: {:?}", self.hosts);
    }

    fn check_final_states(&self) {
        let [a, b] = &self.hosts;
        let states = [a.state, b.state];
        let are_connected = states == [PeerState::Connected; 2] && a.connection == b.connection;
        let neither = states == [PeerState::Disconnected; 2];
        assert!(are_connected || neither, "{:?}", self.hosts);
        let must_connect = !self.may_fail && a.requests > 0 && b.requests > 0;
        assert!(are_connected || !must_connect, "{:?}", self.hosts);
        let open = self.connections.iter().filter(|c| c.is_open == [true; 2]);
        assert_eq!(open.count(), usize::from(are_connected), "TCP connections");
    }
}

impl Connection {
    /// True if it can be established or has messages in flight.
    fn is_pending(&self) -> bool {
        let is_connecting = !self.is_established && self.is_open[self.from];
        is_connecting || self.to.iter().any(|queue| !queue.is_empty())
    }
}
