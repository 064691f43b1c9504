//! Whole lives of connections on a bad wire, judged by what was posted.
//!
//! Both nodes post sends, writes, reads and receives, connect, disconnect and wait
//! at random while the wire loses, doubles, delays and damages frames and is cut
//! now and then, and the ports are short of room. Then the wire heals, each end
//! sends once more, and the judge looks at everything either consumer saw:
//!
//! * UD: every message delivered was sent, whole, in order and at most once.
//! * RD: the messages delivered are the first ones sent, none missing; both ends
//!   know of a break, and each was told once. A read that went well brought what
//!   is there.
//! * RR: as RD, and what completed without error is placed at the other end.
//! * With recovery: both as RR.
//! * Always: descriptors complete once, in order; nothing completes well after a
//!   break; no OX_ID, timer or table entry stays behind.

mod writes;

use std::collections::HashMap;

use writes::{REGION_BYTES, Write};

use crate::testkit::host::{Event, Send};
use crate::testkit::net::{CLIENT, MS, Net, S, SERVER, config, params};
use crate::testkit::rng::Rng;
use crate::testkit::wire::Faults;
use crate::{AsyncError, ConnId, EndpointState, Level, RecoveryConfig, Status, ViIndex};

const CAPACITY: u32 = 10_000;
/// Written by the other end.
const REGION: u32 = 7;
/// Read by the other end; the same bytes at both.
const SOURCE: u32 = 8;
const MAX_SEND: u64 = 9_000;
/// Steps of a connection's traffic, each one write at most.
const STEPS: u64 = 120;

/// What was posted on a send queue, for what its completion without error promises.
#[derive(Clone, Copy, Debug)]
enum Posted {
    /// The so manieth message that takes a receive descriptor.
    Message(usize),
    /// The so manieth write, without immediate data.
    Write(usize),
    /// A read from there.
    Read(usize),
}

/// One end of a connection.
struct End {
    node: usize,
    vi: ViIndex,
    /// What was sent in this connection, in order: its bytes.
    sent: Vec<Vec<u8>>,
    /// What was written in this connection, in order.
    written: Vec<Write>,
    /// Messages of the other end that were delivered.
    delivered: usize,
    posted: HashMap<u64, Posted>,
    /// What completed without error.
    well: Vec<Posted>,
    next_send_id: u64,
    next_receive_id: u64,
    losses_told: u32,
    broken: bool,
}

/// What one connection came to.
#[derive(Debug, Default)]
struct Tally {
    connections: u32,
    failed: u32,
    broken: u32,
    delivered: u32,
    read: u32,
}

struct Simulation {
    net: Net,
    rng: Rng,
    level: Level,
    /// Both ends offer recovery.
    recovery: bool,
    ends: [End; 2],
    tally: Tally,
    message_number: u64,
    what: String,
}

