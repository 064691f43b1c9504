//! Simulation of whole connections on a faulty wire, checked against everything that was posted.
//!
//! Both nodes post sends, writes, reads and receives, connect, disconnect and wait at random while the wire loses,
//! duplicates, delays and corrupts frames and is cut from time to time, and the ports accept only a few frames. Then
//! the faults stop, each side sends once more, and all events of both consumers are checked:
//!
//! * UD: every delivered message was sent, and is delivered complete, in order and at most once.
//! * RD: the delivered messages are the first ones sent, none missing; a break is reported once at each side. A read
//!   without error has the bytes of the source.
//! * RR: as RD, and what completed without error is placed at the peer.
//! * With recovery: both as RR.
//! * Always: descriptors complete once, in order; none completes without error after a break; no OX_ID, timer or table
//!   entry remains.

mod one_step;
mod writes;

use std::collections::HashMap;

use vi_types::{AsyncError, ConnId, ReliabilityLevel, Status, ViIndex, ViState};
use writes::{REGION_BYTES, Write};

use crate::RecoveryConfig;
use crate::testkit::io::{Event, Send};
use crate::testkit::net::{CLIENT, MS, Net, S, SERVER, config, params};
use crate::testkit::rng::Rng;
use crate::testkit::wire::Faults;

const CAPACITY: u32 = 10_000;
/// Written by the peer.
const REGION: u32 = 7;
/// Read by the peer; the same bytes at both sides.
const SOURCE: u32 = 8;
const MAX_SEND: u64 = 9_000;
/// Steps of a connection's traffic, each with at most one write.
const STEPS: u64 = 120;

/// A descriptor posted on a send queue, for the checks when it completes without error.
#[derive(Clone, Copy, Debug)]
enum Posted {
    /// Index among the messages that take a receive descriptor.
    Message(usize),
    /// Index among the writes; this one has no immediate data.
    Write(usize),
    /// Offset of a read in the source.
    Read(usize),
}

/// One side of a connection.
struct Endpoint {
    node: usize,
    vi: ViIndex,
    /// Messages sent on this connection, in order.
    sent: Vec<Vec<u8>>,
    /// Writes of this connection, in order.
    written: Vec<Write>,
    /// Number of messages of the peer that were delivered.
    delivered: usize,
    posted: HashMap<u64, Posted>,
    /// Descriptors that completed without error.
    succeeded: Vec<Posted>,
    next_send_id: u64,
    next_receive_id: u64,
    losses_reported: u32,
    broken: bool,
}

/// Counts of a simulation.
#[derive(Debug, Default)]
struct Totals {
    connections: u32,
    failed: u32,
    broken: u32,
    delivered: u32,
    read: u32,
}

struct Simulation {
    net: Net,
    rng: Rng,
    level: ReliabilityLevel,
    /// Both sides offer recovery.
    recovery: bool,
    endpoints: [Endpoint; 2],
    totals: Totals,
    message_number: u64,
    /// All events of both consumers.
    events: Vec<Event>,
    what: String,
}

/// Returns the unique contents of a message: its number, and a pattern derived from it.
fn message(number: u64, len: usize) -> Vec<u8> {
    let mut data = Rng::new(number).bytes(len);
    let head = number.to_be_bytes();
    let n = len.min(8);
    data[..n].copy_from_slice(&head[..n]);
    data
}

fn source_bytes() -> Vec<u8> {
    Rng::new(SOURCE.into()).bytes(CAPACITY as usize)
}

