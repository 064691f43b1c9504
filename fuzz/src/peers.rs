//! Two peers that ask each other, over a network whose every step the input chooses.
//!
//! However the requests cross, in the end both are connected over the same TCP connection, or
//! neither is; and if nobody gave up and nothing broke, both are.

use std::collections::VecDeque;

use vitcp_lite::Discriminator;
use vitcp_lite::machine::{PeerAction, PeerEvent, PeerName, PeerState, Standing, standing};

use crate::input::Input;

/// More TCP connections than this are not begun at the input's will.
const MOST_CONNECTIONS: usize = 40;
/// A network in which nothing is chosen any more comes to rest within so many steps.
const MOST_STEPS: usize = 2000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    Request,
    Accept,
    NoMatch,
    Closed,
}

/// A TCP connection, from the host that set it up to the other one.
#[derive(Debug)]
struct Connection {
    from: usize,
    port: u16,
    is_established: bool,
    /// Has the host not closed its end?
    is_open: [bool; 2],
    /// On their way to the host.
    to: [VecDeque<Message>; 2],
}

#[derive(Debug, Default)]
struct Host {
    address: [u8; 16],
    state: PeerState,
    /// The connection of its request, or the one that it is connected over.
    connection: Option<usize>,
    /// Requests of its consumer, and how many of them have come to an end.
    asked: usize,
    answered: usize,
}

/// Two hosts and all that is between them.
///
/// # Panics
/// If the two do not agree in the end.
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
        let (what, which) = (input.byte(), usize::from(input.byte()));
        network.step(what, which);
        network.compare();
    }
    network.settle();
}

struct Network {
    hosts: [Host; 2],
    connections: Vec<Connection>,
    /// Do consumers give up, and connections break?
    may_fail: bool,
}

impl Network {
    fn step(&mut self, what: u8, which: usize) {
        let host = which % 2;
        let connection = (which / 2).checked_rem(self.connections.len());
        match (what % 8, connection) {
            (0, _) => self.ask(host),
            (1, _) if self.connections.len() < MOST_CONNECTIONS => self.retry(host),
            (2, Some(connection)) => self.establish(connection, true),
            (3 | 4, Some(connection)) => self.deliver(connection, host),
            (5, Some(connection)) if self.may_fail => self.establish(connection, false),
            (6, Some(connection)) if self.may_fail => self.break_off(connection),
            (7, _) if self.may_fail && which & 2 == 0 => self.event(host, PeerEvent::Timeout, None),
            (7, _) if self.may_fail => self.event(host, PeerEvent::Disconnect, None),
            _ => {}
        }
    }

    fn ask(&mut self, host: usize) {
        let asked = &mut self.hosts[host];
        let has_room = self.connections.len() < MOST_CONNECTIONS;
        if asked.state == PeerState::Disconnected && has_room && (self.may_fail || asked.asked == 0)
        {
            asked.asked += 1;
            self.event(host, PeerEvent::Request, None);
        }
    }

    fn retry(&mut self, host: usize) {
        if self.hosts[host].state == PeerState::Waiting {
            self.event(host, PeerEvent::Retry, None);
        }
    }

    fn establish(&mut self, number: usize, is_there: bool) {
        let connection = &mut self.connections[number];
        let host = connection.from;
        if connection.is_established || !connection.is_open[host] {
            return;
        }
        connection.is_established = is_there;
        if is_there {
            self.event(host, PeerEvent::TcpEstablished, None);
        } else {
            connection.is_open = [false; 2];
            self.hosts[host].connection = None;
            self.event(host, PeerEvent::TcpFailed, None);
        }
    }