/// Bytes that only this message has: its number, and a pattern from it.
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
    fn new(seed: u64, level: Level, faults: Faults, recovery: bool) -> Self {
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
        let end = |net: &mut Net, node| End {
            node,
            vi: net.create(node, params(level)),
            sent: Vec::new(),
            written: Vec::new(),
            delivered: 0,
            posted: HashMap::new(),
            well: Vec::new(),
            next_send_id: 0,
            next_receive_id: 0,
            losses_told: 0,
            broken: false,
        };
        for node in [CLIENT, SERVER] {
            let host = &mut net.nodes[node].host;
            host.register(REGION, 0, REGION_BYTES);
            host.register(SOURCE, 0, CAPACITY as usize);
            let source = host.regions.get_mut(&SOURCE).expect("just registered");
            source.bytes = source_bytes();
        }
        let ends = [end(&mut net, CLIENT), end(&mut net, SERVER)];
        Self {
            net,
            rng: Rng::new(seed),
            level,
            recovery,
            ends,
            tally: Tally::default(),
            message_number: 0,
            what: format!("seed {seed:#x}, {level:?}, {faults:?}, recovery {recovery}"),
        }
    }

    /// One connection: made or failed, used, healed, judged, ended.
    fn connection(&mut self) {
        for end in &mut self.ends {
            end.sent.clear();
            end.written.clear();
            end.delivered = 0;
            end.posted.clear();
            end.well.clear();
            end.losses_told = 0;
            end.broken = false;
            let host = &mut self.net.nodes[end.node].host;
            let region = host.regions.get_mut(&REGION).expect("registered");
            region.bytes.fill(0);
        }
        let faults = self.net.wire.faults;
        // Receives may be posted before connecting, and stay.
        for at in [0, 0, 0, 1, 1, 1] {
            self.receives(at);
        }
        if self.connect() {
            self.tally.connections += 1;
            self.traffic();
        } else {
            self.tally.failed += 1;
        }
        self.net.wire.faults = Faults::default();
        self.net.wire.cut = false;
        for node in &mut self.net.nodes {
            node.host.room = usize::MAX;
        }
        self.net.advance(2 * S);
        self.last_words();
        self.net.advance(2 * S);
        self.judge_both_ends();
        for at in 0..2 {
            let (node, vi) = (self.ends[at].node, self.ends[at].vi);
            self.net.disconnect(node, vi);
            self.net.settle();
            self.take_log(at);
            let queues = self.net.nodes[node].host.vi(vi);
            assert!(queues.sends.is_empty(), "{}", self.what);
            assert!(queues.receives.is_empty(), "{}", self.what);
            assert_eq!(queues.next_send_id, self.ends[at].next_send_id);
            assert_eq!(queues.next_receive_id, self.ends[at].next_receive_id);
        }
        self.net.advance(2 * S);
        self.judge_leftovers();
        self.net.wire.faults = faults;
    }

    fn connect(&mut self) -> bool {
        let (a, b) = (self.ends[0].vi, self.ends[1].vi);
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
            .act(SERVER, |engine, host| engine.unlisten(listener, host));
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
                11 if self.level != Level::UnreliableDelivery => self.read(at),
                12 => self.net.nodes[at].host.room = self.rng.below(8) as usize,
                13 => {
                    self.net.nodes[at].host.room = usize::MAX;
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
        let (node, vi) = (self.ends[at].node, self.ends[at].vi);
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
        let (node, vi) = (self.ends[at].node, self.ends[at].vi);
        let id = self.net.post(node, vi, read);
        let posted = Posted::Read(from as usize);
        self.ends[at].posted.insert(id, posted);
    }

    fn post(&mut self, at: usize, len: usize, immediate: Option<u32>) {
        self.message_number += 1;
        let data = message(self.message_number, len.max(8));
        let (node, vi) = (self.ends[at].node, self.ends[at].vi);
        self.ends[at].sent.push(data.clone());
        let posted = Posted::Message(self.ends[at].sent.len() - 1);
        let send = Send {
            data,
            immediate,
            fence: self.rng.below(8) == 0,
            ..Send::default()
        };
        let id = self.net.post(node, vi, send);
        self.ends[at].posted.insert(id, posted);
    }

    /// Each end sends once more on the healed wire, with enough receives at the other.
    fn last_words(&mut self) {
        for at in 0..2 {
            self.receives(at);
        }
        for at in 0..2 {
            self.post(at, 8, None);
            self.net.advance(10 * MS);
        }
    }

    /// Reads what a consumer saw and checks what must hold by itself. Returns the data of
    /// the messages delivered.
    fn take_log(&mut self, at: usize) -> Vec<Vec<u8>> {
        let (node, vi) = (self.ends[at].node, self.ends[at].vi);
        let log = self.net.log(node, vi);
        let what = &self.what;
        let end = &mut self.ends[at];
        let mut delivered = Vec::new();
        for event in log {
            match event {
                Event::Sent(id, status, _) => {
                    assert_eq!(id, end.next_send_id, "{what}: sends complete in order");
                    end.next_send_id += 1;
                    assert!(!end.broken || status == Status::FLUSHED, "{what}");
                    if status.is_ok() {
                        end.well.push(end.posted[&id]);
                    }
                }
                Event::Received(received) => {
                    let id = received.id;
                    assert_eq!(
                        id, end.next_receive_id,
                        "{what}: receives complete in order"
                    );
                    end.next_receive_id += 1;
                    let flushed = received.status == Status::FLUSHED;
                    assert!(!end.broken || flushed, "{what}: after the break");
                    if received.status.is_ok() {
                        let whole = received.remote_write
                            || received.length_bytes as usize == received.data.len();
                        assert!(whole, "{what}");
                        delivered.push(received.data);
                    } else {
                        assert_eq!(received.length_bytes, 0, "{what}");
                    }
                }
                Event::State(EndpointState::Error) => {
                    assert!(!end.broken, "{what}: broken twice");
                    end.broken = true;
                }
                Event::Async(AsyncError::ConnectionLost | AsyncError::Disconnected) => {
                    assert!(end.broken, "{what}");
                    end.losses_told += 1;
                }
                Event::State(_) | Event::Async(_) => {}
            }
        }
        delivered
    }

    fn judge_both_ends(&mut self) {
        let delivered = [self.take_log(0), self.take_log(1)];
        let state = |at: usize| self.net.state(self.ends[at].node, self.ends[at].vi);
        let states = [state(0), state(1)];
        let what = format!("{}: {states:?}", self.what);
        let connected = |s: EndpointState| s == EndpointState::Connected;
        assert_eq!(connected(states[0]), connected(states[1]), "{what}");
        for (end, state) in self.ends.iter().zip(states) {
            let told = u32::from(state == EndpointState::Error);
            assert_eq!(end.losses_told, told, "{what}: each break is told once");
        }
        if states.contains(&EndpointState::Error) {
            self.tally.broken += 1;
        }
        for (receiver, got) in delivered.iter().enumerate() {
            self.tally.delivered += got.len() as u32;
            self.ends[receiver].delivered = got.len();
            self.judge_completions(1 - receiver, got.len(), &what);
            let sent = &self.ends[1 - receiver].sent;
            match self.level {
                Level::UnreliableDelivery => assert_subsequence(got, sent, &what),
                Level::ReliableDelivery | Level::ReliableReception => {
                    assert_eq!(*got, sent[..got.len()], "{what}: the first ones, in order");
                    if connected(states[0]) {
                        assert_eq!(got.len(), sent.len(), "{what}: nothing is missing");
                    }
                }
            }
        }
    }

    /// What one end was told to have gone well, against what is there; `delivered`: messages
    /// that the other end got.
    fn judge_completions(&mut self, at: usize, delivered: usize, what: &str) {
        let (node, vi) = (self.ends[at].node, self.ends[at].vi);
        let source = source_bytes();
        let read = self.net.read_data(node, vi);
        self.tally.read += read.len() as u32;
        for (id, data) in read {
            let Posted::Read(from) = self.ends[at].posted[&id] else {
                panic!("{what}: {id} is no read");
            };
            assert_eq!(data, source[from..from + data.len()], "{what}: read");
        }
        let state = self.net.state(node, vi);
        if state == EndpointState::Connected {
            let queues = self.net.nodes[node].host.vi(vi);
            assert!(queues.sends.is_empty(), "{what}: all have completed");
        }
        if self.level != Level::ReliableReception && !self.recovery {
            return;
        }
        for well in &self.ends[at].well {
            match *well {
                Posted::Message(number) => assert!(number < delivered, "{what}: not placed"),
                Posted::Write(number) => {
                    let there = self.target_of(at, number);
                    let whole = there.iter().all(|b| *b == Write::byte(number));
                    assert!(whole, "{what}: not written");
                }
                Posted::Read(_) => {}
            }
        }
    }

    fn judge_leftovers(&self) {
        for (at, node) in self.net.nodes.iter().enumerate() {
            let what = &self.what;
            self.judge_writes(at);
            assert_eq!(node.engine.exchange_usage().0, 0, "{what}: open exchanges");
            assert!(node.engine.closing.iter().all(Option::is_none), "{what}");
            assert!(node.engine.listeners.is_empty(), "{what}");
            assert!(node.engine.timers.len() <= 3, "{what}");
        }
    }
}