impl Simulation {
    fn new(seed: u64, level: ReliabilityLevel, faults: Faults, recovery: bool) -> Self {
        let configs = [CLIENT, SERVER].map(|node| {
            let mut config = config(node);
            config.ulp_timeout_ns = 400 * MS;
            config.e_d_tov_ns = 50 * MS;
            config.r_a_tov_ns = 200 * MS;
            config.max_unanswered = 8;
            config.max_reads_accepted = 2;
            config.recovery = recovery.then(RecoveryConfig::default);
            config
        });
        let mut net = Net::new(configs.to_vec(), seed);
        net.wire.tracing = false;
        net.wire.faults = faults;
        let endpoint = |net: &mut Net, node| Endpoint {
            node,
            vi: net.create(node, params(level)),
            sent: Vec::new(),
            written: Vec::new(),
            delivered: 0,
            posted: HashMap::new(),
            succeeded: Vec::new(),
            next_send_id: 0,
            next_receive_id: 0,
            losses_reported: 0,
            broken: false,
        };
        for node in [CLIENT, SERVER] {
            let io = &mut net.nodes[node].io;
            io.register(REGION, 0, REGION_BYTES);
            io.register(SOURCE, 0, CAPACITY as usize);
            let source = io.regions.get_mut(&SOURCE).expect("just registered");
            source.bytes = source_bytes();
        }
        let endpoints = [endpoint(&mut net, CLIENT), endpoint(&mut net, SERVER)];
        Self {
            net,
            rng: Rng::new(seed),
            level,
            recovery,
            endpoints,
            totals: Totals::default(),
            message_number: 0,
            events: Vec::new(),
            what: format!("seed {seed:#x}, {level:?}, {faults:?}, recovery {recovery}"),
        }
    }

    /// Runs one connection: connects, sends traffic, stops the faults, checks the events and disconnects.
    fn connection(&mut self) {
        for endpoint in &mut self.endpoints {
            endpoint.sent.clear();
            endpoint.written.clear();
            endpoint.delivered = 0;
            endpoint.posted.clear();
            endpoint.succeeded.clear();
            endpoint.losses_reported = 0;
            endpoint.broken = false;
            let io = &mut self.net.nodes[endpoint.node].io;
            let region = io.regions.get_mut(&REGION).expect("registered");
            region.bytes.fill(0);
        }
        let faults = self.net.wire.faults;
        // Receives may be posted before connecting, and stay.
        for at in [0, 0, 0, 1, 1, 1] {
            self.receives(at);
        }
        if self.connect() {
            self.totals.connections += 1;
            self.traffic();
        } else {
            self.totals.failed += 1;
        }
        self.net.wire.faults = Faults::default();
        self.net.wire.cut = false;
        for node in &mut self.net.nodes {
            node.io.room = usize::MAX;
        }
        self.net.advance(2 * S);
        self.send_final_messages();
        self.net.advance(2 * S);
        self.check_both_sides();
        for at in 0..2 {
            let (node, vi) = (self.endpoints[at].node, self.endpoints[at].vi);
            self.net.disconnect(node, vi);
            self.net.settle();
            self.take_log(at);
            let queues = self.net.nodes[node].io.vi(vi);
            assert!(queues.sends.is_empty(), "{}", self.what);
            assert!(queues.receives.is_empty(), "{}", self.what);
            assert_eq!(queues.next_send_id, self.endpoints[at].next_send_id);
            assert_eq!(queues.next_receive_id, self.endpoints[at].next_receive_id);
        }
        self.net.advance(2 * S);
        self.check_leftovers();
        self.net.wire.faults = faults;
    }

    fn connect(&mut self) -> bool {
        let (a, b) = (self.endpoints[0].vi, self.endpoints[1].vi);
        let listener = self.net.listen(SERVER, "x");
        self.net.request(CLIENT, a, "x", &[SERVER], Some(2 * S));
        let (mut client, mut server) = (None, None);
        let mut conn: Option<ConnId> = None;
        for _ in 0..60 {
            self.net.advance(50 * MS);
            if conn.is_none() {
                conn = self.net.indication(SERVER, listener).map(|i| i.conn);
                if let Some(conn) = conn {
                    server = self.net.accept(SERVER, conn, b).err().map(Err);
                }
            }
            client = client.or(self.net.outcome(CLIENT, a));
            server = server.or(self.net.outcome(SERVER, b));
            if client.is_some() && (server.is_some() || conn.is_none()) {
                break;
            }
        }
        self.net
            .act(SERVER, |engine, io| engine.unlisten(listener, io));
        assert!(client.is_some(), "{}: no outcome", self.what);
        matches!((client, server), (Some(Ok(_)), Some(Ok(_))))
    }