    /// What was on its way is lost; both ends hear of it.
    fn break_off(&mut self, number: usize) {
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

    /// The next message arrives. A host that closed its end is told nothing any more.
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
            Message::Accept | Message::NoMatch => unreachable!("an end that is open is in use"),
        }
    }

    /// A request of the other host: it crosses ours, or nobody waits for it.
    fn incoming(&mut self, number: usize, host: usize) {
        let is_asking = matches!(
            self.hosts[host].state,
            PeerState::Connecting | PeerState::PendingAccept | PeerState::Waiting
        );
        if !is_asking {
            self.refuse(number, host);
            return;
        }
        let theirs = self.name(1 - host, number);
        let standing = self.hosts[host]
            .connection
            .map_or(Standing::Concede, |own| {
                standing(self.name(host, own), theirs)
            });
        self.event(host, PeerEvent::Crossed(standing), Some(number));
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
            PeerAction::SetUpTcp => self.set_up(host),
            PeerAction::SendRequest => self.send(self.own(host), host, Message::Request),
            PeerAction::CloseTcp => {
                self.close_own(host);
                self.hosts[host].answered += usize::from(event == PeerEvent::Disconnect);
            }
            PeerAction::Connected => {}
            PeerAction::Failed(_) => {
                self.close_own(host);
                self.hosts[host].answered += 1;
            }
            PeerAction::AcceptTheirs => {
                let theirs = theirs.expect("it crossed ours");
                self.close_own(host);
                self.hosts[host].connection = Some(theirs);
                self.send(theirs, host, Message::Accept);
            }
            PeerAction::RefuseTheirs => self.refuse(theirs.expect("it crossed ours"), host),
            PeerAction::AnswerChallenge => unreachable!("nobody challenges here"),
        }
        if event == PeerEvent::TcpClosed && action == PeerAction::CloseTcp {
            // The end of a connection; a request that is repeated goes on.
            self.hosts[host].answered += usize::from(state == PeerState::Disconnected);
        }
    }

    fn own(&self, host: usize) -> usize {
        self.hosts[host].connection.expect("it has one")
    }

    fn set_up(&mut self, host: usize) {
        let number = self.connections.len();
        assert_eq!(self.hosts[host].connection, None, "it has one");
        self.hosts[host].connection = Some(number);
        self.connections.push(Connection {
            from: host,
            // An odd factor: no two are equal, and they come in no order.
            port: (number as u16).wrapping_mul(40503),
            is_established: false,
            is_open: [true; 2],
            to: Default::default(),
        });
    }

    fn send(&mut self, number: usize, host: usize, message: Message) {
        let connection = &mut self.connections[number];
        assert!(connection.is_established, "sent before TCP is there");
        assert!(connection.is_open[host], "sent on what is closed");
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

    /// What holds at any time.
    fn compare(&self) {
        for host in &self.hosts {
            let has_one = match host.state {
                PeerState::Disconnected | PeerState::Waiting => false,
                PeerState::Connecting | PeerState::PendingAccept | PeerState::Connected => true,
            };
            assert_eq!(host.connection.is_some(), has_one, "{host:?}");
            let is_over = host.state == PeerState::Disconnected;
            assert_eq!(
                host.asked - host.answered,
                usize::from(!is_over),
                "{host:?}"
            );
        }
    }

    /// Nothing breaks any more: everything arrives, and requests are repeated.
    fn settle(&mut self) {
        for _ in 0..MOST_STEPS {
            let connection = self.connections.iter().position(|c| c.is_pending());
            if let Some(number) = connection {
                self.establish(number, true);
                self.deliver(number, 0);
                self.deliver(number, 1);
                self.compare();
                continue;
            }
            if self
                .hosts
                .iter()
                .all(|host| host.state != PeerState::Waiting)
            {
                self.agree();
                return;
            }
            for host in 0..2 {
                let is_alone = self.hosts[1 - host].state == PeerState::Disconnected;
                let is_waiting = self.hosts[host].state == PeerState::Waiting;
                if is_waiting && is_alone {
                    // It would ask for ever.
                    self.event(host, PeerEvent::Timeout, None);
                } else {
                    self.retry(host);
                }
            }
        }
        panic!("they never come to rest: {:?}", self.hosts);
    }

    fn agree(&self) {
        let [a, b] = &self.hosts;
        let states = [a.state, b.state];
        let are_connected = states == [PeerState::Connected; 2] && a.connection == b.connection;
        let neither = states == [PeerState::Disconnected; 2];
        assert!(are_connected || neither, "{:?}", self.hosts);
        let must_be = !self.may_fail && a.asked > 0 && b.asked > 0;
        assert!(are_connected || !must_be, "{:?}", self.hosts);
        let open = self.connections.iter().filter(|c| c.is_open == [true; 2]);
        assert_eq!(open.count(), usize::from(are_connected), "TCP connections");
    }
}

impl Connection {
    /// Is there something that can happen to it?
    fn is_pending(&self) -> bool {
        let begins = !self.is_established && self.is_open[self.from];
        begins || self.to.iter().any(|queue| !queue.is_empty())
    }
}
