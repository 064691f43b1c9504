//! Every event in every state of a VI; writes docs/spec/connection-states.md.
//!
//! Both roles of a peer are tested: the node with the higher port originates.
//!
//! The frames are those of one recorded connection. Engines with the same seed use the same handles and IDs, so that
//! these frames match a VI of another engine in the same state.

use std::fmt::Write;

use fcvi_frame::iu::Opcode::{
    ConnectRequest, ConnectResponse1, ConnectResponse2, ConnectResponse3, DisconnectRequest,
    ReadRequest, ReadResponse, SendRequest,
};
use vi_types::{AsyncError, CallError, ConnId, ReliabilityLevel, Status, ViIndex};

use crate::testkit::document::compare;
use crate::testkit::io::Event;
use crate::testkit::net::{CLIENT, Net, S, SERVER, params};

const RD: ReliabilityLevel = ReliabilityLevel::ReliableDelivery;

/// The states of both sides of the connection procedure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Idle,
    /// Client: RQST sent.
    Requesting,
    /// Client: RESP2 sent.
    AwaitResponse3,
    /// Server: RESP1 sent.
    AwaitResponse2,
    Connected,
    Error,
    /// In the peer pool, without a matching request.
    Pooled,
    /// A peer that yielded: RESP1 sent.
    PeerAwait2,
    /// A peer whose request won: RESP2 sent.
    PeerAwait3,
    /// Connected with a peer, the outcome not taken.
    PeerConnected,
    /// A request that timed out, the outcome not taken.
    PeerTimedOut,
}

/// States of the peer with the lower port.
const PEER_RESPONDER_STATES: [At; 4] = [
    At::Pooled,
    At::PeerAwait2,
    At::PeerConnected,
    At::PeerTimedOut,
];
/// States of the peer with the higher port.
const PEER_ORIGINATOR_STATES: [At; 4] = [
    At::Pooled,
    At::PeerAwait3,
    At::PeerConnected,
    At::PeerTimedOut,
];

const CLIENT_STATES: [At; 5] = [
    At::Idle,
    At::Requesting,
    At::AwaitResponse3,
    At::Connected,
    At::Error,
];
const SERVER_STATES: [At; 4] = [At::Idle, At::AwaitResponse2, At::Connected, At::Error];

/// A VI of each node; the wire of the VI under test is cut.
struct Setup {
    net: Net,
    a: ViIndex,
    b: ViIndex,
    /// A pending request that the consumer of the VI under test may accept.
    pending: ConnId,
}

impl Setup {
    fn subject(&self, node: usize) -> ViIndex {
        if node == CLIENT { self.a } else { self.b }
    }
}

fn start() -> (Net, ViIndex, ViIndex) {
    let mut net = Net::pair();
    let a = net.create(CLIENT, params(RD));
    let b = net.create(SERVER, params(RD));
    for node in [CLIENT, SERVER] {
        net.nodes[node].io.register(7, 0, 64);
    }
    (net, a, b)
}

/// Brings the VI under test, that of this node, into a state.
fn setup(node: usize, at: At) -> Setup {
    let (mut net, a, b) = start();
    let listener = net.listen(SERVER, "x");
    match at {
        At::AwaitResponse3 => net.wire.lose(SERVER, ConnectResponse3, u32::MAX),
        At::AwaitResponse2 => net.wire.lose(CLIENT, ConnectResponse2, u32::MAX),
        At::Idle | At::Requesting | At::Connected | At::Error => {}
        At::Pooled | At::PeerAwait2 | At::PeerAwait3 | At::PeerConnected | At::PeerTimedOut => {
            return peer_setup(net, a, b, node, at);
        }
    }
    if at != At::Idle {
        net.request(CLIENT, a, "x", &[SERVER], None);
        net.settle();
    }
    if !matches!(at, At::Idle | At::Requesting) {
        let conn = net.indication(SERVER, listener).expect("a request").conn;
        net.accept(SERVER, conn, b).expect("a match");
        net.settle();
    }
    if at == At::Error {
        let (other, vi) = if node == CLIENT {
            (SERVER, b)
        } else {
            (CLIENT, a)
        };
        net.disconnect(other, vi);
        net.settle();
    }
    isolate(net, a, b, node)
}