    fn traffic(&mut self) {
        for _ in 0..self.rng.below(STEPS) {
            let at = self.rng.below(2) as usize;
            match self.rng.below(15) {
                0..5 => self.send(at),
                5..9 => self.receives(at),
                9..11 => self.write(at),
                11 if self.level.is_reliable() => self.read(at),
                12 => self.net.nodes[at].io.room = self.rng.below(8) as usize,
                13 => {
                    self.net.nodes[at].io.room = usize::MAX;
                    let pause = self.rng.below(20 * MS);
                    self.net.advance(pause);
                }
                _ => {
                    if self.rng.below(20) == 0 {
                        self.net.wire.cut ^= true;
                    }
                    self.net.advance(2 * MS);
                }
            }
        }
    }

    fn receives(&mut self, at: usize) {
        let (node, vi) = (self.endpoints[at].node, self.endpoints[at].vi);
        for _ in 0..4 {
            // A message that does not fit breaks a reliable connection.
            let capacity_bytes = match self.rng.below(16) {
                0 => 3_000,
                _ => CAPACITY,
            };
            self.net.post_receive(node, vi, capacity_bytes);
        }
    }

    fn send(&mut self, at: usize) {
        let len = match self.rng.below(4) {
            0 => self.rng.below(MAX_SEND),
            1 => 2096 + self.rng.below(3) - 1,
            _ => self.rng.below(100),
        };
        self.post(at, len as usize, None);
    }

    fn read(&mut self, at: usize) {
        let from = self.rng.below(u64::from(CAPACITY) / 2);
        let len = match self.rng.below(3) {
            0 => 0,
            1 => self.rng.below(100),
            _ => self.rng.below(u64::from(CAPACITY) / 2),
        };
        let fence = self.rng.below(3) == 0;
        let read = Send {
            fence,
            ..crate::testkit::net::read((from, SOURCE), len as usize)
        };
        let (node, vi) = (self.endpoints[at].node, self.endpoints[at].vi);
        let id = self.net.post(node, vi, read);
        let posted = Posted::Read(from as usize);
        self.endpoints[at].posted.insert(id, posted);
    }

    fn post(&mut self, at: usize, len: usize, immediate: Option<u32>) {
        self.message_number += 1;
        let data = message(self.message_number, len.max(8));
        let (node, vi) = (self.endpoints[at].node, self.endpoints[at].vi);
        self.endpoints[at].sent.push(data.clone());
        let posted = Posted::Message(self.endpoints[at].sent.len() - 1);
        let send = Send {
            data,
            immediate,
            fence: self.rng.below(8) == 0,
            ..Send::default()
        };
        let id = self.net.post(node, vi, send);
        self.endpoints[at].posted.insert(id, posted);
    }

    /// Each side sends once more without faults, with enough receives at the peer.
    fn send_final_messages(&mut self) {
        for at in 0..2 {
            self.receives(at);
        }
        for at in 0..2 {
            self.post(at, 8, None);
            self.net.advance(10 * MS);
        }
    }