/// Every message of `got` was sent, in this order, each at most once.
fn assert_subsequence(got: &[Vec<u8>], sent: &[Vec<u8>], what: &str) {
    let mut rest = sent.iter();
    for data in got {
        assert!(rest.any(|s| s == data), "{what}: not sent, twice or late");
    }
}

fn simulate(seeds: u64, level: Level, faults: Faults, recovery: bool) -> Tally {
    let mut total = Tally::default();
    for seed in 0..seeds {
        let mut simulation = Simulation::new(0x5EED_0000 + seed, level, faults, recovery);
        for _ in 0..4 {
            simulation.connection();
        }
        total.connections += simulation.tally.connections;
        total.failed += simulation.tally.failed;
        total.broken += simulation.tally.broken;
        total.delivered += simulation.tally.delivered;
        total.read += simulation.tally.read;
    }
    println!("{level:?}, {faults:?}, recovery {recovery}: {total:?}");
    total
}

/// Wires from good to hardly usable.
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
fn unreliable_delivery_on_bad_wires() {
    for faults in wires() {
        let tally = simulate(40, Level::UnreliableDelivery, faults, false);
        assert!(
            tally.connections > 100 && tally.delivered > 1000,
            "{tally:?}"
        );
    }
}

fn reliable_on_bad_wires(level: Level) {
    for faults in wires() {
        let tally = simulate(40, level, faults, false);
        assert!(
            tally.connections > 100 && tally.delivered > 100,
            "{tally:?}"
        );
        assert!(tally.broken > 0 && tally.read > 10, "{tally:?}");
    }
}

#[test]
fn reliable_delivery_on_bad_wires() {
    reliable_on_bad_wires(Level::ReliableDelivery);
}

#[test]
fn reliable_reception_on_bad_wires() {
    reliable_on_bad_wires(Level::ReliableReception);
}

/// With recovery no wire breaks a connection by losing frames, only by being cut.
fn recovering_on_bad_wires(level: Level) {
    for faults in wires() {
        let tally = simulate(40, level, faults, true);
        assert!(
            tally.connections > 100 && tally.delivered > 1000 && tally.read > 100,
            "{tally:?}"
        );
    }
}

#[test]
fn recovering_delivery_on_bad_wires() {
    recovering_on_bad_wires(Level::ReliableDelivery);
}

#[test]
fn recovering_reception_on_bad_wires() {
    recovering_on_bad_wires(Level::ReliableReception);
}