/// Brings a peer into a state. The server's port is the higher one.
fn peer_setup(mut net: Net, a: ViIndex, b: ViIndex, node: usize, at: At) -> Setup {
    match at {
        At::PeerAwait3 => net.wire.lose(CLIENT, ConnectResponse3, u32::MAX),
        At::PeerAwait2 => net.wire.lose(SERVER, ConnectResponse2, u32::MAX),
        _ => {}
    }
    let timeout_ns = (at == At::PeerTimedOut).then_some(S / 1000);
    let vi = if node == CLIENT { a } else { b };
    net.peer_request(node, vi, "x", &[1 - node], timeout_ns);
    net.advance(S / 500);
    if !matches!(at, At::Pooled | At::PeerTimedOut) {
        let other = if node == CLIENT { b } else { a };
        net.peer_request(1 - node, other, "x", &[node], None);
        net.settle();
    }
    isolate(net, a, b, node)
}

/// Posts a receive at each VI and cuts the wire.
fn isolate(mut net: Net, a: ViIndex, b: ViIndex, node: usize) -> Setup {
    // A request of another VI to the consumer of the VI under test.
    let requester = net.create(1 - node, params(RD));
    let listener = net.listen(node, "pending");
    net.request(1 - node, requester, "pending", &[node], None);
    net.settle();
    let pending = net.indication(node, listener).expect("a request").conn;
    net.wire.cut = true;
    for (node, vi) in [(CLIENT, a), (SERVER, b)] {
        net.outcome(node, vi);
        net.post_receive(node, vi, 100);
    }
    net.clear_logs();
    Setup { net, a, b, pending }
}

fn connected() -> (Net, ViIndex, ViIndex) {
    let (mut net, a, b) = start();
    let listener = net.listen(SERVER, "x");
    net.request(CLIENT, a, "x", &[SERVER], None);
    net.settle();
    let conn = net.indication(SERVER, listener).expect("a request").conn;
    net.accept(SERVER, conn, b).expect("a match");
    net.settle();
    (net, a, b)
}

/// Returns the frames of a whole connection that `from` sent, with their names in the document.
fn recorded(from: usize) -> Vec<(&'static str, Vec<u8>)> {
    let (mut net, a, b) = connected();
    let vi = if from == CLIENT { a } else { b };
    net.post_send(from, vi, b"message");
    net.disconnect(from, vi);
    let names = [
        ("RQST", ConnectRequest),
        ("RESP1 accepted", ConnectResponse1),
        ("RESP2", ConnectResponse2),
        ("RESP3", ConnectResponse3),
        ("message", SendRequest),
        ("DISCONNECT_RQST", DisconnectRequest),
    ];
    let mut frames: Vec<_> = names
        .iter()
        .flat_map(|(name, opcode)| net.frames(from, *opcode).into_iter().map(|f| (*name, f)))
        .collect();
    // Both sides read, as their first message.
    let (mut net, a, b) = connected();
    net.post_read(CLIENT, a, (0, 7), 8);
    net.post_read(SERVER, b, (0, 7), 8);
    net.settle();
    for (name, opcode) in [("READ_RQST", ReadRequest), ("READ_RESP", ReadResponse)] {
        let frame = net.frames(from, opcode)[0].clone();
        frames.push((name, frame));
    }
    if from == SERVER {
        let (mut net, a, _) = start();
        net.request(CLIENT, a, "x", &[SERVER], None);
        net.settle();
        let refusal = net.frames(SERVER, ConnectResponse1)[0].clone();
        frames.push(("RESP1 no match", refusal));
    }
    frames
}