    /// Takes the events of a consumer and checks them by themselves. Returns the contents of the delivered messages.
    fn take_log(&mut self, at: usize) -> Vec<Vec<u8>> {
        let (node, vi) = (self.endpoints[at].node, self.endpoints[at].vi);
        let log = self.net.log(node, vi);
        self.events.extend_from_slice(&log);
        let what = &self.what;
        let endpoint = &mut self.endpoints[at];
        let mut delivered = Vec::new();
        for event in log {
            match event {
                Event::Sent(id, status, _) => {
                    assert_eq!(id, endpoint.next_send_id, "{what}: sends complete in order");
                    endpoint.next_send_id += 1;
                    assert!(!endpoint.broken || status == Status::FLUSHED, "{what}");
                    if status.is_ok() {
                        endpoint.succeeded.push(endpoint.posted[&id]);
                    }
                }
                Event::Received(received) => {
                    let id = received.id;
                    assert_eq!(
                        id, endpoint.next_receive_id,
                        "{what}: receives complete in order"
                    );
                    endpoint.next_receive_id += 1;
                    let flushed = received.status == Status::FLUSHED;
                    assert!(!endpoint.broken || flushed, "{what}: after the break");
                    if received.status.is_ok() {
                        let whole = received.remote_write
                            || received.length_bytes as usize == received.data.len();
                        assert!(whole, "{what}");
                        delivered.push(received.data);
                    } else {
                        assert_eq!(received.length_bytes, 0, "{what}");
                    }
                }
                Event::State(ViState::Error) => {
                    assert!(!endpoint.broken, "{what}: broken twice");
                    endpoint.broken = true;
                }
                Event::Async(AsyncError::ConnectionLost | AsyncError::Disconnected) => {
                    assert!(endpoint.broken, "{what}");
                    endpoint.losses_reported += 1;
                }
                Event::State(_) | Event::Async(_) => {}
            }
        }
        delivered
    }

    fn check_both_sides(&mut self) {
        let delivered = [self.take_log(0), self.take_log(1)];
        let state = |at: usize| {
            self.net
                .state(self.endpoints[at].node, self.endpoints[at].vi)
        };
        let states = [state(0), state(1)];
        let what = format!("{}: {states:?}", self.what);
        let connected = |s: ViState| s == ViState::Connected;
        assert_eq!(connected(states[0]), connected(states[1]), "{what}");
        for (endpoint, state) in self.endpoints.iter().zip(states) {
            let breaks = u32::from(state == ViState::Error);
            assert_eq!(
                endpoint.losses_reported, breaks,
                "{what}: reports of a break"
            );
        }
        if states.contains(&ViState::Error) {
            self.totals.broken += 1;
        }
        for (receiver, got) in delivered.iter().enumerate() {
            self.totals.delivered += got.len() as u32;
            self.endpoints[receiver].delivered = got.len();
            self.check_completions(1 - receiver, got.len(), &what);
            let sent = &self.endpoints[1 - receiver].sent;
            match self.level {
                ReliabilityLevel::UnreliableDelivery => assert_subsequence(got, sent, &what),
                ReliabilityLevel::ReliableDelivery | ReliabilityLevel::ReliableReception => {
                    assert_eq!(*got, sent[..got.len()], "{what}: the first ones, in order");
                    if connected(states[0]) {
                        assert_eq!(got.len(), sent.len(), "{what}: missing messages");
                    }
                }
            }
        }
    }

    /// Checks the descriptors of one side that completed without error against the memory; `delivered`: number of
    /// messages delivered to the peer.
    fn check_completions(&mut self, at: usize, delivered: usize, what: &str) {
        let (node, vi) = (self.endpoints[at].node, self.endpoints[at].vi);
        let source = source_bytes();
        let read = self.net.read_data(node, vi);
        self.totals.read += read.len() as u32;
        for (id, data) in read {
            let Posted::Read(from) = self.endpoints[at].posted[&id] else {
                panic!("{what}: {id} is no read");
            };
            assert_eq!(data, source[from..from + data.len()], "{what}: read");
        }
        let state = self.net.state(node, vi);
        if state == ViState::Connected {
            let queues = self.net.nodes[node].io.vi(vi);
            assert!(queues.sends.is_empty(), "{what}: all have completed");
        }
        if self.level != ReliabilityLevel::ReliableReception && !self.recovery {
            return;
        }
        for posted in &self.endpoints[at].succeeded {
            match *posted {
                Posted::Message(number) => assert!(number < delivered, "{what}: not placed"),
                Posted::Write(number) => {
                    let target = self.target_of(at, number);
                    let whole = target.iter().all(|b| *b == Write::byte(number));
                    assert!(whole, "{what}: not written");
                }
                Posted::Read(_) => {}
            }
        }
    }

    fn check_leftovers(&self) {
        for (at, node) in self.net.nodes.iter().enumerate() {
            let what = &self.what;
            self.check_writes(at);
            assert_eq!(node.engine.exchange_usage().0, 0, "{what}: open exchanges");
            assert!(
                node.engine
                    .port
                    .pending_disconnects
                    .iter()
                    .all(Option::is_none),
                "{what}"
            );
            assert!(node.engine.listeners.is_empty(), "{what}");
            assert!(node.engine.port.timers.len() <= 3, "{what}");
        }
    }
}

/// Asserts that every message of `got` was sent, in this order and at most once.
fn assert_subsequence(got: &[Vec<u8>], sent: &[Vec<u8>], what: &str) {
    let mut remaining = sent.iter();
    for data in got {
        let found = remaining.any(|s| s == data);
        assert!(found, "{what}: not sent, duplicate or out of order");
    }
}

fn simulate(seeds: u64, level: ReliabilityLevel, faults: Faults, recovery: bool) -> Totals {
    let mut total = Totals::default();
    for seed in 0..seeds {
        let mut simulation = Simulation::new(0x5EED_0000 + seed, level, faults, recovery);
        for _ in 0..4 {
            simulation.connection();
        }
        total.connections += simulation.totals.connections;
        total.failed += simulation.totals.failed;
        total.broken += simulation.totals.broken;
        total.delivered += simulation.totals.delivered;
        total.read += simulation.totals.read;
    }
    println!("{level:?}, {faults:?}, recovery {recovery}: {total:?}");
    total
}

/// Returns the faults of wires from reliable to hardly usable.
fn wires() -> [Faults; 6] {
    let none = Faults {
        late_ns: 5 * MS,
        ..Faults::default()
    };
    [
        none,
        Faults {
            loss: 10_000,
            ..none
        },
        Faults {
            duplicate: 100_000,
            ..none
        },
        Faults {
            late: 50_000,
            ..none
        },
        Faults {
            corrupt: 20_000,
            ..none
        },
        Faults {
            loss: 150_000,
            duplicate: 100_000,
            corrupt: 50_000,
            late: 100_000,
            ..none
        },
    ]
}

#[test]
fn unreliable_delivery_on_faulty_wires() {
    for faults in wires() {
        let totals = simulate(40, ReliabilityLevel::UnreliableDelivery, faults, false);
        assert!(
            totals.connections > 100 && totals.delivered > 1000,
            "{totals:?}"
        );
    }
}

fn reliable_on_faulty_wires(level: ReliabilityLevel) {
    for faults in wires() {
        let totals = simulate(40, level, faults, false);
        assert!(
            totals.connections > 100 && totals.delivered > 100,
            "{totals:?}"
        );
        assert!(totals.broken > 0 && totals.read > 10, "{totals:?}");
    }
}

#[test]
fn reliable_delivery_on_faulty_wires() {
    reliable_on_faulty_wires(ReliabilityLevel::ReliableDelivery);
}

#[test]
fn reliable_reception_on_faulty_wires() {
    reliable_on_faulty_wires(ReliabilityLevel::ReliableReception);
}

/// With recovery lost frames do not break a connection, only a cut wire does.
fn recovery_on_faulty_wires(level: ReliabilityLevel) {
    for faults in wires() {
        let totals = simulate(40, level, faults, true);
        assert!(
            totals.connections > 100 && totals.delivered > 1000 && totals.read > 100,
            "{totals:?}"
        );
    }
}

#[test]
fn reliable_delivery_with_recovery_on_faulty_wires() {
    recovery_on_faulty_wires(ReliabilityLevel::ReliableDelivery);
}

#[test]
fn reliable_reception_with_recovery_on_faulty_wires() {
    recovery_on_faulty_wires(ReliabilityLevel::ReliableReception);
}