/// Returns the frames of a whole connection of peers that `from` sent.
fn recorded_of_peers(from: usize) -> Vec<(&'static str, Vec<u8>)> {
    let (mut net, a, b) = start();
    let vis = [a, b];
    net.peer_request(1 - from, vis[1 - from], "x", &[from], None);
    net.advance(S / 500);
    net.peer_request(from, vis[from], "x", &[1 - from], None);
    net.settle();
    net.post_send(from, vis[from], b"message");
    net.disconnect(from, vis[from]);
    let names = [
        ("RQST", ConnectRequest),
        ("RESP1", ConnectResponse1),
        ("RESP2", ConnectResponse2),
        ("RESP3", ConnectResponse3),
        ("message", SendRequest),
        ("DISCONNECT_RQST", DisconnectRequest),
    ];
    let frames = names
        .iter()
        .flat_map(|(name, opcode)| net.frames(from, *opcode).into_iter().map(|f| (*name, f)));
    frames.collect()
}

type Verb = (&'static str, fn(&mut Setup, usize) -> String);

fn result(outcome: Result<(), CallError>) -> String {
    match outcome {
        Ok(()) => String::new(),
        Err(error) => format!("{error:?}: "),
    }
}

fn verbs() -> Vec<Verb> {
    vec![
        ("connect", |s, node| {
            let vi = s.subject(node);
            result(s.net.try_request(node, vi, "y", &[1 - node], None))
        }),
        ("connect_peer", |s, node| {
            let vi = s.subject(node);
            result(s.net.try_peer_request(node, vi, "y", &[1 - node], None))
        }),
        ("accept", |s, node| {
            let (vi, pending) = (s.subject(node), s.pending);
            result(s.net.accept(node, pending, vi))
        }),
        ("disconnect", |s, node| {
            let vi = s.subject(node);
            s.net.disconnect(node, vi);
            String::new()
        }),
        ("destroy", |s, node| {
            let vi = s.subject(node);
            if s.net.nodes[node].engine.destroy_vi(vi) {
                "destroyed".to_owned()
            } else {
                "refused: ".to_owned()
            }
        }),
        ("fail_vi", |s, node| {
            let (vi, now_ns) = (s.subject(node), s.net.now_ns);
            s.net.act(node, |engine, io| engine.fail_vi(now_ns, vi, io));
            String::new()
        }),
        ("post_send", |s, node| {
            let vi = s.subject(node);
            s.net.post_send(node, vi, b"x");
            String::new()
        }),
        ("post_read", |s, node| {
            let vi = s.subject(node);
            s.net.post_read(node, vi, (0, 7), 8);
            String::new()
        }),
        ("post_read, FCVI_ULP_TIMEOUT", |s, node| {
            let vi = s.subject(node);
            s.net.post_read(node, vi, (0, 7), 8);
            s.net.advance(20 * S);
            String::new()
        }),
        ("post_read, peer_lost", |s, node| {
            let vi = s.subject(node);
            s.net.post_read(node, vi, (0, 7), 8);
            s.net.peer_lost(node, 1 - node);
            String::new()
        }),
        ("peer_lost", |s, node| {
            s.net.peer_lost(node, 1 - node);
            String::new()
        }),
        ("port_lost", |s, node| {
            let now_ns = s.net.now_ns;
            s.net.act(node, |engine, io| engine.port_lost(now_ns, io));
            String::new()
        }),
        ("FCVI_ULP_TIMEOUT", |s, _| {
            s.net.advance(20 * S);
            String::new()
        }),
    ]
}

/// Returns the state after an event, and the consumer's events: the outcome of its call, flushed descriptors, messages,
/// the loss of the connection.
fn after(mut setup: Setup, node: usize) -> String {
    let vi = setup.subject(node);
    let Some(state) = setup.net.nodes[node].engine.state(vi) else {
        return String::new();
    };
    let mut cell = format!("{state:?}");
    match setup.net.outcome(node, vi) {
        Some(Ok(_)) => cell.push_str(" =Ok"),
        Some(Err(error)) => write!(cell, " ={error:?}").expect("a string"),
        None => {}
    }
    if setup.net.nodes[node].engine.peer_request(vi).is_some() {
        match setup.net.peer_outcome(node, vi) {
            Some(Ok(_)) => cell.push_str(" =peer Ok"),
            Some(Err(error)) => write!(cell, " =peer {error:?}").expect("a string"),
            None => cell.push_str(" (peer)"),
        }
    }
    for event in setup.net.log(node, vi) {
        cell.push_str(match event {
            Event::Sent(_, Status::OK, _) => " sent",
            Event::Sent(_, Status::FLUSHED, _) => " send-flushed",
            Event::Sent(..) => " send-failed",
            Event::Received(r) if r.status.is_ok() => " received",
            Event::Received(r) if r.status == Status::FLUSHED => " receive-flushed",
            Event::Received(_) => " receive-failed",
            Event::Async(AsyncError::ConnectionLost | AsyncError::Disconnected) => " CONN_LOST",
            Event::Async(_) => " async",
            Event::State(_) => "",
        });
    }
    cell
}

fn table(node: usize, states: &[At], frames: Vec<(&'static str, Vec<u8>)>) -> String {
    let mut table = String::new();
    let mut row = |name: &str, cells: Vec<String>| {
        writeln!(table, "{name}").expect("a string");
        for (at, cell) in states.iter().zip(cells) {
            writeln!(table, "    {:<15} {cell}", format!("{at:?}")).expect("a string");
        }
    };
    for (name, verb) in verbs() {
        let cell = |at: &At| {
            let mut setup = setup(node, *at);
            let result = verb(&mut setup, node);
            result + &after(setup, node)
        };
        row(name, states.iter().map(cell).collect());
    }
    for (name, frame) in frames {
        let cell = |at: &At| {
            let mut setup = setup(node, *at);
            setup.net.inject(node, &frame);
            after(setup, node)
        };
        row(name, states.iter().map(cell).collect());
    }
    table
}

const HEAD: &str = "# Connections: every state, every event

Made by `pmd/engine/src/tests/states.rs`: `VIPL_WRITE_DOCUMENTS=1 cargo test -p vi-engine tests::states`.

Each line has a state of the procedure, then the state of the VI after the event, `=` the outcome of the consumer's call,
`=peer` the outcome of its peer request (`(peer)`: none yet), and the events of the VI's queues and of the connection.
The events on top are the consumer's verbs, timeouts, losses, and the frames of one recorded connection. Idle: neither
connection nor request; Requesting: RQST sent; AwaitResponse2 and AwaitResponse3: RESP1 and RESP2 sent; Pooled: a peer
without a matching request; PeerTimedOut: the outcome has not been taken.
";

/// Returns the document with the tables of all roles.
fn document() -> String {
    let client = table(CLIENT, &CLIENT_STATES, recorded(SERVER));
    let server = table(SERVER, &SERVER_STATES, recorded(CLIENT));
    let responder = table(CLIENT, &PEER_RESPONDER_STATES, recorded_of_peers(SERVER));
    let originator = table(SERVER, &PEER_ORIGINATOR_STATES, recorded_of_peers(CLIENT));
    let mut document = HEAD.to_owned();
    for (name, table) in [
        ("A client", client),
        ("A server", server),
        ("A peer, of the lower port", responder),
        ("A peer, of the higher port", originator),
    ] {
        write!(document, "\n## {name}\n\n```text\n{table}```\n").expect("a string");
    }
    document
}

#[test]
fn every_event_in_every_state() {
    compare(
        "connection-states.md",
        "vi-engine tests::states",
        &document(),
    );
}
